"""A model with the detector fitted to its statistics: images in, verdicts out."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from dose_ood.detector import Detector, Scores
from dose_ood.errors import InputError
from dose_ood.measure import Progress, measure
from dose_ood.models.registry import Loaded, Model, model_from_state, model_state
from dose_ood.statistics import Statistics

Images = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Guard:
    """Takes images where a detector takes a table.

    Made by `Guard.load`, or by `Guard.of` from a detector that holds its model.

    Parameters
    ----------
    detector
        A detector that holds the state of `model`.
    model
        The model that measures its statistics.
    """

    detector: Detector
    model: Model

    @classmethod
    def of(cls, detector: Detector, where: str = "the detector") -> Self:
        """Build the model that a detector holds."""
        if detector.model is None:
            raise InputError(
                f"{where} holds no model, so it takes tables of statistics, not images: see dose fit --model"
            )
        return cls(detector, model_from_state(detector.model, where).model.eval())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a detector's directory that holds a model, or `zoo:NAME`; nothing in it is executed."""
        return cls.of(Detector.load(path), str(path))

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of the images it takes."""
        return tuple(self.model.config.shape)

    def measure(self, images: Images, *, batch: int = 256, progress: Progress | None = None) -> Statistics:
        """The statistics of images, uint8 of shape (n, c, h, w)."""
        return measure(self.model, self.check(images), batch=batch, progress=progress)

    def score(self, images: Images) -> Scores:
        """The verdict on each image."""
        return self.detector.score(self.measure(images))

    def reconstruct(self, images: Images) -> Images:
        """What the model makes of images: a VAE's reconstructions; a flow gives the images themselves."""
        with torch.inference_mode():
            found: Images = self.model.reconstruct(
                torch.from_numpy(np.require(self.check(images), requirements=["C", "W"]))
            ).numpy()
        return found

    def check(self, images: Images) -> Images:
        """The images, if they are such as the model takes."""
        if images.dtype != np.uint8 or images.shape[1:] != self.shape:
            expected = ", ".join(map(str, self.shape))
            raise InputError(f"expected uint8 images of shape (n, {expected}), got {images.dtype} of {images.shape}")
        return images


def with_model(detector: Detector, loaded: Loaded) -> Detector:
    """A detector that holds the model its statistics were measured with.

    Parameters
    ----------
    detector
        A detector of a single model's statistics.
    loaded
        That model, and where it comes from.
    """
    missing = sorted(set(detector.statistics) - set(statistics_of(loaded.model)))
    if missing:
        raise InputError(f"the model gives {', '.join(statistics_of(loaded.model))}, and not {', '.join(missing)}")
    return replace(detector, model=model_state(loaded.model, loaded.provenance))


def statistics_of(model: Model) -> Sequence[str]:
    """The names of what a model measures."""
    with torch.inference_mode():
        return tuple(model.eval().measure(torch.zeros((1, *model.config.shape), dtype=torch.uint8)))
