"""Files made to harm: each is refused in one sentence, and nothing is run, unpacked elsewhere or half-written."""

import gzip
import io
import os
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
from originals import TEST, arrays_of, batches, idx, idx_files, pickled, png, text, tiny, write, write_tar, write_zip

from dose_ood import InputError
from dose_ood.data.fetch import fetch_from

MNIST, CIFAR10 = arrays_of("mnist"), arrays_of("cifar10")
BATCHES = {name: pickled(*both) for name, both in batches(CIFAR10).items()}
SVHN = {"X": arrays_of("svhn")["test_x"].transpose(1, 2, 3, 0), "y": np.ones((TEST, 1), np.uint8)}


@pytest.fixture
def refused(tmp_path):
    """Try to fetch a set from a place, and give the sentence that refuses it; memory and folders stay as they were."""
    folder = tmp_path / "cache"

    def attempt(name, place):
        before = {path for path in tmp_path.rglob("*") if path.is_file()}
        tracemalloc.start()
        try:
            with pytest.raises(InputError) as caught:
                fetch_from(tiny(name), place, folder)
            most = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert most < 30e6, f"{most / 1e6:.0f} MB"
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == before
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return attempt


COMMAND = b"touch /tmp/dose-ood-was-here"
PROGRAMS = {
    "os.system": (b"cos\nsystem\n(" + text(COMMAND) + b"tR.", "the name 'os system'"),
    "posix.system": (b"\x80\x02cposix\nsystem\n" + text(COMMAND) + b"\x85R.", "the name 'posix system'"),
    "eval": (b"\x80\x02c__builtin__\neval\n" + text(b"1/0") + b"\x85R.", "the name '__builtin__ eval'"),
    "inst": (b"(" + text(COMMAND) + b"ios\nsystem\n.", "the instruction b'i'"),
    "obj": (b"(cnumpy\nndarray\no.", "the instruction b'o'"),
    "stack global": (b"\x80\x04\x8c\x02os\x8c\x06system\x93.", "version 4 of the format instead of 2"),
    "global by stack": (b"\x80\x02\x8c\x02os\x8c\x06system\x93.", r"the instruction b'\x8c'"),
    "extension": (b"\x80\x02\x82\x01.", r"the instruction b'\x82'"),
    "persistent": (b"\x80\x02Pid\n.", "the instruction b'P'"),
    "another call of numpy": (b"cnumpy\nndarray\nM\xff\xff\x85R.", "a call"),
    "huge array": (b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nJ\xff\xff\xff\x7f\x85U\x01btR.", "a call"),
    "state of a dict": (b"}}b.", "a state of something else"),
    "unhashable key": (b"}](]]u.", "entries of something else"),
    "odd entries": (b"}(U\x01au.", "entries of something else"),
    "append to a number": (b"K\x01(K\x02e.", "items of something else"),
    "empty stack": (b"R.", "an empty stack"),
    "no mark": (b"K\x01t.", "no mark"),
    "no note": (b"h\x07.", "a note that was never made"),
    "long text": (b"T\xff\xff\xff\xffabc.", "the end of the file"),
    "endless name": (b"c" + b"a" * 1000 + b"\n", "a name without an end"),
    "no end": (b"}", "the end of the file"),
    "nothing": (b"", "the end of the file"),
    "not a dict": (b"K\x01.", "expected a CIFAR batch with data and labels"),
    "data is no array": (b"}(U\x04data]U\x06labels]u.", "expected an array as data"),
    "data without content": (
        b"}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btRU\x06labels]u.",
        "expected rows of bytes as data",
    ),
}


@pytest.mark.parametrize(("program", "message"), PROGRAMS.values(), ids=PROGRAMS)
def test_a_batch_that_would_run_something_is_refused(tmp_path, refused, program, message):
    was_here = Path("/tmp/dose-ood-was-here")  # noqa: S108
    files = BATCHES | {"data_batch_3": program}
    assert message in refused("cifar10", write(tmp_path / "files", files))
    assert not was_here.exists()


def test_a_batch_whose_array_is_not_as_long_as_it_says_is_refused(tmp_path, refused, monkeypatch):
    program = BATCHES["test_batch"]
    rows = b"M" + struct.pack("<H", TEST) + b"M\x00\x0c\x86"
    for change, message in (
        (b"M\xff\xffM\x00\x0c\x86", "got 30,720 bytes called 65,535 rows of 3,072"),
        (b"M\x0b\x00M\x00\x0c\x86", "got 30,720 bytes called 11 rows"),
        (b"M\x0a\x00M\x01\x0c\x86", "rows of 3,073"),
        (b"J\xff\xff\xff\xffM\x00\x0c\x86", "called -1 rows"),
    ):
        assert rows in program
        files = BATCHES | {"test_batch": program.replace(rows, change)}
        assert message in refused("cifar10", write(tmp_path / "files", files))
    for size in (10, 30, len(program) // 2, len(program) - 1):
        assert "the end of the file" in refused(
            "cifar10", write(tmp_path / "files", BATCHES | {"test_batch": program[:size]})
        )
    monkeypatch.setattr("dose_ood.data.pickled.MOST_STEPS", 10_000)
    endless = b"\x80\x02" + b"N" * 10_001
    message = refused("cifar10", write(tmp_path / "files", BATCHES | {"test_batch": endless}))
    assert "more than 10,000 instructions" in message


def lying(*shape, kind=8):
    return struct.pack(f">HBB{len(shape)}I", 0, kind, len(shape), *shape) + bytes(100)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (lying(2**32 - 1, 28, 28), "its header says (4294967295, 28, 28)"),
        (lying(51, 28, 28), "at most (50, 28, 28), its header says (51, 28, 28)"),
        (lying(50, 28, 29), "its header says (50, 28, 29)"),
        (lying(0, 28, 28), "its header says (0, 28, 28)"),
        (lying(50, 28), "expected idx of bytes with 3 axes"),
        (lying(50, 28, 28, kind=14), "expected idx of bytes with 3 axes"),
        (lying(50, 28, 28), "is cut off: expected 39,200 more bytes, got 100"),
        (idx(MNIST["train_x"]) + b"!", "expected 39,200 values as its header says, there are more"),
        (b"\0\0", "is cut off: expected 4 more bytes, got 2"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_an_idx_file_that_lies_about_its_size_is_refused(tmp_path, refused, content, message, zipped):
    pack, end = (gzip.compress, "-idx{}-ubyte.gz") if zipped else (bytes, "-idx{}-ubyte")
    files = idx_files(MNIST, pack, end) | {f"train-images{end.format(3)}": pack(content)}
    assert message in refused("mnist", write(tmp_path / "files", files))


def test_a_gz_bomb_is_not_unpacked(tmp_path, refused):
    bomb = gzip.compress(idx(MNIST["train_x"]) + bytes(60_000_000), 9)
    files = idx_files(MNIST) | {"train-images-idx3-ubyte.gz": bomb}
    assert "there are more" in refused("mnist", write(tmp_path / "files", files))
    half = idx_files(MNIST)["train-images-idx3-ubyte.gz"]
    for broken in (half[: len(half) // 2], half[:5], b"", b"not a gz", half[:-8] + bytes(8)):
        files = idx_files(MNIST) | {"train-images-idx3-ubyte.gz": broken}
        assert "train-images-idx3-ubyte.gz" in refused("mnist", write(tmp_path / "files", files))


def test_a_tar_bomb_is_not_unpacked(tmp_path, refused, monkeypatch):
    monkeypatch.setattr("dose_ood.data.files.MOST_BYTES", 10_000_000)
    bomb = write_tar(tmp_path / "bomb.tar.gz", {"data_batch_1.bin": bytes(40_000_000)})
    assert "expected at most 10,000,000 bytes unpacked, there are more" in refused("cifar10", bomb)
    with gzip.open(tmp_path / "empty.tar.gz", "wb") as file:
        file.write(b"no tar at all" * 100)
    assert "cannot read" in refused("cifar10", tmp_path / "empty.tar.gz")


def test_a_zip_bomb_is_not_unpacked(tmp_path, refused, monkeypatch):
    monkeypatch.setattr("dose_ood.data.files.MEMBER_BYTES", 10_000_000)
    bomb = write_zip(tmp_path / "bomb.zip", {"train-images-idx3-ubyte": bytes(40_000_000)})
    assert "expected files of at most 10,000,000 bytes, got 40,000,000" in refused("mnist", bomb)
    quiet = write_zip(tmp_path / "quiet.zip", {"train-images-idx3-ubyte": idx(MNIST["train_x"]) + bytes(9_000_000)})
    assert "expected a file" in refused("mnist", quiet)
    hidden = quiet.read_bytes().replace(struct.pack("<I", 9_039_216), struct.pack("<I", 39_216))  # a size that lies
    quiet.write_bytes(hidden)
    with zipfile.ZipFile(quiet, "a") as archive:
        for name, content in idx_files(MNIST, bytes, "-idx{}-ubyte").items():
            if name != "train-images-idx3-ubyte":
                archive.writestr(name, content)
    assert "cannot read train-images-idx3-ubyte: " in refused("mnist", quiet)
    arrays = io.BytesIO()
    np.savez_compressed(arrays, train_x=np.zeros((50_000, 28, 28), np.uint8))
    assert "expected train_x of at most 39,200 bytes" in refused(
        "mnist", write(tmp_path, {"mnist.npz": arrays.getvalue()})
    )


@pytest.mark.parametrize("name", ["../outside", "a/../../outside", "/outside", "C:/outside", "..\\outside"])
def test_archives_with_paths_that_lead_out_are_refused(tmp_path, refused, name):
    files = {name: b"content", **idx_files(MNIST)}
    assert "expected names inside the archive" in refused("mnist", write_zip(tmp_path / "a.zip", files))
    assert "expected names inside the archive" in refused("mnist", write_tar(tmp_path / "a.tar.gz", files))
    assert not (tmp_path.parent / "outside").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_in_a_tar_are_refused(tmp_path, refused, kind):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        info = tarfile.TarInfo("data_batch_1.bin")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    assert "got a link or a device as data_batch_1.bin" in refused("cifar10", tmp_path / "a.tar")


def test_zips_that_are_locked_or_packed_otherwise_are_refused(tmp_path, refused):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a", b"content")
    assert "expected members packed by deflate and not locked" in refused("mnist", tmp_path / "a.zip")
    (tmp_path / "a.zip").write_bytes(b"PK\3\4 broken")
    assert "cannot read" in refused("mnist", tmp_path / "a.zip")


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"X": np.array([{"a": 1}, [2]], object)}, "got one of objects, text or other things"),
        ({"X": {"field": 1}}, "got one of objects, text or other things"),
        ({"X": "text"}, "got one of objects, text or other things"),
        ({"X": SVHN["X"] + 0j}, "got one of objects, text or other things"),
        ({"X": SVHN["X"].astype(float)}, "bytes of MATLAB's type 2, got"),
        ({"X": np.zeros((32, 32, 3, TEST + 1), np.uint8)}, "its header says (32, 32, 3, 11)"),
        ({"X": np.zeros((32, 32), np.uint8)}, "its header says (32, 32)"),
        ({"Z": SVHN["X"]}, "expected an array X, found y"),
    ],
)
def test_a_mat_file_of_other_things_is_refused(tmp_path, refused, content, message, compressed):
    files = tmp_path / "files"
    files.mkdir()
    scipy.io.savemat(files / "train_32x32.mat", SVHN)
    with_y = {name: array for name, array in SVHN.items() if name == "y"} | content
    scipy.io.savemat(files / "test_32x32.mat", with_y, do_compression=compressed)
    assert message in refused("svhn", files)


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def matrix(shape, content, claims=None):
    tag = struct.pack("<II", 2, len(content) if claims is None else claims)
    sizes = element(5, np.array(shape, "<i4").tobytes())
    return element(6, struct.pack("<II", 9, 0)) + sizes + element(1, b"X") + tag + content + bytes(-len(content) % 8)


def test_a_mat_file_that_lies_about_its_sizes_or_is_a_bomb_is_refused(tmp_path, refused):
    head, right = bytes(124) + b"\0\1IM", (32, 32, 3, TEST)
    pixels = SVHN["X"].tobytes(order="F")
    bomb = zlib.compress(struct.pack("<II", 14, 2**31) + matrix(right, bytes(60_000_000)), 9)
    files = tmp_path / "files"
    files.mkdir()
    scipy.io.savemat(files / "test_32x32.mat", SVHN)
    for content, message in (
        (b"", "is cut off: expected 128 more bytes, got 0"),
        (bytes(128), "expected a MATLAB file of format 5"),
        (head, "expected an array"),
        (head + b"abc", "is cut off: expected an array's tag"),
        (head + struct.pack("<II", 14, 2**32 - 1), "one claims 4,294,967,295"),
        (head + element(9, b"12345678"), "expected arrays, got an element of type 9"),
        (head + element(14, matrix(right, pixels[:-8])), "expected 30,720 bytes as X, got 30,712"),
        (head + element(14, matrix(right, b"", 30_720)), "goes on after it"),
        (
            head + element(14, matrix(right, pixels, 2**31)),
            "at most 30,720 bytes of MATLAB's type 2, got 2,147,483,648",
        ),
        (head + element(14, matrix((32, 32, 3, 2**31 - 1), b"")), "its header says (32, 32, 3, 2147483647)"),
        (head + element(14, matrix((-1, 32, 3, -1), b"")), "its header says (-1, 32, 3, -1)"),
        (
            head + element(14, element(6, b"1234") + matrix(right, pixels)[16:]),
            "got one of objects, text or other things",
        ),
        (head + element(15, bomb), "at most 30,720 bytes of MATLAB's type 2, got 60,000,000"),
        (head + element(15, zlib.compress(element(14, matrix(right, pixels)))[:200]), "is cut off"),
        (head + element(15, zlib.compress(element(9, b"12345678"))), "expected an array in a compressed element"),
        (head + element(15, b"no zlib at all"), "cannot read"),
        (head + element(14, matrix(right, pixels))[:20_000], "one claims"),
    ):
        (files / "train_32x32.mat").write_bytes(content)
        assert message in refused("svhn", files)


def test_cifar_records_and_sheets_of_another_size_are_refused(tmp_path, refused):
    files = {f"{name}.bin": bytes(3073) for name in BATCHES}
    for content in (b"", bytes(3072), bytes(3073 * 10_001)):
        place = write(tmp_path / "binary", files | {"data_batch_5.bin": content})
        assert "expected 1 to 10,000 records of 3,073 bytes, got " in refused("cifar10", place)
    files = {f"{name}.png": png(np.zeros((2, 1024, 3), np.uint8)) for name in BATCHES}
    for shape in ((2, 1023, 3), (10_001, 1024, 3), (2, 1024)):
        place = write(tmp_path / "sheets", files | {"data_batch_1.png": png(np.zeros(shape, np.uint8))})
        assert "expected an RGB sheet of 1024×10000 at most" in refused("cifar10", place)
    for labels, message in ((b"[" * 200, "is no JSON"), (b"[256]", "expected a list of classes"), (b"{}", "a list")):
        place = write(tmp_path / "sheets", files | {"train_labels.json": labels})
        assert message in refused("cifar10", place)


def test_a_full_disk_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    folder = tmp_path / "cache"
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"cannot write .*mnist.npz: .*No space left"):
        fetch_from(tiny("mnist"), write(tmp_path / "files", idx_files(MNIST)), folder)
    assert not list(folder.iterdir())
