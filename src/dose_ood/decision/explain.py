"""Which statistics made a row atypical."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dose_ood.errors import InputError

Matrix = NDArray[np.float64]

_NOTABLE = 0.05  # a statistic this low among held-out rows is named
_NAMED = 3


@dataclass(frozen=True)
class Part:
    """One statistic of a row: its value, what it adds to the score, and where that lies among held-out rows.

    `percentile` is (1 + rank) / (1 + m), the rank being the number of the m held-out rows to which the statistic adds
    no more: small = damning, as with p-values.
    """

    name: str
    value: float
    contribution: float
    percentile: float


@dataclass(frozen=True)
class Explanation:
    """Why a row has the score it has; `parts` go from the most to the least damning."""

    row: int
    score: float
    p_value: float
    is_typical: bool
    parts: tuple[Part, ...]

    @property
    def summary(self) -> str:
        """One line in plain English."""
        verdict = f"{'typical' if self.is_typical else 'atypical'} (p = {self.p_value:.2g})"
        notable = [part for part in self.parts if part.percentile <= _NOTABLE][:_NAMED]
        if notable:
            reasons = ", ".join(f"{part.name} than {_share(part)}" for part in notable[1:])
            first = f"{notable[0].name} is less typical than {_share(notable[0])} of held-out rows"
            return f"{verdict}: {first}" + (f", {reasons}" if reasons else "")
        if self.is_typical:
            return f"{verdict}: no statistic stands out"
        first = f"{self.parts[0].name} comes first, less typical than {_share(self.parts[0])} of held-out rows"
        return f"{verdict}: no single statistic stands out; {first}"


def explain(
    contributions: ArrayLike,
    held_out_contributions: ArrayLike,
    *,
    names: Sequence[str],
    values: ArrayLike,
    scores: ArrayLike,
    p_values: ArrayLike,
    is_typical: ArrayLike,
) -> tuple[Explanation, ...]:
    """One explanation a row.

    Statistics that are equally rare are ordered by how far the contribution is below the held-out median: a difference
    of log-densities, which does not depend on the statistic's unit as the contribution itself does.

    Parameters
    ----------
    contributions
        What each statistic adds to the score of each row, shape (rows, columns).
    held_out_contributions
        The same for held-out rows, each column sorted upwards on its own (`calibration_contributions_`).
    names
        Name of each column.
    values
        Value of each statistic of each row, shape (rows, columns).
    scores, p_values, is_typical
        Score, p-value and verdict of each row.

    Examples
    --------
    >>> held_out = np.log(np.linspace(0.01, 1, 99))[:, None] * [1, 1]
    >>> rows = [[-9.0, -0.1]]
    >>> (found,) = explain(
    ...     rows, held_out, names=["rate", "iwae"], values=rows, scores=[-9.1], p_values=[0.01], is_typical=[False]
    ... )
    >>> found.summary
    'atypical (p = 0.01): rate is less typical than 99.0 % of held-out rows'
    """
    added, held_out, raw = _matrix(contributions), _matrix(held_out_contributions), _matrix(values)
    rows, columns = added.shape
    if not len(held_out):
        raise InputError("explanations need held-out contributions, got none: call calibrate first")
    if raw.shape != added.shape or held_out.shape[1] != columns or len(names) != columns:
        raise InputError(
            f"contributions have shape {added.shape}: values must have the same, got {raw.shape}; held-out "
            f"contributions and names need {columns} columns, got {held_out.shape[1]} and {len(names)}"
        )
    judged = np.column_stack([scores, p_values, is_typical])
    if len(judged) != rows:
        raise InputError(f"contributions have {rows} rows: scores need as many, got {len(judged)}")
    ranks = [np.searchsorted(held_out[:, j], added[:, j], side="right") for j in range(columns)]
    percentiles = (1.0 + np.stack(ranks, axis=1)) / (1.0 + len(held_out))
    deficits = added - np.median(held_out, axis=0)
    order = np.lexsort((deficits, percentiles), axis=1)
    return tuple(
        Explanation(
            i,
            float(judged[i, 0]),
            float(judged[i, 1]),
            bool(judged[i, 2]),
            tuple(Part(names[j], float(raw[i, j]), float(added[i, j]), float(percentiles[i, j])) for j in order[i]),
        )
        for i in range(rows)
    )


def _share(part: Part) -> str:
    """1 − percentile, rounded down: nothing is rarer than 100.0 % of a finite sample."""
    return f"{math.floor(1000 * (1 - part.percentile) + 1e-9) / 10:.1f} %"


def _matrix(values: ArrayLike) -> Matrix:
    result = np.asarray(values, dtype=np.float64)
    if result.ndim != 2 or np.isnan(result).any():
        raise InputError(f"explanations need matrices (rows, columns) without NaN, got shape {result.shape}")
    return result
