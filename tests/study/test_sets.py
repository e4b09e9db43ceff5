import numpy as np
import pytest

from benching import SIZE, write_data
from dose_ood import InputError
from dose_ood.data.images import fingerprint, split
from dose_ood.study.sets import base_name, named, open_sets, usual


@pytest.fixture
def data(tmp_path, monkeypatch):
    write_data(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOSE_DATA", str(tmp_path))
    return tmp_path


def keys(images: np.ndarray) -> set[bytes]:
    return {image.tobytes() for image in images}


def test_parts_are_those_of_the_training(data):
    sets = open_sets("stripes", ["odd"], None, 3)
    assert sets.names == ("train", "held_out", "test", "odd")
    parts = split(200, 3)
    assert np.array_equal(sets.images("train"), sets.training[parts.train])
    assert np.array_equal(sets.images("held_out"), sets.training[parts.held_out])
    assert sets.known("train") == (180, fingerprint(sets.training[parts.train]))
    assert len(sets.images("test")) == 40
    assert not keys(sets.images("test")) & keys(sets.training)


def test_without_a_test_part_the_held_out_images_are_halved(data):
    sets = open_sets("whole.npy", ["hflip"], None, 0)
    assert not sets.has_test
    calibrating, tested = keys(sets.images("held_out")), keys(sets.images("test"))
    assert len(calibrating) == len(tested) == 10
    assert calibrating | tested == keys(sets.training[split(200, 0).held_out])
    assert keys(sets.images("hflip")) == keys(sets.images("test")[..., ::-1])  # no training image is among them


def test_rows_are_a_sample_drawn_by_the_seed(data):
    whole = open_sets("stripes", ["odd"], None, 0)
    some, same, other = (open_sets("stripes", ["odd"], 12, seed) for seed in (0, 0, 1))
    for name in some.names:
        images = some.images(name)
        assert len(images) == 12
        assert keys(images) < keys(whole.images(name))
        assert np.array_equal(images, same.images(name))
    assert keys(some.images("test")) != keys(other.images("test"))
    assert some.known("odd") != whole.known("odd")


def test_a_name_means_the_test_part_if_there_is_one(data):
    sets = open_sets("whole.npy", ["stripes", "part=stripes:train", "odd.npz", "hflip"], None, 0)
    assert dict(sets.outliers) == {
        "stripes": "stripes:test",
        "part": "stripes:train",
        "odd": "odd.npz",
        "hflip": ":hflip",
    }
    assert open_sets("stripes", ["hflip"], None, 0).outliers == {"hflip": "stripes:test:hflip"}


def test_usual_sets_that_are_not_there_are_left_out(data, monkeypatch):
    digits = np.zeros((30, 28, 28), np.uint8)
    np.savez(data / "mnist.npz", train_x=digits, test_x=digits)
    sets = open_sets("mnist", [], None, 0)
    assert set(sets.outliers) == {"uniform", "gaussian", "hflip", "vflip"}
    assert [sentence.split(" is left out: ")[0] for sentence in sets.skipped] == ["fashion_mnist", "omniglot"]
    assert list(usual("x.npz", (3, 32, 32)))[:5] == ["cifar10", "cifar100", "svhn", "celeba", "imagenet32"]
    assert list(usual("cifar10", (3, 32, 32)))[:4] == ["cifar100", "svhn", "celeba", "imagenet32"]
    assert base_name("folder/fashion_mnist_sample.npz:test") == "fashion_mnist"


@pytest.mark.parametrize(
    ("ood", "message"),
    [
        (["large"], rf"large \(large\): expected images of shape \(1, {SIZE}, {SIZE}\).*nothing is resized"),
        (["nowhere"], "nowhere is no file or folder"),
        (["odd", "odd.npz"], "there is another set called odd; say OTHERNAME=odd.npz"),
        (["test=odd"], "expected a name of letters and digits for the set; say NAME=odd"),
        (["odd="], "expected NAME=SOURCE, got no source"),
        (["side=:sideways"], "expected a shift of :uniform_noise"),
    ],
)
def test_what_cannot_be_used_is_refused(data, ood, message):
    with pytest.raises(InputError, match=message):
        open_sets("stripes", ood, None, 0)


def test_shifts_are_named_after_their_data():
    assert list(named(["uniform", "mnist:test:hflip", "a/b.npz:gaussian_noise"])) == [
        "uniform",
        "mnist_hflip",
        "b_gaussian",
    ]
