"""Make the golden detectors of the current format, once for each format number: `python tests/golden/make.py`."""

from pathlib import Path

from dose_ood import Detector, ProductKDE, Statistics, Typicality, WhitenedSVM
from dose_ood.benchmark.toys import gaussian

if __name__ == "__main__":
    folder = Path(__file__).parent
    train, held_out = gaussian(200), gaussian(50, seed=1)
    new = Statistics.concat([gaussian(10, seed=2), gaussian(10, seed=3, scale=0.1), gaussian(10, seed=4, shift=9.0)])
    for estimator in (ProductKDE(), WhitenedSVM(), Typicality()):
        names = {"kde": ("norm",), "svm": ("norm", "max")}.get(estimator.kind)
        detector = Detector.fit(train, held_out, estimator, names)
        detector.save(folder / estimator.kind)
        found = detector.score(new)
        scores = Statistics.from_columns({"score": found.score, "p_value": found.p_value})
        new.select(detector.statistics).beside(scores).write(folder / f"{estimator.kind}.csv")
