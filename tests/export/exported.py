"""Run an exported detector, and compare what it says with what the detector says."""

import numpy as np
import onnx
import onnxruntime

from dose_ood import Detector, Scores
from dose_ood.export import noise_for

OUTPUTS = ("score", "p_value", "is_typical", "is_bad", "statistics")


class Session:
    """A checked model in onnxruntime, on one thread."""

    def __init__(self, model: onnx.ModelProto) -> None:
        onnx.checker.check_model(model, full_check=True)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        content = model.SerializeToString()
        self.session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self.metadata = self.session.get_modelmeta().custom_metadata_map
        assert tuple(output.name for output in self.session.get_outputs()) == OUTPUTS

    def table(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        return dict(zip(OUTPUTS, self.session.run(None, {"table": rows}), strict=True))

    def images(self, images: np.ndarray, noise: np.ndarray | None = None) -> dict[str, np.ndarray]:
        taken = {"images": images}
        if self.metadata["noise"] != "null":
            taken["noise"] = noise_for(images, self.metadata) if noise is None else noise
        return dict(zip(OUTPUTS, self.session.run(None, taken), strict=True))


def assert_same(found: dict[str, np.ndarray], expected: Scores, tolerance: float) -> None:
    """Scores to a relative tolerance, p-values and verdicts exactly."""
    assert found["score"].dtype == found["p_value"].dtype == found["statistics"].dtype == np.float64
    assert found["is_typical"].dtype == found["is_bad"].dtype == np.bool_
    np.testing.assert_allclose(found["score"], expected.score, rtol=tolerance, atol=0)
    for name in ("p_value", "is_typical", "is_bad"):
        np.testing.assert_array_equal(found[name], getattr(expected, name), err_msg=name)


def odd_rows(rows: np.ndarray, detector: Detector) -> np.ndarray:
    """Rows of the bulk, of gaps and tails, at the held-out rows' own values, and such as are no rows at all."""
    spread = rows.std(axis=0) + (rows.std(axis=0) == 0)
    far = [rows[:40] + sign * distance * spread for distance in (3, 30, 1e3, 1e6, 1e12, 1e140) for sign in (-1, 1)]
    one_far = [rows[:1] + 1e6 * np.diag(spread)]
    low, high = rows.min(axis=0), rows.max(axis=0)
    across = [low + (high - low) * np.linspace(-0.5, 1.5, 2_001)[:, None]]
    bad = np.repeat(rows[:1], 7, axis=0)
    bad[0, 0] = bad[1, -1] = bad[2] = np.nan
    bad[3, 0] = bad[4] = np.inf
    bad[5, -1] = bad[6] = -np.inf
    return np.concatenate([rows, *far, *one_far, *across, bad])
