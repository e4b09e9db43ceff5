"""From a data set's original files to its arrays: `train_x`, `train_y`, `test_x`, `test_y`."""

import zipfile
from collections.abc import Callable, Mapping
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.data.catalogue import DataSet, Layout
from dose_ood.data.files import Entry, Files, opened, read_whole
from dose_ood.data.formats import PIXELS, planes, read_idx, read_json_labels, read_records, read_sheet
from dose_ood.data.matlab import read_mat
from dose_ood.data.pickled import read_batch
from dose_ood.data.pictures import PICTURES, read_picture, stack_pictures, thumbnail
from dose_ood.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Array: TypeAlias = NDArray[np.generic]
Arrays: TypeAlias = dict[str, Array]

FACE = 140  # side of the centre crop of CelebA's 178×218
PARTS = ("train", "test")


def decode(data_set: DataSet, files: Files) -> Arrays:
    """The arrays of a set, from its original files or from an .npz of the arrays themselves."""
    ready = [entry for entry in files.entries if entry.base == f"{data_set.name}.npz"]
    if not ready and len(files.entries) == 1 and files.entries[0].name.endswith(".npz"):
        ready = [entry for entry in files.entries if data_set.layout != "imagenet32" or "val_data" not in entry.base]
    arrays = _ready(data_set, ready[0]) if ready else LAYOUTS[data_set.layout](data_set, files)
    check(data_set, arrays, files.where)
    return arrays


def check(data_set: DataSet, arrays: Mapping[str, Array], where: str) -> None:
    """Refuse what cannot be this set: images of another size, labels of another number."""
    if not any(f"{part}_x" in arrays for part in PARTS):
        raise InputError(f"{where}: expected train_x or test_x, got {', '.join(arrays) or 'nothing'}")
    for part, most in data_set.counts.items():
        images, labels = arrays.get(f"{part}_x"), arrays.get(f"{part}_y")
        if images is not None and (
            images.dtype != np.uint8 or images.shape[1:] != data_set.shape or not 0 < len(images) <= most
        ):
            shape = (most, *data_set.shape)
            got = f"{images.dtype} of shape {images.shape}"
            raise InputError(f"{where}: expected {part}_x as uint8 of shape {shape} at most, got {got}")
        if labels is not None and (images is None or labels.shape != (len(images),) or labels.dtype.kind not in "iu"):
            raise InputError(f"{where}: expected a whole number as label for each image of {part}_x, got others")


def _ready(data_set: DataSet, entry: Entry) -> Arrays:
    most: dict[str, int] = {}
    for part, count in data_set.counts.items():
        most |= {f"{part}_x": count * prod(data_set.shape), f"{part}_y": count * 8}
    return _load(entry, most)


def _load(entry: Entry, most: Mapping[str, int]) -> Arrays:
    """The arrays of these names in an .npz, each of at most so many bytes."""
    arrays: Arrays = {}
    with opened(entry) as stream, zipfile.ZipFile(stream) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            if name not in most:
                continue
            if info.file_size > most[name] + 4096:  # the header's
                raise InputError(
                    f"{entry.name}: expected {name} of at most {most[name]:,} bytes, got {info.file_size:,}"
                )
            with archive.open(info) as member:
                arrays[name] = np.asarray(np.load(member, allow_pickle=False))
    return arrays


def _idx(data_set: DataSet, files: Files) -> Arrays:
    arrays: Arrays = {}
    for part, start in {"train": "train", "test": "t10k"}.items():
        count = data_set.counts[part]
        images = files.need(*(f"{start}-images{end}" for end in ("-idx3-ubyte.gz", "-idx3-ubyte", ".idx3-ubyte")))
        labels = files.need(*(f"{start}-labels{end}" for end in ("-idx1-ubyte.gz", "-idx1-ubyte", ".idx1-ubyte")))
        arrays[f"{part}_x"] = read_idx(images, (count, *data_set.shape))
        arrays[f"{part}_y"] = read_idx(labels, (count,))
    return arrays


def _cifar10(data_set: DataSet, files: Files) -> Arrays:
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    arrays: Arrays = {}
    for part, names in {"train": batches, "test": ["test_batch"]}.items():
        found = [files.need(f"{name}.bin", name, f"{name}.png") for name in names]
        if all(entry.name.endswith(".png") for entry in found):
            arrays[f"{part}_x"] = np.concatenate([read_sheet(entry, 10_000) for entry in found])
            labels = files.need(f"{part}_labels.json", f"{part}_lables.json")  # the package's own spelling
            arrays[f"{part}_y"] = read_json_labels(labels, data_set.counts[part])
        else:
            both = [_batch(entry, 1, b"labels", 10_000) for entry in found]
            arrays[f"{part}_x"] = np.concatenate([images for images, _ in both])
            arrays[f"{part}_y"] = np.concatenate([labels for _, labels in both])
    return arrays


def _cifar100(data_set: DataSet, files: Files) -> Arrays:
    arrays: Arrays = {}
    for part, count in data_set.counts.items():
        entry = files.need(f"{part}.bin", part)
        arrays[f"{part}_x"], arrays[f"{part}_y"] = _batch(entry, 2, b"fine_labels", count)
    return arrays


def _batch(entry: Entry, labels: int, key: bytes, most: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if entry.name.endswith(".bin"):
        return read_records(entry, labels, most)
    return read_batch(read_whole(entry, most * (PIXELS + 200)), entry.name, key, most)


def _svhn(data_set: DataSet, files: Files) -> Arrays:
    arrays: Arrays = {}
    for part, count in data_set.counts.items():
        entry = files.need(f"{part}_32x32.mat")
        found = read_mat(entry, {"X": (*data_set.shape, count), "y": (count, 1)})
        arrays[f"{part}_x"] = np.ascontiguousarray(found["X"].transpose(3, 0, 1, 2))
        arrays[f"{part}_y"] = found["y"][:, 0] % 10  # the digit 0 is class 10
    return arrays


def _omniglot(data_set: DataSet, files: Files) -> Arrays:
    arrays: Arrays = {}
    height, width = data_set.shape
    for part, folder in {"train": "images_background", "test": "images_evaluation"}.items():
        drawings = [each for each in files.entries if folder in each.name.split("/") and each.base.endswith(".png")]
        if not 0 < len(drawings) <= data_set.counts[part]:
            expected = f"1 to {data_set.counts[part]:,} drawings in {folder}"
            raise InputError(f"{files.where}: expected {expected}, found {len(drawings):,}")
        _, labels = np.unique([each.name.rsplit("/", 1)[0] for each in drawings], return_inverse=True)
        arrays[f"{part}_x"] = np.stack([_small(each, (width, height), _bright) for each in drawings])
        arrays[f"{part}_y"] = labels.astype(np.uint16)
    return arrays


def _celeba(data_set: DataSet, files: Files) -> Arrays:
    listed = read_whole(files.need("list_eval_partition.txt"), 2**24).decode("ascii", "replace").split()
    if len(listed) % 2 or not set(listed[1::2]) <= {"0", "1", "2"}:
        raise InputError(f"{files.where}: expected lines of a picture and a part in list_eval_partition.txt")
    faces = {entry.base: entry for entry in files.entries if entry.base.endswith(".jpg")}
    arrays: Arrays = {}
    height, width, _ = data_set.shape
    for part, number in {"train": "0", "test": "2"}.items():
        names = [name for name, which in zip(listed[::2], listed[1::2], strict=True) if which == number]
        missing = next((name for name in names if name not in faces or not name[:-4].isdecimal()), None)
        if missing is not None or not 0 < len(names) <= data_set.counts[part]:
            what = f"no {missing}" if missing is not None else f"{len(names):,} pictures in part {part}"
            raise InputError(f"{files.where}: expected the pictures of list_eval_partition.txt, found {what}")
        images = np.empty((len(names), *data_set.shape), np.uint8)
        for row, name in enumerate(names):
            images[row] = _small(faces[name], (width, height), _face)
        arrays[f"{part}_x"] = images
        arrays[f"{part}_y"] = np.array([int(name[:-4]) for name in names], np.uint32)
    return arrays


def _imagenet32(data_set: DataSet, files: Files) -> Arrays:
    """The validation part, as an .npz of rows of 3,072 values or as pictures."""
    packed = files.find("val_data.npz")
    if packed is not None:
        return _rows(packed, data_set.test)
    pictures = [entry for entry in files.entries if entry.base.lower().endswith(PICTURES)]
    if not 0 < len(pictures) <= data_set.test:
        expected = f"val_data.npz or 1 to {data_set.test:,} pictures of 32×32"
        raise InputError(f"{files.where}: expected {expected}, found {len(pictures):,}")
    images = stack_pictures((_picture(entry) for entry in pictures), [entry.name for entry in pictures])
    return {"test_x": np.ascontiguousarray(images.transpose(0, 2, 3, 1))}


def _rows(packed: Entry, most: int) -> Arrays:
    arrays = _load(packed, {"data": most * PIXELS, "labels": most * 8})
    if arrays.keys() != {"data", "labels"}:
        raise InputError(f"{packed.name}: expected arrays data and labels, got {', '.join(arrays) or 'neither'}")
    values, labels = arrays["data"], arrays["labels"]
    if values.dtype != np.uint8 or values.ndim != 2 or values.shape[1] != PIXELS or not 0 < len(values) <= most:
        got = f"{values.dtype} of shape {values.shape}"
        raise InputError(f"{packed.name}: expected data as uint8 of shape {(most, PIXELS)} at most, got {got}")
    return {"test_x": planes(values.astype(np.uint8, copy=False)), "test_y": labels.astype(np.uint16)}


def _picture(entry: Entry) -> NDArray[np.uint8]:
    with opened(entry) as stream:
        return read_picture(stream, entry.name)


def _small(entry: Entry, size: tuple[int, int], prepare: "Callable[[Image], Image]") -> NDArray[np.uint8]:
    with opened(entry) as stream:
        return thumbnail(stream, entry.name, size, prepare)


def _bright(drawing: "Image") -> "Image":
    return drawing.convert("L").point(lambda level: 255 - level)


def _face(picture: "Image") -> "Image":
    left, top = (picture.width - FACE) // 2, (picture.height - FACE) // 2
    return picture.convert("RGB").crop((left, top, left + FACE, top + FACE))


LAYOUTS: dict[Layout, Callable[[DataSet, Files], Arrays]] = {
    "idx": _idx,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "svhn": _svhn,
    "omniglot": _omniglot,
    "celeba": _celeba,
    "imagenet32": _imagenet32,
}
