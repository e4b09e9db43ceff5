"""Random numbers that depend on a name, or on a sample's content, alone: on no global state and no order of calls."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dose_ood.errors import InputError

NORMAL, UNIFORM = 0, 1  # streams of one sample that have nothing to do with each other


def generator(name: str, seed: int = 0) -> np.random.Generator:
    """A generator that depends on `name` and `seed` alone.

    Examples
    --------
    >>> bool(generator("bootstrap").random() == generator("bootstrap").random())
    True
    """
    digest = hashlib.sha256(f"{name}\0{seed}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))


def content_keys(images: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """128 bits for each sample, from its bytes and shape: equal samples have equal keys, others have not, shape (n, 2).

    Examples
    --------
    >>> images = np.zeros((3, 1, 28, 28), np.uint8)
    >>> images[1, 0, 14, 14] = 1
    >>> keys = content_keys(images)
    >>> bool((keys[0] == keys[2]).all()), bool((keys[0] == keys[1]).any())
    (True, False)
    """
    if images.dtype != np.uint8 or images.ndim < 2 or 0 in images.shape[1:]:
        raise InputError(f"expected uint8 samples of shape (n, …), got {images.dtype} of shape {images.shape}")
    shape = np.array(images.shape[1:], "<i8").tobytes()
    start = hashlib.blake2b(shape, digest_size=16, person=b"dose-ood noise 1")
    rows = np.ascontiguousarray(images).reshape(-1).data
    edges = range(0, len(rows) + 1, prod(images.shape[1:]))
    digests = bytearray()
    for first, last in pairwise(edges):
        hashed = start.copy()
        hashed.update(rows[first:last])
        digests += hashed.digest()
    return np.frombuffer(digests, "<u8").astype(np.uint64).reshape(-1, 2)


def content_normal(images: NDArray[np.uint8], draws: int, size: Sequence[int]) -> NDArray[np.float64]:
    """Standard normal draws, shape (n, draws, *size): draw t of sample x is a function of x, t and `size` alone.

    This is the paper's `seed = hash(x, t)`. More draws do not change the first ones.

    Examples
    --------
    >>> images = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    >>> many, few = content_normal(images, 16, (2,)), content_normal(images[1:], 3, (2,))
    >>> bool((many[1:, :3] == few).all())
    True
    """
    bits = _bits(images, draws * prod(size), NORMAL, 0) >> np.uint64(12)
    # Half an odd number of 53 bits is exact, so that no draw is infinite and both tails are alike.
    return np.asarray(ndtri((bits + 0.5) * 2.0**-52), dtype=np.float64).reshape(len(images), draws, *size)


def content_uniform(images: NDArray[np.uint8], size: Sequence[int], draw: int = 0) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), shape (n, *size): a function of the sample, of `draw` and of `size` alone.

    Examples
    --------
    >>> images = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    >>> both = content_uniform(images, (3,))
    >>> bool((both[1:] == content_uniform(images[1:], (3,))).all()), bool((both[0] == both[1]).any())
    (True, False)
    """
    bits = _bits(images, prod(size), UNIFORM, draw) >> np.uint64(11)
    return np.ldexp(bits.astype(np.float64), -53).reshape(len(images), *size)


def _bits(images: NDArray[np.uint8], count: int, stream: int, draw: int) -> NDArray[np.uint64]:
    """`count` words of 64 random bits for each sample: Philox 4×64, keyed by its content, the counter set by the draw.

    NumPy keeps a bit generator's words for ever but not what its distributions make of them, so none is used here.
    """
    result = np.empty((len(images), count), np.uint64)
    counter = np.array([0, 0, draw, stream], np.uint64)
    for key, row in zip(content_keys(images), result, strict=True):
        row[:] = np.random.Philox(key=key, counter=counter).random_raw(count)
    return result
