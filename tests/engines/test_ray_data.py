"""A real Ray of two workers on this machine. Slow: it takes seconds to start."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from mortal import Mortal

from dose_ood import Detector, InputError, ProductKDE, Statistics, WhitenedSVM
from dose_ood.benchmark.toys import gaussian
from dose_ood.engines import fit_partitions, here, score_files
from dose_ood.engines.parts import hidden
from dose_ood.engines.ray_data import RayEngine

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # Ray's own warnings, and its open sockets

NAMES = ("norm", "like", "first", "max")
FILES = 6


@pytest.fixture(scope="session")
def engine():
    ray = pytest.importorskip("ray")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)  # workers find `mortal` there
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 * 2**20, log_to_driver=False)
        yield RayEngine(workers=2)
        ray.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("ray")
    train, held_out = gaussian(3000).select(NAMES), gaussian(1000, seed=1).select(NAMES)
    Detector.fit(train, held_out, ProductKDE()).save(place / "kde")
    Detector.fit(train, held_out, WhitenedSVM(solver="landmark", landmarks=100)).save(place / "svm")
    held_out.write(place / "held_out.parquet")
    for number in range(FILES):
        rows = Statistics.from_columns({"id": 1e6 * number + np.arange(5000)})
        table = rows.beside(gaussian(5000, seed=10 + number).select(NAMES)).to_arrow()
        pq.write_table(table, place / f"in{number}.parquet", row_group_size=1000)
    return place


def sources(folder):
    return [str(folder / f"in{number}.parquet") for number in range(FILES)]


def rows_of(folder):
    return ds.dataset(folder).to_table().sort_by([("source", "ascending"), ("row", "ascending")])


@pytest.mark.parametrize("kind", ["kde", "svm"])
def test_two_workers_give_the_bits_that_one_process_gives(engine, folder, kind):
    one = score_files(folder / kind, sources(folder), folder / f"{kind}-here", keep=("id",), engine=here)
    two = score_files(folder / kind, sources(folder), folder / f"{kind}-ray", keep=("id",), engine=engine)
    assert rows_of(folder / f"{kind}-ray").equals(rows_of(folder / f"{kind}-here"))
    assert (two.rows, two.atypical, two.parts) == (one.rows, one.atypical, one.parts) == (30_000, one.atypical, FILES)
    np.testing.assert_array_equal(two.ranks, one.ranks)


def test_images_are_measured_by_workers(engine, tmp_path):
    pytest.importorskip("torch")
    from dose_ood.data.images import read_images
    from dose_ood.guard import Guard

    images = read_images("fashion_mnist_sample:test")[:48]
    for number in range(3):
        np.save(tmp_path / f"{number}.npy", images[16 * number : 16 * number + 16])
    files = [str(tmp_path / f"{number}.npy") for number in range(3)]
    totals = score_files("zoo:fashion_mnist-vae", files, tmp_path / "scores", engine=engine)
    assert (totals.rows, totals.parts) == (48, 3)
    expected = Guard.load("zoo:fashion_mnist-vae").score(images)
    np.testing.assert_allclose(rows_of(tmp_path / "scores")["score"], expected.score, rtol=1e-6)


def test_a_killed_worker_loses_and_repeats_nothing(engine, folder, tmp_path):
    def killing(make, items):
        return engine(partial(Mortal, make, "in2", tmp_path), items)

    totals = score_files(folder / "kde", sources(folder), tmp_path / "scores", keep=("id",), engine=killing)
    killed = (tmp_path / "killed").read_text()
    finished = {note.name: note.read_text().splitlines() for note in tmp_path.glob("[0-9]*")}
    assert len(finished) >= 2
    assert not any("in2" in item for item in finished.get(killed, []))
    assert sum("in2" in item for items in finished.values() for item in items) == 1
    assert (totals.rows, totals.parts) == (30_000, FILES)
    whole = score_files(folder / "kde", sources(folder), tmp_path / "whole", keep=("id",))
    found = rows_of(tmp_path / "scores")
    assert found.equals(rows_of(tmp_path / "whole"))
    assert len(set(zip(found["source"].to_pylist(), found["row"].to_pylist(), strict=True))) == 30_000
    np.testing.assert_array_equal(totals.ranks, whole.ranks)
    assert not hidden(tmp_path / "scores").exists()
    assert {path.suffix for path in (tmp_path / "scores").iterdir()} == {"", ".json", ".parquet"}


def test_an_input_that_kills_every_worker_ends_the_run_which_can_be_resumed(engine, folder, tmp_path):
    def killing(make, items):
        return engine(partial(Mortal, make, "in5", tmp_path, always=True), items)

    with pytest.raises(InputError, match=r"in5\.parquet from row 0 on ended 4 workers"):
        score_files(folder / "kde", sources(folder), tmp_path / "scores", engine=killing)
    assert not (tmp_path / "scores").exists()
    done = len(list(hidden(tmp_path / "scores").glob("in*.parquet")))
    totals = score_files(folder / "kde", sources(folder), tmp_path / "scores", engine=engine)
    assert totals.resumed == done > 0
    assert totals.rows == 30_000


def test_what_a_worker_refuses_is_one_sentence(engine, folder, tmp_path):
    broken = gaussian(10).select(NAMES).values.copy()
    broken[7, 2] = np.nan
    Statistics(NAMES, broken, "flag").write(tmp_path / "broken.parquet")
    with pytest.raises(InputError, match=r"row 7, column 'first' of the table: expected a finite number") as refusal:
        score_files(folder / "kde", [str(tmp_path / "broken.parquet")], tmp_path / "scores", engine=engine)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("estimator", [ProductKDE(), WhitenedSVM(solver="landmark", landmarks=100)], ids=["kde", "svm"])
def test_fitting_on_workers_is_fitting_here(engine, folder, estimator):
    fitted = [
        fit_partitions(sources(folder), folder / "held_out.parquet", estimator, NAMES, size=4000, engine=each)
        for each in (here, engine)
    ]
    rows = gaussian(2000, seed=3).select(NAMES)
    one, two = (detector.score(rows) for detector in fitted)
    np.testing.assert_array_equal(two.score, one.score)
    np.testing.assert_array_equal(two.p_value, one.p_value)


def test_the_command_joins_a_ray_by_its_address(engine, folder, tmp_path):
    import ray

    address = ray.get_runtime_context().gcs_address
    names = [Path(source).name for source in sources(folder)]  # relative to a folder that no worker was started in
    command = [sys.executable, "-m", "dose_ood", "score", "kde", *names, "--keep", "id", "--json"]
    joining = ["--engine", "ray", "--workers", "2", "--address", address, "-o", str(tmp_path / "scores")]
    run = subprocess.run([*command, *joining], cwd=folder, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["rows"] == 30_000
    score_files(folder / "kde", sources(folder), tmp_path / "whole", keep=("id",))
    found, expected = (rows_of(tmp_path / name) for name in ("scores", "whole"))
    assert found.drop(["source"]).equals(expected.drop(["source"]))
    assert set(found["source"].to_pylist()) == set(names)
    assert ray.is_initialized()
