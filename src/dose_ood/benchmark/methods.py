"""The six methods as functions of the same tables: what each of them looks at, on one model and on an ensemble."""

from collections.abc import Sequence
from functools import reduce

import numpy as np

from dose_ood.benchmark.results import BACKGROUND, METHODS
from dose_ood.columns import listing
from dose_ood.density.base import DensityOfStates
from dose_ood.density.registry import ESTIMATORS
from dose_ood.detector import LIKELIHOODS, default_statistics
from dose_ood.errors import InputError
from dose_ood.statistics import Statistics

DOSE = ("kde", "svm")


def single(member: Statistics, background: Statistics) -> Statistics:
    """What the methods look at on one model: its statistics, and the background model's log-likelihood."""
    return member.select(plain(member.names)).beside(likelihood(background).prefix(f"{BACKGROUND}/"))


def ensemble(members: Sequence[Statistics], background: Statistics) -> Statistics:
    """The same on several models: all their statistics, as `0/like`, …, and the mean of their log-likelihoods.

    WAIC is this mean minus the variance over the members, so that the two differ in that alone.
    """
    own = side_by_side([member.select(plain(member.names)) for member in members])
    likelihoods = [likelihood(member) for member in members]
    (name,) = likelihoods[0].names
    mean = Statistics.from_columns({name: np.mean([table[name] for table in likelihoods], axis=0)}, on_bad="flag")
    return own.beside(mean).beside(likelihood(background).prefix(f"{BACKGROUND}/"))


def side_by_side(members: Sequence[Statistics]) -> Statistics:
    """What each of several models says of the same samples, as `0/like`, …."""
    first, *others = (member.prefix(f"{number}/") for number, member in enumerate(members))
    return reduce(Statistics.beside, others, first)


def columns_of(method: str, names: Sequence[str]) -> tuple[str, ...]:
    """The columns of such a table that a method works on.

    DoSE takes the paper's statistics of the model, or of all members; the other methods take log-likelihoods.

    Examples
    --------
    >>> columns_of("kde", ["like", "jac", "background/like"])
    ('like', 'jac')
    >>> columns_of("kde", ["0/like", "0/jac", "1/like", "1/jac", "like", "background/like"])
    ('0/like', '0/jac', '1/like', '1/jac')
    >>> columns_of("likelihood_ratio", ["0/like", "0/jac", "1/like", "1/jac", "like", "background/like"])
    ('like', 'background/like')
    """
    if method not in DOSE:
        return default_statistics(method, names)
    own = tuple(name for name in names if not name.startswith(f"{BACKGROUND}/"))
    return tuple(name for name in own if "/" in name) or own


def methods_for(members: int) -> tuple[str, ...]:
    """The methods that so many models allow: WAIC needs several, and is a method of ensembles only."""
    return tuple(method for method in METHODS if method != "waic" or members > 1)


def estimator(method: str) -> DensityOfStates:
    """A method with the paper's parameters."""
    made: DensityOfStates = ESTIMATORS[method]()
    return made


def plain(names: Sequence[str]) -> tuple[str, ...]:
    """The paper's statistics: a Glow's of single levels (`jac/0`) are measured, but are not among them."""
    return tuple(name for name in names if "/" not in name)


def by_level(names: Sequence[str]) -> tuple[str, ...]:
    """A Glow's statistics of single levels, whose sums are the paper's.

    Examples
    --------
    >>> by_level(["like", "latent", "jac", "latent/0", "jac/0", "mix/0"])
    ('latent/0', 'jac/0')
    """
    return tuple(name for name in names if name.startswith(("latent/", "jac/")))


def with_score_tests(names: Sequence[str]) -> tuple[str, ...]:
    """The same and what `score_tests` makes of each level's latents.

    Examples
    --------
    >>> with_score_tests(["like", "latent", "jac", "latent/0", "jac/0", "mix/0"])
    ('latent/0', 'jac/0', 'mix/0')
    """
    return tuple(name for name in names if "/" in name)


def likelihood(table: Statistics) -> Statistics:
    """The log-likelihood alone."""
    for name in LIKELIHOODS:
        if name in table.names:
            return table.select([name])
    raise InputError(
        f"expected a log-likelihood, {' or '.join(LIKELIHOODS)}, among the statistics {listing(table.names)}"
    )
