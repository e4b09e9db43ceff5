"""Storage: what is saved comes back to the bit, and whatever else lies there is refused by name."""

import hashlib
import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dose_ood import storage
from dose_ood.density.base import DensityOfStates
from dose_ood.density.registry import COMMON, ESTIMATORS, LATER, LEARNED, State, estimator_from_state, estimator_state
from dose_ood.errors import DoseWarning, InputError
from dose_ood.noise import generator
from dose_ood.storage import Spec, check, load, save

KIND = "detector"
DOCUMENT = {"names": ["rate", "ent"], "ece": 0.1, "rows": 7, "fitted": True, "note": "σ — “quoted”\n", "none": None}
TENSORS = {
    "estimator": {"scores_": np.linspace(-3, 2, 40), "mean_": np.array(0.1), "n_": np.array(3), "on_": np.array(True)},
    "model": {"layer.weight": np.arange(12, dtype=np.float32).reshape(3, 4), "empty": np.empty((0, 5))},
}
quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def without_waiting_for_the_disk(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@pytest.fixture
def saved(tmp_path):
    save(tmp_path / "it", DOCUMENT, TENSORS, kind=KIND)
    return tmp_path / "it"


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def put(path: Path, files: dict[str, bytes]) -> Path:
    path.mkdir(exist_ok=True)
    for name, data in files.items():
        (path / name).write_bytes(data)
    return path


def signed(content: dict, **files: bytes) -> dict[str, bytes]:
    """A directory as somebody would sign it who knows how: every checksum is right."""
    listed = {
        f"{name}.safetensors": {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    content = {"format": 1, "kind": KIND, "document": {}, "files": listed} | content
    content["checksum"] = hashlib.sha256(storage._render(content)).hexdigest()
    return {f"{KIND}.json": storage._render(content)} | {f"{name}.safetensors": data for name, data in files.items()}


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


# Round trips


def test_everything_comes_back_to_the_bit(saved):
    found = load(saved, kind=KIND)
    assert found.document == DOCUMENT
    assert {file: set(arrays) for file, arrays in found.tensors.items()} == {f: set(a) for f, a in TENSORS.items()}
    for file, arrays in TENSORS.items():
        for name, array in arrays.items():
            assert same(found.tensors[file][name], array)
            assert found.tensors[file][name].flags.writeable
    assert sorted(files_of(saved)) == ["detector.json", "estimator.safetensors", "model.safetensors"]
    assert [path.name for path in saved.parent.iterdir()] == ["it"]


numbers = st.one_of(st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False, allow_infinity=False))
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, text),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=4)),
    max_leaves=12,
)
arrays = hnp.arrays(
    st.sampled_from([np.dtype(name).newbyteorder(order) for name in storage.DTYPES.values() for order in "<>"]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4),
)


@quick
@given(document=st.dictionaries(text, json_values, max_size=4), found=st.dictionaries(text, arrays, max_size=4))
def test_any_json_and_any_arrays_round_trip(tmp_path, document, found):
    save(tmp_path / "any", document, {"some": found}, kind=KIND)
    loaded = load(tmp_path / "any", kind=KIND)
    assert repr(sorted(loaded.document.items())) == repr(sorted((k, _by_key(v)) for k, v in document.items()))
    assert set(loaded.tensors["some"]) == set(found)
    for name, array in found.items():
        assert same(loaded.tensors["some"][name], np.asarray(array, dtype=array.dtype.newbyteorder("="), order="C"))


def _by_key(value):
    """The order that a saved dictionary has; `repr` then tells −0.0 from 0.0 and 1 from 1.0 and True."""
    if isinstance(value, dict):
        return {key: _by_key(value[key]) for key in sorted(value)}
    return [_by_key(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    "layout",
    [
        np.asfortranarray,
        lambda a: a[::2, ::-1],
        lambda a: a.T,
        lambda a: a.astype(">f8"),
        lambda a: np.broadcast_to(a[0], (3, 6)),
    ],
)
def test_any_memory_layout_is_taken(tmp_path, layout):
    array = layout(np.arange(24.0).reshape(4, 6))
    save(tmp_path / "a", {}, {"some": {"a": array}}, kind=KIND)
    np.testing.assert_array_equal(
        load(tmp_path / "a", kind=KIND).tensors["some"]["a"], array, strict=array.dtype.isnative
    )


@pytest.mark.parametrize(
    "number", [0.1, -0.0, 5e-324, 1.7976931348623157e308, -np.inf, np.nan, 2**63 - 1, -(2**63), True]
)
def test_numbers_are_exact_as_arrays_without_dimensions(tmp_path, number):
    save(tmp_path / "a", {}, {"some": {"a": np.array(number)}}, kind=KIND)
    found = load(tmp_path / "a", kind=KIND).tensors["some"]["a"].item()
    assert (type(found), repr(found)) == (type(number), repr(number))


def test_the_same_content_gives_the_same_bytes(tmp_path, saved):
    backwards = {file: dict(reversed(found.items())) for file, found in reversed(TENSORS.items())}
    save(tmp_path / "again", dict(reversed(DOCUMENT.items())), backwards, kind=KIND)
    assert files_of(tmp_path / "again") == files_of(saved)
    loaded = load(saved, kind=KIND)
    save(saved, loaded.document, loaded.tensors, kind=KIND)
    assert files_of(tmp_path / "again") == files_of(saved)


# What cannot be saved


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ({"a": {"b": [0.0, float("nan")]}}, r"document\.a\.b\[1\] must be finite.*nan"),
        ({"a": float("-inf")}, r"document\.a must be finite.*-inf"),
        ({"a": 2**64}, r"document\.a .*64 bits"),
        ({"a": {1: 2}}, r"a key of document\.a must be a string, got int"),
        ({"a": b"bytes"}, r"document\.a must be a JSON value, got bytes"),
        ({"a": np.zeros(2)}, r"document\.a must be a JSON value, got ndarray"),
        ({"a": "\ud800"}, r"document\.a must be Unicode"),
        ({"a": "x" * 2**22}, "at most 4,194,304 bytes"),
    ],
)
def test_a_document_that_is_not_json_is_refused_by_name(tmp_path, document, names):
    with pytest.raises(InputError, match=names):
        save(tmp_path / "a", document, {}, kind=KIND)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("levels", [30, 31, 32, 5000])
def test_a_document_can_be_as_deep_as_one_that_can_be_loaded(tmp_path, levels):
    nested = []
    for _ in range(levels - 2):
        nested = [nested]
    if levels <= 31:  # the file's own object and the document are two more
        save(tmp_path / "a", {"a": nested}, {}, kind=KIND)
        assert load(tmp_path / "a", kind=KIND).document == {"a": nested}
    else:
        with pytest.raises(InputError, match="nested too deeply"):
            save(tmp_path / "a", {"a": nested}, {}, kind=KIND)


@pytest.mark.parametrize(
    ("tensors", "names"),
    [
        ({"some": {"a": np.array(["text"])}}, r"some\.a must be an array of"),
        ({"some": {"a": np.array([None])}}, r"some\.a must be an array of"),
        ({"some": {"a": np.array([1j])}}, r"some\.a must be an array of"),
        ({"some": {"a": np.zeros(1, "M8[s]")}}, r"some\.a must be an array of"),
        ({"some": {"__metadata__": np.zeros(1)}}, "__metadata__"),
        ({"some": {"\udfff": np.zeros(1)}}, "Unicode"),
        ({"some": {str(i): np.zeros(0) for i in range(20_000)}}, "some has too many arrays"),
        ({"../some": {}}, "must be of a–z"),
        ({"Some": {}}, "must be of a–z"),
        ({"": {}}, "must be of a–z"),
    ],
)
def test_arrays_that_cannot_be_saved_are_refused_by_name(tmp_path, tensors, names):
    with pytest.raises(InputError, match=names):
        save(tmp_path / "a", {}, tensors, kind=KIND)
    assert not list(tmp_path.iterdir())


def test_a_kind_is_a_plain_name(tmp_path):
    with pytest.raises(InputError, match="kind must be"):
        save(tmp_path / "a", {}, {}, kind="../evil")


# What is replaced, and what is not


def test_a_directory_of_ours_is_replaced(saved):
    save(saved, {"new": 1}, {"other": {"a": np.zeros(2)}}, kind=KIND)
    assert load(saved, kind=KIND).document == {"new": 1}
    assert sorted(files_of(saved)) == ["detector.json", "other.safetensors"]
    assert [path.name for path in saved.parent.iterdir()] == ["it"]


def _file(path):
    path.write_text("mine")


def _empty(path):
    path.mkdir()


def _foreign(path):
    put(path, {"notes.txt": b"mine"})


def _foreign_json(path):
    put(path, {"detector.json": b'{"mine": true}'})


def _another_kind(path):
    save(path, {}, {}, kind="model")


def _with_notes(path):
    save(path, {}, {}, kind=KIND)
    (path / "notes.txt").write_text("mine")


def _damaged(path):
    save(path, DOCUMENT, {}, kind=KIND)
    (path / "detector.json").write_bytes((path / "detector.json").read_bytes().replace(b"rate", b"bait"))


def _newer(path):
    put(path, signed({"format": 2}))


@pytest.mark.parametrize(
    "make",
    [_file, _empty, _foreign, _foreign_json, _another_kind, _with_notes, _damaged, _newer],
    ids=lambda m: m.__name__,
)
def test_anything_else_is_left_alone(tmp_path, make):
    path = tmp_path / "it"
    make(path)
    before = path.read_bytes() if path.is_file() else files_of(path)
    with pytest.raises(InputError, match=r"it .*not replaced"):
        save(path, DOCUMENT, TENSORS, kind=KIND)
    assert (path.read_bytes() if path.is_file() else files_of(path)) == before
    assert [file.name for file in tmp_path.iterdir()] == ["it"]


def test_a_link_to_a_directory_of_ours_is_followed(tmp_path, saved):
    link = tmp_path / "current"
    link.symlink_to(saved)
    save(link, {"new": 1}, {}, kind=KIND)
    assert link.is_symlink()
    assert load(link, kind=KIND).document == load(saved, kind=KIND).document == {"new": 1}


def test_a_path_that_cannot_be_is_refused(tmp_path):
    for path in (tmp_path / "no" / "such" / "parent", "a\0b"):
        with pytest.raises(InputError):
            save(path, {}, {}, kind=KIND)
        with pytest.raises(InputError):
            load(path, kind=KIND)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(InputError):
        load(tmp_path / "loop", kind=KIND)
    with pytest.raises(InputError):
        save(tmp_path / "loop", {}, {}, kind=KIND)
    for path in ("/", tmp_path / ("long" * 100)):
        with pytest.raises(InputError):
            load(path, kind=KIND)


# Interruptions


@pytest.mark.parametrize("step", ["_write", "_sync", "_swap"])
@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["full", "interrupt"]
)
def test_an_error_in_the_middle_leaves_the_old_and_nothing_else(saved, monkeypatch, step, error):
    before = files_of(saved)

    def fail(*arguments):
        raise error

    monkeypatch.setattr(storage, step, fail)
    with pytest.raises(type(error)):
        save(saved, {"new": 1}, {}, kind=KIND)
    assert files_of(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["it"]


def test_if_the_new_cannot_be_put_in_place_the_old_is_put_back(saved, monkeypatch):
    before, rename = files_of(saved), Path.rename

    def fail(path, target):
        if path.name.endswith("new"):
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OSError, match="no"):
        save(saved, {"new": 1}, {}, kind=KIND)
    assert files_of(saved) == before
    assert [path.name for path in saved.parent.iterdir()] == ["it"]


def test_what_an_interrupted_save_left_is_loaded_with_a_warning_and_cleared_by_the_next(saved):
    aside = saved.with_name(".it.dose-old")
    saved.rename(aside)
    put(saved.with_name(".it.dose-new"), {"detector.json": b"half"})
    with pytest.warns(DoseWarning, match="a save was interrupted"):
        assert load(saved, kind=KIND).document == DOCUMENT
    save(saved, {"new": 1}, {}, kind=KIND)
    assert load(saved, kind=KIND).document == {"new": 1}
    assert [path.name for path in saved.parent.iterdir()] == ["it"]


SAVER = f"""
import os, signal, sys, types
import numpy as np
sys.modules["dose_ood"] = types.ModuleType("dose_ood")  # storage alone: the rest takes seconds to import
sys.modules["dose_ood"].__path__ = [{str(Path(storage.__file__).parent)!r}]
from dose_ood.storage import save
def write(path, i):
    save(path, dict(i=i), dict(a=dict(x=np.full(2000, i)), b=dict(x=np.full(3, i))), kind="detector")
"""
# A child dies at the k-th line that the saving module runs, for every k, over what the deaths before it left behind.
AT_EVERY_LINE = """
import warnings
from dose_ood import storage
os.fsync = lambda handle: None
path = sys.argv[1]
write(path, 0)
last, outcomes, k = 0, [], 0
while True:
    k += 1
    child = os.fork()
    if not child:
        left = k
        def trace(frame, event, argument):
            global left
            if frame.f_code.co_filename not in (storage.__file__, storage.shutil.__file__):
                return None
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace
        sys.settrace(trace)
        write(path, k)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = storage.load(path, kind="detector")
    i = found.document["i"]
    assert i in (last, k), (i, last, k)
    assert (found.tensors["a"]["x"] == i).all() and (found.tensors["b"]["x"] == i).all()
    outcomes.append("aside" if warned else "new" if i == k else "old")
    last = i
    if status == 0:
        break
left = sorted(name for name in os.listdir(os.path.dirname(path)))
print(k, *(outcomes.count(o) for o in ("old", "aside", "new")), left)
"""


def python(source: str, *arguments: object) -> list[str]:
    return [sys.executable, "-W", "ignore", "-c", source, *map(str, arguments)]


@pytest.mark.skipif(os.name != "posix", reason="needs fork")
def test_a_death_at_any_line_of_a_save_loses_nothing(tmp_path):
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1"}
    command = python(SAVER + AT_EVERY_LINE, tmp_path / "it")
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert run.returncode == 0, run.stderr
    deaths, old, aside, new = map(int, run.stdout.split()[:4])
    assert deaths == old + aside + new > 100
    assert min(old, aside, new) > 0, "every phase of a save was hit"
    assert run.stdout.rstrip().endswith("['it']"), "the save that lived cleared what the others left"


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
@pytest.mark.parametrize("deaths", [6, pytest.param(40, marks=pytest.mark.slow)])
def test_a_kill_at_any_moment_leaves_the_old_or_the_new(tmp_path, deaths):
    random = generator("kill")
    path, last = tmp_path / "it", 0
    save(path, {"i": 0}, {"a": {"x": np.full(2000, 0)}, "b": {"x": np.full(3, 0)}}, kind=KIND)
    loop = "i = int(sys.argv[2])\nprint('ready', flush=True)\nwhile True:\n    i += 1\n    write(sys.argv[1], i)\n"
    for _ in range(deaths):
        with subprocess.Popen(python(SAVER + loop, path, last), stdout=subprocess.PIPE) as saver:
            assert saver.stdout.readline() == b"ready\n"
            time.sleep(0.1 * random.random())
            saver.send_signal(signal.SIGKILL)
        found = _loaded(path)
        i = found.document["i"]
        assert i >= last
        assert all((arrays["x"] == i).all() for arrays in found.tensors.values())
        last = i
    assert last > 0


def _loaded(path):
    if path.exists():
        return load(path, kind=KIND)
    with pytest.warns(DoseWarning, match="interrupted"):
        return load(path, kind=KIND)


@pytest.mark.skipif(os.name != "posix", reason="needs locks")
def test_readers_and_writers_at_once_see_whole_versions_only(tmp_path):
    path = tmp_path / "it"
    save(path, {"i": 0}, {"a": {"x": np.full(2000, 0)}, "b": {"x": np.full(3, 0)}}, kind=KIND)
    loop = "os.fsync = lambda handle: None\nfor i in range(1, 151):\n    write(sys.argv[1], i)\n"
    writers = [subprocess.Popen(python(SAVER + loop, path)) for _ in range(2)]
    seen = set()
    try:
        while any(writer.poll() is None for writer in writers):
            found = load(path, kind=KIND)
            assert all((arrays["x"] == found.document["i"]).all() for arrays in found.tensors.values())
            seen.add(found.document["i"])
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()
    assert [writer.returncode for writer in writers] == [0, 0]
    assert len(seen) > 1
    assert [file.name for file in tmp_path.iterdir()] == ["it"]


def test_a_save_that_begins_after_the_first_look_is_waited_for(tmp_path, monkeypatch):
    path, looks = tmp_path / "it", []
    save(path, {"i": 0}, {}, kind=KIND)
    identity = storage._identity

    def look(place):
        found = identity(place)
        if not looks:  # the first of a save's two renames comes right after it
            path.rename(tmp_path / ".it.dose-old")
        looks.append(place)
        return found

    monkeypatch.setattr(storage, "_identity", look)
    with pytest.warns(DoseWarning, match="interrupted"):
        assert load(path, kind=KIND).document == {"i": 0}


# Damage: no signature is made again, so everything is found


def flipped(data: bytes, bit: int) -> bytes:
    return data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]


def refused(path: Path, files: dict[str, bytes], name: str) -> None:
    with pytest.raises(InputError, match=name.replace(".", r"\.")):
        load(put(path, files), kind=KIND)


@pytest.mark.parametrize("name", ["detector.json", "estimator.safetensors", "model.safetensors"])
def test_any_flipped_bit_is_found_and_the_file_named(saved, name):
    whole = files_of(saved)
    bits = 8 * len(whole[name])
    chosen = generator(f"bits of {name}").choice(bits, size=min(bits, 700), replace=False)
    for bit in chosen:
        refused(saved, {name: flipped(whole[name], int(bit))}, name)
    put(saved, whole)
    assert load(saved, kind=KIND).document == DOCUMENT


@pytest.mark.parametrize("name", ["detector.json", "estimator.safetensors", "model.safetensors"])
def test_any_truncation_or_addition_is_found(saved, name):
    whole = files_of(saved)[name]
    for length in generator("truncation").choice(len(whole), size=min(len(whole), 200), replace=False):
        refused(saved, {name: whole[:length]}, name)
    for more in (b" ", b"\n", b"\0" * 8, whole):
        refused(saved, {name: whole + more}, name)


def test_a_missing_or_swapped_file_is_named(saved):
    whole = files_of(saved)
    for name in whole:
        (saved / name).unlink()
        with pytest.raises(InputError, match=f"{name} is missing"):
            load(saved, kind=KIND)
        put(saved, whole)
    refused(saved, {"model.safetensors": whole["estimator.safetensors"]}, "model.safetensors")


def test_other_files_are_not_looked_at(saved):
    put(saved, {"notes.txt": b"mine", "other.safetensors": b"junk"})
    (saved / "link").symlink_to("/nowhere")
    assert set(load(saved, kind=KIND).tensors) == set(TENSORS)


@pytest.mark.parametrize("name", ["detector.json", "estimator.safetensors"])
def test_links_pipes_and_directories_in_place_of_files_are_refused(tmp_path, saved, name):
    outside = tmp_path / "outside"
    (saved / name).rename(outside)
    for make in (
        lambda path: path.symlink_to(outside),
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.symlink_to(path),
        lambda path: os.mkfifo(path),
        lambda path: path.mkdir(),
    ):
        make(saved / name)
        with pytest.raises(InputError, match=f"{name} must be a regular file"):
            load(saved, kind=KIND)
        (saved / name).rmdir() if (saved / name).is_dir() else (saved / name).unlink()


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_refused(saved):
    (saved / "detector.json").chmod(0)
    with pytest.raises(InputError, match="cannot be read"):
        load(saved, kind=KIND)


@pytest.mark.parametrize(
    "make", [_file, _empty, _foreign, _foreign_json, _another_kind], ids=lambda make: make.__name__
)
def test_what_is_no_directory_of_ours_is_refused(tmp_path, make):
    with pytest.raises(InputError, match="it does not exist"):
        load(tmp_path / "it", kind=KIND)
    make(tmp_path / "it")
    with pytest.raises(InputError, match="it"):
        load(tmp_path / "it", kind=KIND)


# Malice: every checksum is right


def test_the_forger_of_these_tests_can_sign(tmp_path, saved):
    forged = signed(
        {"document": DOCUMENT}, **{name[:-12]: data for name, data in files_of(saved).items() if "." in name[-12:-11]}
    )
    assert forged == files_of(saved)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ({"format": 2}, "has format 2, this version reads format 1; a newer version"),
        ({"format": 0}, "has format 0, this version reads format 1"),
        ({"format": True}, "no format number"),
        ({"format": 1.0}, "no format number"),
        ({"format": "1"}, "no format number"),
        ({"format": None}, "no format number"),
        ({"kind": "model"}, "must be of kind 'detector', got 'model'"),
        ({"kind": ["detector"]}, "must be of kind 'detector'"),
        ({"document": []}, "must hold checksum, document"),
        ({"files": []}, "must hold checksum, document"),
        ({"more": 1}, "must hold checksum, document"),
        ({"files": {"../a.safetensors": {"bytes": 0, "sha256": "0" * 64}}}, "not the name of a file"),
        ({"files": {"/etc/passwd": {"bytes": 0, "sha256": "0" * 64}}}, "not the name of a file"),
        ({"files": {"a.safetensors\n": {"bytes": 0, "sha256": "0" * 64}}}, "not the name of a file"),
        ({"files": {"detector.json": {"bytes": 0, "sha256": "0" * 64}}}, "not the name of a file"),
        ({"files": {"a.safetensors": {"bytes": 2**63, "sha256": "0" * 64}}}, "a.safetensors is missing"),
        ({"files": {"a.safetensors": {"bytes": -1, "sha256": "0" * 64}}}, "bytes and the sha256 of a.safetensors"),
        ({"files": {"a.safetensors": {"bytes": True, "sha256": "0" * 64}}}, "bytes and the sha256 of a.safetensors"),
        ({"files": {"a.safetensors": {"bytes": 0, "sha256": "0"}}}, "bytes and the sha256 of a.safetensors"),
        ({"files": {"a.safetensors": "0" * 64}}, "bytes and the sha256 of a.safetensors"),
    ],
)
def test_a_signed_document_that_is_not_ours_is_refused(tmp_path, content, says):
    with pytest.raises(InputError, match=says):
        load(put(tmp_path / "it", signed(content)), kind=KIND)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe{\x00}\x00",
        b'{"a": "\xff"}',
        b"null",
        b"[]",
        b"1",
        b'"' + b'\\"' * 2_000_000,
        b"[" * 4_000_000,
        b'{"a":' * 800_000,
        b"[" * 33 + b"]" * 33,
        b"[],[" * 1_000_000,
        b"[" + b"[]," * 1_300_000 + b"[]]",
        b'{"format": 1, "format": 1}',
        b'{"document": {"a": 1, "a": 1}}',
        b"{" + b",".join(b'"%d":0' % i for i in range(300_000)) + b',"7":0}',
        b'{"format": ' + b"9" * 4_000_000 + b"}",
        b'{"format": ' + b"9" * 4_000 + b"}",
        b'{"format": 1e999}',
        b'{"format": 1e-99999999999}',
        b'{"format": ' + b"1." + b"1" * 4_000_000 + b"}",
        b'{"format": NaN}',
        b'{"format": -Infinity}',
        b'{"format": 1, "kind": "detector", "document": "\\ud800"}',
        b"{" + b" " * 4_200_000 + b"}",
        b"\x80\x04\x95" + bytes(100),
    ],
    ids=lambda data: f"{data[:16]!r}, {len(data)} bytes",
)
def test_json_bombs_are_refused_soon(tmp_path, data):
    start = time.process_time()
    refused(tmp_path / "it", {"detector.json": data}, "detector.json")
    assert time.process_time() - start < 10


def layout(header: object, body: bytes = b"", length: int | None = None) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(data) if length is None else length) + data + body


def entry(dtype: object = "F64", shape: object = (1,), offsets: object = (0, 8)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


class Evil:
    def __reduce__(self):
        return os._exit, (99,)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 7,
        b"\0" * 8,
        layout(b"", length=2**64 - 1),
        layout({"a": entry()}, bytes(8), length=2**63),
        layout({"a": entry()}, bytes(8), length=10**6),
        layout({"a": entry()}, bytes(8), length=5),
        layout(b"{" + b" " * (2**20) + b"}"),
        layout(b"[" * 10_000),
        layout(b'{"a":' * 100_000),
        layout(b"\xff{}"),
        layout([]),
        layout({"a": entry(offsets=(0, 16))}, bytes(8)),
        layout({"a": entry(offsets=(8, 16))}, bytes(8)),
        layout({"a": entry(offsets=(2**63, 2**63 + 8))}, bytes(8)),
        layout({"a": entry(offsets=(8, 0))}, bytes(8)),
        layout({"a": entry(offsets=(-8, 0))}, bytes(8)),
        layout({"a": entry(offsets=(0,))}, bytes(8)),
        layout({"a": entry(), "b": entry()}, bytes(8)),
        layout({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)),
        layout({"a": entry(), "b": entry(offsets=(16, 24))}, bytes(24)),
        layout({"a": entry()}, bytes(9)),
        layout({}, bytes(1)),
        layout({"a": entry(shape=(2,))}, bytes(8)),
        layout({"a": entry(shape=(-1,))}, bytes(8)),
        layout({"a": entry(shape=(1.0,))}, bytes(8)),
        layout({"a": entry(shape=(2**62, 4), offsets=(0, 0))}),
        layout({"a": entry(shape=(0, 2**63), offsets=(0, 0))}),
        layout({"a": entry(shape=[0] * 100, offsets=(0, 0))}),
        layout({"a": entry(shape=[1] * 100)}, bytes(8)),
        layout({"a": entry(shape="1")}, bytes(8)),
        layout({"a": entry(dtype="O")}, bytes(8)),
        layout({"a": entry(dtype="BF16", offsets=(0, 2))}, bytes(2)),
        layout({"a": entry(dtype="C64")}, bytes(8)),
        layout({"a": entry(dtype=["F64"])}, bytes(8)),
        layout({"a": entry(dtype=None)}, bytes(8)),
        layout({"a": entry(dtype="BOOL", offsets=(0, 1))}, b"\x02"),
        layout({"a": 1}),
        layout({"a": {}}),
        layout({"__metadata__": {"a": "b"}}),
        layout(
            b'{"a":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F64","shape":[0,3],"data_offsets":[0,0]}}'
        ),
        pickle.dumps(Evil()),
        pickle.dumps(Evil(), 0),
        b"PK\x03\x04" + bytes(60),
        b"\x93NUMPY\x01\x00" + bytes(60),
    ],
    ids=lambda data: f"{data[:72]!r}",
)
def test_malicious_arrays_are_refused(tmp_path, data):
    with pytest.raises(InputError, match=r"some\.safetensors"):
        load(put(tmp_path / "it", signed({}, some=data)), kind=KIND)


@pytest.mark.parametrize("cases", [600, pytest.param(8_000, marks=pytest.mark.slow)])
def test_mutated_and_signed_again_it_is_refused_or_read_but_never_fails_otherwise(tmp_path, cases):
    random = generator("mutations")
    whole = storage._encode("some", TENSORS["estimator"] | {"empty": np.empty((0, 3)), "b": np.array([True, False])})
    header = 8 + int.from_bytes(whole[:8], "little")
    outcomes = {"read": 0, "refused": 0}
    for _ in range(cases):
        data = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            place = int(random.integers(0, header if random.random() < 0.8 else len(data)))
            change = random.integers(0, 4)
            if change == 0:
                data[place] = random.integers(0, 256)
            elif change == 1:
                data[place] = random.choice(list(b'0123456789-eE.[]{}",:\\ '))
            elif change == 2:
                del data[place : place + int(random.integers(1, 9))]
            else:
                data[place:place] = data[place : place + int(random.integers(1, 30))]
        if random.random() < 0.5:  # a length that fits
            data[:8] = struct.pack("<Q", max(0, header - 8 + len(data) - len(whole)))
        try:
            found = load(put(tmp_path / "it", signed({}, some=bytes(data))), kind=KIND)
            assert sum(array.nbytes for array in found.tensors["some"].values()) <= len(data)
            outcomes["read"] += 1
        except InputError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0, outcomes


# Comparing with what is expected


def test_check_names_what_differs():
    expected = {"a": Spec("float64", ("rows", 2)), "b": Spec("int64", ("rows",)), "c": Spec("bool", ())}
    good = {"a": np.zeros((3, 2)), "b": np.arange(3), "c": np.array(True)}
    assert check(good, expected, "it") == {"rows": 3}
    assert check(good, {name: Spec.of(array) for name, array in good.items()}, "it") == {}
    for change, says in [
        ({"a": np.zeros((3, 3))}, r"it: a must have shape \(3, 2\), got \(3, 3\)"),
        ({"a": np.zeros(3)}, r"it: a must have shape \(rows, 2\), got \(3,\)"),
        ({"a": np.zeros((3, 2), np.float32)}, "it: a must be float64, got float32"),
        ({"b": np.arange(4)}, r"it: b must have shape \(3,\), got \(4,\)"),
        ({"c": np.array([True])}, r"it: c must have shape \(\), got \(1,\)"),
        ({"d": np.zeros(1)}, "it: 'd' is not expected"),
    ]:
        with pytest.raises(InputError, match=says):
            check(good | change, expected, "it")
    with pytest.raises(InputError, match="it: b is missing"):
        check({"a": good["a"], "c": good["c"]}, expected, "it")


# The state of estimators

ROWS = generator("rows").normal(size=(300, 3)) * [1.0, 5.0, 0.1] - [100.0, 3.0, 0.0]
HELD_OUT, FRESH = ROWS[200:], ROWS[:50] + np.array([0.5, 0.0, 0.1])
every_kind = pytest.mark.parametrize("kind", ESTIMATORS)


def fitted(kind: str, **params: object) -> DensityOfStates:
    return ESTIMATORS[kind](**params).fit(ROWS[:200]).calibrate(HELD_OUT)


@cache
def state_of(kind: str) -> State:
    return estimator_state(fitted(kind))


def saved_and_loaded(path: Path, estimator: DensityOfStates) -> DensityOfStates:
    kind, params, tensors = estimator_state(estimator)
    save(path, {"estimator": {"kind": kind, "params": params}}, {"estimator": tensors}, kind=KIND)
    found = load(path, kind=KIND)
    described = found.document["estimator"]
    return estimator_from_state(described["kind"], described["params"], found.tensors["estimator"])


def assert_alike(a: DensityOfStates, b: DensityOfStates) -> None:
    assert type(a) is type(b)
    for method in ("score_samples", "decision_function", "p_values", "contributions", "predict"):
        assert same(getattr(a, method)(FRESH), getattr(b, method)(FRESH)), method
    assert a.memorisation() == b.memorisation()
    for name, value in vars(a).items():
        if name.endswith("_") and not isinstance(value, np.ndarray):
            assert isinstance(value, type(getattr(b, name))), name


@every_kind
def test_an_estimator_comes_back_to_the_bit(tmp_path, kind):
    estimator = fitted(kind, discard=0.1)
    again = saved_and_loaded(tmp_path / "it", estimator)
    assert_alike(estimator, again)
    assert again.get_params() == estimator.get_params()
    assert_alike(again, again.calibrate(HELD_OUT))


@pytest.mark.parametrize("solver", ["exact", "landmark"])
def test_both_solvers_of_the_svm_come_back_to_the_bit(tmp_path, solver):
    estimator = fitted("svm", solver=solver, nu=0.3)
    assert_alike(estimator, saved_and_loaded(tmp_path / "it", estimator))


@every_kind
def test_learned_arrays_lie_in_memory_as_they_will_when_loaded(kind):
    learned = {name: value for name, value in vars(fitted(kind)).items() if isinstance(value, np.ndarray)}
    assert not [name for name, value in learned.items() if not value.flags.c_contiguous], "BLAS rounds by layout"


@every_kind
def test_an_estimator_without_calibration_comes_back_without(tmp_path, kind):
    again = saved_and_loaded(tmp_path / "it", ESTIMATORS[kind]().fit(ROWS))
    with pytest.raises(InputError, match="calibrate"):
        again.p_values(FRESH)
    assert_alike(fitted(kind), again.fit(ROWS[:200]).calibrate(HELD_OUT))


@pytest.mark.parametrize(
    "bandwidth", [0.3, (0.1, 0.2, 0.3), [1, 2, 3], np.array([0.1, 0.2, 0.3]), np.float64(0.2), "isj"]
)
@pytest.mark.parametrize("method", ["table", "exact"])
def test_parameters_of_any_form_survive(tmp_path, bandwidth, method):
    estimator = fitted("kde", bandwidth=bandwidth, method=method)
    again = saved_and_loaded(tmp_path / "it", estimator)
    assert_alike(estimator, again)
    np.testing.assert_array_equal(again.bandwidth, estimator.bandwidth)


@every_kind
def test_names_of_columns_are_not_state(kind):
    pandas = pytest.importorskip("pandas")
    estimator = ESTIMATORS[kind]().fit(pandas.DataFrame(ROWS, columns=["a", "b", "c"]))
    assert "feature_names_in_" not in estimator_state(estimator).tensors


@every_kind
def test_the_schema_is_what_is_learned(kind):
    assert set(estimator_state(fitted(kind)).tensors) == {*COMMON, *LEARNED[kind]}


def test_the_registry_is_closed_and_keyed_by_kind():
    assert {kind: cls.kind for kind, cls in ESTIMATORS.items()} == {kind: kind for kind in ESTIMATORS}
    assert set(LEARNED) == set(ESTIMATORS)
    state = estimator_state(fitted("waic"))
    for kind in ("os.system", "dose_ood.density.baselines.WAIC", "", None, ["waic"], {}):
        with pytest.raises(InputError, match="must be one of likelihood, typicality"):
            estimator_from_state(kind, state.params, state.tensors)


def test_what_is_not_registered_not_fitted_or_not_state_is_not_saved():
    class Mine(ESTIMATORS["waic"]):
        pass

    with pytest.raises(InputError, match="Mine is not one of"):
        estimator_state(Mine().fit(ROWS))
    with pytest.raises(ValueError, match="not fitted"):
        estimator_state(ESTIMATORS["waic"]())
    odd = fitted("waic")
    odd.extra_ = "text"
    with pytest.raises(InputError, match="'extra_' is not expected"):
        estimator_state(odd)
    with pytest.raises(InputError, match="parameter column must be"):
        estimator_state(fitted("likelihood").set_params(column="0"))


@every_kind
def test_parameters_are_checked_by_name(kind):
    _, params, tensors = state_of(kind)
    for change, says in [
        ({"evil": 1}, "'evil' is not a parameter"),
        ({"self": 1}, "'self' is not a parameter"),
        ({"discard": "0.1"}, "parameter discard must be"),
        ({"discard": True}, "parameter discard must be"),
        ({"discard": None}, "parameter discard must be"),
        ({"discard": [0.1]}, "parameter discard must be"),
        ({"discard": 1.5}, "parameter discard must be in"),
        ({"discard": 1}, "parameter discard must be in"),
    ]:
        with pytest.raises(InputError, match=says):
            estimator_from_state(kind, params | change, tensors)
    with pytest.raises(InputError, match="parameter discard is missing"):
        estimator_from_state(kind, {name: value for name, value in params.items() if name != "discard"}, tensors)


@every_kind
def test_every_attribute_is_checked_by_name(kind):
    _, params, tensors = state_of(kind)
    for name, array in tensors.items():
        rest = {other: tensors[other] for other in tensors if other != name}
        bad = [array[None], array.astype(np.float32), array.astype(str)]
        if array.dtype == np.float64 and array.size and not name.startswith("ece"):
            bad.append(np.where(np.arange(array.size).reshape(array.shape) == 0, np.nan, array))
        for value in bad:
            with pytest.raises(InputError, match=f"{kind}: {name}"):
                estimator_from_state(kind, params, rest | {name: value})
        if name in LATER:
            assert not len(getattr(estimator_from_state(kind, params, rest), name))
            continue
        with pytest.raises(InputError, match=f"{kind}: {name} is missing"):
            estimator_from_state(kind, params, rest)


@every_kind
@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("n_features_in_", lambda a: a + 1),
        ("n_features_in_", lambda a: -a),
        ("n_features_in_", lambda a: a + 10**15),
        ("n_train_", lambda a: -a),
        ("n_train_", lambda a: a * 0),
        ("train_edges_", lambda a: a[::-1]),
        ("train_edges_", lambda a: a * 0),
        ("train_edges_", lambda a: a[1:]),
        ("train_shares_", lambda a: a[1:]),
        ("train_shares_", lambda a: -a),
        ("train_shares_", lambda a: a * 2),
        ("train_shares_", lambda a: a * np.inf),
        ("calibration_scores_", lambda a: a[::-1]),
        ("calibration_scores_", lambda a: a[1:]),
        ("calibration_scores_", lambda a: a[:0]),
        ("calibration_contributions_", lambda a: a[::-1] + np.arange(len(a))[::-1, None]),
        ("calibration_contributions_", lambda a: a[:, 1:]),
        ("calibration_quantiles_", lambda a: a[::-1] + np.arange(len(a))[::-1, None]),
        ("calibration_quantiles_", lambda a: a[1:]),
        ("calibration_quantiles_", lambda a: a[:, 1:]),
        ("offset_", lambda a: a * np.nan),
        ("ece_", lambda a: a - 1),
        ("ece_", lambda a: a * np.nan),
        ("ece_p_value_", lambda a: a + 2),
    ],
)
def test_states_that_no_fit_leaves_are_refused(kind, name, change):
    _, params, tensors = state_of(kind)
    with pytest.raises(InputError, match=f"{kind}: (.*{name[:6]}|[a-z_]+ must have shape)"):
        estimator_from_state(kind, params, tensors | {name: change(tensors[name])})


@pytest.mark.parametrize("column", [3, -4, 2**62])
def test_a_column_that_is_not_there_is_refused(column):
    kind, params, tensors = state_of("likelihood")
    with pytest.raises(InputError, match="cannot score a row"):
        estimator_from_state(kind, params | {"column": column}, tensors)


@every_kind
def test_a_mutated_state_is_refused_or_works(kind):
    random = generator(f"state of {kind}")
    _, params, tensors = state_of(kind)
    for _ in range(60):
        name = str(random.choice(list(tensors)))
        array = tensors[name].copy()
        change = random.integers(0, 4)
        if change == 0 and array.ndim:
            array = array[: random.integers(0, len(array) + 1)]
        elif change == 1 and array.size:
            array.flat[random.integers(array.size)] *= -1
        elif change == 2 and array.size:
            array.flat[random.integers(array.size)] = random.choice([0, 1, -1, 2**40, -(2**62)])
        else:
            array = array.ravel()[random.permutation(array.size)].reshape(array.shape)
        try:
            estimator = estimator_from_state(kind, params, tensors | {name: array})
        except InputError:
            continue
        with np.errstate(all="ignore"):
            assert estimator.score_samples(FRESH).shape == (50,)
            assert estimator.contributions(FRESH).shape == (50, 3)
