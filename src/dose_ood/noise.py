"""Random generators whose seed is a name, so that nothing depends on global state or on the order of calls."""

import hashlib

import numpy as np


def generator(name: str, seed: int = 0) -> np.random.Generator:
    """A generator that depends on `name` and `seed` alone.

    Examples
    --------
    >>> bool(generator("bootstrap").random() == generator("bootstrap").random())
    True
    """
    digest = hashlib.sha256(f"{name}\0{seed}".encode()).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
