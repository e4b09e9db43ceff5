"""What ships with the package."""

import os

import make_sample
import numpy as np
import pytest

from dose_ood.data.folder import SAMPLES, data_folder, path_of
from dose_ood.data.images import fingerprint, read_images

HASHES = {
    "fashion_mnist_sample": "c86f746915b7edace2f24792fd6cb6d38262123636a8814a4d756b04299691bd",
    "fashion_mnist_sample:test": "f3da61c43eebf17cfc0f13cb4e09afe4663102d5a672475605d6e290cf602938",
    "mnist_sample:test": "068ece795213442df21d1ced854dc413b89724f1b63d5502d70f0a3ca5a2ed63",
}


@pytest.fixture
def nowhere(monkeypatch, tmp_path):
    monkeypatch.delenv("DOSE_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize(("source", "expected"), HASHES.items())
def test_the_samples_are_there_without_any_folder_and_are_the_same_for_ever(nowhere, source, expected):
    assert fingerprint(read_images(source)) == expected


def test_a_sample_has_every_class_and_no_image_twice(nowhere):
    for name, parts in make_sample.DRAWN.items():
        with np.load(path_of(f"{name}_sample", SAMPLES)) as arrays:
            for part, count in parts.items():
                images, labels = arrays[f"{part}_x"], arrays[f"{part}_y"]
                assert len(images) == len(labels) == count
                assert len(np.unique(images.reshape(count, -1), axis=0)) == count
                assert np.bincount(labels, minlength=10).min() > 0.08 * count


def test_they_are_small_and_say_whose_they_are():
    assert sum(file.stat().st_size for file in SAMPLES.iterdir()) < 6e6
    notice = (SAMPLES / "NOTICE").read_text()
    assert "Copyright (c) 2017 Zalando SE" in notice
    assert "Creative Commons Attribution-Share Alike 3.0" in notice
    assert "python tests/data/make_sample.py" in notice


@pytest.mark.slow
@pytest.mark.skipif("DOSE_DATA" not in os.environ, reason="needs the full sets")
def test_they_are_drawn_again_bit_for_bit(tmp_path):
    for name in make_sample.DRAWN:
        if not path_of(name, data_folder()).exists():
            pytest.skip(f"needs {name}")
        with np.load(path_of(f"{name}_sample", SAMPLES)) as shipped:
            drawn = make_sample.sample(name)
            assert set(drawn) == set(shipped)
            assert all(np.array_equal(drawn[key], shipped[key]) for key in drawn)
