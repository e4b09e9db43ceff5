"""A benchmark at work: trains what is missing, measures each set once, and keeps everything in a folder."""

import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
import scipy
import sklearn

import dose_ood
from dose_ood.benchmark.evaluate import Scored, evaluate, extremes, score
from dose_ood.benchmark.keep import keep, keep_images, origin
from dose_ood.benchmark.methods import likelihood, methods_for
from dose_ood.benchmark.probes import probe
from dose_ood.benchmark.results import BACKGROUND, TEST, TRAIN, Folder, Results, Study
from dose_ood.data.images import split
from dose_ood.errors import InputError
from dose_ood.measure import measure
from dose_ood.statistics import Statistics
from dose_ood.storage import Json
from dose_ood.study.members import (
    Member,
    copy,
    find,
    load,
    members_of,
    recipe_of,
    share_left,
    train_member,
    training_of,
)
from dose_ood.study.plan import Plan, Task, time_work
from dose_ood.study.sets import Sets
from dose_ood.tables import explaining

if TYPE_CHECKING:
    from dose_ood.runs import Record


class Watch(Protocol):
    """Is told how many images of a task are left, and something worth showing."""

    def __call__(self, task: Task, left: int, fact: str = "", /) -> None:
        """Look at it."""


class Bench:
    """A study in its folder.

    Parameters
    ----------
    folder
        Where everything is kept.
    study, sets
        What was asked, and the images.
    runs
        A folder in which to look for models that are trained already.
    float32
        Whether statistics are kept with half the bits.
    command
        What was typed, for the record.
    """

    def __init__(
        self, folder: Folder, study: Study, sets: Sets, *, runs: Path | None, float32: bool, command: str = ""
    ) -> None:
        self.folder, self.study, self.sets = folder, study, sets
        self.runs, self.float32, self.command = runs, float32, command
        self.members = {member.name: member for member in members_of(study, sets)}
        earlier = _earlier(folder, study)
        self.training: dict[str, Mapping[str, float]] = dict(earlier.training) if earlier is not None else {}
        self.torch: set[str] = set()

    def plan(self) -> Plan:
        """What is left to do, and how fast that goes; nothing is written."""
        tasks: list[Task] = []
        for member in self.members.values():
            left = [name for name in self.sets.names if not self._measured(member, name)]
            if left:
                tasks += self._make(member)
            tasks += [Task("measure", member.name, name, self.sets.known(name)[0]) for name in left]
        names = (TRAIN, TEST, *self.study.outliers)
        tasks += [Task("probe", "", name, self.sets.known(name)[0]) for name in names if not self._probed(name)]
        rows = sum(self.sets.known(name)[0] for name in self.sets.names)
        tables = self.study.members + (self.study.members > 1)
        tasks.append(Task("evaluate", images=rows * tables * len(methods_for(self.study.members))))
        return Plan(tuple(tasks), time_work(tasks, self.study, self.sets, self.members["0"]))

    def _make(self, member: Member) -> list[Task]:
        """How a member is made, if it is not there."""
        run = self.folder.run(member.name)
        if load(member, run) is not None:
            return []
        if self.runs is not None and not run.exists() and (found := find(member, self.runs)) is not None:
            return [Task("copy", member.name, source=found)]
        return [Task("train", member.name, images=round(self._to_train * share_left(run)))]

    @property
    def _to_train(self) -> int:
        """The images that go through a model in its training."""
        recipe, images = recipe_of(self.study), len(split(len(self.sets.training)).train)
        batch = min(recipe.batch, images)
        return recipe.steps_in_all(images // batch) * batch

    def _measured(self, member: Member, name: str) -> bool:
        return self._is_there(self.folder.statistics(member.name, name), name, {"member": member.key})

    def _probed(self, name: str) -> bool:
        return self._is_there(self.folder.probe(name), name, {})

    def _is_there(self, path: Path, name: str, more: Mapping[str, Json]) -> bool:
        """Whether a file holds what is wanted; one that holds something else is refused."""
        found, wanted = origin(path), {"images": self.sets.known(name)[1], **more}
        for key, value in wanted.items():
            if found is not None and found.get(key) != value:
                what = "of other images, or of other rows of them," if key == "images" else "of another model"
                raise InputError(f"{path} holds rows {what} than asked for: choose another output or delete it")
        return found is not None

    def run(self, plan: Plan, watch: Watch) -> Results:
        """Do what is left, task by task; after a kill, the same again does the rest."""
        with explaining(f"cannot write to {self.folder.path}"):
            for path in (self.folder.run(""), self.folder.path / "probes"):
                path.mkdir(parents=True, exist_ok=True)
        self._note()
        results: Results | None = None
        for task in plan.tasks:
            watch(task, task.images)
            if task.kind == "copy" and task.source is not None:
                copy(task.source, self.folder.run(task.member))
            elif task.kind == "train":
                self._train(task, watch)
            elif task.kind == "measure":
                self._measure(task, watch)
            elif task.kind == "probe":
                table = probe(self.sets.images(task.name))
                keep(table, self.folder.probe(task.name), {"images": self.sets.known(task.name)[1]})
            else:
                results = self._evaluate(task, watch)
            if task.kind in ("copy", "train"):
                self._note()
        if results is None:
            raise InputError("a plan ends with the evaluation, and this one does not")
        return results

    def _train(self, task: Task, watch: Watch) -> None:
        def look(record: "Record") -> None:
            left = min(task.images, round(self._to_train * (1 - record.step / record.steps)))
            held_out = "" if record.held_out is None else f", held out {record.held_out:,.1f}"
            watch(task, left, f"loss {record.loss:,.1f}{held_out}, {record.images_per_s:,.0f} images/s")

        member = self.members[task.member]
        train_member(member, self.study, self.sets.training, self.folder.run(task.member), look)

    def _measure(self, task: Task, watch: Watch) -> None:
        member, path = self.members[task.member], self.folder.statistics(task.member, task.name)
        found = load(member, self.folder.run(task.member))
        if found is None:
            raise InputError(f"{self.folder.run(task.member)}: the model is gone since the work began")
        images, started = self.sets.images(task.name), monotonic()
        with explaining(f"cannot write to {path.parent}"):
            path.parent.mkdir(parents=True, exist_ok=True)
        raw = path.with_name(f".{path.name}")
        table = measure(found.model, images, raw, progress=lambda done, total: watch(task, total - done))
        made_from: dict[str, Json] = {
            "images": self.sets.known(task.name)[1],
            "member": member.key,
            "seconds": monotonic() - started,
        }
        # of a background model nothing else is asked
        keep(likelihood(table) if member.name == BACKGROUND else table, path, made_from, float32=self.float32)
        raw.unlink()

    def _evaluate(self, task: Task, watch: Watch) -> Results:
        if self.float32:
            self._round()
        look: Callable[[int, int], None] = lambda done, total: watch(task, round(task.images * (1 - done / total)))  # noqa: E731
        scored = tuple(score(self.folder, self.study, look))
        for name in (TEST, *self.study.outliers):
            rows = extremes(scored, name)
            keep_images(self.folder.images(name), self.sets.images(name)[rows], rows)
        return self._finish(scored)

    def _finish(self, scored: tuple[Scored, ...]) -> Results:
        results = evaluate(self.folder, self.study, scored, self.training, self._provenance())
        results.write(self.folder.results)
        return results

    def _round(self) -> None:
        """Keep with half the bits what was measured before that was asked for."""
        for member in self.members:
            for name in self.sets.names:
                path = self.folder.statistics(member, name)
                table = Statistics.read(path, on_bad="flag")
                if not np.array_equal(table.values, table.values.astype(np.float32), equal_nan=True):
                    keep(table, path, origin(path) or {}, float32=True)

    def _note(self) -> None:
        """Say in the folder what is being done, and how the models that are there were trained."""
        for name, member in self.members.items():
            if (found := load(member, self.folder.run(name))) is not None:
                self.torch.add(str(found.provenance.get("torch")))
                self.training[name] = training_of(found, self.study, self.folder.run(name))
        Results(self.study, (), {}, (), (), (), self.training, self._provenance()).write(self.folder.study)

    def _provenance(self) -> dict[str, Json]:
        parts = {name: self.sets.known(name) for name in self.sets.names}
        sources = {name: self.study.outliers.get(name, self.study.inlier) for name in parts}
        measured = [origin(self.folder.statistics(m, name)) for m in self.members for name in self.sets.names]
        seconds = [each.get("seconds") for each in measured if each is not None]
        return {
            "command": self.command,
            "versions": {**versions(), "torch": ", ".join(sorted(self.torch))},
            "machine": f"{platform.machine()}, {platform.system()}",
            "data": {n: {"source": sources[n], "rows": r, "sha256": digest} for n, (r, digest) in parts.items()},
            "test": "its own part" if self.sets.has_test else "half of the held-out images",
            "skipped": list(self.sets.skipped),
            "float32": self.float32,
            "measuring_seconds": float(sum(each for each in seconds if isinstance(each, float))),
        }


def _earlier(folder: Folder, study: Study) -> Results | None:
    """What the folder says of earlier work; that of another study is refused."""
    if not folder.study.exists():
        return None
    found = Results.read(folder.study)
    for name in ("inlier", "model", "recipe", "seed", "latent"):
        theirs, ours = getattr(found.study, name), getattr(study, name)
        if theirs != ours:
            raise InputError(
                f"{folder.path} holds another benchmark: its {name} is {theirs}, not {ours}; choose another output"
            )
    return found


def versions() -> dict[str, Json]:
    """Of what statistics become numbers with."""
    return {
        "dose_ood": dose_ood.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "pyarrow": pa.__version__,
        "python": platform.python_version(),
    }
