"""Exported detectors in onnxruntime against the package itself, on 10,000 real images, in one run.

DOSE_DATA=… python benchmarks/export.py --output results/onnx.json runs/fashion-vae-0 fashion_mnist mnist

A third of the model's held-out images fits a detector of each kind and a third calibrates it. Then 5,000 test images of
the first data set and 5,000 of the second are judged, a batch by one and by the other, on one thread each. About 10
minutes for a VAE of depth 16 on a busy machine.
"""

import argparse
import json
import os
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from dose_ood import Detector, ProductKDE, WhitenedSVM
from dose_ood.benchmark.metrics import auroc
from dose_ood.data.images import read_images, split
from dose_ood.export import noise_for, write_onnx
from dose_ood.guard import Guard, with_model
from dose_ood.measure import measure
from dose_ood.models.registry import load_model
from dose_ood.noise import generator

EACH, BATCH, ROWS = 5_000, 50, 2_000
Images = NDArray[np.uint8]
Answer = dict[str, NDArray[np.float64]]
OUTPUTS = ("score", "p_value", "is_typical", "statistics")


@dataclass
class Exported:
    """A detector in onnxruntime, and what is found of it."""

    detector: Detector
    session: onnxruntime.InferenceSession
    size: int
    ours: list[Answer] = field(default_factory=list)
    theirs: list[Answer] = field(default_factory=list)
    our_seconds: float = 0.0
    their_seconds: float = 0.0

    @classmethod
    def of(cls, detector: Detector) -> "Exported":
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "detector.onnx"
            write_onnx(detector, path)
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            return cls(detector, session, path.stat().st_size)

    def metadata(self) -> dict[str, str]:
        found: dict[str, str] = self.session.get_modelmeta().custom_metadata_map
        return found

    def run(self, images: Images, noise: NDArray[np.float64]) -> Answer:
        found = self.session.run(OUTPUTS, {"images": images, "noise": noise})
        return dict(zip(OUTPUTS, found, strict=True))

    def compare(self, images: Images, guard: Guard) -> None:
        """Judge a batch by both, and take the time, that of hashing and drawing noise included."""
        begin = time.perf_counter()
        rows = guard.measure(images)
        scores = self.detector.score(rows)
        middle = time.perf_counter()
        self.theirs.append(self.run(images, noise_for(images, self.metadata())))
        self.their_seconds += time.perf_counter() - middle
        self.our_seconds += middle - begin
        named = {name: getattr(scores, name) for name in OUTPUTS[:3]}
        self.ours.append({**named, "statistics": rows.select(self.detector.statistics).values})


def joined(answers: list[Answer], name: str) -> NDArray[np.float64]:
    return np.concatenate([answer[name] for answer in answers])


def rounding(exported: Exported, images: Images, worst: NDArray[np.intp]) -> dict[str, float]:
    """How far torch and onnxruntime, both in float32, are from torch in float64, on the images they differ most on."""
    exact = exported.detector.score(measure(Guard.of(exported.detector).model.double(), images[worst])).score
    found = {"torch": joined(exported.ours, "score"), "onnxruntime": joined(exported.theirs, "score")}
    return {name: float(np.abs(scores[worst] / exact - 1).max()) for name, scores in found.items()}


def summary(exported: Exported, images: Images) -> dict[str, object]:
    """Differences between the two on the same noise, then between content's noise and independent noise."""
    ours, theirs = joined(exported.ours, "score"), joined(exported.theirs, "score")
    threshold = exported.detector.estimator.offset_
    other = joined(exported.ours, "is_typical") != joined(exported.theirs, "is_typical")
    statistics = joined(exported.ours, "statistics")
    spread = statistics[: len(statistics) // 2].std(axis=0)
    moved = np.abs(joined(exported.theirs, "statistics") - statistics) / spread
    relative, typical = np.abs(theirs / ours - 1), ours >= threshold
    scale = np.maximum(np.abs(ours), abs(threshold))  # an SVM's score falls to 0
    return {
        "estimator": exported.detector.estimator.kind,
        "images": len(ours),
        "atypical": int((~joined(exported.ours, "is_typical").astype(bool)).sum()),
        "largest relative difference of a score": float(relative.max()),
        "relative to the larger of score and threshold": float((np.abs(theirs - ours) / scale).max()),
        "of a typical image's": float(relative[typical].max()),
        "images with a relative difference above 1e-4": int((relative > 1e-4).sum()),
        "largest score of those": float(ours[relative > 1e-4].max(initial=0.0)),
        "threshold": threshold,
        "relative difference to torch in float64, of the 50 worst images": rounding(
            exported, images, np.argsort(relative)[-50:]
        ),
        "largest difference of a score": float(np.abs(theirs - ours).max()),
        "largest difference of a p-value": float(
            np.abs(joined(exported.ours, "p_value") - joined(exported.theirs, "p_value")).max()
        ),
        "other verdicts": int(other.sum()),
        "least relative distance of a score to the threshold": float(np.abs(ours / threshold - 1).min()),
        "largest difference of a statistic, in its standard deviations": dict(
            zip(exported.detector.statistics, moved.max(axis=0).tolist(), strict=True)
        ),
        "bytes": exported.size,
        "images/s, onnxruntime": len(ours) / exported.their_seconds,
        "images/s, torch": len(ours) / exported.our_seconds,
        "ratio of speeds": exported.our_seconds / exported.their_seconds,
        "independent noise": independent(exported, images, ours),
    }


def independent(exported: Exported, images: Images, ours: NDArray[np.float64]) -> dict[str, object]:
    """What becomes of the scores if noise is drawn anew instead of from content, of both data sets' first images."""
    random, half = generator("independent noise"), len(images) // 2
    chosen = np.r_[0 : ROWS // 2, half : half + ROWS // 2]
    shape = json.loads(exported.metadata()["noise"])
    answers = []
    for first in range(0, ROWS, BATCH):
        size = (BATCH, *shape["shape"])
        noise = random.normal(size=size) if shape["distribution"] == "normal" else random.random(size)
        answers.append(exported.run(images[chosen[first : first + BATCH]], noise))
    known, again = ours[chosen], joined(answers, "score")
    inside, threshold = slice(0, ROWS // 2), exported.detector.estimator.offset_
    verdicts = (again >= threshold) != (known >= threshold)
    return {
        "images": ROWS,
        "median difference of a typical data set's score, in its standard deviations": float(
            np.median(np.abs(again - known)[inside]) / known[inside].std()
        ),
        "share of other verdicts, of the first data set": float(verdicts[inside].mean()),
        "share of other verdicts, of the second": float(verdicts[ROWS // 2 :].mean()),
        "share typical, of the first, from content and independent": [
            float((known[inside] >= threshold).mean()),
            float((again[inside] >= threshold).mean()),
        ],
        "auroc, from content and independent": [
            float(auroc(known[inside], known[ROWS // 2 :])),
            float(auroc(again[inside], again[ROWS // 2 :])),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("inside", help="the data set the model was trained on")
    parser.add_argument("outside", help="another one")
    parser.add_argument("--output", type=Path, required=True, help="a row is added to what is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    loaded = load_model(options.run / "model")
    everything = read_images(options.inside)
    held_out = everything[split(len(everything), cast(int, loaded.provenance["split_seed"])).held_out]
    third = len(held_out) // 3
    train, calibration = (measure(loaded.model, held_out[i * third : (i + 1) * third]) for i in (0, 1))
    images = np.concatenate([read_images(f"{name}:test")[:EACH] for name in (options.inside, options.outside)])
    kinds = (ProductKDE(), WhitenedSVM())
    every = [Exported.of(with_model(Detector.fit(train, calibration, kind), loaded)) for kind in kinds]
    guard = Guard.of(every[0].detector)
    for first in track(range(0, len(images), BATCH), "judging"):
        for exported in every:
            exported.compare(images[first : first + BATCH], guard)
    command = f"DOSE_DATA=… python benchmarks/export.py --output results/onnx.json {options.run} {options.inside} "
    found = {
        "command": command + options.outside,
        "versions": {"onnxruntime": onnxruntime.__version__, "torch": torch.__version__},
        "threads": 1,
        "cores": os.cpu_count(),
        "load of the machine": os.getloadavg()[0],
        "batch": BATCH,
        "detectors": [summary(exported, images) for exported in every],
    }
    Console().print_json(json.dumps(found))
    before = json.loads(options.output.read_text(encoding="utf-8")) if options.output.exists() else []
    rows = [row for row in before if row["command"] != found["command"]] + [found]
    options.output.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
