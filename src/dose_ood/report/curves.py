"""The numbers behind the curves of a report."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import HELD_OUT, TRAIN
from dose_ood.decision.memorisation import score_bins
from dose_ood.density.base import DensityOfStates
from dose_ood.density.baselines import Likelihood, Typicality
from dose_ood.density.kde import ProductKDE
from dose_ood.density.svm import WhitenedSVM
from dose_ood.errors import DoseWarning
from dose_ood.statistics import Statistics

Vector = NDArray[np.float64]
Curve = tuple[Vector, Vector]
PLANES = {("latent", "jac"): 1.0, ("distortion", "rate"): -1.0}  # two statistics, and the sign of the second in a sum
DISCARD = 0.1  # of in-distribution rows, as in the paper's Figure 2
KOLMOGOROV = 1.358  # P(sup |B| > 1.358) = 5 % for a Brownian bridge B


@dataclass(frozen=True)
class Plane:
    """Two statistics whose sum is the likelihood, and methods that know nothing else.

    Parameters
    ----------
    x, y, sign
        The likelihood is x + sign · y.
    methods
        By name, fitted to the columns likelihood, x and y.
    """

    x: str
    y: str
    sign: float
    methods: Mapping[str, DensityOfStates]

    def rows(self, table: Statistics) -> NDArray[np.float64]:
        """The three columns of a table."""
        x, y = table[self.x], table[self.y]
        rows = np.stack([x + self.sign * y, x, y], axis=1)
        return rows[np.isfinite(rows).all(axis=1)]

    def auroc(self, method: str, inlier: Statistics, outlier: Statistics) -> float:
        """How well a method tells two sets apart in this plane."""
        scores = (self.methods[method].score_samples(self.rows(table)) for table in (inlier, outlier))
        return auroc(*scores)


def plane(tables: Mapping[str, Statistics], discard: float = DISCARD) -> Plane | None:
    """The plane of Figure 2, its methods fitted to training rows and set to discard a share of held-out ones."""
    names = tables[TRAIN].names
    for (x, y), sign in PLANES.items():
        if {x, y} <= set(names):
            empty = Plane(x, y, sign, {})
            train, held_out = empty.rows(tables[TRAIN]), empty.rows(tables[HELD_OUT])
            methods: dict[str, DensityOfStates] = {
                "likelihood": Likelihood(discard=discard),
                "TT": Typicality(discard=discard),
                "DoSE KDE": ProductKDE(discard=discard),
                "DoSE SVM": WhitenedSVM(discard=discard),
            }
            for method in methods.values():
                with quietly():
                    method.fit(train).calibrate(held_out)
            return Plane(x, y, sign, methods)
    return None


@contextmanager
def quietly() -> Iterator[None]:
    """Calibrate without a warning of memorisation, which has its own section in a report."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoseWarning)
        yield


def roc(inlier: Vector, outlier: Vector, points: int = 160) -> Curve:
    """Shares of inliers and of outliers at or below each score, from the least typical on; at most so many points.

    Examples
    --------
    >>> roc(np.array([1.0, 2.0]), np.array([0.0, 1.0]))
    (array([0. , 0. , 0.5, 1. ]), array([0. , 0.5, 1. , 1. ]))
    """
    thresholds = np.unique(np.concatenate([inlier, outlier]))
    alarms = np.append(0.0, np.searchsorted(np.sort(inlier), thresholds, side="right") / len(inlier))
    found = np.append(0.0, np.searchsorted(np.sort(outlier), thresholds, side="right") / len(outlier))
    length = alarms + found  # along the curve, so that steep parts keep their points
    wanted = np.searchsorted(length, np.linspace(0, 2, points))
    kept = np.unique(np.clip(wanted, 0, len(length) - 1)) if len(length) > points else np.arange(len(length))
    return alarms[kept], found[kept]


def pp(train: Vector, held_out: Vector, points: int = 101) -> Curve:
    """Shares of training and of held-out scores at or below quantiles of the training scores, from (0, 0) on.

    Examples
    --------
    >>> pp(np.arange(4.0), np.array([0.5, 9.0]), 3)
    (array([0.  , 0.25, 0.5 , 1.  ]), array([0. , 0. , 0.5, 0.5]))
    """
    thresholds = np.quantile(train, np.linspace(0, 1, points), method="inverted_cdf")
    shares = (np.searchsorted(np.sort(part), thresholds, side="right") / len(part) for part in (train, held_out))
    x, y = (np.append(0.0, share) for share in shares)
    return x, y


def band(train: int, held_out: int) -> float:
    """How far apart the two distribution functions come by chance in 95 % (Kolmogorov and Smirnov)."""
    return float(KOLMOGOROV * np.sqrt(1 / train + 1 / held_out))


def shares(train: Vector, held_out: Vector) -> tuple[Vector, Vector]:
    """Shares expected and found in the bins of training scores behind the expected calibration error."""
    bins = score_bins(train)
    places = np.searchsorted(bins.edges, held_out, side="right")
    return bins.shares, np.bincount(places, minlength=len(bins.shares)) / len(held_out)


def ends(scores: Vector, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the most typical and of the least typical scores, each from the most certain on.

    Examples
    --------
    >>> ends(np.array([0.3, 0.9, 0.1]), 2)
    (array([1, 0]), array([2, 0]))
    """
    order = np.argsort(scores, kind="stable")
    return order[::-1][:count], order[:count]
