"""Several models as one: a column for each statistic of each model."""

from collections.abc import Sequence
from typing import Protocol, cast

from torch import Tensor, nn

from dose_ood.errors import InputError


class Member(Protocol):
    """A model of an ensemble."""

    def measure(self, x: Tensor) -> dict[str, Tensor]:
        """Statistics of each sample, shape (batch,)."""


class Ensemble(nn.Module):
    """Models trained apart, measured together: WAIC needs several, the likelihood ratio a background model.

    Columns of the models are called `0/like`, `1/like`, …, those of the background model `background/like`. The columns
    of a single model keep their names, so that one model and its background give `like` and `background/like`.

    Parameters
    ----------
    models
        At least one; each has the method `measure`.
    background
        The model trained on mutated images, if there is one.
    """

    def __init__(self, models: Sequence[nn.Module], background: nn.Module | None = None) -> None:
        super().__init__()
        if not models:
            raise InputError("an ensemble needs at least one model beside the background, got none")
        names = [""] if len(models) == 1 else [f"{number}/" for number in range(len(models))]
        self.models = nn.ModuleList(models)
        self.prefixes = tuple(names)
        if background is not None:
            self.models.append(background)
            self.prefixes += ("background/",)

    def measure(self, x: Tensor) -> dict[str, Tensor]:
        """The statistics of every model, each under its prefix."""
        columns: dict[str, Tensor] = {}
        for prefix, model in zip(self.prefixes, self.models, strict=True):
            columns |= {prefix + name: column for name, column in cast(Member, model).measure(x).items()}
        return columns
