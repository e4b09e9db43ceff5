"""What a benchmark still has to do, and how long that takes."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Literal, cast, get_args

from dose_ood.benchmark.probes import probe
from dose_ood.benchmark.results import Study
from dose_ood.data.images import split
from dose_ood.measure import measure
from dose_ood.study.members import Member, fresh, recipe_of
from dose_ood.study.sets import Images, Sets

if TYPE_CHECKING:
    from torch import nn

    from dose_ood.models.registry import Model
    from dose_ood.recipes import Recipe
    from dose_ood.runs import Record

Kind = Literal["copy", "train", "measure", "probe", "evaluate"]
KINDS: tuple[Kind, ...] = get_args(Kind)
SECONDS = 2.0  # that are spent on timing each kind of work
STEPS = 8  # of training that are timed at most
EVALUATED = 36_000.0  # rows a second that a method is fitted to and scores, on a 2.8 GHz Xeon; not timed


@dataclass(frozen=True)
class Task:
    """A piece of work that is done as a whole, or goes on after a kill.

    Parameters
    ----------
    kind
        What is done.
    member
        The model that is trained or measured.
    name
        The set that is measured or probed.
    images
        How many have to go through: an image counts once for each epoch of training.
    source
        The run that is copied.
    """

    kind: Kind
    member: str = ""
    name: str = ""
    images: int = 0
    source: Path | None = None

    def __str__(self) -> str:
        """What is done, in a few words."""
        model = "the background model" if self.member == "background" else f"model {self.member}"
        return {
            "copy": f"copy {model} from {self.source}",
            "train": f"train {model}",
            "measure": f"measure {self.name} with {model}",
            "probe": f"probe {self.name}",
            "evaluate": "evaluate",
        }[self.kind]


@dataclass(frozen=True)
class Plan:
    """The tasks that are left, in their order, and the images a second that each kind of work does."""

    tasks: tuple[Task, ...]
    speeds: Mapping[Kind, float]

    def seconds(self, kind: Kind) -> float:
        """The estimated time of all tasks of a kind."""
        images = sum(task.images for task in self.tasks if task.kind == kind)
        return images / self.speeds[kind] if images else 0.0

    @property
    def total(self) -> float:
        """The estimated time of everything."""
        return sum(self.seconds(kind) for kind in KINDS)


class Clock:
    """The time left for a plan, from speeds that are corrected by what is seen.

    Parameters
    ----------
    plan
        What is left at the beginning.
    """

    def __init__(self, plan: Plan) -> None:
        self.speeds = dict(plan.speeds)
        self._left = {kind: sum(task.images for task in plan.tasks if task.kind == kind) for kind in KINDS}
        self._kind: Kind = KINDS[0]
        self._of_task = 0
        self._first: tuple[float, int] | None = None

    def begin(self, task: Task) -> None:
        """A task begins, and the one before is done."""
        self._left[task.kind] -= task.images
        self._kind, self._of_task, self._first = task.kind, task.images, None

    def see(self, left: int) -> None:
        """So many images of the task are left."""
        now = monotonic()
        if self._first is None:
            self._first = (now, left)
        begun, images = self._first
        if images > left and now - begun > SECONDS:
            self.speeds[self._kind] = (images - left) / (now - begun)
        self._of_task = left

    @property
    def seconds(self) -> float:
        """The time left."""
        left = dict(self._left)
        left[self._kind] += self._of_task
        return sum(images / self.speeds[kind] for kind, images in left.items() if images)


def time_work(tasks: Sequence[Task], study: Study, sets: Sets, member: Member) -> dict[Kind, float]:
    """Do a little of each kind of work that is left, and give the images a second; only evaluating is assumed."""
    kinds = {task.kind for task in tasks}
    speeds: dict[Kind, float] = {"copy": float("inf"), "evaluate": EVALUATED}
    if "probe" in kinds:
        speeds["probe"] = _time_probing(sets.training[:256])
    if kinds & {"train", "measure"}:
        model = fresh(member)
        speeds["train"] = _time_training(model, recipe_of(study), sets.training, STEPS if "train" in kinds else 1)
        speeds["measure"] = _time_measuring(model, sets.training)
    return speeds


def _time_probing(images: Images) -> float:
    started = monotonic()
    probe(images)
    return len(images) / (monotonic() - started)


def _time_measuring(model: "Model", images: Images) -> float:
    rows = min(8, len(images))
    measure(model, images[:rows])  # the first pass is slower
    while True:
        started = monotonic()
        measure(model, images[:rows])
        passed = monotonic() - started
        if passed > SECONDS / 8 or rows == len(images):
            return rows / passed
        rows = min(4 * rows, len(images))


class _EnoughError(Exception):
    """What is timed has been timed."""


def _time_training(model: "Model", recipe: "Recipe[nn.Module]", images: Images, steps: int) -> float:
    """Train a fresh model for a few steps, and give the images a second."""
    from dose_ood.recipes import VAERecipe
    from dose_ood.train import train

    recipe = recipe.lasting(1)
    if isinstance(recipe, VAERecipe):  # the steps of its burn-in are shorter
        recipe = cast("Recipe[nn.Module]", replace(recipe, burn_in_epochs=0))
    times = [monotonic()]

    def look(record: "Record") -> None:
        times.append(monotonic())
        if len(times) > steps or (len(times) > 2 and times[-1] - times[1] > SECONDS):
            raise _EnoughError

    few = images[: 2 * STEPS * recipe.batch]
    with TemporaryDirectory() as folder, suppress(_EnoughError):
        train(cast("nn.Module", model), few, recipe, Path(folder, "run"), progress=look)
    if len(times) > 2:
        times = times[1:]  # the first step is slower
    return min(recipe.batch, len(split(len(few)).train)) * (len(times) - 1) / (times[-1] - times[0])
