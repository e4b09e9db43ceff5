"""Columns as different as statistics get, shared by the tests."""

import numpy as np
from numpy.typing import NDArray

from dose_ood.noise import generator


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
