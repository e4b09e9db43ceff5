"""A detector: the names of statistics and a density of states fitted to them; fit, score, explain, save, load."""

import hashlib
import os
import platform
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa
import scipy
import sklearn
from numpy.typing import NDArray
from sklearn.base import clone

import dose_ood
from dose_ood import storage, zoo
from dose_ood.decision.conformal import p_values
from dose_ood.decision.explain import Explanation, explain
from dose_ood.decision.group import GroupTest
from dose_ood.decision.selection import benjamini_hochberg
from dose_ood.density.base import DensityOfStates
from dose_ood.density.registry import estimator_from_state, estimator_state
from dose_ood.errors import DoseWarning, InputError
from dose_ood.statistics import Statistics
from dose_ood.storage import Directory, Json

KIND = "detector"
LIKELIHOODS = ("like", "iwae")  # names of a log-likelihood, the first that is there


@dataclass(frozen=True, eq=False)
class Scores:
    """The verdict on each row, in arrays of shape (rows,).

    Parameters
    ----------
    score
        Typicality: higher = more typical; −∞ for bad rows.
    p_value
        The share of held-out rows that are no more typical, (1 + rank) / (1 + n).
    is_typical
        Whether the score reaches the threshold.
    is_bad
        Whether a statistic of the row was not a finite number.
    """

    score: NDArray[np.float64]
    p_value: NDArray[np.float64]
    is_typical: NDArray[np.bool_]
    is_bad: NDArray[np.bool_]

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.score)

    def to_arrow(self) -> pa.RecordBatch:
        """The same as an Arrow batch of four columns."""
        return pa.record_batch({name: pa.array(values) for name, values in vars(self).items()})


@dataclass(frozen=True, eq=False)
class Detector:
    """A calibrated density of states over named statistics.

    Made by `Detector.fit` or `Detector.load`. Tables are matched by the names of their columns; columns the detector
    does not know are ignored.

    Parameters
    ----------
    statistics
        The names of the columns, in the estimator's order.
    estimator
        A fitted and calibrated density of states.
    provenance
        Where it comes from: rows and fingerprints of the data, versions.
    model
        The model that measures the statistics, as data (`models.registry.model_state`); None if it is kept elsewhere.
        With it, `Guard` takes images.

    Examples
    --------
    >>> random = np.random.default_rng(0)
    >>> tables = [Statistics(("rate", "like"), random.normal(size=(1000, 2))) for _ in range(3)]
    >>> from dose_ood import ProductKDE
    >>> detector = Detector.fit(tables[0], tables[1], ProductKDE(discard=0.1))
    >>> share = 1 - detector.score(tables[2]).is_typical.mean()
    >>> bool(0.05 < share < 0.15)
    True
    >>> odd = Statistics.from_columns({"like": [0.0], "rate": [7.0]})
    >>> detector.explain(odd)[0].summary
    'atypical (p = 0.001): rate is less typical than 99.9 % of held-out rows'
    """

    statistics: tuple[str, ...]
    estimator: DensityOfStates
    provenance: Mapping[str, Json]
    model: Directory | None = None

    @classmethod
    def fit(
        cls,
        train: Statistics,
        held_out: Statistics,
        estimator: DensityOfStates,
        statistics: Sequence[str] | None = None,
    ) -> Self:
        """Fit the density to training rows and calibrate it on rows the model was not trained on.

        Parameters
        ----------
        train, held_out
            Statistics of the two parts of the training data.
        estimator
            The density of states; a copy of it is fitted.
        statistics
            The columns to use; by default those that suit the estimator (`default_statistics`).
        """
        names = tuple(default_statistics(estimator.kind, train.names) if statistics is None else statistics)
        parts = {"train": train.select(names), "held_out": held_out.select(names)}
        for part, table in parts.items():
            if table.bad.any():
                raise InputError(
                    f"row {table.bad.argmax()} of the {part} table has a value that is not a finite number"
                )
        fitted: DensityOfStates = clone(estimator).fit(parts["train"].values).calibrate(parts["held_out"].values)
        data: dict[str, Json] = {
            part: {"rows": len(table), "sha256": _fingerprint(table)} for part, table in parts.items()
        }
        if data["train"] == data["held_out"]:
            warnings.warn(
                "the held-out rows are the training rows: hold other rows out, or too many new ones will be atypical",
                DoseWarning,
                stacklevel=2,
            )
        return cls(names, fitted, {"data": data, "versions": _versions()})

    def score(self, table: Statistics) -> Scores:
        """Score each row. Bad rows are the least typical there are: a statistic that is NaN is itself atypical."""
        chosen = table.select(self.statistics)
        good = ~chosen.bad
        score = np.full(len(chosen), -np.inf)
        if good.any():
            score[good] = self.estimator.score_samples(chosen.values if good.all() else chosen.values[good])
        known = p_values(self.estimator.calibration_scores_, score)
        return Scores(score, known, (score >= self.estimator.offset_) & good, ~good)

    def select(self, table: Statistics, rate: float) -> NDArray[np.bool_]:
        """The rows of a batch that are atypical, of which at most the share `rate` is expected to be so by chance."""
        return benjamini_hochberg(self.score(table).p_value, rate)

    def explain(self, table: Statistics) -> tuple[Explanation, ...]:
        """Which statistics made each row as typical or atypical as it is."""
        chosen, scores = table.select(self.statistics), self.score(table)
        if chosen.bad.any():
            row = int(chosen.bad.argmax())
            column = self.statistics[int(np.isnan(chosen.values[row]).argmax())]
            raise InputError(f"row {row} is atypical because its {column!r} is not a finite number")
        return explain(
            self.estimator.contributions(chosen.values),
            self.estimator.calibration_contributions_,
            names=self.statistics,
            values=chosen.values,
            scores=scores.score,
            p_values=scores.p_value,
            is_typical=scores.is_typical,
        )

    def group_test(self, size: int, alpha: float = 0.01) -> GroupTest:
        """The test whether a group of `size` rows has drifted, at the false-alarm rate `alpha`."""
        return GroupTest.from_scores(self.estimator.train_mean_, self.estimator.calibration_scores_, size, alpha)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a directory of JSON and safetensors, whole or not at all; scores after `load` are bit-equal."""
        zoo.check_output(path)
        kind, params, tensors = estimator_state(self.estimator)
        document: dict[str, Json] = {
            "statistics": self.statistics,
            "estimator": {"kind": kind, "params": params},
            "provenance": self.provenance,
        }
        arrays: dict[str, Mapping[str, storage.Array]] = {"estimator": tensors}
        if self.model is not None:
            document["model"] = self.model.document
            arrays |= self.model.tensors
        storage.save(path, document, arrays, kind=KIND)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote, or `zoo:NAME`; anything else is refused by name, and nothing in it is executed."""
        found = storage.load(zoo.directory(path), kind=KIND)
        estimator, names = found.document.get("estimator"), found.document.get("statistics")
        provenance, model = found.document.get("provenance"), found.document.get("model")
        if (
            not isinstance(estimator, Mapping)
            or not isinstance(params := estimator.get("params"), Mapping)
            or not isinstance(kind := estimator.get("kind"), str)
            or not isinstance(names, list)
            or not isinstance(provenance, Mapping)
            or not isinstance(model, Mapping | None)
            or set(found.tensors) != {"estimator", *({"model"} if model is not None else ())}
        ):
            raise InputError(f"{path}: expected statistics, an estimator with kind and params, and its arrays")
        fitted = estimator_from_state(kind, params, found.tensors["estimator"])
        statistics = tuple(name for name in names if isinstance(name, str))
        if not len(statistics) == len(names) == len(set(statistics)) == fitted.n_features_in_:
            raise InputError(f"{path}: expected {fitted.n_features_in_} different names of statistics, got {names}")
        if not len(fitted.calibration_scores_):
            raise InputError(f"{path}: the estimator is not calibrated")
        state = None if model is None else Directory(model, {"model": found.tensors["model"]})
        return cls(statistics, fitted, provenance, state)


def default_statistics(kind: str, names: Sequence[str]) -> tuple[str, ...]:
    """The columns a method works on, if none are named: a baseline's log-likelihoods, or all columns for DoSE.

    Examples
    --------
    >>> default_statistics("typicality", ["rate", "iwae"])
    ('iwae',)
    >>> default_statistics("waic", ["0/like", "1/like", "0/jac"])
    ('0/like', '1/like')
    """
    if kind in ("kde", "svm"):
        return tuple(names)
    for name in LIKELIHOODS:
        members = tuple(n for n in names if n.endswith(f"/{name}") and not n.startswith("background/"))
        if kind == "waic" and members:
            return members
        if kind == "likelihood_ratio" and {name, f"background/{name}"} <= set(names):
            return (name, f"background/{name}")
        if kind in ("likelihood", "typicality") and name in names:
            return (name,)
    wanted = {
        "waic": "'0/like', '1/like', …",
        "likelihood_ratio": "'like' and 'background/like'",
    }.get(kind, "'like' or 'iwae'")
    raise InputError(f"the {kind} method expects {wanted} unless statistics are named, got {', '.join(names)}")


def _fingerprint(table: Statistics) -> str:
    digest = hashlib.sha256("\0".join(table.names).encode())
    digest.update(np.ascontiguousarray(table.values, dtype="<f8").data)
    return digest.hexdigest()


def _versions() -> dict[str, Json]:
    return {
        "dose_ood": dose_ood.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "python": platform.python_version(),
    }
