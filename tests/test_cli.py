import json
import os
import signal
import subprocess
import sys
import time
from typing import get_args

import numpy as np
import pyarrow.parquet as pq
import pytest

from dose_ood import Detector, Statistics
from dose_ood.benchmark.toys import gaussian
from dose_ood.cli import table
from dose_ood.decision.selection import benjamini_hochberg
from dose_ood.density.registry import ESTIMATORS

NAMES = ("norm", "like", "first", "max")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli")
    gaussian(3000).select(NAMES).write(path / "train.parquet")
    gaussian(1000, seed=1).select(NAMES).write(path / "val.csv")
    new = Statistics.concat([gaussian(450, seed=2), gaussian(50, seed=3, shift=7.0)]).select(NAMES)
    ids = Statistics.from_columns({"id": np.arange(500.0)})
    ids.beside(new).write(path / "new.parquet")
    return path


def test_methods_are_those_of_the_registry():
    assert set(get_args(table.Method)) == set(ESTIMATORS)


@pytest.mark.parametrize("method", ["kde", "svm", "likelihood", "typicality"])
def test_fit_score_explain_inspect(dose, folder, method):
    code, text, _ = dose("fit", "train.parquet", "--held-out", "val.csv", "-m", method, "-o", method)
    assert code == 0
    assert "no sign of it" in text
    assert "threshold" in text
    code, text, _ = dose("score", method, "new.parquet", "-o", f"{method}.parquet", "--keep", "id", "--json")
    summary = json.loads(text)
    table = pq.read_table(folder / f"{method}.parquet")
    assert table.column_names == ["id", "score", "p_value", "is_typical", "is_bad"]
    expected = Detector.load(folder / method).score(Statistics.read(folder / "new.parquet"))
    assert np.array_equal(table["score"].to_numpy(), expected.score)
    assert np.array_equal(table["p_value"].to_numpy(), expected.p_value)
    assert table["id"].to_pylist() == list(range(500))
    assert summary["rows"] == 500
    assert summary["atypical"] == int((~expected.is_typical).sum())
    flagged = benjamini_hochberg(expected.p_value, 0.1)
    assert summary["fdr"]["rows"] == flagged.sum()
    assert np.array_equal(expected.p_value <= summary["fdr"]["p_value_at_most"], flagged)
    code, text, _ = dose("explain", method, "new.parquet", "--row", 470, "--json")
    explanation = json.loads(text)
    assert explanation["row"] == 470
    assert explanation["is_typical"] is bool(expected.is_typical[470])
    code, text, _ = dose("inspect", method, "--json")
    assert json.loads(text)["method"] == method


def test_drift_and_rank(dose):
    dose("fit", "train.parquet", "--held-out", "val.csv", "-o", "kde")
    code, text, _ = dose("drift", "kde", "new.parquet", "--size", 50, "--json")
    found = json.loads(text)
    assert code == 1
    assert found["drifted"][-1]
    assert sum(found["drifted"]) <= 2
    assert dose("drift", "kde", "val.csv")[0] == 0
    text = dose("rank", "train.parquet", "--held-out", "val.csv", "--json")[1]
    assert {c["name"] for c in json.loads(text)["candidates"]} == set(NAMES)
    text = dose("rank", "train.parquet", "--held-out", "val.csv", "--by", "bandwidth", "--json")[1]
    assert json.loads(text)["candidates"][-1]["name"] == "0.05"  # a kernel this narrow is all variance
    text = dose("rank", "train.parquet", "--held-out", "val.csv", "--by", "nu", "--value", "0.2", "--value", "0.5")[1]
    assert "lowest bound" in text


def test_bad_rows_are_refused_or_flagged(dose, folder):
    dose("fit", "train.parquet", "--held-out", "val.csv", "-o", "kde")
    (folder / "bad.csv").write_text("norm,like,first,max\n10,-140,0,2.5\n10,oops,0,2.5\n10,-140,,2.5\n")
    code, _, error = dose("score", "kde", "bad.csv", "-o", "bad.parquet")
    assert code == 2
    assert "row 1, column 'like' of bad.csv: expected a finite number, got 'oops'" in error
    assert not (folder / "bad.parquet").exists()
    assert dose("score", "kde", "bad.csv", "-o", "bad.parquet", "--on-bad-row", "flag")[0] == 0
    table = pq.read_table(folder / "bad.parquet")
    assert table["is_bad"].to_pylist() == [False, True, True]
    assert table["is_typical"].to_pylist() == [True, False, False]
    code, _, error = dose("explain", "kde", "bad.csv", "--row", 2)
    assert (code, "'first' is not a finite number" in error) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["score", "nowhere", "new.parquet", "-o", "s.parquet"], "nowhere does not exist"),
        (["score", "kde", "nothing.parquet", "-o", "s.parquet"], "nothing.parquet: no such file"),
        (["score", "kde", "new.parquet", "-o", "s.txt"], "s.txt: expected a file name ending in .parquet"),
        (["score", "kde", "new.parquet", "-o", "no/s.csv"], "there is no directory no"),
        (["score", "kde", "new.parquet", "-o", "s.csv", "--keep", "who"], "new.parquet has no column 'who'"),
        (["score", "kde", "new.parquet", "-o", "s.csv", "--fdr", "7"], "--fdr must be in (0, 1), got 7.0"),
        (["explain", "kde", "new.parquet", "--row", "500"], "has 500 rows, counted from 0: there is no row 500"),
        (
            ["fit", "train.parquet", "--held-out", "val.csv", "-o", "x", "--bandwidth", "wide"],
            "must be a number, got 'wide'",
        ),
        (["fit", "train.parquet", "--held-out", "val.csv", "-o", "x", "-s", "norn"], "did you mean 'norm'?"),
        (["fit", "train.parquet", "--held-out", "val.csv", "-o", "x", "--discard", "2"], "discard must be in (0, 1)"),
        (["fit", "train.parquet", "--held-out", "val.csv", "-o", "x", "-m", "waic"], "the waic method expects"),
        (["fit", "train.parquet", "--held-out", "val.csv", "-o", "val.csv"], "val.csv exists and is not replaced"),
        (["inspect", "val.csv"], "is not a directory"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(dose, folder, arguments, message):
    dose("fit", "train.parquet", "--held-out", "val.csv", "-o", "kde")
    before = sorted(folder.iterdir())
    code, text, error = dose(*arguments)
    assert code == 2
    assert text == ""
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert sorted(folder.iterdir()) == before


def test_memorisation_is_told(dose, folder):
    gaussian(1000, seed=5, scale=1.05).select(NAMES).write(folder / "other.csv")
    code, text, error = dose("fit", "train.parquet", "--held-out", "other.csv", "-o", "kde2")
    assert code == 0
    assert "warning: held-out scores differ from training scores" in error
    assert "likely: held-out scores differ" in text


def test_help_teaches(dose):
    code, text, _ = dose("--help")
    assert "dose fit train.parquet --held-out val.parquet -o detector/" in text
    for command in ("fit", "score", "explain", "inspect", "drift", "rank"):
        code, text, _ = dose(command, "--help")
        assert code == 0
        assert len(text) > 600


def test_a_killed_run_leaves_nothing_that_looks_finished(folder):
    """SIGKILL in the middle of scoring: no output; an earlier output stays as it was."""
    dose = [sys.executable, "-m", "dose_ood"]
    subprocess.run([*dose, "fit", "train.parquet", "--held-out", "val.csv", "-o", "kde"], cwd=folder, check=True)
    os.mkfifo(folder / "endless.csv")
    (folder / "done.parquet").write_bytes(b"earlier")
    command = [*dose, "score", "kde", "endless.csv", "-o", "done.parquet"]
    process = subprocess.Popen(command, cwd=folder)
    time.sleep(2)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert (folder / "done.parquet").read_bytes() == b"earlier"
