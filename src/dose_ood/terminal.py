"""Text to look at in a terminal: pure functions from values to strings."""

import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

BARS = " ▏▎▍▌▋▊▉█"


def bar(share: float, width: int) -> str:
    """A horizontal bar as long as `share` of `width` characters, to an eighth of a character.

    Examples
    --------
    >>> bar(0.5, 8), bar(0.3125, 4)
    ('████', '█▎')
    """
    whole, part = divmod(round(share * width * 8), 8)
    return BARS[8] * whole + BARS[part].strip()


def histogram(values: ArrayLike, threshold: float, bins: int = 16, width: int = 48) -> str:
    """The distribution of scores, from the least to the most typical, one line a bin, cut at the threshold.

    Scores below their 0.5 % quantile share the first line, so that one outlier does not flatten the rest.

    Examples
    --------
    >>> print(histogram([1, 3, 4, 5, 5, 6, 6, 6, 7, 9], threshold=4.0, bins=4, width=8))
            -∞ ██ 1
          1.09 ██ 1
         3.067  0
    ────────── threshold 4
             4 ██████ 3
         5.045 ████████ 4
         7.022 ██ 1
    """
    scores = np.asarray(values, dtype=np.float64)
    low, high = float(np.quantile(scores, 0.005)), float(scores.max())
    edges = np.linspace(low, high, bins + 1)[:-1]
    edges = np.concatenate([[-np.inf], edges[edges < threshold], [threshold], edges[edges > threshold]])
    counts = np.bincount(np.searchsorted(edges, scores, side="right") - 1, minlength=len(edges))
    lines = [
        f"{'-∞' if np.isinf(edge) else f'{edge:.4g}':>10} {bar(count / counts.max(), width)} {count:,}"
        for edge, count in zip(edges, counts, strict=True)
    ]
    lines.insert(int(np.searchsorted(edges, threshold)), f"{'─' * 10} threshold {threshold:.6g}")
    return "\n".join(lines)


def as_json(value: Mapping[str, object]) -> str:
    """JSON for machines; numbers that JSON does not have become null."""

    def plain(item: object) -> object:
        if isinstance(item, Mapping):
            return {str(key): plain(each) for key, each in item.items()}
        if isinstance(item, list | tuple | np.ndarray):
            return [plain(each) for each in item]
        if isinstance(item, np.generic):
            return plain(item.item())
        return None if isinstance(item, float) and not np.isfinite(item) else item

    return json.dumps(plain(value), ensure_ascii=False, indent=2, allow_nan=False)
