"""Spark on this machine, two workers."""

import os
import shutil
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dose_ood import Detector, InputError, ProductKDE, Statistics
from dose_ood.engines.spark import score_frame
from dose_ood.noise import generator

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Spark's own warnings, and its open sockets
NAMES = ("rate", "like")


@pytest.fixture(scope="module")
def spark():
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    session = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def detector(tmp_path):
    made = Detector.fit(rows(2000), rows(1000, 1), ProductKDE())
    made.save(tmp_path / "detector")
    return made


def rows(count, seed=0):
    return Statistics(NAMES, generator("rows for Spark", seed).normal(size=(count, 2)))


def test_row_for_row_as_one_process(spark, detector, tmp_path):
    table = rows(5000, 2)
    arrow = table.to_arrow().append_column("id", pa.array(range(len(table))))
    for part in range(4):
        pq.write_table(arrow.slice(1250 * part, 1250), tmp_path / f"{part}.parquet")
    frame = spark.read.parquet(*[str(tmp_path / f"{part}.parquet") for part in range(4)]).repartition(6)
    found = score_frame(frame, tmp_path / "detector", keep=["id"]).toArrow().sort_by("id")
    assert found.column_names == ["id", "score", "p_value", "is_typical", "is_bad"]
    expected = detector.score(table)
    np.testing.assert_array_equal(found["id"], np.arange(5000))
    for name in found.column_names[1:]:
        np.testing.assert_array_equal(found[name], getattr(expected, name))


def test_bad_rows_and_missing_columns(spark, detector, tmp_path):
    frame = spark.createDataFrame([(0.0, float("nan")), (0.0, 0.0)], ["rate", "like"])
    flagged = score_frame(frame, tmp_path / "detector", on_bad="flag").toArrow()
    assert sorted(flagged["is_bad"].to_pylist()) == [False, True]
    with pytest.raises(Exception, match="like"):
        score_frame(frame, tmp_path / "detector").toArrow()
    with pytest.raises(InputError, match="like"):
        score_frame(frame.drop("like"), tmp_path / "detector")
    with pytest.raises(InputError, match="id"):
        score_frame(frame, tmp_path / "detector", keep=["id"])
