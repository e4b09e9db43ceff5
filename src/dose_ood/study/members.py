"""The models of a benchmark: what each of them is, whether it is there already, and how it is made."""

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from dose_ood.benchmark.results import BACKGROUND, Study
from dose_ood.data.images import fingerprint, split
from dose_ood.errors import InputError
from dose_ood.storage import Json
from dose_ood.study.sets import Images, Sets
from dose_ood.tables import FOREIGN, explaining

if TYPE_CHECKING:
    from torch import nn

    from dose_ood.models.registry import Loaded, Model
    from dose_ood.recipes import Recipe
    from dose_ood.runs import Record

MODEL, LOG = "model", "log.jsonl"


@dataclass(frozen=True)
class Member:
    """A model of a benchmark.

    Parameters
    ----------
    name
        "0", "1", … or "background".
    seed
        Draws its first weights, the order of the images and the noise.
    identity
        What its run is, as JSON: model, recipe, seeds, mutation rate, data. Two runs that agree in it are the same.
    """

    name: str
    seed: int
    identity: Mapping[str, Json]

    @property
    def key(self) -> str:
        """A checksum of the identity."""
        return hashlib.sha256(json.dumps(self.identity, sort_keys=True).encode()).hexdigest()


def members_of(study: Study, sets: Sets) -> tuple[Member, ...]:
    """The members of a study, the background model last."""
    from dose_ood.recipes import MUTATION, recipe_named

    recipe = recipe_named(study.recipe, study.model)
    config = recipe.config(sets.data, sets.training.shape[1:], None, study.latent)
    same: dict[str, object] = {
        "model": {"kind": study.model, "config": asdict(config)},
        "recipe": asdict(recipe),
        "split_seed": study.seed,
        "data": {"shape": sets.training.shape, "sha256": fingerprint(sets.training)},
    }
    wanted = {str(seed): (seed, None) for seed in range(study.members)} | {BACKGROUND: (0, MUTATION)}
    return tuple(
        Member(name, seed, json.loads(json.dumps(same | {"seed": seed, "background": mutation})))
        for name, (seed, mutation) in wanted.items()
    )


def recipe_of(study: Study) -> "Recipe[nn.Module]":
    """How the models of a study are trained."""
    from dose_ood.recipes import recipe_named

    return recipe_named(study.recipe, study.model)


def fresh(member: Member) -> "Model":
    """The model before training."""
    from dose_ood.models.registry import build, config_from

    found = cast("Mapping[str, Json]", member.identity["model"])
    return build(config_from(found["kind"], found["config"], member.name), member.seed)


def load(member: Member, run: Path) -> "Loaded | None":
    """The trained model of a run; None if it is not trained yet; that of another run is refused."""
    from dose_ood.models.registry import load_model

    if not (run / MODEL).exists() and not (run / f".{MODEL}.dose-old").exists():
        return None
    found = load_model(run / MODEL)
    for name, value in member.identity.items():
        if found.provenance.get(name) != value:
            raise InputError(
                f"{run} holds another model: its {name} is {found.provenance.get(name)}, expected {value}; "
                "choose another output"
            )
    return found


def find(member: Member, runs: Path) -> Path | None:
    """A finished run somewhere below a folder that is this member's, known by its provenance."""
    for file in sorted(runs.rglob(f"{MODEL}/{MODEL}.json")):
        with suppress(*FOREIGN, AttributeError, KeyError, TypeError):  # what is no model of ours is not looked at
            provenance = json.loads(file.read_text(encoding="utf-8"))["document"]["provenance"]
            if all(provenance.get(name) == value for name, value in member.identity.items()):
                return file.parent.parent
    return None


def copy(source: Path, run: Path) -> None:
    """Take over the model and the log of a run that was trained elsewhere, whole or not at all."""
    temporary = run.with_name(f".{run.name}.copy")
    with explaining(f"cannot copy {source} to {run}"):
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(source / MODEL, temporary / MODEL)
        if (source / LOG).exists():
            shutil.copy2(source / LOG, temporary / LOG)
        temporary.rename(run)


def train_member(
    member: Member,
    study: Study,
    images: Images,
    run: Path,
    progress: "Callable[[Record], None] | None" = None,
) -> None:
    """Train a member, or go on where a kill stopped it."""
    from dose_ood.models.registry import save_model
    from dose_ood.train import train

    model = fresh(member)
    mutation = member.identity["background"]
    provenance = train(
        cast("nn.Module", model),
        images,
        recipe_of(study),
        run,
        seed=member.seed,
        split_seed=study.seed,
        background=mutation if isinstance(mutation, float) else None,
        resume=True,
        progress=progress,
    )
    save_model(run / MODEL, model, provenance)


def share_left(run: Path) -> float:
    """The share of the steps that a run still has to do, by its log."""
    from dose_ood.runs import read_log

    log = read_log(run) if (run / LOG).exists() else ()
    return 1 - log[-1].step / log[-1].steps if log else 1.0


def training_of(found: "Loaded", study: Study, run: Path) -> dict[str, float]:
    """What a run ended with: held-out loss in nats per image and in bits per dimension, seconds, epochs."""
    from dose_ood.runs import read_log

    if not (run / LOG).exists():
        return {}
    log, recipe = read_log(run), recipe_of(study)
    shape = cast("Mapping[str, list[int]]", found.provenance["data"])["shape"]
    held_out = [record.held_out for record in log if record.held_out is not None][-1]
    batch, before, seconds = min(recipe.batch, len(split(shape[0]).train)), 0, 0.0
    for record in log:
        seconds += (record.step - before) * batch / record.images_per_s
        before = record.step
    bits = recipe.bits_per_dim(cast("nn.Module", found.model), held_out, math.prod(shape[1:]))
    return {"held_out": held_out, "bits_per_dim": bits, "seconds": seconds, "epochs": log[-1].epoch + 1}
