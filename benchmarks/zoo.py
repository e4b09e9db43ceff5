"""Makes a ready detector, `zoo:NAME`, with its card, from a training run and its statistics, or makes it again.

    dose train fashion_mnist -o RUN
    dose measure RUN fashion_mnist --part train -o train.parquet
    dose measure RUN fashion_mnist --part held-out -o held_out.parquet
    python benchmarks/zoo.py RUN train.parquet held_out.parquet --data fashion_mnist

With `--results FOLDER` of a `dose bench` that had this very model, its AUROCs come into the card. Under a minute.
"""

import argparse
import hashlib
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dose_ood import Detector, InputError, ProductKDE, Statistics, WhitenedSVM, zoo
from dose_ood.benchmark.methods import plain
from dose_ood.benchmark.results import METHODS, Cell, Folder, Results
from dose_ood.cli.models import load
from dose_ood.data.catalogue import find
from dose_ood.data.folder import data_folder
from dose_ood.data.images import fingerprint, read_images, split
from dose_ood.data.verify import verify_set
from dose_ood.guard import statistics_of, with_model
from dose_ood.measure import measure
from dose_ood.models.registry import Loaded
from dose_ood.noise import generator
from dose_ood.recipes import RECIPES
from dose_ood.storage import Json

ESTIMATORS = {"kde": ProductKDE, "svm": WhitenedSVM}
CHECKED = 16  # rows of each table that are measured again
TRAINING = ("batch", "rate", "beta", "filters", "depth", "samples", "l2")  # of a recipe, what a card says


@dataclass(frozen=True)
class Entry:
    """What a card is written from."""

    name: str
    data: str
    variant: str
    detector: Detector
    loaded: Loaded
    cells: tuple[Cell, ...]
    command: str
    rows: tuple[int, int]

    @property
    def known(self) -> Any:  # JSON of a run that `load` has checked
        return self.loaded.provenance

    @property
    def held_out(self) -> dict[str, float]:
        """What the training ended with: −log-likelihood of held-out images, or a bound of it."""
        nats, model = self.known["epochs"][-1]["held_out"], self.loaded.model
        recipe: Any = next(iter(RECIPES[model.kind].values()))
        return {"nats": nats, "bits_per_dim": recipe.bits_per_dim(model, nats, math.prod(model.config.shape))}

    @property
    def training_command(self) -> str:
        known, kind = self.known, self.loaded.model.kind
        epochs = known["recipe"]["epochs"]
        same = [name for name, r in RECIPES[kind].items() if asdict(replace(r, epochs=epochs)) == known["recipe"]]
        recipe = f"--recipe {same[0]}" if same else "(a recipe of its own)"
        if same and RECIPES[kind][same[0]].epochs != epochs:
            recipe += f" --epochs {epochs}"
        seeds = "".join(f" --{word.replace('_', '-')} {known[word]}" for word in ("seed", "split_seed") if known[word])
        return f"dose train {self.data} --model {kind} {recipe}{seeds} -o RUN"


def make(options: argparse.Namespace) -> Path:
    loaded, name = load(options.run), options.name or f"{options.data}-{load(options.run).model.kind}"
    tables = {part: Statistics.read(getattr(options, part)) for part in ("train", "held_out")}
    _check_sources(loaded, options.data, tables)
    rows = len(tables["train"]), len(tables["held_out"])
    estimator = ESTIMATORS[options.method](discard=options.discard)
    names = options.statistic or plain(tables["train"].names)
    detector = Detector.fit(tables["train"], _some(tables["held_out"], options.rows), estimator, names)
    entry = Entry(
        name,
        options.data,
        verify_set(options.data, data_folder()).says,
        with_model(detector, loaded),
        loaded,
        _cells(options.results, options.member, options.data, options.method, loaded),
        _command(options, name),
        rows,
    )
    return _write(entry, options.output)


def _check_sources(loaded: Loaded, data: str, tables: dict[str, Statistics]) -> None:
    """The data are those of the run, and the tables are the model's statistics of their two parts."""
    known: Any = loaded.provenance
    images = read_images(data)
    if known["background"] is not None:
        raise InputError("a background model is not a detector's")
    if fingerprint(images) != known["data"]["sha256"]:
        raise InputError(f"the run was not trained on {data}: the images are others")
    parts = asdict(split(len(images), known["split_seed"]))
    for part, table in tables.items():
        if len(table) != len(parts[part]):
            raise InputError(f"expected the statistics of all {len(parts[part]):,} {part} images, got {len(table):,}")
        again = measure(loaded.model.eval(), images[parts[part][:CHECKED]]).select(table.names)
        if not np.allclose(again.values, table.values[:CHECKED], rtol=1e-4, atol=1e-3):
            raise InputError(f"the {part} table was not measured with this model")


def _some(table: Statistics, rows: int | None) -> Statistics:
    if rows is None or rows >= len(table):
        return table
    drawn = np.sort(generator("held-out rows of a ready detector").permutation(len(table))[:rows])
    return Statistics(table.names, table.values[drawn])


def _cells(folder: Path | None, member: str, data: str, method: str, loaded: Loaded) -> tuple[Cell, ...]:
    """What a benchmark found of this method on this model, which is known by its held-out loss."""
    if folder is None:
        return ()
    known: Any = loaded.provenance
    results = Results.read(Folder(folder).results)
    found, own = results.training.get(member, {}).get("held_out"), known["epochs"][-1]["held_out"]
    if results.study.inlier != data or found is None or not math.isclose(found, own, rel_tol=1e-9):
        raise InputError(f"member {member} of {folder} ({results.study.inlier}) is not the model of this run")
    return tuple(c for c in results.cells if (c.method, c.member) == (method, member))


def _command(options: argparse.Namespace, name: str) -> str:
    given = [f"--data {options.data} --name {name} --method {options.method} --discard {options.discard}"]
    given += [f"--statistic {column}" for column in options.statistic or ()]
    given += [f"--rows {options.rows}"] if options.rows is not None else []
    given += [f"--results RESULTS --member {options.member}"] if options.results is not None else []
    return " ".join(["python benchmarks/zoo.py RUN train.parquet held_out.parquet", *given])


def _write(entry: Entry, output: Path) -> Path:
    """Put the entry where the old one was, if it is small enough."""
    about: dict[str, Json] = {
        "data_set": entry.data,
        "held_out": entry.held_out,
        "auroc": {cell.outlier: cell.auroc for cell in entry.cells},
        "command": entry.command,
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
        f"{entry.rows[0]:,} images were trained on, {entry.rows[1]:,} held out. No image is in these files: they hold "
        "weights, and statistics of the images."
    )


def _training(entry: Entry) -> str:
    known, size = entry.known, sum(tensor.numel() for tensor in entry.loaded.model.state_dict().values())
    recipe = ", ".join(f"{name} {known['recipe'][name]:g}" for name in TRAINING if name in known["recipe"])
    measure = "−ELBO" if entry.loaded.model.kind == "vae" else "−log-likelihood"
    held_out = entry.held_out
    return _table(
        ("model", f"{_MODELS[entry.loaded.model.kind]} of {size:,} numbers"),
        ("recipe", f"{known['recipe']['epochs']} epochs, {known['steps']:,} steps; {recipe}"),
        ("seeds", f"{known['seed']}, split {known['split_seed']}"),
        (f"held-out {measure}", f"{held_out['nats']:,.1f} nats an image, {held_out['bits_per_dim']:.3f} bits/dim"),
    )


def _decision(entry: Entry) -> str:
    estimator = entry.detector.estimator
    check, scores = estimator.memorisation(), estimator.calibration_scores_
    chance = f"by chance {check.by_chance:.2%}, at most {check.by_chance_95:.2%} in 95 %"
    verdict = "likely memorised" if check.high else "no sign of memorisation"
    return _table(
        ("method", f"`{estimator.kind}` on {_code(entry.detector.statistics)}"),
        ("rows", f"{estimator.n_train_:,} to fit, {len(scores):,} held out to calibrate"),
        (
            "threshold",
            f"{estimator.offset_:.6g}, which discards {np.mean(scores < estimator.offset_):.2%} of held-out images",
        ),
        ("calibration error (ECE)", f"{check.ece:.2%} ({chance}; p = {check.p_value:.2g}): {verdict}"),
    )


def _auroc(entry: Entry) -> str:
    if not entry.cells:
        return ""
    rows = [
        f"| {c.outlier} | {c.auroc:.3f} | {c.auroc_low:.3f}–{c.auroc_high:.3f} | {c.fpr95:.1%} | {c.outliers:,} |"
        for c in entry.cells
    ]
    columns = _code(plain(statistics_of(entry.loaded.model)))
    return "\n".join(
        [
            f"By `dose bench` with this model and method on {columns}, against {entry.cells[0].inliers:,} test images:",
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
        *([] if entry.cells else ["How well it finds other data sets has not been measured for this card."]),
    ]
    return "\n".join(f"- {line}" for line in lines)


def _made(entry: Entry, folder: Path) -> str:
    known, data = entry.known, entry.detector.provenance
    files = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}
    versions: Any = data["versions"]
    tables: Any = data["data"]
    return f"""```
{entry.training_command}
dose measure RUN {entry.data} --part train -o train.parquet
dose measure RUN {entry.data} --part held-out -o held_out.parquet
{entry.command}
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
    parser.add_argument("run", type=Path, help="directory that dose train made")
    parser.add_argument("train", type=Path, help="statistics of all its training images")
    parser.add_argument("held_out", type=Path, help="statistics of all its held-out images")
    parser.add_argument("--data", required=True, help="name in the catalogue of what it was trained on, in $DOSE_DATA")
    parser.add_argument("--name", help="of the entry; default DATA-MODEL")
    parser.add_argument("--method", choices=ESTIMATORS, default="kde")
    parser.add_argument("--statistic", "-s", action="append", help="a column to use; default: the paper's")
    parser.add_argument("--discard", type=float, default=0.05)
    parser.add_argument("--rows", type=int, help="held-out rows to calibrate with, drawn by a fixed seed; default all")
    parser.add_argument("--results", type=Path, help="folder of dose bench")
    parser.add_argument("--member", default="0", help="which of its models this is")
    parser.add_argument("--output", type=Path, default=zoo.HERE, help="folder of entries")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    options = parse()
    target = make(options)
    size = sum(file.stat().st_size for file in target.iterdir())
    Console(highlight=False).print(f"{target}: {size:,} bytes of {zoo.LIMIT:,}", soft_wrap=True)
