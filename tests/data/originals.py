"""Data sets of a few images, in the formats of their authors."""

import gzip
import io
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
from PIL import Image

from dose_ood.data.catalogue import find
from dose_ood.noise import generator

TRAIN, TEST = 50, 10


def tiny(name):
    """A set of the catalogue with fewer images and no sources."""
    return replace(find(name), train=TRAIN, test=TEST, remotes=(), package=None, sha256={}, variants=())


def arrays_of(name):
    """Images and labels to pack."""
    data_set, random = tiny(name), generator(f"original {name}")
    found = {}
    for part, count in data_set.counts.items():
        found[f"{part}_x"] = random.integers(0, 256, (count, *data_set.shape), dtype=np.uint8)
        found[f"{part}_y"] = random.integers(0, 10, count).astype(np.uint8)
    return found


def idx(array):
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.tobytes()


def idx_files(arrays, pack=gzip.compress, end="-idx{}-ubyte.gz"):
    return {
        f"{start}-{what}{end.format(3 if kind == 'x' else 1)}": pack(idx(arrays[f"{part}_{kind}"]))
        for part, start in {"train": "train", "test": "t10k"}.items()
        for kind, what in {"x": "images", "y": "labels"}.items()
    }


def values(images):
    """Rows of 3,072 values, channel by channel."""
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def batches(arrays):
    """CIFAR10's files: five of training images and one of test images."""
    parts = np.array_split(np.arange(TRAIN), 5)
    rows = {
        f"data_batch_{number}": (arrays["train_x"][part], arrays["train_y"][part])
        for number, part in enumerate(parts, 1)
    }
    return rows | {"test_batch": (arrays["test_x"], arrays["test_y"])}


def binary(images, labels, coarse=False):
    columns = [labels[:, None] * 0 + 7] * coarse + [labels[:, None], values(images)]
    return np.concatenate(columns, axis=1).astype(np.uint8).tobytes()


def put(number):
    return b"q" + bytes([number])


def text(content):
    return b"U" + bytes([len(content)]) + content


def pickled(images, labels, key=b"labels"):
    """The instructions that CIFAR's authors' files are made of, written out by hand."""
    content = values(images).tobytes()
    ints = b"".join(b"K" + bytes([label]) for label in labels.tolist())
    dtype = b"cnumpy\ndtype\n" + put(9) + text(b"u1") + b"K\x00K\x01\x87" + put(10) + b"R" + put(11)
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00t" + put(12) + b"b"
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + put(5) + b"cnumpy\nndarray\n" + put(6)
    array += b"K\x00\x85" + text(b"b") + b"\x87" + put(7) + b"R" + put(8)
    shape = b"M" + struct.pack("<H", len(images)) + b"M\x00\x0c\x86"
    array += b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", len(content)) + content + b"t" + put(13) + b"b"
    entries = text(b"batch_label") + text(b"training batch 1 of 5") + text(key) + put(3) + b"](" + ints + b"e"
    return b"\x80\x02}" + put(1) + b"(" + entries + text(b"data") + array + b"u."


def png(image, mode=None):
    content = io.BytesIO()
    picture = Image.fromarray(image)
    (picture.convert(mode) if mode else picture).save(content, "png")
    return content.getvalue()


def sheet(images):
    return png(images.reshape(len(images), 1024, 3))


def write(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def write_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path
