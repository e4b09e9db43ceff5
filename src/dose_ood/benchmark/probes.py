"""Trivial statistics of images: what they reach on a pair, no model is needed for."""

import zlib

import numpy as np
from numpy.typing import NDArray

from dose_ood.benchmark.metrics import auroc
from dose_ood.density.kde import ProductKDE
from dose_ood.statistics import Statistics

PROBES = {"mean": "mean", "contrast": "contrast", "size": "compressed size"}
LEVEL = 6  # of zlib
ROWS = 4096  # at a time


def probe(images: NDArray[np.uint8]) -> Statistics:
    """The mean grey level, the standard deviation and the compressed size (zlib, in bytes) of each image.

    Examples
    --------
    >>> flat = probe(np.full((1, 1, 28, 28), 7, np.uint8))
    >>> flat["mean"], flat["contrast"], bool(flat["size"][0] < 20)
    (array([7.]), array([0.]), True)
    """
    means, contrasts = np.empty(len(images)), np.empty(len(images))
    for start in range(0, len(images), ROWS):
        rows = slice(start, start + ROWS)
        pixels = images[rows].reshape(len(images[rows]), -1)
        means[rows], contrasts[rows] = pixels.mean(axis=1), pixels.std(axis=1)
    sizes = [float(len(zlib.compress(np.ascontiguousarray(image).data, LEVEL))) for image in images]
    return Statistics.from_columns({"mean": means, "contrast": contrasts, "size": sizes})


def probe_auroc(statistic: str, train: Statistics, test: Statistics, outlier: Statistics) -> float:
    """The AUROC of DoSE with this one statistic: a KDE of the training images' values scores the others."""
    density = ProductKDE().fit(train.select([statistic]).values)
    scores = (density.score_samples(table.select([statistic]).values) for table in (test, outlier))
    return auroc(*scores)
