"""Makes a ready detector, `zoo:NAME`, with its card, from a `dose bench` and one of its models, or makes it again.

    dose bench fashion_mnist --rows 2500 --float32 --runs runs -o results/fashion_mnist
    python benchmarks/zoo.py results/fashion_mnist runs

The density is fitted to the benchmark's statistics of training images and calibrated with those of held-out ones, and
the AUROCs of the card are of its statistics of the other sets. Needs the data. Under a minute.
"""

import argparse
import hashlib
import math
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dose_ood import Detector, InputError, ProductKDE, Statistics, WhitenedSVM, zoo
from dose_ood.benchmark.evaluate import cell_of, read
from dose_ood.benchmark.methods import by_level, plain, with_score_tests
from dose_ood.benchmark.results import HELD_OUT, METHODS, TEST, TRAIN, Cell, Folder, Results
from dose_ood.data.catalogue import find
from dose_ood.data.folder import data_folder
from dose_ood.data.images import split
from dose_ood.data.verify import verify_set
from dose_ood.density.base import DensityOfStates
from dose_ood.guard import Guard, with_model
from dose_ood.measure import measure
from dose_ood.models.registry import Loaded, Model
from dose_ood.noise import generator
from dose_ood.recipes import RECIPES
from dose_ood.storage import Json
from dose_ood.study import members
from dose_ood.study.sets import Sets, open_sets

ESTIMATORS: dict[str, Callable[..., DensityOfStates]] = {
    "kde": ProductKDE,
    "svm": partial(WhitenedSVM, solver="landmark"),  # it has fewer kernels
}
STATISTICS = {"plain": plain, "levels": by_level, "tests": with_score_tests}
CHECKED = 8  # rows of each table that are measured again
TRAINING = ("batch", "rate", "muon_rate", "beta", "filters", "depth", "samples", "l2")  # of a recipe, what a card says


@dataclass(frozen=True)
class Entry:
    """What a card is written from."""

    name: str
    data: str
    variant: str
    detector: Detector
    loaded: Loaded
    cells: tuple[Cell, ...]
    commands: tuple[str, ...]
    images: tuple[int, int]

    @property
    def known(self) -> Any:  # JSON of a run that `load` has checked
        return self.loaded.provenance

    @property
    def held_out(self) -> dict[str, float]:
        """What the training ended with: −log-likelihood of held-out images, or a bound of it."""
        nats, model = self.known["epochs"][-1]["held_out"], self.loaded.model
        recipe: Any = next(iter(RECIPES[model.kind].values()))
        return {"nats": nats, "bits_per_dim": recipe.bits_per_dim(model, nats, math.prod(model.config.shape))}


def open_bench(folder: Folder, member: str) -> tuple[Results, Sets, dict[str, Statistics]]:
    """A benchmark, its images, and the statistics that one of its models gave them."""
    results = Results.read(folder.results)
    study = results.study
    outliers = [f"{name}={source}" for name, source in study.outliers.items()]
    sets = open_sets(study.inlier, outliers, study.rows, study.seed)
    return results, sets, {name: read(folder, member, name) for name in sets.names}


def make(options: argparse.Namespace) -> Path:
    results, sets, tables = open_bench(Folder(options.results), options.member)
    loaded, study = _model(results, sets, options.runs, options.member), results.study
    check(loaded.model, sets, tables)
    names = STATISTICS[options.statistics](tables[TRAIN].names)
    estimator = ESTIMATORS[options.method](discard=options.discard)
    if options.landmarks is not None:
        estimator.set_params(landmarks=options.landmarks)
    detector = Detector.fit(tables[TRAIN], _some(tables[HELD_OUT], options.rows), estimator, names)
    scores = {name: detector.score(tables[name]).score for name in (TEST, *study.outliers)}
    parts = split(len(sets.training), study.seed)
    entry = Entry(
        options.name or f"{study.inlier}-{study.model}",
        study.inlier,
        verify_set(study.inlier, data_folder()).says,
        with_model(detector, loaded),
        loaded,
        tuple(cell_of(options.method, options.member, scores, name) for name in study.outliers),
        _commands(options, results),
        (len(parts.train), len(parts.held_out)),
    )
    return _write(entry, options.output)


def zoo_model(folder: Folder) -> tuple[Model, Sets, dict[str, Statistics]]:
    """Model 0 of a benchmark, which is in the zoo, the images, and what is kept of the statistics it gives them."""
    results, sets, tables = open_bench(folder, "0")
    model = Guard.load(f"{zoo.PREFIX}{results.study.inlier}-{results.study.model}").model
    check(model, sets, tables)
    return model, sets, tables


def _model(results: Results, sets: Sets, runs: Path, name: str) -> Loaded:
    """The model that was measured, from wherever its run is."""
    by_name = {member.name: member for member in members.members_of(results.study, sets) if member.name.isdigit()}
    if name not in by_name:
        raise InputError(f"--member must be one of {', '.join(by_name)}, got {name}")
    run = members.find(by_name[name], runs)
    loaded = None if run is None else members.load(by_name[name], run)
    if loaded is None:
        raise InputError(f"{runs}: expected a run of model {name} of the benchmark somewhere below, got none")
    return loaded


def check(model: Model, sets: Sets, tables: dict[str, Statistics]) -> None:
    """The tables are this very model's statistics of these images."""
    for name, table in tables.items():
        again = measure(model, sets.images(name)[:CHECKED]).select(table.names)
        if len(table) != sets.known(name)[0] or not np.allclose(again.values, table.values[:CHECKED], 1e-4, 1e-3):
            raise InputError(f"the {name} statistics of the benchmark are not what this model gives")


def _some(table: Statistics, rows: int | None) -> Statistics:
    if rows is None or rows >= len(table):
        return table
    drawn = np.sort(generator("held-out rows of a ready detector").permutation(len(table))[:rows])
    return Statistics(table.names, table.values[drawn])


def _commands(options: argparse.Namespace, results: Results) -> tuple[str, ...]:
    given = f"--member {options.member} --method {options.method} --discard {options.discard}"
    given += f" --statistics {options.statistics}" if options.statistics != "plain" else ""
    given += f" --landmarks {options.landmarks}" if options.landmarks is not None else ""
    given += f" --rows {options.rows}" if options.rows is not None else ""
    given += f" --name {options.name}" if options.name else ""
    return str(results.provenance["command"]), f"python benchmarks/zoo.py {options.results} {options.runs} {given}"


def _write(entry: Entry, output: Path) -> Path:
    """Put the entry where the old one was, if it is small enough."""
    about: dict[str, Json] = {
        "data_set": entry.data,
        "held_out": entry.held_out,
        "auroc": {cell.outlier: cell.auroc for cell in entry.cells},
        "command": entry.commands[-1],
    }
    detector = replace(entry.detector, provenance={**entry.detector.provenance, "zoo": about})
    with tempfile.TemporaryDirectory(dir=output, prefix=".") as folder:
        made, target = Path(folder, entry.name), output / entry.name
        detector.save(made)
        (made / zoo.CARD).write_text(card(entry, made), encoding="utf-8")
        sizes = {file.name: file.stat().st_size for file in sorted(made.iterdir())}
        if sum(sizes.values()) > zoo.LIMIT:
            parts = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
            raise InputError(
                f"{entry.name} must have at most {zoo.LIMIT:,} bytes, got {sum(sizes.values()):,}: {parts}"
            )
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return target


def card(entry: Entry, folder: Path) -> str:
    """The model card, in Markdown; `folder` holds the saved detector."""
    sections = {
        "Use": _use(entry),
        "Data": _data(entry),
        "Training": _training(entry),
        "Decision": _decision(entry),
        "AUROC": _auroc(entry),
        "Limits": _limits(entry),
        "How it was made": _made(entry, folder),
    }
    title, model = find(entry.data).title, entry.loaded.model
    shape = "×".join(map(str, model.config.shape))
    lines = [
        f"# {zoo.PREFIX}{entry.name}",
        f"Says whether an image of {shape} (uint8) is typical of {title}: {METHODS[entry.detector.estimator.kind]} on "
        f"{_code(entry.detector.statistics)} of a {_MODELS[model.kind]}. Apache-2.0.",
    ]
    for heading, text in sections.items():
        lines += [f"## {heading}", text] if text else []
    return "\n\n".join(lines) + "\n"


_MODELS = {"vae": "β-VAE", "glow": "Glow"}


def _use(entry: Entry) -> str:
    return f"""```
dose score {zoo.PREFIX}{entry.name} images/ -o scores.parquet
dose serve {zoo.PREFIX}{entry.name}
dose export {zoo.PREFIX}{entry.name} detector.onnx
```

```python
from dose_ood.guard import Guard

found = Guard.load("{zoo.PREFIX}{entry.name}").score(images)  # uint8 (n, {_shape(entry)}); score, p_value, is_typical
```

Meant to try the package, to compare methods with, and to stand in front of a model trained on the same images."""


def _data(entry: Entry) -> str:
    data = find(entry.data)
    return (
        f"{data.title}, training part, {data.page}; licence: {data.licence}. The set used is {entry.variant}. "
        f"{entry.images[0]:,} images were trained on, {entry.images[1]:,} held out. No image is in these files: they "
        "hold weights, and statistics of the images."
    )


def _training(entry: Entry) -> str:
    known, size = entry.known, sum(tensor.numel() for tensor in entry.loaded.model.state_dict().values())
    recipe = ", ".join(f"{name} {known['recipe'][name]:g}" for name in TRAINING if name in known["recipe"])
    measure = "−ELBO" if entry.loaded.model.kind == "vae" else "−log-likelihood"
    held_out = entry.held_out
    return _table(
        ("model", f"{_MODELS[entry.loaded.model.kind]} of {size:,} numbers"),
        ("recipe", f"{len(known['epochs'])} epochs, {known['steps']:,} steps; {recipe}"),
        ("seeds", f"{known['seed']}, split {known['split_seed']}"),
        (f"held-out {measure}", f"{held_out['nats']:,.1f} nats an image, {held_out['bits_per_dim']:.3f} bits/dim"),
    )


def _decision(entry: Entry) -> str:
    estimator = entry.detector.estimator
    check, scores = estimator.memorisation(), estimator.calibration_scores_
    chance = f"by chance {check.by_chance:.2%}, at most {check.by_chance_95:.2%} in 95 %"
    return _table(
        ("method", f"`{estimator.kind}` on {_code(entry.detector.statistics)}"),
        ("rows", f"{estimator.n_train_:,} to fit, {len(scores):,} held out to calibrate"),
        (
            "threshold",
            f"{estimator.offset_:.6g}, which discards {np.mean(scores < estimator.offset_):.2%} of held-out images",
        ),
        ("calibration error (ECE)", f"{check.ece:.2%} ({chance}; p = {check.p_value:.2g})"),
        ("memorisation", check.verdict),
    )


def _auroc(entry: Entry) -> str:
    rows = [
        f"| {c.outlier} | {c.auroc:.3f} | {c.auroc_low:.3f}–{c.auroc_high:.3f} | {c.fpr95:.1%} | {c.outliers:,} |"
        for c in entry.cells
    ]
    return "\n".join(
        [
            f"Of the statistics that `dose bench` measured, against {entry.cells[0].inliers:,} test images:",
            "",
            "| outliers | AUROC | 95 % | inliers discarded where 95 % of outliers are | images |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def _limits(entry: Entry) -> str:
    weak = [f"{c.outlier} ({c.auroc:.2f})" for c in entry.cells if c.auroc < 0.9]
    lines = [
        f"Takes images of exactly ({_shape(entry)}), prepared as those of {find(entry.data).title}. Others must be "
        "brought to this shape, and how that is done can itself be atypical.",
        f"About {entry.detector.estimator.discard:.0%} of good images are called atypical: that is where the threshold "
        "is. p-values hold for images from the same source.",
        "A small model of a CPU's recipe, not the paper's; typical does not mean that a classifier is right.",
        *([f"Weak against {', '.join(weak)}: AUROC below 0.9."] if weak else []),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _made(entry: Entry, folder: Path) -> str:
    known, data = entry.known, entry.detector.provenance
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
    versions: Any = data["versions"]
    tables: Any = data["data"]
    commands = "\n".join(entry.commands)
    return f"""```
{commands}
```

{
        _table(
            ("dose_ood, torch", f"{versions['dose_ood']}, {known['torch']}"),
            ("training images, SHA-256", f"`{known['data']['sha256']}`"),
            *((f"{part} statistics", f"`{facts['sha256']}`") for part, facts in tables.items()),
            *((f"`{name}`", f"`{digest}`") for name, digest in files.items()),
        )
    }"""


def _table(*rows: tuple[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])


def _shape(entry: Entry) -> str:
    return ", ".join(map(str, entry.loaded.model.config.shape))


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="folder of a dose bench of a data set of the catalogue")
    parser.add_argument("runs", type=Path, help="folder that has its models somewhere below")
    parser.add_argument("--member", default="0", help="which of its models")
    parser.add_argument("--method", choices=ESTIMATORS, default="kde")
    parser.add_argument(
        "--statistics",
        choices=STATISTICS,
        default="plain",
        help="the paper's, or a Glow's of single levels, without or with score tests",
    )
    parser.add_argument("--landmarks", type=int, help="kernels of an SVM; default: as many as it takes by itself")
    parser.add_argument("--discard", type=float, default=0.05)
    parser.add_argument("--rows", type=int, help="held-out rows to calibrate with, drawn by a fixed seed; default all")
    parser.add_argument("--name", help="of the entry; default DATA-MODEL")
    parser.add_argument("--output", type=Path, default=zoo.HERE, help="folder of entries")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    target = make(options)
    size = sum(file.stat().st_size for file in target.iterdir())
    Console(highlight=False).print(f"{target}: {size:,} bytes of {zoo.LIMIT:,}", soft_wrap=True)
