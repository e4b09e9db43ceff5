"""What a benchmark found, as a long table of named cells, and the folder it is kept in."""

import json
import os
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Self, TypeVar

from dose_ood.errors import InputError
from dose_ood.storage import Json
from dose_ood.tables import explaining, replacing

RESULTS, STUDY = "results.json", "study.json"
TRAIN, HELD_OUT, TEST = "train", "held_out", "test"  # sets of the in-distribution data; other sets are outliers
BACKGROUND, ENSEMBLE = "background", "ensemble"  # members beside "0", "1", …
METHODS = {
    "likelihood": "likelihood",
    "waic": "WAIC",
    "typicality": "TT",
    "likelihood_ratio": "LLR",
    "kde": "DoSE KDE",
    "svm": "DoSE SVM",
}
R = TypeVar("R")


@dataclass(frozen=True)
class Folder:
    """Where the parts of a benchmark are.

    ```
    results.json                        the cells
    study.json                          the same without cells, as soon as the work begins
    runs/MEMBER/                        trained models: 0, 1, …, background
    statistics/MEMBER/SET.parquet       a row an image: train, held_out, test and each outlier set
    probes/SET.parquet                  trivial statistics of train, test and each outlier set
    images/SET.npz                      a few images of each set, to look at
    ```
    """

    path: Path

    @property
    def results(self) -> Path:
        """The cells."""
        return self.path / RESULTS

    @property
    def study(self) -> Path:
        """What was asked and how the models were trained, before there are cells."""
        return self.path / STUDY

    def run(self, member: str) -> Path:
        """The training run of a member."""
        return self.path / "runs" / member

    def statistics(self, member: str, name: str) -> Path:
        """The statistics a member gives for a set."""
        return self.path / "statistics" / member / f"{name}.parquet"

    def probe(self, name: str) -> Path:
        """The trivial statistics of a set."""
        return self.path / "probes" / f"{name}.parquet"

    def images(self, name: str) -> Path:
        """Some images of a set: arrays `images` (n, c, h, w) and `rows`, their rows in the set's tables."""
        return self.path / "images" / f"{name}.npz"


@dataclass(frozen=True)
class Study:
    """What was asked.

    Parameters
    ----------
    inlier
        The data set the models are trained on, as `read_images` takes it.
    outliers
        For each outlier set, the name it goes by and its source.
    model, recipe
        What was trained, and how.
    members
        Models of the ensemble, beside the background model.
    rows
        The most images of a set that were measured; None: all.
    seed
        Draws everything that is drawn.
    latent
        Latent dimensions of a VAE; None: the paper's two.
    """

    inlier: str
    outliers: Mapping[str, str]
    model: str
    recipe: str
    members: int
    rows: int | None
    seed: int
    latent: int | None = None

    @property
    def dimensions(self) -> str:
        """What to say behind the model's name of latent dimensions that are not the paper's."""
        return "" if self.latent is None else f" of {self.latent} latent dimensions"


@dataclass(frozen=True)
class Cell:
    """How well a method on a member tells the test set from an outlier set.

    Parameters
    ----------
    outlier, method, member
        The outlier set; a key of `METHODS`; "0", "1", … or "ensemble".
    auroc, auroc_low, auroc_high
        With its 95 % interval (`auroc_interval`).
    aupr
        Area under precision over recall, outliers being what is sought.
    fpr95
        The share of inliers discarded where 95 % of outliers are.
    inliers, outliers
        Rows of the two sets.
    """

    outlier: str
    method: str
    member: str
    auroc: float
    auroc_low: float
    auroc_high: float
    aupr: float
    fpr95: float
    inliers: int
    outliers: int


@dataclass(frozen=True)
class Memorisation:
    """The expected calibration error of a method on a member: held-out against training scores."""

    method: str
    member: str
    ece: float
    by_chance: float
    p_value: float


@dataclass(frozen=True)
class Probe:
    """What a trivial statistic of the images reaches on a pair: the AUROC of a KDE of its training values."""

    outlier: str
    statistic: str
    auroc: float


@dataclass(frozen=True)
class Comparison:
    """A DoSE method against another method over all pairs: the mean difference in AUROC, and its permutation test."""

    method: str
    other: str
    difference: float
    p_value: float


@dataclass(frozen=True)
class Results:
    """Everything a benchmark found.

    Parameters
    ----------
    study
        What was asked.
    cells
        A number for each pair, method and member.
    ranks
        The average rank of each method over the pairs, 1 = best (`average_ranks`).
    comparisons, memorisation, probes
        What stands beside the table.
    training
        For each member, what its run ended with: held_out (nats per held-out image) and the same as bits_per_dim,
        seconds of training, epochs.
    provenance
        Commands, versions, seeds, hashes of the data, wall time.
    """

    study: Study
    cells: tuple[Cell, ...]
    ranks: Mapping[str, float]
    comparisons: tuple[Comparison, ...]
    memorisation: tuple[Memorisation, ...]
    probes: tuple[Probe, ...]
    training: Mapping[str, Mapping[str, float]]
    provenance: Mapping[str, Json]

    def members(self, outlier: str, method: str) -> tuple[Cell, ...]:
        """The cells of single models for a pair and method, in the order of the members."""
        return tuple(c for c in self.cells if (c.outlier, c.method) == (outlier, method) and c.member != ENSEMBLE)

    def ensemble(self, outlier: str, method: str) -> Cell | None:
        """The cell of the ensemble, if there is one."""
        found = [c for c in self.cells if (c.outlier, c.method, c.member) == (outlier, method, ENSEMBLE)]
        return found[0] if found else None

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file, whole or not at all."""
        with explaining(f"cannot write {path}"), replacing(path) as temporary:
            temporary.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `write` wrote; anything else is refused by name."""
        with explaining(f"cannot read {path}"):
            found = json.loads(Path(path).read_text(encoding="utf-8"))
        values = _fields(cls, found, str(path))
        parts = {"cells": Cell, "comparisons": Comparison, "memorisation": Memorisation, "probes": Probe}
        made: dict[str, object] = dict(values)
        for name, kind in parts.items():
            items = values[name]
            if not isinstance(items, list):
                raise InputError(f"{path}: {name} must be a list, got {reprlib.repr(items)}")
            made[name] = tuple(_record(kind, item, f"{path}: {name}") for item in items)
        made["study"] = _record(Study, values["study"], f"{path}: study")
        make: Callable[..., Self] = cls
        return make(**made)


def _fields(kind: type, found: object, where: str) -> dict[str, object]:
    names = {field.name: field.default is MISSING for field in fields(kind)}
    needed = {name for name, must in names.items() if must}
    if not isinstance(found, dict) or not needed <= set(found) <= set(names):
        got = ", ".join(map(str, found)) if isinstance(found, dict) else reprlib.repr(found)
        raise InputError(f"{where}: expected {', '.join(names)}, got {got}")
    return found


def _record(kind: type[R], found: object, where: str) -> R:
    make: Callable[..., R] = kind
    return make(**_fields(kind, found, where))
