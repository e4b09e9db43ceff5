"""Ready detectors, a directory each beside this file: `zoo:NAME` stands for one wherever a detector is read."""

import difflib
import os
from pathlib import Path

from dose_ood.errors import InputError

PREFIX = "zoo:"
CARD = "card.md"
LIMIT = 3_000_000  # bytes of an entry, its card among them
HERE = Path(__file__).parent


def available() -> tuple[str, ...]:
    """The names of the ready detectors."""
    return tuple(sorted(file.parent.name for file in HERE.glob("*/detector.json")))


def path(name: str) -> Path:
    """The directory of a ready detector.

    Examples
    --------
    >>> path("fashion_mnist_vae")
    Traceback (most recent call last):
    dose_ood.errors.InputError: no ready detector 'fashion_mnist_vae'; did you mean 'fashion_mnist-vae'? there are: ...
    """
    bare, names = name.removeprefix(PREFIX), available()
    if bare not in names:
        close = difflib.get_close_matches(bare.casefold(), names, n=1)
        guess = f" did you mean {close[0]!r}?" if close else ""
        raise InputError(f"no ready detector {bare!r};{guess} there are: {', '.join(names)}")
    return HERE / bare


def directory(place: str | os.PathLike[str]) -> Path:
    """The directory that is meant, by its path or as `zoo:NAME`."""
    return path(os.fspath(place)) if is_name(place) else Path(place)


def check_output(place: str | os.PathLike[str]) -> None:
    """Refuse to write to `zoo:NAME`."""
    if is_name(place):
        raise InputError(f"{os.fspath(place)} names a ready detector, which is only read: write to a directory instead")


def is_name(place: str | os.PathLike[str]) -> bool:
    """Whether a ready detector is meant."""
    return os.fspath(place).startswith(PREFIX)
