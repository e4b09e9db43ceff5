"""Is it the density or the model? What the statistics of a `dose bench` tell at most, and what other densities find.

    python benchmarks/ceiling.py --output results/ceiling.json    # 5 minutes; no model, no images, no torch

A classifier that is shown test images and outliers, with labels, is no detector, but no density of the same statistics
can be expected to do better. Where it fails, the model has not told; where it does well and every density does not, the
outliers lie where some training images lie too. Its AUROC is cross-validated, and all are means over the models. The
other densities are a joint KDE (SciPy's, of the whitened statistics) and a mixture of ten Gaussians.
"""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track
from scipy.stats import gaussian_kde
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_predict

from common import STATISTICS, show
from dose_ood import ProductKDE, WhitenedSVM
from dose_ood.benchmark.evaluate import read
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import TEST, TRAIN, Folder, Results
from dose_ood.density.whitening import Matrix, Vector, whitening

STUDIES = ("mnist", "mnist_16", "fashion_mnist", "fashion_mnist_16", "cifar10", "svhn", "celeba")
TOLERANCE = 1e-5  # of a direction that is kept, relative to the widest
COMPONENTS, FOLDS = 10, 4


def densities(train: Matrix) -> dict[str, Callable[[Matrix], Vector]]:
    """Scores, higher = more typical, of densities fitted to statistics of training images."""
    white = whitening(train, TOLERANCE)
    kernel = gaussian_kde(white(train).T)
    mixture = GaussianMixture(COMPONENTS, reg_covar=1e-4, random_state=0).fit(white(train))
    return {
        "DoSE KDE": ProductKDE().fit(train).score_samples,
        "DoSE SVM": WhitenedSVM().fit(train).score_samples,
        "joint KDE": lambda rows: kernel.logpdf(white(rows).T),
        "mixture": lambda rows: mixture.score_samples(white(rows)),
    }


def told_apart(test: Matrix, outliers: Matrix) -> float:
    """The AUROC of a classifier that learns from three quarters of both what to say of the last."""
    rows, labels = np.concatenate([test, outliers]), np.repeat([0, 1], [len(test), len(outliers)])
    classifier = HistGradientBoostingClassifier(max_iter=60, min_samples_leaf=40, random_state=0)
    order = np.random.default_rng(0).permutation(len(rows))
    found = np.empty(len(rows))
    found[order] = cross_val_predict(classifier, rows[order], labels[order], cv=FOLDS, method="predict_proba")[:, 1]
    return auroc(-found[: len(test)], -found[len(test) :])


def compare(folder: Folder, member: str, outliers: tuple[str, ...]) -> list[dict[str, str | float]]:
    """Every density and the classifier, of the paper's statistics and, of a Glow, of levels and score tests."""
    tables = {name: read(folder, member, name) for name in (TRAIN, TEST, *outliers)}
    rows: list[dict[str, str | float]] = []
    for kind, choose in STATISTICS.items():
        names = choose(tables[TRAIN].names)
        if not names:
            continue
        values = {name: table.select(names).values for name, table in tables.items()}
        scorers = densities(values[TRAIN])
        inliers = {density: score(values[TEST]) for density, score in scorers.items()}
        for outlier in outliers:
            found = {density: auroc(inliers[density], score(values[outlier])) for density, score in scorers.items()}
            rows.append({"outliers": outlier, "statistics": kind, **found})
            rows[-1]["classifier"] = told_apart(values[TEST], values[outlier])
    return rows


def _mean(rows: Sequence[Mapping[str, str | float]]) -> dict[str, str | float]:
    """The mean of each number over the models; what they are of is the same in all."""
    texts = {key: value for key, value in rows[0].items() if isinstance(value, str)}
    return texts | {key: float(np.mean([row[key] for row in rows])) for key in rows[0] if key not in texts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    parser.add_argument("studies", nargs="*", default=STUDIES, help="which to do anew; all, if none is named")
    options = parser.parse_args()
    output: Path = options.output
    studies: dict[str, list[dict[str, str | float]]] = {}
    if output.exists():
        studies = json.loads(output.read_text(encoding="utf-8"))["studies"]
    for name in track(options.studies, "comparing"):
        folder = Folder(Path("results", name))
        study = Results.read(folder.results).study
        models = [compare(folder, str(member), tuple(study.outliers)) for member in range(study.members)]
        studies[name] = [_mean(rows) for rows in zip(*models, strict=True)]
        show(Console(width=150), f"{name}: AUROC, mean over models", studies[name])
    command = "python benchmarks/ceiling.py --output results/ceiling.json"
    output.write_text(json.dumps({"command": command, "studies": studies}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
