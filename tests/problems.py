"""Problems with known answers, shared by the tests."""

import numpy as np
from numpy.typing import NDArray

from dose_ood.noise import generator

Matrix = NDArray[np.float64]
FIGURE_1 = ("norm", "like", "first", "max")


def gaussian_statistics(points: Matrix) -> Matrix:
    """The paper's Figure 1: norm, log-likelihood under N(0, 1), first coordinate and largest coordinate."""
    norm = np.sqrt((points**2).sum(axis=1))
    like = -0.5 * norm**2 - 0.5 * points.shape[1] * np.log(2 * np.pi)
    return np.stack([norm, like, points[:, 0], points.max(axis=1)], axis=1)


def figure_1(rows: int, seed: int = 0, dimensions: int = 100) -> Matrix:
    """Statistics of draws from a high-dimensional standard normal distribution."""
    return gaussian_statistics(generator("figure 1", seed).normal(size=(rows, dimensions)))


def origin_cloud(rows: int, dimensions: int = 100) -> Matrix:
    """Statistics of points near the origin: the likeliest of all, and typical of nothing."""
    return gaussian_statistics(0.1 * generator("origin").normal(size=(rows, dimensions)))


def shapes(rows: int, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Columns as different as statistics get."""
    random = generator("shapes", seed)
    return {
        "normal": random.normal(size=rows),
        "skewed": random.lognormal(size=rows),
        "heavy tails": random.standard_t(2, size=rows),
        "bounded": random.uniform(-3, 5, size=rows),
        "two modes": np.where(random.random(rows) < 0.3, 50.0, 0.0) + random.normal(size=rows),
        "one outlier": np.append(random.normal(size=rows - 1), 1e4),
        "integers": random.integers(0, 10, size=rows).astype(float),
        "two values": random.integers(0, 2, size=rows).astype(float),
        "tight clusters": random.integers(0, 3, size=rows) + 1e-7 * random.normal(size=rows),
        "far from zero": 1e9 + random.normal(size=rows),
        "tiny": 1e-12 * random.normal(size=rows),
    }


def flow_table(rows: int, seed: int = 0, shift: float = 0.0) -> Matrix:
    """A flow's statistics, collinear as they are: like = latent + jac. `shift` moves latent and jac, not like."""
    random = generator("flow", seed)
    latent = -4000 + 60 * random.normal(size=rows) + shift
    jac = -2000 + 0.5 * (latent + 4000 - shift) + 40 * random.normal(size=rows) - shift
    return np.stack([latent + jac, latent, jac], axis=1)


def auroc(inlier: NDArray[np.float64], outlier: NDArray[np.float64]) -> float:
    """The share of pairs in which the inlier's score is the higher one; ties count half."""
    ordered = np.sort(outlier)
    below = np.searchsorted(ordered, inlier, side="left") + np.searchsorted(ordered, inlier, side="right")
    return float(below.mean() / (2 * len(ordered)))
