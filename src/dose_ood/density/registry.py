"""Every estimator there is, by its kind, and the state of a fitted one as plain data."""

import inspect
import math
import reprlib
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from dose_ood.decision.conformal import check_share
from dose_ood.density.base import QUANTILES, DensityOfStates
from dose_ood.density.baselines import WAIC, Likelihood, LikelihoodRatio, Typicality
from dose_ood.density.kde import ProductKDE
from dose_ood.density.svm import WhitenedSVM
from dose_ood.errors import InputError
from dose_ood.storage import Array, Json, Spec, check

CLASSES: tuple[type[DensityOfStates], ...] = (Likelihood, Typicality, WAIC, LikelihoodRatio, ProductKDE, WhitenedSVM)
ESTIMATORS: dict[str, type[DensityOfStates]] = {cls.kind: cls for cls in CLASSES}

COLUMNS_LIMIT = 100_000

_NUMBER, _COUNT = Spec("float64", ()), Spec("int64", ())
_PER_COLUMN = Spec("float64", ("columns",))

COMMON: dict[str, Spec] = {
    "n_features_in_": _COUNT,
    "n_train_": _COUNT,
    "train_edges_": Spec("float64", ("edges",)),
    "train_shares_": Spec("float64", ("bins",)),
    "train_mean_": _NUMBER,
    "offset_": _NUMBER,
    "calibration_scores_": Spec("float64", ("rows",)),
    "calibration_contributions_": Spec("float64", ("rows", "columns")),
    "calibration_quantiles_": Spec("float64", ("quantiles", "columns")),
    "ece_": _NUMBER,
    "ece_by_chance_": _NUMBER,
    "ece_by_chance_95_": _NUMBER,
    "ece_p_value_": _NUMBER,
}
LATER = ("calibration_quantiles_",)  # which the first detectors that were saved do not have
LEARNED: dict[str, dict[str, Spec]] = {
    "likelihood": {},
    "typicality": {"mean_": _NUMBER},
    "waic": {},
    "likelihood_ratio": {},
    "kde": {
        "n_rows_": _COUNT,
        "center_": _PER_COLUMN,
        "slack_": _PER_COLUMN,
        "bandwidth_": _PER_COLUMN,
        "max_error_": _PER_COLUMN,
        "data_": Spec("float64", ("kept", "columns")),
        "knot_counts_": Spec("int64", ("columns",)),
        "knots_": Spec("float64", ("knots",)),
        "cubics_": Spec("float64", (4, "pieces")),
    },
    "svm": {
        "mean_": _PER_COLUMN,
        "deviation_": _PER_COLUMN,
        "rotation_": Spec("float64", ("columns", "rank")),
        "null_directions_": Spec("float64", ("nulls", "columns")),
        "log_volume_": _NUMBER,
        "rank_": _COUNT,
        "gamma_": _NUMBER,
        "total_": _NUMBER,
        "centres_": Spec("float64", ("centres", "rank")),
        "weights_": Spec("float64", ("centres",)),
        "masses_": Spec("float64", ("centres",)),
        "level_": _NUMBER,
        "switch_": _NUMBER,
        "n_steps_": _COUNT,
        "duality_gap_": _NUMBER,
        "full_duality_gap_": _NUMBER,
        "full_duality_gap_error_": _NUMBER,
    },
}

_MEMORISATION = ("ece_", "ece_by_chance_", "ece_by_chance_95_", "ece_p_value_")  # NaN until there are held-out rows
_SCORES = ("train_edges_", "train_mean_", "offset_", "calibration_scores_", "calibration_contributions_")  # may be −∞


class State(NamedTuple):
    """All there is to a fitted estimator: its kind, its parameters as JSON, and what it has learned as arrays."""

    kind: str
    params: dict[str, Json]
    tensors: dict[str, Array]


def estimator_state(estimator: DensityOfStates) -> State:
    """The state of a fitted estimator; numbers become arrays without dimensions, sequences become lists.

    The names of columns (`feature_names_in_`) are not part of it: they belong to the table, and so to the detector.

    Examples
    --------
    >>> state = estimator_state(Typicality().fit([[-3.0], [-2.0], [-1.0]]))
    >>> state.kind, state.params, state.tensors["mean_"]
    ('typicality', {'column': 0, 'discard': 0.05}, array(-2.))
    >>> estimator_from_state(*state).score_samples([[5.0]])
    array([-7.])
    """
    check_is_fitted(estimator)
    if ESTIMATORS.get(estimator.kind) is not type(estimator):
        raise InputError(f"{type(estimator).__name__} is not one of {', '.join(cls.__name__ for cls in CLASSES)}")
    learned = {
        name: np.array(value)
        for name, value in sorted(vars(estimator).items())
        if name.endswith("_") and not name.startswith("_") and name != "feature_names_in_"
    }
    params = {name: _json(value) for name, value in estimator.get_params(deep=False).items()}
    state = State(estimator.kind, params, learned)
    estimator_from_state(*state)  # what cannot be loaded is not saved
    return state


def estimator_from_state(kind: str, params: Mapping[str, Json], tensors: Mapping[str, Array]) -> DensityOfStates:
    """The fitted estimator that has this state, which is refused by name wherever no `fit` could have left it.

    Parameters
    ----------
    kind
        A key of `ESTIMATORS`.
    params
        Every parameter of that class, and no other.
    tensors
        Every attribute that class learns, and no other.
    """
    if kind not in list(ESTIMATORS):  # a list, as what a file gives may have no hash
        raise InputError(f"kind of estimator must be one of {', '.join(ESTIMATORS)}, got {reprlib.repr(kind)}")
    cls = ESTIMATORS[kind]
    _check_params(cls, params)
    tensors = _with_later(tensors)
    sizes = check(tensors, COMMON | LEARNED[kind], kind)
    for name, array in tensors.items():
        _check_numbers(name, array, kind)
    estimator = cls(**params)
    for name, array in tensors.items():
        setattr(estimator, name, array.copy() if array.ndim else array.item())
    _check_common(estimator, sizes["columns"])
    _check_own(estimator)
    return estimator


def _with_later(tensors: Mapping[str, Array]) -> dict[str, Array]:
    """What was saved before held-out quantiles were kept has none."""
    known = tensors.get("calibration_contributions_")
    none = np.empty((0, *(() if known is None else known.shape[1:2])))
    return {**dict.fromkeys(LATER, none), **tensors}


def _json(value: object) -> Json:
    plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    if isinstance(plain, list | tuple):
        return [_json(item) for item in plain]
    return plain  # type: ignore[return-value]  # whether it is JSON is for _check_params to say


def _check_params(cls: type[DensityOfStates], params: Mapping[str, Json]) -> None:
    hints = get_type_hints(cls.__init__)
    names = list(inspect.signature(cls).parameters)
    for name in names:
        if name not in params:
            raise InputError(f"{cls.kind}: parameter {name} is missing")
    for name, value in params.items():
        if name not in names:
            raise InputError(f"{cls.kind}: {reprlib.repr(name)} is not a parameter; they are {', '.join(names)}")
        if not _fits(value, hints[name]):
            expected = str(hints[name]).replace("typing.", "").replace("collections.abc.", "")
            raise InputError(f"{cls.kind}: parameter {name} must be {expected}, got {reprlib.repr(value)}")
    discard = params["discard"]
    if isinstance(discard, int | float):
        check_share(f"{cls.kind}: parameter discard", discard)


def _fits(value: object, hint: object) -> bool:
    """Whether a JSON value is of the type that a parameter is annotated with."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in options)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in options)
    if origin in (Sequence, list, tuple):
        return isinstance(value, list | tuple) and all(_fits(item, options[0]) for item in value)
    if hint is float:
        return type(value) in (int, float) and abs(value) < math.inf  # type: ignore[arg-type]
    return type(value) is hint


def _check_numbers(name: str, array: Array, kind: str) -> None:
    if np.isnan(array).any() and name not in _MEMORISATION:
        raise InputError(f"{kind}: {name} must not be NaN")
    if np.isinf(array).any() and name not in _SCORES:
        raise InputError(f"{kind}: {name} must be finite")


def _check_common(estimator: DensityOfStates, columns: int) -> None:
    """Refuse what `fit` and `calibrate` of the base class cannot have left."""
    edges, shares = estimator.train_edges_, estimator.train_shares_
    scores, contributions = estimator.calibration_scores_, estimator.calibration_contributions_
    memorisation = np.array([getattr(estimator, name) for name in _MEMORISATION])
    held_out, quantiles = len(scores) > 0, estimator.calibration_quantiles_
    rules = {
        "n_features_in_ must be the number of columns of calibration_contributions_": estimator.n_features_in_
        == columns,
        f"n_features_in_ must be {estimator.minimum_columns} to {COLUMNS_LIMIT}": (
            estimator.minimum_columns <= columns <= COLUMNS_LIMIT
        ),
        "n_train_ must be 2 or more": estimator.n_train_ >= 2,
        "train_edges_ must rise": bool((edges[:-1] < edges[1:]).all()),
        "train_shares_ must be one more than train_edges_": len(shares) == len(edges) + 1,
        "train_shares_ must be shares of 1": bool((shares >= 0).all()) and math.isclose(shares.sum(), 1.0),
        "calibration_scores_ must be sorted": _is_sorted(scores),
        "calibration_contributions_ must be sorted": _is_sorted(contributions),
        "calibration_quantiles_ must be sorted": _is_sorted(quantiles),
        f"calibration_quantiles_ must be {QUANTILES} with held-out rows, or none": (
            len(quantiles) in ((0, QUANTILES) if held_out else (0,))
        ),
        f"{', '.join(_MEMORISATION)} must be shares with held-out rows, NaN without": bool(
            ((memorisation >= 0) & (memorisation <= 1)).all() if held_out else np.isnan(memorisation).all()
        ),
    }
    for rule, kept in rules.items():
        if not kept:
            raise InputError(f"{estimator.kind}: {rule}")


def _is_sorted(values: NDArray[np.float64]) -> bool:
    return bool((values[:-1] <= values[1:]).all())


def _check_own(estimator: DensityOfStates) -> None:
    """Refuse what the class itself refuses, and what cannot score a row."""
    estimator._check_state()
    row = np.zeros((1, estimator.n_features_in_))
    try:
        with np.errstate(all="ignore"):
            score, contributions = estimator._score(row), estimator._contributions(row)
    except Exception as error:
        raise InputError(f"{estimator.kind}: its attributes cannot score a row together: {error}") from error
    if (
        score.shape != (1,)
        or contributions.shape != row.shape
        or np.isnan(score).any()
        or np.isnan(contributions).any()
    ):
        raise InputError(
            f"{estimator.kind}: its attributes give a row of zeros the score {score}, from {contributions}"
        )
