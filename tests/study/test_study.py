import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import benching
from benching import bench, write_data
from dose_ood import InputError, Statistics
from dose_ood.benchmark.metrics import auroc
from dose_ood.benchmark.results import Folder, Results, Study
from dose_ood.cli import app
from dose_ood.data.images import read_images, split
from dose_ood.measure import measure
from dose_ood.models.registry import load_model
from dose_ood.runs import read_log
from dose_ood.study import work
from dose_ood.study.members import fresh, members_of, share_left
from dose_ood.study.plan import Clock, Plan, Task
from dose_ood.study.sets import open_sets


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors are slower on two."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data")
    write_data(path)
    return path


@pytest.fixture(scope="module")
def made(data):
    """A benchmark of two members and a background model, on a few images."""
    folder = Folder(data / "made")
    return folder, bench(data, folder.path, members=2)


@pytest.fixture
def dose(data, monkeypatch, capsys):
    """Run a command in the folder of the data, and give what it prints."""

    def run(*arguments):
        monkeypatch.chdir(data)
        app([str(argument) for argument in arguments], standalone_mode=False)
        return capsys.readouterr().out

    return run


def test_everything_is_in_the_folder(data, made):
    folder, results = made
    assert Results.read(folder.results) == results
    for member in ("0", "1", "background"):
        assert read_log(folder.run(member))[-1].held_out == results.training[member]["held_out"]
        for name in ("train", "held_out", "test", "odd", "vflip"):
            assert len(Statistics.read(folder.statistics(member, name))) == 16
    assert Statistics.read(folder.statistics("background", "odd")).names == ("iwae",)
    assert {c.member for c in results.cells} == {"0", "1", "ensemble"}
    assert load_model(folder.run("background") / "model").provenance["background"] == 0.15
    assert load_model(folder.run("1") / "model").provenance["seed"] == 1
    assert not [file for file in folder.path.rglob(".*") if file.is_file()]


def test_a_cell_can_be_computed_by_hand(data, made):
    folder, results = made
    model = load_model(folder.run("1") / "model").model
    images = read_images(data / "stripes.npz")
    held_out = Statistics.read(folder.statistics("1", "held_out"))
    measured = measure(model, images[split(200, 0).held_out])
    for row in held_out.values:  # the 16 rows are among the 20 images held out
        assert np.isclose(measured.values, row, rtol=1e-4, atol=1e-3).all(axis=1).any()
    likes = [Statistics.read(folder.statistics("1", name))["iwae"] for name in ("test", "odd")]
    assert next(c for c in results.members("odd", "likelihood") if c.member == "1").auroc == auroc(*likes)
    bits = results.training["1"]["bits_per_dim"]
    assert bits == pytest.approx(float(model.bits_per_dim(torch.tensor(results.training["1"]["held_out"]).double())))


def test_images_to_look_at_are_rows_of_the_sets(data, made):
    folder, _ = made
    with np.load(folder.images("odd")) as kept:
        images, rows = kept["images"], kept["rows"]
    assert images.shape == (16, 1, benching.SIZE, benching.SIZE)  # all rows are extreme, there are so few
    assert rows.tolist() == list(range(16))
    table = Statistics.read(folder.statistics("0", "odd"))
    again = measure(load_model(folder.run("0") / "model").model, images)
    np.testing.assert_allclose(again.values, table.values[rows], rtol=1e-4, atol=1e-3)


def test_what_is_there_is_not_made_again(data, made, monkeypatch):
    folder, results = made
    for name in ("train_member", "measure", "probe"):
        monkeypatch.setattr(work, name, None)
    again = bench(data, folder.path, members=2)
    assert (again.cells, again.probes, again.training) == (results.cells, results.probes, results.training)


def test_only_what_is_missing_is_made(data, made, dose, tmp_path):
    folder, results = made
    place = tmp_path / "copy"
    shutil.copytree(folder.path, place)
    Folder(place).statistics("1", "vflip").unlink()
    shutil.rmtree(place / "runs" / "background")  # not needed: everything is measured
    options = ["--recipe", "tiny", "--members", 2, "--rows", 16, "--json"]
    name = str(data / "stripes.npz")
    odd = f"odd={data / 'odd.npz'}"
    plan = json.loads(dose("bench", name, "--ood", odd, "--ood", "vflip", *options, "--dry-run", "-o", place))
    assert [task["task"] for task in plan["tasks"]] == ["measure vflip with model 1", "evaluate"]
    assert plan["seconds"] == pytest.approx(sum(task["seconds"] for task in plan["tasks"]))
    found = json.loads(dose("bench", name, "--ood", odd, "--ood", "vflip", *options, "-o", place))
    assert found["cells"] == [vars(cell) for cell in results.cells]
    assert found["training"] == results.training


def test_models_trained_elsewhere_are_taken_over(data, made, dose, tmp_path):
    folder, results = made
    trained = tmp_path / "elsewhere"
    shutil.copytree(folder.path / "runs", trained)
    (trained / "0").rename(trained / "a_run_by_any_name")
    shutil.rmtree(trained / "1")
    output, name = tmp_path / "new", str(data / "stripes.npz")
    options = [
        "--ood",
        f"odd={data / 'odd.npz'}",
        "--recipe",
        "tiny",
        "--rows",
        16,
        "--runs",
        trained,
        "-o",
        output,
        "--json",
    ]
    kinds = [task["kind"] for task in json.loads(dose("bench", name, *options, "--members", 2, "--dry-run"))["tasks"]]
    assert (kinds.count("copy"), kinds.count("train")) == (2, 1)
    assert not output.exists()
    found = json.loads(dose("bench", name, *options, "--members", 1))
    ours = {(c.method, c.member): c.auroc for c in results.cells if c.outlier == "odd"}
    assert len(found["cells"]) == 5
    for cell in found["cells"]:
        assert cell["auroc"] == pytest.approx(ours[cell["method"], cell["member"]], abs=1e-9)


def test_a_vae_has_as_many_latent_dimensions_as_asked_for(data):
    sets = open_sets(str(data / "stripes.npz"), [f"odd={data / 'odd.npz'}"], 16, 0)
    study = Study(sets.inlier, dict(sets.outliers), "vae", "tiny", 1, 16, 0)
    two, three = (members_of(each, sets)[0] for each in (study, replace(study, latent=3)))
    assert (fresh(two).config.latent, fresh(three).config.latent) == (2, 3)
    assert two.key != three.key


def test_another_study_in_the_folder_is_refused(data, made, dose):
    folder, _ = made
    name = str(data / "stripes.npz")
    base = ["bench", name, "--ood", f"odd={data / 'odd.npz'}", "--recipe", "tiny", "-o", folder.path]
    with pytest.raises(InputError, match="holds another benchmark: its latent is None, not 3"):
        dose(*base, "--latent", 3)
    with pytest.raises(InputError, match="holds another benchmark: its model is vae, not glow"):
        dose(*base, "--model", "glow")
    with pytest.raises(InputError, match="holds rows of other images, or of other rows of them"):
        dose(*base, "--rows", 17)
    with pytest.raises(InputError, match="expected in-distribution images IN and --output FOLDER"):
        dose("bench")


def test_the_table_and_the_plan_are_printed(data, made, dose):
    folder, results = made
    shown = dose("bench", "--from-statistics", folder.path)
    kde = results.members("odd", "kde")
    assert f"{np.mean([cell.auroc for cell in kde]):.3f} ±" in shown
    for text in ("AUROC", "FPR95", "average rank", "Memorisation", "compressed size", "ensemble"):
        assert text in shown
    name = str(data / "whole.npy")
    plan = dose("bench", name, "--recipe", "tiny", "--members", 3, "--dry-run", "-o", data / "never")
    assert "models to train        4" in plan
    assert "timed just now" in plan
    assert "assumed" in plan
    assert not (data / "never").exists()


def test_a_run_that_was_interrupted_costs_what_is_left(made, tmp_path):
    folder, _ = made
    lines = (folder.run("0") / "log.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "log.jsonl").write_text("".join(lines[:1]) + lines[1][:9])  # the second line was cut off
    record = read_log(folder.run("0"))[0]
    assert share_left(tmp_path) == pytest.approx(1 - record.step / record.steps)
    assert 0 < share_left(tmp_path) < 1
    assert share_left(folder.run("0")) == 0
    assert share_left(tmp_path / "nowhere") == 1


def test_a_glow_is_compared_by_its_three_statistics(data, tmp_path):
    results = bench(data, tmp_path / "glow", model="glow")
    table = Statistics.read(Folder(tmp_path / "glow").statistics("0", "test"))
    assert {"like", "latent", "jac", "jac/0"} <= set(table.names)
    np.testing.assert_allclose(table["like"], table["latent"] + table["jac"])
    assert len(results.cells) == 2 * 5


def test_killed_again_and_again_it_ends_with_the_same_cells(tmp_path):
    command = [sys.executable, benching.__file__, tmp_path]
    environment = {"PYTHONPATH": str(Path(benching.__file__).parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 3
    once, killed = (Results.read(tmp_path / name / "results.json") for name in ("once", "killed"))
    assert (once.cells, once.ranks, once.probes, once.memorisation) == (
        killed.cells,
        killed.ranks,
        killed.probes,
        killed.memorisation,
    )
    for file in (tmp_path / "once" / "statistics").rglob("*.parquet"):
        assert Statistics.read(file) == Statistics.read(tmp_path / "killed" / file.relative_to(tmp_path / "once"))


def test_the_clock_believes_what_it_sees(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("dose_ood.study.plan.monotonic", lambda: now[0])
    tasks = Task("train", "0", images=100), Task("train", "1", images=100), Task("measure", "0", "test", 50)
    clock = Clock(Plan(tasks, {"train": 10.0, "measure": 1.0}))
    clock.begin(tasks[0])
    assert clock.seconds == pytest.approx(20 + 50)
    clock.see(90)  # resumed: these ten were done before
    now[0] = 10.0
    clock.see(70)  # 2 images/s
    assert clock.seconds == pytest.approx(170 / 2 + 50)
    clock.begin(tasks[1])
    assert clock.seconds == pytest.approx(100 / 2 + 50)
