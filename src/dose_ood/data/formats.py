"""Original formats of images: idx, CIFAR's records, sheets of pictures. Sizes are judged before anything is read."""

import json
import struct
from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.data.files import Entry, opened, read_exactly, read_whole
from dose_ood.data.pictures import open_picture
from dose_ood.errors import InputError

Bytes: TypeAlias = NDArray[np.uint8]

UNSIGNED_BYTES = 0x08  # idx's code of its one type here
SIDE = 32  # of CIFAR's pictures
PIXELS = 3 * SIDE * SIDE


def read_idx(entry: Entry, most: Sequence[int]) -> Bytes:
    """An array in the idx format, as it is or gzipped: a big-endian header of type and sizes, then the bytes.

    Parameters
    ----------
    most
        The shape it may have; there may be fewer rows.
    """
    with opened(entry) as stream:
        zeros, kind, axes = struct.unpack(">HBB", read_exactly(stream, 4, entry.name))
        if (zeros, kind, axes) != (0, UNSIGNED_BYTES, len(most)):
            raise InputError(f"{entry.name}: expected idx of bytes with {len(most)} axes, got another header")
        shape = struct.unpack(f">{axes}I", read_exactly(stream, 4 * axes, entry.name))
        if shape[1:] != tuple(most[1:]) or not 0 < shape[0] <= most[0]:
            raise InputError(f"{entry.name}: expected a shape of at most {tuple(most)}, its header says {shape}")
        content = read_exactly(stream, prod(shape), entry.name)
        if stream.read(1):
            raise InputError(f"{entry.name}: expected {prod(shape):,} values as its header says, there are more")
    return np.frombuffer(content, np.uint8).reshape(shape)


def read_records(entry: Entry, labels: int, most: int) -> tuple[Bytes, Bytes]:
    """CIFAR's binary version: records of `labels` bytes and 3,072 values, channel by channel.

    The last label is the fine one.
    """
    size = labels + PIXELS
    if entry.size % size or not 0 < entry.size <= most * size:
        raise InputError(f"{entry.name}: expected 1 to {most:,} records of {size:,} bytes, got {entry.size:,} bytes")
    records = np.frombuffer(read_whole(entry, most * size), np.uint8).reshape(-1, size)
    return planes(records[:, labels:]), records[:, labels - 1].copy()


def planes(values: Bytes) -> Bytes:
    """Rows of 3,072 values, channel by channel, as images of shape (n, 32, 32, 3)."""
    return np.ascontiguousarray(values.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1))


def read_sheet(entry: Entry, most: int) -> Bytes:
    """Pictures of 32×32 in RGB, one a row of the sheet, its pixels from left to right and top to bottom."""
    with opened(entry) as stream, open_picture(stream, entry.name) as sheet:
        width, height = sheet.size
        if width != SIDE * SIDE or not 0 < height <= most or sheet.mode != "RGB":
            found = f"{sheet.mode} of {width}×{height}"
            raise InputError(f"{entry.name}: expected an RGB sheet of {SIDE * SIDE}×{most} at most, got {found}")
        return np.asarray(sheet, np.uint8).reshape(height, SIDE, SIDE, 3)


def read_json_labels(entry: Entry, most: int) -> Bytes:
    """A JSON list of classes from 0 to 255."""
    try:
        found = json.loads(read_whole(entry, 8 * most))
    except (ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{entry.name} is no JSON: {error}") from error
    if not isinstance(found, list) or not all(type(label) is int and 0 <= label < 256 for label in found):
        raise InputError(f"{entry.name}: expected a list of classes from 0 to 255, got something else")
    return np.array(found, np.uint8)
