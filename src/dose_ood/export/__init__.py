"""A detector as one ONNX file, which any runtime can score with; and the noise that such a file takes.

`noise_for` needs neither torch nor onnx, `write_onnx` needs onnx, and torch only for a detector that holds its model.
"""

import os
from pathlib import Path
from typing import Literal

from dose_ood.detector import Detector
from dose_ood.errors import InputError
from dose_ood.export.noise import Noise, noise_for
from dose_ood.tables import check_target, explaining, replacing

Input = Literal["images", "table"]

__all__ = ["Input", "Noise", "noise_for", "write_onnx"]


def write_onnx(detector: Detector, path: str | os.PathLike[str], takes: Input | None = None) -> Input:
    """Write a detector as one ONNX file, whole or not at all; gives what the file takes.

    Its outputs are `score`, `p_value`, `is_typical`, `is_bad`, of shape (n,), and `statistics`, of shape (n, columns).

    Parameters
    ----------
    detector
        Fitted and calibrated.
    path
        The file to write; its name ends in .onnx.
    takes
        "images", uint8 of shape (n, c, h, w), and the noise that `noise_for` makes of them, which needs a detector that
        holds its model; or "table", the statistics in float64. By default images if the detector holds its model.
    """
    target = Path(path)
    if target.suffix != ".onnx":
        raise InputError(f"expected a file whose name ends in .onnx, got {target}")
    check_target(target)
    chosen: Input = takes or ("table" if detector.model is None else "images")
    try:
        from dose_ood.export.file import image_model, table_model
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "onnx":
            raise
        raise InputError('an ONNX file needs the package onnx: pip install "dose-ood[onnx]"') from None
    model = image_model(detector) if chosen == "images" else table_model(detector)
    with explaining(f"cannot write {target}"), replacing(target) as temporary:
        temporary.write_bytes(model.SerializeToString(deterministic=True))
    return chosen
