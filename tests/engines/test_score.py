import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from dose_ood import Detector, InputError, ProductKDE, Statistics
from dose_ood.benchmark.toys import gaussian
from dose_ood.cli import app
from dose_ood.engines import here, pieces, score_files
from dose_ood.engines.parts import ATTEMPTS, begin, hidden, prepare
from dose_ood.engines.pieces import Piece, pieces_of

NAMES = ("norm", "like", "first", "max")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A detector, and three inputs of 700, 300 and 200 rows: Parquet in row groups of 100, CSV and npz."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pieces, "PIECE_ROWS", 250)
    Detector.fit(gaussian(2000).select(NAMES), gaussian(500, seed=1).select(NAMES), ProductKDE()).save("detector")
    table = Statistics.from_columns({"id": np.arange(700.0)}).beside(gaussian(700, seed=2).select(NAMES))
    pq.write_table(table.to_arrow(), "a.parquet", row_group_size=100)
    for name, rows, seed in (("b.csv", 300, 3), ("c.npz", 200, 4)):
        ids = Statistics.from_columns({"id": 1000.0 * seed + np.arange(rows)})
        ids.beside(gaussian(rows, seed=seed).select(NAMES)).write(name)
    return tmp_path


SOURCES = ("a.parquet", "b.csv", "c.npz")


def rows_of(folder, columns=None):
    return ds.dataset(folder).to_table(columns).sort_by([("source", "ascending"), ("row", "ascending")])


def test_every_row_is_scored_once_and_can_be_joined(folder):
    totals = score_files("detector", SOURCES, "scores")
    found = rows_of("scores")
    detector = Detector.load("detector")
    for source in SOURCES:
        part = found.filter(pa.compute.equal(found["source"], source))
        expected = detector.score(Statistics.read(source, NAMES))
        np.testing.assert_array_equal(part["row"], np.arange(len(expected)))
        for name in ("score", "p_value", "is_typical", "is_bad"):
            np.testing.assert_array_equal(part[name], getattr(expected, name))
    assert totals.rows == found.num_rows == 1200
    assert totals.atypical == found["is_typical"].to_pylist().count(False)
    assert totals.ranks.sum() == 1200
    ranks = np.rint(np.asarray(found["p_value"]) * 501).astype(int)
    np.testing.assert_array_equal(totals.ranks, np.bincount(ranks, minlength=502))
    assert totals.parts == 5  # 700 rows in row groups of 100, at least 250 to a piece, and two files
    manifest = json.loads((folder / "scores/_manifest.json").read_text())
    assert sum(part["rows"] for part in manifest["parts"]) == manifest["rows"] == 1200
    assert (folder / "scores/_SUCCESS").exists()


def test_kept_columns_travel_with_their_rows(folder):
    score_files("detector", ["a.parquet", "c.npz"], "scores", keep=("id",))
    found = rows_of("scores")
    expected = [*range(700), *range(4000, 4200)]
    assert found["id"].to_pylist() == expected
    with pytest.raises(InputError, match=r"b\.csv has no column 'name'"):
        score_files("detector", ["b.csv"], "other", keep=("name",))
    assert not (folder / "other").exists()


def failing(after):
    """An engine that stops after so many pieces, as a kill would."""

    def engine(make, items):
        work = make()
        for done, item in enumerate(items):
            if done == after:
                raise KeyboardInterrupt
            yield work(item)

    return engine


def counting(made):
    def engine(make, items):
        made.extend(items)
        return here(make, items)

    return engine


@pytest.mark.parametrize("after", range(5))
def test_an_interrupted_run_does_not_look_finished_and_goes_on(folder, after):
    with pytest.raises(KeyboardInterrupt):
        score_files("detector", SOURCES, "scores", engine=failing(after))
    assert not (folder / "scores").exists()
    assert not list(folder.glob("[!.]*/_SUCCESS"))
    (hidden(folder / "scores") / ".b-half.parquet.tmp").write_bytes(b"PAR1 half")  # what a killed worker leaves
    made = []
    totals = score_files("detector", SOURCES, "scores", engine=counting(made))
    assert len(made) == 5 - after
    assert totals.resumed == after
    assert totals.rows == 1200
    score_files("detector", SOURCES, "whole")
    assert rows_of("scores").equals(rows_of("whole"))
    assert sorted(p.name for p in (folder / "scores").iterdir()) == sorted(p.name for p in (folder / "whole").iterdir())
    assert not hidden(folder / "scores").exists()


@pytest.mark.parametrize("change", ["detector", "input", "keep", "on_bad", "half"])
def test_a_part_of_something_else_is_made_again(folder, change):
    with pytest.raises(KeyboardInterrupt):
        score_files("detector", ["c.npz", "b.csv"], "scores", engine=failing(1))
    options = {"keep": ("id",)} if change == "keep" else {"on_bad": "flag"} if change == "on_bad" else {}
    if change == "detector":
        Detector.fit(gaussian(999).select(NAMES), gaussian(500, seed=1).select(NAMES), ProductKDE()).save("detector")
    if change == "input":
        gaussian(200, seed=9).select(NAMES).write("c.npz")
    if change == "half":
        (part,) = hidden(folder / "scores").glob("c-*.parquet")
        part.write_bytes(part.read_bytes()[:-100])
    assert score_files("detector", ["c.npz", "b.csv"], "scores", **options).resumed == 0
    score_files("detector", ["c.npz", "b.csv"], "whole", **options)
    assert rows_of("scores").equals(rows_of("whole"))


def test_an_input_that_is_no_longer_asked_for_leaves_no_part(folder):
    with pytest.raises(KeyboardInterrupt):
        score_files("detector", SOURCES, "scores", engine=failing(4))
    totals = score_files("detector", ["b.csv", "c.npz"], "scores")
    assert (totals.rows, totals.resumed) == (500, 1)
    assert rows_of("scores").num_rows == 500


def test_bad_rows_are_named_by_file_and_row(folder):
    table = pq.read_table("a.parquet")
    broken = table.set_column(1, "norm", pa.array([None if row == 650 else 1.0 for row in range(700)]))
    pq.write_table(broken, "d.parquet", row_group_size=100)
    with pytest.raises(InputError, match=r"d\.parquet, counted from row 600: row 50, column 'norm'.*got no value"):
        score_files("detector", ["d.parquet"], "scores")
    assert not (folder / "scores").exists()
    totals = score_files("detector", ["d.parquet"], "scores", on_bad="flag")
    assert (totals.bad, totals.resumed) == (1, 0)
    bad = rows_of("scores").filter(ds.field("is_bad"))
    assert bad["row"].to_pylist() == [650]


def test_what_is_refused_before_any_work(folder):
    def refused(match, sources=("a.parquet",), output="scores"):
        with pytest.raises(InputError, match=match):
            score_files("detector", sources, output, engine=failing(0))

    refused("expected each input once, got a.parquet twice", ("a.parquet", "a.parquet"))
    refused(r"nowhere\.parquet: no such file", ("a.parquet", "nowhere.parquet"))
    refused("there is no directory", output="no/where")
    gaussian(5).select(("like",)).write("e.parquet")
    refused("has no column 'norm'", ("a.parquet", "e.parquet"))
    (folder / "scores").mkdir()
    refused("scores is there already")


def test_a_folder_of_parquet_files_is_its_files(folder):
    (folder / "logs/day=1").mkdir(parents=True)
    (folder / "logs/_temporary").mkdir()
    for place in ("logs/day=1/x.parquet", "logs/y.parquet", "logs/_temporary/z.parquet", "logs/.w.parquet"):
        gaussian(50).select(NAMES).write(place)
    assert [piece.source for piece in pieces_of(["logs"], False)] == ["logs/day=1/x.parquet", "logs/y.parquet"]
    assert score_files("detector", ["logs"], "scores").rows == 100


def test_pieces_as_text():
    piece = Piece("a b.parquet", "parquet", 7, (1, 3), ("x", "y"), "stamp")
    assert Piece.from_json(piece.to_json()) == piece


def test_a_piece_that_ends_every_worker_is_given_up(folder):
    place = prepare(folder / "scores")
    piece = Piece("a.parquet", "parquet")
    for _ in range(ATTEMPTS):
        begin(place, piece)
    with pytest.raises(InputError, match=r"a\.parquet from row 0 on ended 4 workers"):
        begin(place, piece)
    begin(prepare(folder / "scores"), piece)  # a new run may try again


def test_images_in_folders_and_arrays(folder, monkeypatch):
    pytest.importorskip("torch")
    from PIL import Image

    from dose_ood.guard import Guard, with_model
    from dose_ood.measure import measure
    from dose_ood.models.registry import Loaded, build
    from dose_ood.models.vae import VAEConfig
    from standin import stripes

    monkeypatch.setattr(pieces, "PIECE_IMAGES", 8)
    model = build(VAEConfig(shape=(1, 8, 8), depth=4, components=5), seed=3).eval()
    fitted = Detector.fit(measure(model, stripes(120)), measure(model, stripes(60, seed=1)), ProductKDE())
    with_model(fitted, Loaded(model, {})).save("guard")
    images = stripes(20, seed=5)
    np.save("array.npy", images)
    (folder / "pictures").mkdir()
    for row, image in enumerate(images):
        Image.fromarray(image[0]).save(f"pictures/{row:02}.png")
    totals = score_files("guard", ["array.npy", "pictures"], "scores")
    assert (totals.rows, totals.parts) == (40, 6)
    expected = Guard.load("guard").score(images).score
    found = ds.dataset("scores").to_table()
    for row, source, score in zip(*(found[name].to_pylist() for name in ("row", "source", "score")), strict=True):
        assert score == pytest.approx(expected[row], rel=1e-6)  # a batch of 8 rounds as one of 20 does, nearly
        assert source in ("array.npy", f"pictures/{row:02}.png")
    with pytest.raises(InputError, match="images have no columns to keep"):
        score_files("guard", ["array.npy", "a.parquet"], "other", keep=("id",))


def test_the_command(folder, capsys):
    app(
        ["score", "detector", *SOURCES, "-o", "scores", "--keep", "id", "--engine", "here", "--json"],
        standalone_mode=False,
    )
    summary = json.loads(capsys.readouterr().out)
    assert summary["rows"] == 1200
    app(["score", "detector", "a.parquet", "-o", "a-scores.parquet", "--json"], standalone_mode=False)
    one = pq.read_table("a-scores.parquet")
    part = rows_of("scores").filter(ds.field("source") == "a.parquet")
    np.testing.assert_array_equal(one["score"], part["score"])
    for wrong in (["a.parquet", "b.csv"], ["a.parquet", "--workers", "2"]):
        with pytest.raises(InputError, match="need --engine"):
            app(["score", "detector", *wrong, "-o", "x.parquet"], standalone_mode=False)
    with pytest.raises(InputError, match="are for --engine ray"):
        app(["score", "detector", "a.parquet", "-o", "x", "--engine", "here", "--workers", "2"], standalone_mode=False)


KILLED = """
import sys
from functools import partial
from pathlib import Path
from dose_ood.engines import here, pieces, score_files
from mortal import Mortal
pieces.PIECE_ROWS = 250
engine = lambda make, items: here(partial(Mortal, make, "b.csv", Path()), items)
score_files("detector", ["a.parquet", "b.csv", "c.npz"], "scores", engine=engine)
"""


def test_a_process_killed_while_it_writes_a_part(folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
    run = subprocess.run([sys.executable, "-c", KILLED], timeout=60)
    assert run.returncode == -signal.SIGKILL
    assert not (folder / "scores").exists()
    left = [path.name for path in hidden(folder / "scores").iterdir()]
    assert any(name.startswith(".b-") and name.endswith(".tmp") for name in left)
    totals = score_files("detector", SOURCES, "scores")
    assert (totals.rows, totals.resumed, totals.parts) == (1200, 3, 5)
    score_files("detector", SOURCES, "whole")
    assert rows_of("scores").equals(rows_of("whole"))
    assert sorted(p.name for p in (folder / "scores").iterdir()) == sorted(p.name for p in (folder / "whole").iterdir())


def test_tables_are_scored_without_torch_and_ray(folder):
    script = (
        "import sys, dose_ood.engines.ray_data\nfrom dose_ood.engines import score_files\n"
        "print(score_files('detector', ['a.parquet'], 'scores').rows, {'torch', 'ray', 'PIL'} & {*sys.modules})"
    )
    run = subprocess.run([sys.executable, "-c", script], timeout=60, capture_output=True, text=True)
    assert run.stdout == "700 set()\n", run.stderr
