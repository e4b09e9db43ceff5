"""The noise that an exported model takes as its second input; needs neither torch nor onnx."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError
from dose_ood.noise import content_normal, content_uniform

Distribution = Literal["normal", "uniform"]


@dataclass(frozen=True)
class Noise:
    """What a model draws for each image.

    Parameters
    ----------
    distribution
        "normal": standard normal; "uniform": from 0 up to, and without, 1.
    shape
        Of the draws of one image: (draws, latent dimensions) of a VAE, (channels, height, width) of a Glow.
    """

    distribution: Distribution
    shape: tuple[int, ...]

    def of(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """The very noise that `dose` measures with: a function of each image's bytes, shape (n, *shape)."""
        if self.distribution == "normal":
            draws, *size = self.shape
            return content_normal(images, draws, size)
        return content_uniform(images, self.shape)


def noise_for(images: NDArray[np.uint8], metadata: Mapping[str, str]) -> NDArray[np.float64]:
    """The input `noise` of an exported detector, for its input `images`.

    Parameters
    ----------
    images
        uint8 of shape (n, c, h, w).
    metadata
        Of the file: `session.get_modelmeta().custom_metadata_map` in onnxruntime.

    Examples
    --------
    >>> metadata = {"noise": '{"distribution": "normal", "shape": [16, 2]}'}
    >>> noise_for(np.zeros((3, 1, 28, 28), np.uint8), metadata).shape
    (3, 16, 2)
    """
    found = json.loads(metadata.get("noise", "null"))
    if not isinstance(found, dict) or found.get("distribution") not in ("normal", "uniform"):
        raise InputError(
            "this file's metadata name no noise: it takes images alone or a table of statistics, or is none of dose's"
        )
    return Noise(found["distribution"], tuple(found["shape"])).of(images)
