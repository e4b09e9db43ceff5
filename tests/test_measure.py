import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from dose_ood import InputError, Statistics
from dose_ood import measure as module
from dose_ood.measure import measure
from standin import StandIn, StandInConfig, stripes

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES = stripes(101)
MODEL = StandIn(StandInConfig())


class Moments:
    """A model of nobody's library."""

    def __init__(self, factor=1.0):
        self.factor, self.batches = factor, []

    def measure(self, x):
        self.batches.append(len(x))
        pixels = x.reshape(len(x), -1) / 255
        return {"mean": self.factor * pixels.mean(1), "spread": pixels.std(1).tolist()}


def test_every_row_is_there_once_and_in_order():
    model = Moments()
    table = measure(model, IMAGES, batch=32)
    assert model.batches == [32, 32, 32, 5]
    np.testing.assert_allclose(table["mean"], IMAGES.reshape(101, -1).mean(1) / 255)
    np.testing.assert_allclose(table["spread"], IMAGES.reshape(101, -1).std(1) / 255)


@pytest.mark.parametrize("batch", [1, 7, 101, 500])
def test_batches_do_not_matter(batch):
    expected = measure(MODEL, IMAGES, batch=50)
    np.testing.assert_allclose(measure(MODEL, IMAGES, batch=batch).values, expected.values, rtol=1e-5)


def test_a_module_is_measured_in_eval_mode_without_gradients_and_left_as_it_was():
    seen = []

    class Watching(StandIn):
        def measure(self, x):
            seen.append((self.training, self.encoder.training, torch.is_inference_mode_enabled(), x.dtype))
            return super().measure(x)

    model = Watching(StandInConfig()).train()
    model.decoder.eval()
    measure(model, IMAGES)
    assert seen == [(False, False, True, torch.uint8)]
    assert (model.training, model.encoder.training, model.decoder.training) == (True, True, False)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".csv.gz"])
def test_a_file_holds_what_is_returned_and_nothing_else_is_left(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    seen = []
    table = measure(MODEL, IMAGES, path, batch=32, progress=lambda *numbers: seen.append(numbers))
    assert Statistics.read(path) == table == measure(MODEL, IMAGES, batch=32)
    assert list(tmp_path.iterdir()) == [path]
    assert seen == [(32, 101), (64, 101), (96, 101), (101, 101)]


class StoppedError(Exception):
    pass


def interrupted(path, model=None, images=IMAGES, after=64):
    def stop(done, total):
        if done == after:
            raise StoppedError

    with pytest.raises(StoppedError):
        measure(model or Moments(), images, path, batch=16, progress=stop)


@pytest.fixture
def at_once(monkeypatch):
    monkeypatch.setattr(module, "PART_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("batch", [16, 10, 200])
def test_an_interrupted_measurement_goes_on_without_repeating_or_losing_a_row(tmp_path, batch):
    path = tmp_path / "table.parquet"
    interrupted(path)
    assert not path.exists()
    again = Moments()
    table = measure(again, IMAGES, path, batch=batch)
    checked, *rest = again.batches
    assert sum(rest) == 101 - 64
    assert checked <= 16
    assert table == measure(Moments(), IMAGES) == Statistics.read(path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.usefixtures("at_once")
def test_rows_of_other_models_or_images_are_not_mixed(tmp_path):
    path = tmp_path / "table.parquet"
    interrupted(path)
    with pytest.raises(InputError, match="holds rows of other images, of an unfinished measurement: delete it"):
        measure(Moments(), stripes(101, seed=1), path)
    with pytest.raises(InputError, match="holds rows of another model"):
        measure(MODEL, IMAGES, path)
    with pytest.raises(InputError, match="holds other values of 'mean' for the first rows than the model gives now"):
        measure(Moments(factor=1.1), IMAGES, path)
    interrupted(tmp_path / "torch.parquet", MODEL)
    with pytest.raises(InputError, match="holds rows of another model"):
        measure(StandIn(StandInConfig(), seed=1), IMAGES, tmp_path / "torch.parquet")


KILLED = """
import os, signal, sys
import numpy as np
from dose_ood import measure as module
module.PART_SECONDS = 0.0
class Model:
    def measure(self, x):
        return {"mean": x.reshape(len(x), -1).mean(1)}
def run(left):
    def look(event, arguments):
        nonlocal left
        if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir") and sys.argv[2] in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    sys.addaudithook(look)
    module.measure(Model(), np.load(sys.argv[1]), sys.argv[2] + "/table.parquet", batch=20)
for moments in (3, 1, 9, 13, 2, 25, 14, 17, 10_000):  # files of the measurement opened, renamed or removed
    child = os.fork()
    if child == 0:
        run(moments)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    print(code)
    if code == 0:
        break
"""


def test_a_measurement_killed_at_any_moment_ends_with_the_same_rows(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    folder = tmp_path / "out"
    folder.mkdir()
    command = [sys.executable, "-c", KILLED, str(tmp_path / "images.npy"), str(folder)]
    codes = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert codes[-1] == "0"
    assert set(codes[:-1]) == {str(-signal.SIGKILL)}
    assert len(codes) > 5
    table = Statistics.read(folder / "table.parquet")
    assert np.array_equal(table["mean"], IMAGES.reshape(101, -1).mean(1))
    assert not (folder / ".table.parquet.parts").exists()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            lambda n: {"like": np.zeros((n, 1))},
            r"'like' must hold a number for each of 101 samples, shape \(101,\), got .* \(101, 1\)",
        ),
        (lambda n: {"a": np.zeros(n), "like": 0.0}, r"'like' must hold .*, got float64 of shape \(\)"),
        (lambda n: {"like": np.zeros(n - 1)}, r"'like' must hold .* \(100,\)"),
        (lambda n: {"like": torch.zeros(2, n)}, r"'like' must hold .* \(2, 101\)"),
        (lambda n: {"like": ["a"] * n}, r"'like' must hold a number .*, got <U1"),
        (lambda n: {"like": np.zeros(n, complex)}, r"'like' must hold a number .*, got complex128"),
        (lambda n: {}, "must give a dictionary of named arrays, got dict"),
        (lambda n: np.zeros(n), "must give a dictionary of named arrays, got ndarray"),
    ],
)
def test_what_is_no_statistic_is_refused_by_name(columns, message):
    class Wrong:
        def measure(self, x):
            return columns(len(x))

    with pytest.raises(InputError, match=message):
        measure(Wrong(), IMAGES)


def test_names_that_change_between_batches_are_refused():
    class Fickle:
        def measure(self, x):
            return {f"of {len(x)}": np.zeros(len(x))}

    with pytest.raises(InputError, match="'of 100' for one batch and 'of 1' for another"):
        measure(Fickle(), IMAGES, batch=100)


def test_what_cannot_be_measured_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"expected a model with a method measure\(x\), got object"):
        measure(object(), IMAGES)
    with pytest.raises(InputError, match="expected at least one image"):
        measure(MODEL, IMAGES[:0])
    with pytest.raises(InputError, match="batch must be at least 1, got 0"):
        measure(MODEL, IMAGES, batch=0)
    with pytest.raises(InputError, match=r"expected a file name ending in .parquet, .csv, .csv.gz"):
        measure(MODEL, IMAGES, tmp_path / "table.npz")
    with pytest.raises(InputError, match="there is no directory"):
        measure(MODEL, IMAGES, tmp_path / "nowhere" / "table.parquet")


@pytest.mark.usefixtures("at_once")
def test_values_that_are_not_finite_are_kept_as_bad_rows(tmp_path):
    class Odd:
        def measure(self, x):
            values = x.reshape(len(x), -1).mean(1)
            values[0] = np.nan
            return {"mean": values}

    table = measure(Odd(), IMAGES, tmp_path / "table.parquet", batch=50)
    assert np.flatnonzero(table.bad).tolist() == [0, 50, 100]
    assert Statistics.read(tmp_path / "table.parquet", on_bad="flag") == table


def test_half_precision_and_integers_are_numbers_too():
    class Low:
        def measure(self, x):
            return {"half": torch.full((len(x),), 0.5, dtype=torch.bfloat16), "count": torch.arange(len(x))}

    table = measure(Low(), IMAGES)
    assert table["half"][3] == 0.5
    assert table["count"][3] == 3


def test_a_memory_mapped_array_is_measured_without_being_read_whole(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    mapped = np.load(tmp_path / "images.npy", mmap_mode="r")
    assert measure(MODEL, mapped) == measure(MODEL, IMAGES)


WITHOUT_TORCH = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nowhere())
import numpy as np
from dose_ood.measure import measure
class Mean:
    def measure(self, x):
        return {"mean": x.mean((1, 2))}
print(len(measure(Mean(), np.ones((5, 2, 2)))))
"""


def test_the_loop_needs_no_torch():
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "5", done.stderr
