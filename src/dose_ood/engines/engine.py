"""What an engine is: something that applies a function, made once for each worker, to items of work."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir, contextmanager
from pathlib import Path
from typing import Protocol

from dose_ood.errors import InputError

Work = Callable[[str], bytes]


class Engine(Protocol):
    """Applies `make()` to every item and gives what comes of them, in their order.

    A worker that dies is replaced and its items are done again, so that doing an item twice must do no harm.
    """

    def __call__(self, make: Callable[[], Work], items: Sequence[str], /) -> Iterator[bytes]:
        """The result of each item."""


def here(make: Callable[[], Work], items: Sequence[str], /) -> Iterator[bytes]:
    """One item after the other, in this process."""
    work = make()
    return (work(item) for item in items)


@contextmanager
def working_in(folder: str) -> Iterator[None]:
    """The folder in which relative names were given, wherever a worker was started."""
    if not Path(folder).is_dir():
        raise InputError(f"a worker cannot see {folder}: every machine must have the same paths")
    with chdir(folder):
        yield
