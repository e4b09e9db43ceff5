"""Has the model memorised its training data? The expected calibration error between training and held-out scores."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError
from dose_ood.noise import generator

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ScoreBins:
    """Quantile bins of training scores: inner edges, the share of training scores in each bin, and their number."""

    edges: Vector
    shares: Vector
    rows: int


@dataclass(frozen=True)
class Memorisation:
    """An expected calibration error and what it would be by chance alone, had nothing been memorised."""

    ece: float
    by_chance: float
    by_chance_95: float
    p_value: float

    @property
    def high(self) -> bool:
        """Whether the error is both material (above 2 %) and not explained by chance (p < 0.01)."""
        return self.ece > 0.02 and self.beyond_chance

    @property
    def beyond_chance(self) -> bool:
        """Whether chance does not explain the error, however small it is."""
        return self.p_value < 0.01

    @property
    def verdict(self) -> str:
        """What the error says, in words."""
        if self.high:
            return "likely: held-out scores differ from training scores"
        if self.beyond_chance:
            return "more than chance, but below the 2 % from which it counts"
        return "no sign of it"


def score_bins(train_scores: Vector, bins: int = 10) -> ScoreBins:
    """Cut training scores into `bins` bins of equal share; tied scores stay together, whatever shares that leaves.

    Examples
    --------
    >>> score_bins(np.arange(6.0), bins=3)
    ScoreBins(edges=array([2., 4.]), shares=array([0.33333333, 0.33333333, 0.33333333]), rows=6)
    """
    ordered = np.sort(train_scores)
    edges = np.unique(ordered[(np.arange(1, bins) * len(ordered)) // bins])
    shares = np.diff(np.searchsorted(ordered, edges, side="left"), prepend=0, append=len(ordered)) / len(ordered)
    return ScoreBins(edges, shares, len(ordered))


def expected_calibration_error(bins: ScoreBins, held_out_scores: Vector, draws: int = 10_000) -> Memorisation:
    """The mean gap between the share of held-out scores expected in a bin of training scores and the share found.

        ECE = 1/B · Σ_b | found_b − share_b |

    Its null distribution, for n training and m held-out scores from one continuous distribution: the probability
    that a held-out score falls into bin b is not share_b but Dirichlet(n · share + (1, 0, …, 0)) distributed, the edges
    being order statistics, and the counts are multinomial given it. Hence Var[found_b] ≈ s(1 − s)(1/m + 1/n) with
    s = share_b, and by chance alone ECE ≈ 1/B · Σ_b √(2/π · s(1 − s)(1/m + 1/n)): for B = 10, m = 6,000, n = 54,000 it
    is 0.33 %, so 1 % is not noise.
    The p-value is taken from `draws` simulated ECEs.

    Examples
    --------
    >>> bins = score_bins(np.linspace(0, 1, 900))
    >>> fresh = expected_calibration_error(bins, np.linspace(0, 1, 100))
    >>> shifted = expected_calibration_error(bins, np.linspace(0, 0.5, 100))
    >>> fresh.high, shifted.high
    (False, True)
    """
    if not len(held_out_scores):
        raise InputError("the expected calibration error needs held-out scores, got none")
    size = len(held_out_scores)
    found = np.bincount(np.searchsorted(bins.edges, held_out_scores, side="right"), minlength=len(bins.shares)) / size
    ece = float(np.abs(found - bins.shares).mean())

    random = generator("expected_calibration_error")
    weights = bins.rows * bins.shares
    weights[0] += 1  # the lowest edge is itself a training score: n + 1 gaps lie between n scores
    filled = weights > 0
    probabilities = random.dirichlet(weights[filled], draws)
    gaps = np.abs(random.multinomial(size, probabilities) / size - bins.shares[filled])
    by_chance = gaps.sum(axis=1) / len(bins.shares)
    p_value = float((1 + np.count_nonzero(by_chance >= ece - 1e-12)) / (1 + draws))  # equality must survive rounding
    return Memorisation(ece, float(by_chance.mean()), float(np.quantile(by_chance, 0.95)), p_value)
