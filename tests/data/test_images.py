import io

import numpy as np
import pytest
from PIL import Image

from dose_ood import InputError
from dose_ood.data.folder import data_folder
from dose_ood.data.images import fingerprint, read_images, split, write_sheet
from dose_ood.noise import generator

GREY = generator("grey images").integers(0, 256, (5, 6, 7), dtype=np.uint8)
COLOUR = generator("colour images").integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
CHANNELS_FIRST = COLOUR.transpose(0, 3, 1, 2)


def save_pictures(folder, images, suffix=".png"):
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number}{suffix}")
    return folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir()
    np.savez(folder / "digits.npz", train_x=GREY, train_y=np.arange(5), test_x=GREY[::-1])
    np.savez(folder / "only_test.npz", test_x=COLOUR, test_y=np.arange(5))
    monkeypatch.setenv("DOSE_DATA", str(folder))
    return folder


def test_every_way_to_give_images_gives_the_same_pixels(tmp_path):
    np.save(tmp_path / "grey.npy", GREY)
    np.save(tmp_path / "last.npy", COLOUR)
    np.save(tmp_path / "first.npy", CHANNELS_FIRST)
    np.save(tmp_path / "one.npy", GREY[..., None])
    np.savez(tmp_path / "x.npz", x=GREY, y=np.arange(5))
    np.savez_compressed(tmp_path / "single.npz", anything=COLOUR)
    save_pictures(tmp_path / "grey", GREY)
    save_pictures(tmp_path / "colour", COLOUR)
    for name in ("grey.npy", "one.npy", "x.npz", "grey"):
        assert np.array_equal(read_images(tmp_path / name), GREY[:, None])
    for name in ("last.npy", "first.npy", "single.npz", "colour"):
        assert np.array_equal(read_images(str(tmp_path / name)), CHANNELS_FIRST)
        assert read_images(tmp_path / name).dtype == np.uint8


def test_a_data_set_is_found_by_its_name(cache):
    assert np.array_equal(read_images("digits"), GREY[:, None])
    assert np.array_equal(read_images("digits:train"), GREY[:, None])
    assert np.array_equal(read_images("digits:test"), GREY[::-1, None])
    assert np.array_equal(read_images("digits:test:hflip"), GREY[::-1, None, :, ::-1])
    assert np.array_equal(read_images(f"{cache}/digits.npz:test"), GREY[::-1, None])
    assert np.array_equal(read_images("only_test:test"), CHANNELS_FIRST)


def test_pictures_of_a_palette_have_its_colours_and_files_of_others_are_left_alone(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    palette = Image.fromarray(np.arange(4, dtype=np.uint8).reshape(2, 2), mode=None).convert("P")
    palette.putpalette([10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120])
    palette.save(folder / "a.png")
    (folder / "notes.txt").write_text("not a picture")
    (folder / ".hidden.png").write_text("not a picture either")
    assert np.array_equal(read_images(folder)[0, :, 0, 0], [10, 20, 30])


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (GREY / 255, r"expected grey levels from 0 to 255 as uint8, got float64"),
        (GREY[0], r"expected images of shape \(n, h, w\), .*, got \(6, 7\)"),
        (GREY[:0], r"expected images of shape .* and none of it 0, got \(0, 6, 7\)"),
        (np.zeros((2, 5, 6, 7), np.uint8), r"expected 1 or 3 channels, either first or last, got shape \(2, 5, 6, 7\)"),
        (np.zeros((2, 3, 6, 3), np.uint8), r"either first or last, got shape \(2, 3, 6, 3\)"),
    ],
)
def test_arrays_that_are_no_images_are_refused(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(InputError, match=message):
        read_images(tmp_path / "a.npy")


def test_sources_that_are_none_are_refused(cache, tmp_path):
    np.savez(tmp_path / "two.npz", a=GREY, b=GREY)
    (tmp_path / "broken.npz").write_bytes(b"PK broken")
    (tmp_path / "table.csv").write_text("a,b")
    np.save(tmp_path / "a.npy", GREY)
    np.save(tmp_path / "pickled.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "cut.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    (tmp_path / "text.npy").write_text("1,2\n")
    (tmp_path / "empty.npy").touch()
    (tmp_path / "empty").mkdir()
    refused = {
        "nothing/there.npz": "no such file or folder",
        "mnist": r"mnist is not in the data folder \(.*cache\): get it with dose data fetch mnist",
        "numbers": r"no data set in the data folder .*; there: digits, only_test, fashion_mnist_sample, mnist_sample",
        "digits:validation": r"expected NAME\[:PART\]\[:SHIFT\]",
        "only_test": "expected train_x, x or a single array, got test_x, test_y; say :test",
        "only_test:train": "has no 'train_x'; it has test_x, test_y",
        tmp_path / "two.npz": "expected train_x, x or a single array, got a, b",
        tmp_path / "broken.npz": "cannot read .*broken.npz",
        tmp_path / "table.csv": "expected a .npz or .npy file or a folder of pictures",
        f"{tmp_path}/a.npy:test": "is a single array and has no part 'test'",
        tmp_path / "cut.npy": r"cut.npy is cut short: its header promises more than its \d+ bytes",
        tmp_path / "text.npy": r"text.npy: expected an array that NumPy saved, got a file that starts with b'1,2\\n'",
        tmp_path / "empty.npy": "empty.npy: expected an array that NumPy saved, got a file that starts with b''",
        tmp_path / "pickled.npy": "cannot read .*pickled.npy",
        tmp_path / "empty": "expected pictures .*, found none",
        f"{tmp_path}/empty:test": "is a folder of pictures and has no part",
    }
    for source, message in refused.items():
        with pytest.raises(InputError, match=message):
            read_images(source)


def test_a_name_is_looked_for_in_paths_then_the_data_folder_then_the_samples(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shipped = read_images("mnist_sample:test")
    np.savez(cache / "mnist_sample.npz", test_x=GREY)
    assert np.array_equal(read_images("mnist_sample:test"), GREY[:, None])
    save_pictures(tmp_path / "digits", COLOUR)
    assert np.array_equal(read_images("digits"), CHANNELS_FIRST)
    monkeypatch.delenv("DOSE_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    assert np.array_equal(read_images("mnist_sample:test"), shipped)
    (tmp_path / "user").mkdir()
    cache.rename(tmp_path / "user" / "dose-ood")
    assert np.array_equal(read_images("mnist_sample:test"), GREY[:, None])
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folder() == tmp_path / ".cache" / "dose-ood"


def test_pictures_in_folders_of_classes_and_parts(tmp_path):
    (tmp_path / "set" / "train").mkdir(parents=True)
    save_pictures(tmp_path / "set" / "train" / "a", GREY[:2])
    save_pictures(tmp_path / "set" / "train" / "b", GREY[2:])
    save_pictures(tmp_path / "set" / "test", GREY[::-1])
    assert np.array_equal(read_images(f"{tmp_path}/set:train"), GREY[:, None])
    assert np.array_equal(read_images(f"{tmp_path}/set:test"), GREY[::-1, None])


def test_pictures_that_do_not_fit_are_refused_by_name(tmp_path):
    folder = save_pictures(tmp_path / "sizes", GREY)
    Image.fromarray(GREY[0, :4]).save(folder / "z.png")
    with pytest.raises(InputError, match=r"z.png: expected 7×6 grey as in 0.png, got 7×4 grey"):
        read_images(folder)
    folder = save_pictures(tmp_path / "colours", GREY)
    Image.fromarray(COLOUR[0]).save(folder / "z.png")
    with pytest.raises(InputError, match=r"z.png: expected 7×6 grey as in 0.png, got 7×6 RGB"):
        read_images(folder)
    folder = save_pictures(tmp_path / "huge", [np.zeros((8193, 8193), np.uint8)])
    with pytest.raises(InputError, match=r"0.png: expected at most 67,108,864 pixels, got 8,193×8,193"):
        read_images(folder)
    (folder / "0.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n")  # would start a program
    with pytest.raises(InputError, match=r"0.png cannot be read as a picture"):
        read_images(folder)
    folder = save_pictures(tmp_path / "clear", [np.zeros((3, 3, 4), np.uint8)])
    with pytest.raises(InputError, match="expected a grey or RGB picture of 8 bits, got mode RGBA"):
        read_images(folder)
    (folder / "0.png").write_bytes(b"not a picture")
    with pytest.raises(InputError, match=r"0.png cannot be read as a picture"):
        read_images(folder)
    whole = io.BytesIO()
    Image.fromarray(COLOUR[0].repeat(9, 0)).save(whole, "png")
    (folder / "0.png").write_bytes(whole.getvalue()[:-40])
    with pytest.raises(InputError, match=r"0.png cannot be read as a picture"):
        read_images(folder)


def test_a_split_holds_out_a_tenth_by_its_seed_alone():
    parts = split(1003)
    assert len(parts.held_out) == 100
    assert np.array_equal(np.sort(np.concatenate([parts.train, parts.held_out])), np.arange(1003))
    again, other = split(1003), split(1003, seed=1)
    assert np.array_equal(parts.held_out, again.held_out)
    assert len(np.intersect1d(parts.held_out, other.held_out)) < 30
    with pytest.raises(InputError, match="expected enough images to hold out 10% of them"):
        split(4)


def test_a_fingerprint_is_of_pixels_and_shape_not_of_memory():
    assert fingerprint(CHANNELS_FIRST) == fingerprint(np.ascontiguousarray(CHANNELS_FIRST))
    changed = CHANNELS_FIRST.copy()
    changed[-1, -1, -1, -1] ^= 1
    others = [changed, CHANNELS_FIRST[:, :, ::-1], CHANNELS_FIRST.reshape(5, 3, 7, 6), CHANNELS_FIRST.view(np.int8)]
    assert len({fingerprint(other) for other in [CHANNELS_FIRST, *others]}) == 5


def test_a_sheet_shows_every_image_where_it_belongs(tmp_path):
    for images in (GREY[:, None], CHANNELS_FIRST):
        write_sheet(tmp_path / "sheet.png", images, columns=3, scale=1)
        sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
        assert sheet.shape == (1 + 2 * 7, 1 + 3 * 8, 3)
        fourth = sheet[8 : 8 + 6, 1 : 1 + 7].transpose(2, 0, 1)
        assert np.array_equal(fourth, np.broadcast_to(images[3], (3, 6, 7)))
        assert (sheet[8:, 1 + 2 * 8 :] == 255).all()
    with pytest.raises(InputError, match="cannot write"):
        write_sheet(tmp_path / "nowhere" / "sheet.png", images, columns=3)
