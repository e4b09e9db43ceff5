"""Arrays of bytes in MATLAB's format 5, as SVHN comes: bounded by what the header says, which is judged first.

Every element is a tag of type and size, then content filled up to eight bytes; a compressed element holds one more.
"""

import struct
import zlib
from collections.abc import Mapping
from math import prod
from typing import IO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.data.files import Entry, opened, read_exactly
from dose_ood.errors import InputError

Array: TypeAlias = NDArray[np.uint8]

HEADER, MATRIX, COMPRESSED = 128, 14, 15
COMPLEX = 1 << 11
TEXT, VALUES, SIZES, FLAGS = 1, 2, 5, 6  # int8, uint8, int32, uint32
NUMERIC_CLASSES = range(6, 16)  # double, single, and integers; below them are cells, structures, objects and text


def read_mat(entry: Entry, most: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    """The arrays of these names, each of at most this shape; others in the file are passed over.

    Only a plain array of numbers from 0 to 255, kept as bytes, is read: an object, a cell, a structure or a function is
    refused.
    """
    found: dict[str, Array] = {}
    with opened(entry) as stream:
        order = _order(read_exactly(stream, HEADER, entry.name), entry.name)
        while tag := stream.read(8):
            if len(tag) < 8:
                raise InputError(f"{entry.name} is cut off: expected an array's tag")
            kind, size = struct.unpack(f"{order}II", tag)
            if size > entry.size:
                raise InputError(f"{entry.name}: expected arrays within its {entry.size:,} bytes, one claims {size:,}")
            if kind not in (MATRIX, COMPRESSED):
                raise InputError(f"{entry.name}: expected arrays, got an element of type {kind}")
            inner = _Inflated(stream, size, entry.name) if kind == COMPRESSED else _Plain(stream, size, entry.name)
            name, array = _matrix(inner, order, most, entry.name, kind == COMPRESSED)
            inner.skip()
            if array is not None:
                found[name] = array
    missing = ", ".join(most.keys() - found.keys())
    if missing:
        raise InputError(f"{entry.name}: expected an array {missing}, found {', '.join(found) or 'none'}")
    return found


class _Plain:
    """The content of an element."""

    def __init__(self, stream: IO[bytes], size: int, where: str) -> None:
        self.stream, self.left, self.where = stream, size, where

    def read(self, size: int) -> bytes:
        """`size` bytes."""
        if size > self.left:
            raise InputError(f"{self.where}: expected an array's content within its element, it goes on after it")
        self.left -= size
        return read_exactly(self.stream, size, self.where)

    def skip(self) -> None:
        """Pass over the rest."""
        while self.left:
            self.read(min(self.left, 2**20))


class _Inflated:
    """The content of a compressed element, which is inflated only as far as it is read."""

    def __init__(self, stream: IO[bytes], size: int, where: str) -> None:
        self.packed, self.where = _Plain(stream, size, where), where
        self.inflater = zlib.decompressobj()

    def read(self, size: int) -> bytes:
        """`size` bytes."""
        content = bytearray()
        while len(content) < size:
            packed = self.inflater.unconsumed_tail or self.packed.read(min(self.packed.left, 2**16))
            block = self.inflater.decompress(packed, size - len(content))
            if not block and (self.inflater.eof or not packed):
                raise InputError(f"{self.where} is cut off: expected {size:,} bytes of an array, got {len(content):,}")
            content += block
        return bytes(content)

    def skip(self) -> None:
        """Pass over the rest, unread."""
        self.packed.skip()


def _order(header: bytes, where: str) -> str:
    if header[124:128] == b"\x00\x01IM":
        return "<"
    if header[124:128] == b"\x01\x00MI":
        return ">"
    raise InputError(f"{where}: expected a MATLAB file of format 5, got something else")


def _matrix(
    inner: _Plain | _Inflated, order: str, most: Mapping[str, tuple[int, ...]], where: str, has_tag: bool
) -> tuple[str, Array | None]:
    if has_tag and struct.unpack(f"{order}I4x", inner.read(8))[0] != MATRIX:
        raise InputError(f"{where}: expected an array in a compressed element, got something else")
    flags = int.from_bytes(_element(inner, order, FLAGS, 8, where)[:4], "little" if order == "<" else "big")
    shape = tuple(np.frombuffer(_element(inner, order, SIZES, 32, where), f"{order}i4").tolist())
    name = _element(inner, order, TEXT, 64, where).decode("ascii", "replace")
    if name not in most:
        return name, None
    if flags & 0xFF not in NUMERIC_CLASSES or flags & COMPLEX:
        raise InputError(f"{where}: expected an array of numbers as {name}, got one of objects, text or other things")
    limit = most[name]
    if len(shape) != len(limit) or any(not 0 < size <= top for size, top in zip(shape, limit, strict=True)):
        raise InputError(f"{where}: expected {name} of at most {limit}, its header says {shape}")
    content = _element(inner, order, VALUES, prod(shape), where)
    if len(content) != prod(shape):
        raise InputError(f"{where}: expected {prod(shape):,} bytes as {name}, got {len(content):,}")
    return name, np.frombuffer(content, np.uint8).reshape(shape, order="F")


def _element(inner: _Plain | _Inflated, order: str, kind: int, most: int, where: str) -> bytes:
    """The content of a part of an array; four bytes or fewer are kept in the tag itself."""
    tag = inner.read(8)
    found, size = struct.unpack(f"{order}II", tag)
    small = found >> 16
    if small:
        found, size = found & 0xFFFF, small
    if found != kind or size > (4 if small else most):
        raise InputError(
            f"{where}: expected at most {most:,} bytes of MATLAB's type {kind}, got {size:,} of type {found}"
        )
    if small:
        return tag[4 : 4 + size]
    content = inner.read(size)
    inner.read(-size % 8)
    return content
