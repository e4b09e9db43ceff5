"""Has a group of samples drifted? The typicality test for groups of one or more."""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dose_ood.decision.conformal import check_share
from dose_ood.errors import InputError
from dose_ood.noise import generator

Vector = NDArray[np.float64]

_LARGE = 1000  # groups above this size: their mean is normal enough
_CHUNK = 1_000_000  # scores drawn at once


@dataclass(frozen=True)
class GroupVerdict:
    """How far the mean score of a group is from that of the training rows, and how often chance alone does that."""

    gap: float
    threshold: float
    p_value: float
    drifted: bool
    size: int


@dataclass(frozen=True)
class StreamVerdict:
    """The verdicts on consecutive groups of a stream; its last `rest` scores filled no group and were not tested."""

    gaps: Vector
    p_values: Vector
    drifted: NDArray[np.bool_]
    threshold: float
    size: int
    rest: int

    @property
    def summary(self) -> str:
        """One line in plain English."""
        count = int(np.count_nonzero(self.drifted))
        tail = f"; the last {self.rest} scores filled no group and were not tested" if self.rest else ""
        return f"{count} of {len(self.gaps)} groups of {self.size} drifted{tail}"


@dataclass(frozen=True)
class GroupTest:
    """The typicality test for groups of `size` samples: a group is atypical if its gap exceeds the threshold ε.

        gap = | −(1/s) Σ_i log q(x_i) − H |,  H = −(mean training score)

    This is the paper's A_{p,q}^(s,ε) with the resubstitution entropy; scores may be log-likelihoods or DoSE scores.
    ε and the p-value come from held-out scores, as a group of the same distribution would have them:

        gap ~ | shift + noise |,  shift = mean held-out score − mean training score,  Var[noise] = σ² (1/s + 1/m)

    The term 1/m is there because the m held-out scores know their own mean only that well. Without it (the plain
    bootstrap) ε tends to |shift| as the group grows, and up to half of the large groups of fresh data are flagged.
    With it, at most the share `alpha` of fresh groups is flagged, given the training rows and whatever the shift; fewer
    if s is beyond m. The number n of training rows does not enter: the mean training score is the same constant
    in the group's gap and in the shift.

    The law of the noise:

    - s = 1: none is needed; the gaps of the held-out rows give a conformal p-value, which is exact.
    - s > 1: `draws` of σ · (group's mean − held-out mean) / held-out deviation, since σ is estimated too. Group means
      are a bootstrap of the held-out scores up to s = 1000 and normal beyond; the held-out mean and the logarithm of
      the held-out variance are normal, and correlated as skewness and kurtosis have it (skewed scores are otherwise
      flagged too often). p = (1 + #{gaps ≥ observed}) / (1 + draws).

    Build it with `from_scores`.

    References
    ----------
    *Detecting Out-of-Distribution Inputs to Deep Generative Models Using Typicality* (Nalisnick et al., 2019)

    Examples
    --------
    >>> held_out = generator("example").normal(size=500)
    >>> check = GroupTest.from_scores(0.0, held_out, size=25, alpha=0.01)
    >>> check.test(np.linspace(-2, 2, 25)).drifted, check.test(np.linspace(-3, 1, 25)).drifted
    (False, True)
    """

    size: int
    alpha: float
    train_mean: float
    threshold: float
    gaps: Vector
    """The gaps to expect of fresh groups, sorted upwards."""

    @classmethod
    def from_scores(
        cls,
        train_mean: float,
        held_out_scores: ArrayLike,
        size: int,
        alpha: float = 0.01,
        *,
        draws: int = 10_000,
        seed: int = 0,
    ) -> Self:
        """Learn the threshold of groups of `size` samples.

        Parameters
        ----------
        train_mean
            Mean score of the training rows, that is −H.
        held_out_scores
            Scores of rows the model was not trained on.
        size
            Samples in a group.
        alpha
            Bound on the share of fresh groups that are flagged.
        draws, seed
            Number of bootstrap groups, and their seed.
        """
        check_share("alpha", alpha)
        held_out = _finite("held-out scores", held_out_scores)
        if size < 1 or draws < 1:
            raise InputError(f"size and draws must be at least 1, got {size} and {draws}")
        if len(held_out) < 2:
            raise InputError(f"a group test needs at least 2 held-out scores, got {len(held_out)}")
        if not math.isfinite(train_mean):
            raise InputError(f"train_mean must be finite, got {train_mean}")
        if size > 1 and np.ptp(held_out) == 0:
            raise InputError(f"held-out scores must differ to judge a group, got {len(held_out)} times {held_out[0]}")
        if size == 1:
            gaps, what = np.abs(held_out - train_mean), "held-out scores"
        else:
            gaps, what = np.abs(held_out.mean() - train_mean + _noise(held_out, size, draws, seed)), "draws"
        gaps.sort()
        return cls(size, alpha, train_mean, _threshold(gaps, alpha, what), gaps)

    def test(self, scores: ArrayLike) -> GroupVerdict:
        """Judge one group of `size` scores."""
        group = _numbers("scores", scores)
        if len(group) != self.size:
            raise InputError(f"this test is for groups of {self.size} scores, got {len(group)}")
        found = self.stream(group)
        gap, p_value, drifted = float(found.gaps[0]), float(found.p_values[0]), bool(found.drifted[0])
        return GroupVerdict(gap, self.threshold, p_value, drifted, self.size)

    def stream(self, scores: ArrayLike) -> StreamVerdict:
        """Judge the consecutive groups of `size` scores of a stream; scores after the last full group are not tested.

        Scores of −∞ or +∞ (rows that could not be measured) make the gap of their group infinite.
        """
        values = _numbers("scores", scores)
        number, rest = divmod(len(values), self.size)
        groups = values[: number * self.size].reshape(number, self.size)
        bad = ~np.isfinite(groups).all(axis=1)
        gaps = np.full(number, np.inf)
        gaps[~bad] = np.abs(groups[~bad].mean(axis=1) - self.train_mean)
        higher = len(self.gaps) - np.searchsorted(self.gaps, gaps, side="left")
        p_values = (1 + higher.astype(np.float64)) / (1 + len(self.gaps))
        return StreamVerdict(gaps, p_values, gaps > self.threshold, self.threshold, self.size, rest)


def _noise(held_out: Vector, size: int, draws: int, seed: int) -> Vector:
    """Draws of the mean of a fresh group minus the mean of the held-out scores."""
    random = generator("group_test", seed)
    count, deviation = len(held_out), float(held_out.std(ddof=1))
    centred = (held_out - held_out.mean()) / held_out.std()
    skewness, spread = float((centred**3).mean()), max(float((centred**4).mean()) - 1, 2.0)  # 2 for a normal law
    group = _means(centred, size, draws, random) if size <= _LARGE else random.normal(0, 1 / math.sqrt(size), draws)
    first, second = random.standard_normal((2, draws))
    correlation = skewness / math.sqrt(spread)  # of mean and variance; within ±1, since kurtosis ≥ 1 + skewness²
    log_variance = math.sqrt(spread / count) * (correlation * first + math.sqrt(1 - correlation**2) * second)
    result: Vector = deviation * (group - first / math.sqrt(count)) / np.exp((log_variance - spread / (2 * count)) / 2)
    return result


def _means(scores: Vector, size: int, draws: int, random: np.random.Generator) -> Vector:
    """Means of groups drawn with replacement, in bounded memory."""
    result = np.empty(draws)
    step = max(1, _CHUNK // size)
    for start in range(0, draws, step):
        stop = min(start + step, draws)
        result[start:stop] = scores[random.integers(len(scores), size=(stop - start, size))].mean(axis=1)
    return result


def _threshold(gaps: Vector, alpha: float, what: str) -> float:
    """The ε for which gap > ε and (1 + #{gaps ≥ gap}) / (1 + n) ≤ alpha are the same."""
    allowed = math.floor(alpha * (len(gaps) + 1) + 1e-9)
    if allowed < 1:
        raise InputError(f"alpha = {alpha} needs at least {math.ceil(1 / alpha - 1e-9) - 1} {what}, got {len(gaps)}")
    return float(gaps[-allowed])


def _numbers(name: str, values: ArrayLike) -> Vector:
    result = np.asarray(values, dtype=np.float64)
    if result.ndim != 1:
        raise InputError(f"{name} must have one dimension, got shape {result.shape}")
    if np.isnan(result).any():
        raise InputError(f"{name} must not be NaN, got {np.count_nonzero(np.isnan(result))} that are")
    return result


def _finite(name: str, values: ArrayLike) -> Vector:
    result = _numbers(name, values)
    if not np.isfinite(result).all():
        raise InputError(f"{name} must be finite, got {np.count_nonzero(~np.isfinite(result))} that are not")
    return result
