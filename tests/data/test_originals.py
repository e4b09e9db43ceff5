"""Every original format gives the same arrays as were packed into it."""

import io
import json

import numpy as np
import pytest
import scipy.io
from originals import (
    TEST,
    TRAIN,
    arrays_of,
    batches,
    binary,
    idx_files,
    pickled,
    png,
    sheet,
    tiny,
    values,
    write,
    write_tar,
    write_zip,
)

from dose_ood import InputError
from dose_ood.data.files import open_files
from dose_ood.data.originals import decode


def read(name, place):
    data_set = tiny(name)
    with open_files(place, data_set.archives) as files:
        return decode(data_set, files)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name
        assert found[name].dtype == array.dtype


def test_idx_gzipped_or_not_in_a_folder_a_zip_or_a_tar(tmp_path):
    arrays = arrays_of("mnist")
    zipped, plain = idx_files(arrays), idx_files(arrays, bytes, ".idx{}-ubyte")
    places = [
        write(tmp_path / "gz", zipped),
        write(tmp_path / "plain", {f"deep/inside/{name}": content for name, content in plain.items()}),
        write_zip(tmp_path / "package.whl", {f"Package/data/{name}": content for name, content in zipped.items()}),
        write_tar(tmp_path / "files.tar", {f"./usr/share/{name}": content for name, content in zipped.items()}, "w"),
        write_tar(tmp_path / "files.tgz", plain),
    ]
    for place in places:
        assert_same(read("mnist", place), arrays)


def test_cifar10_binary_python_and_sheets(tmp_path):
    arrays = arrays_of("cifar10")
    rows = batches(arrays)
    as_binary = {f"cifar-10-batches-bin/{name}.bin": binary(*both) for name, both in rows.items()}
    as_python = {f"cifar-10-batches-py/{name}": pickled(*both) for name, both in rows.items()}
    as_sheets = {f"package/{name}.png": sheet(images) for name, (images, _) in rows.items()}
    for part in ("train", "test"):
        as_sheets[f"package/{part}_lables.json"] = json.dumps(arrays[f"{part}_y"].tolist()).encode()
    folder = tmp_path / "downloads"
    folder.mkdir()
    write_tar(folder / "cifar-10-binary.tar.gz", as_binary)
    for place in (
        folder,
        folder / "cifar-10-binary.tar.gz",
        write_tar(tmp_path / "cifar-10-python.tar.gz", as_python),
        write_tar(tmp_path / "sheets.tgz", as_sheets),
    ):
        assert_same(read("cifar10", place), arrays)


def test_cifar100_takes_the_fine_label(tmp_path):
    arrays = arrays_of("cifar100")
    parts = {part: (arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test")}
    as_binary = {f"cifar-100-binary/{part}.bin": binary(*both, coarse=True) for part, both in parts.items()}
    as_python = {f"cifar-100-python/{part}": pickled(*both, b"fine_labels") for part, both in parts.items()}
    assert_same(read("cifar100", write_tar(tmp_path / "binary.tar.gz", as_binary)), arrays)
    assert_same(read("cifar100", write_tar(tmp_path / "python.tar.gz", as_python)), arrays)


def test_a_batch_that_python_itself_reads_is_read_the_same():
    import pickle

    arrays = arrays_of("cifar10")
    program = pickled(arrays["test_x"], arrays["test_y"])
    told = pickle.loads(program, encoding="bytes")  # noqa: S301  # written above
    assert np.array_equal(told[b"data"], values(arrays["test_x"]))
    assert told[b"labels"] == arrays["test_y"].tolist()


@pytest.mark.parametrize("compressed", [True, False])
def test_svhn_as_scipy_writes_it(tmp_path, compressed):
    arrays = arrays_of("svhn")
    for part in ("train", "test"):
        labels = np.where(arrays[f"{part}_y"] == 0, 10, arrays[f"{part}_y"]).astype(np.uint8)[:, None]
        content = {"X": arrays[f"{part}_x"].transpose(1, 2, 3, 0), "note": "text", "y": labels}
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", content, do_compression=compressed)
    assert_same(read("svhn", tmp_path), arrays)


def test_omniglot_is_made_small_and_bright_in_the_order_of_its_folders(tmp_path):
    drawing = np.full((105, 105), 255, np.uint8)
    drawing[:30, :15] = 0  # a stroke: 4 by 8 pixels of 3.75 by 3.75
    blank = np.full((105, 105), 255, np.uint8)
    for folder in ("images_background", "images_evaluation"):
        files = {
            f"{folder}/Zulu/character01/1.png": png(blank, "1"),
            f"{folder}/Alpha/character02/1.png": png(drawing, "1"),
            f"{folder}/Alpha/character01/2.png": png(blank, "1"),
            f"{folder}/Alpha/character01/1.png": png(drawing, "1"),
        }
        write_zip(tmp_path / f"{folder}.zip", files)
    found = read("omniglot", tmp_path)
    assert found["train_y"].tolist() == found["test_y"].tolist() == [0, 0, 1, 2]
    expected = np.zeros((28, 28), np.uint8)
    expected[:8, :4] = 255
    assert np.array_equal(found["train_x"], [expected, 0 * expected, expected, 0 * expected])


def test_celeba_is_cropped_to_the_middle_and_parted_by_its_list(tmp_path):
    face = np.zeros((218, 178, 3), np.uint8)
    face[39 : 39 + 140, 19 : 19 + 140] = (200, 100, 50)  # the crop, and nothing around it
    content = io.BytesIO()
    from PIL import Image

    Image.fromarray(face).save(content, "jpeg", quality=100, subsampling=0)
    names = [f"{number:06}.jpg" for number in range(1, 6)]
    write_zip(tmp_path / "img_align_celeba.zip", {f"img_align_celeba/{name}": content.getvalue() for name in names})
    parts = (0, 0, 1, 2, 2)
    lines = "".join(f"{name} {part}\n" for name, part in zip(names, parts, strict=True))
    (tmp_path / "list_eval_partition.txt").write_text(lines)
    found = read("celeba", tmp_path)
    assert found["train_y"].tolist() == [1, 2]
    assert found["test_y"].tolist() == [4, 5]
    assert np.abs(found["train_x"].astype(int) - [200, 100, 50]).max() < 12, "nothing of the black around the crop"
    (tmp_path / "list_eval_partition.txt").write_text("000009.jpg 0\n")
    with pytest.raises(InputError, match=r"expected the pictures of list_eval_partition.txt, found no 000009.jpg"):
        read("celeba", tmp_path)


def test_imagenet32_as_rows_or_as_pictures(tmp_path):
    arrays = arrays_of("imagenet32")
    images, labels = arrays["test_x"], arrays["test_y"].astype(np.uint16)
    content = io.BytesIO()
    np.savez_compressed(content, data=values(images), labels=labels.astype(np.int64), mean=np.zeros(3072))
    write_zip(tmp_path / "Imagenet32_val_npz.zip", {"val_data.npz": content.getvalue()})
    assert_same(read("imagenet32", tmp_path / "Imagenet32_val_npz.zip"), {"test_x": images, "test_y": labels})
    write(tmp_path / "loose", {"val_data.npz": content.getvalue()})
    assert_same(read("imagenet32", tmp_path / "loose" / "val_data.npz"), {"test_x": images, "test_y": labels})
    write(tmp_path / "pictures", {f"{row:04}.png": png(image) for row, image in enumerate(images)})
    assert_same(read("imagenet32", tmp_path / "pictures"), {"test_x": images})


@pytest.mark.parametrize("name", ["mnist", "svhn"])
def test_arrays_that_are_ready_are_taken_as_they_are(tmp_path, name):
    arrays = arrays_of(name)
    np.savez_compressed(tmp_path / "any.npz", **arrays, other=np.arange(3))
    np.savez(tmp_path / f"{name}.npz", **arrays)
    assert_same(read(name, tmp_path / "any.npz"), arrays)
    assert_same(read(name, tmp_path), arrays)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"train_x": np.zeros((TRAIN, 27, 28), np.uint8)},
            r"expected train_x as uint8 of shape \(50, 28, 28\) at most",
        ),
        ({"train_x": np.zeros((TRAIN + 1, 28, 28), np.uint8)}, r"at most, got uint8 of shape \(51, 28, 28\)"),
        ({"train_x": np.zeros((2 * TRAIN, 28, 28), np.uint8)}, "expected train_x of at most 39,200 bytes, got 78,528"),
        ({"train_x": np.zeros((2, 28, 28), np.float32)}, "expected train_x as uint8 .*got float32"),
        ({"test_y": np.zeros(TEST + 1, np.uint8)}, "expected a whole number as label for each image of test_x"),
        ({"test_y": np.zeros(TEST)}, "expected a whole number as label"),
    ],
)
def test_arrays_that_cannot_be_the_set_are_refused(tmp_path, change, message):
    np.savez(tmp_path / "a.npz", **(arrays_of("mnist") | change))
    with pytest.raises(InputError, match=message):
        read("mnist", tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", other=np.zeros(3))
    with pytest.raises(InputError, match="expected train_x or test_x, got nothing"):
        read("mnist", tmp_path / "a.npz")
