"""CIFAR's python version, without Python's own reader of such files: it runs nothing.

The files are programs of a stack machine. This one knows the instructions that CIFAR's files use. They may mention
three names of NumPy, which are never looked up and only say where the bytes of an array stand. All else is refused.

References
----------
*Learning Multiple Layers of Features from Tiny Images (Krizhevsky, 2009)*
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.data.formats import PIXELS, planes
from dose_ood.errors import InputError

Bytes: TypeAlias = NDArray[np.uint8]

MOST_STEPS = 1_000_000  # CIFAR100's training file has some 250,000
NAMES = {
    b"numpy.core.multiarray _reconstruct": "array",
    b"numpy._core.multiarray _reconstruct": "array",
    b"numpy ndarray": "ndarray",
    b"numpy dtype": "dtype",
}


@dataclass(frozen=True)
class Name:
    """One of the names that a file may mention; it is never looked up."""

    what: str


@dataclass
class Thing:
    """What a file builds: a type, by its letters, or an array, by its state."""

    what: str
    state: tuple[object, ...] = ()


class Mark:
    """Where a list of arguments begins on the stack."""


@dataclass
class Machine:
    """The stack, what was noted for later, and the place in the program."""

    program: bytes
    where: str
    place: int = 0
    stack: list[object] = field(default_factory=list)
    notes: dict[int, object] = field(default_factory=dict)

    def refuse(self, what: str) -> InputError:
        """Say what is not CIFAR's."""
        return InputError(f"{self.where}: expected a CIFAR batch, got {what} at byte {self.place:,}; nothing was run")

    def take(self, size: int) -> bytes:
        """The next bytes of the program."""
        if size > len(self.program) - self.place:
            raise self.refuse("the end of the file")
        self.place += size
        return self.program[self.place - size : self.place]

    def number(self, code: str) -> int:
        """The next bytes as a number."""
        found = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))[0]
        return int(found)

    def line(self) -> bytes:
        """The bytes up to the end of the line."""
        end = self.program.find(b"\n", self.place, self.place + 256)
        if end < 0:
            raise self.refuse("a name without an end")
        return self.take(end + 1 - self.place)[:-1]

    def pop(self) -> object:
        """The top of the stack."""
        if not self.stack:
            raise self.refuse("an empty stack")
        return self.stack.pop()

    def since_mark(self) -> list[object]:
        """What was put on the stack after the last mark."""
        for position in range(len(self.stack) - 1, -1, -1):
            if isinstance(self.stack[position], Mark):
                found = self.stack[position + 1 :]
                del self.stack[position:]
                return found
        raise self.refuse("no mark")


def read_batch(program: bytes, where: str, labels: bytes, most: int) -> tuple[Bytes, Bytes]:
    """Images of shape (n, 32, 32, 3) and classes of one file.

    Parameters
    ----------
    labels
        The key of the classes: b"labels", or b"fine_labels" in CIFAR100.
    most
        The number of images there may be.
    """
    found = _run(Machine(program, where))
    if not isinstance(found, dict) or b"data" not in found or labels not in found:
        raise InputError(f"{where}: expected a CIFAR batch with data and {labels.decode()}, got something else")
    pixels, classes = found[b"data"], found[labels]
    if not isinstance(pixels, Thing) or pixels.what != "array":
        raise InputError(f"{where}: expected an array as data, got something else")
    values = _values(pixels.state, where, most)
    if not isinstance(classes, list) or not all(type(each) is int and 0 <= each < 256 for each in classes):
        raise InputError(f"{where}: expected classes from 0 to 255, got something else")
    return planes(values), np.array(classes, np.uint8)


def _values(state: tuple[object, ...], where: str, most: int) -> Bytes:
    match state:
        case (_, (int(rows), int(columns)), Thing("dtype", (b"u1",)), False, bytes(content)):
            if columns == PIXELS and 0 < rows <= most and len(content) == rows * columns:
                return np.frombuffer(content, np.uint8).reshape(rows, columns)
            raise InputError(
                f"{where}: expected 1 to {most:,} rows of {PIXELS:,} values, got {len(content):,} bytes called "
                f"{rows:,} rows of {columns:,}"
            )
    raise InputError(f"{where}: expected rows of bytes as data, got another array")


def _run(machine: Machine) -> object:
    for _ in range(MOST_STEPS):
        code = machine.take(1)
        if code == b".":
            return machine.pop()
        if code not in STEPS:
            raise machine.refuse(f"the instruction {code!r}")
        STEPS[code](machine)
    raise machine.refuse(f"more than {MOST_STEPS:,} instructions")


def _protocol(machine: Machine) -> None:
    version = machine.take(1)[0]
    if version != 2:
        raise machine.refuse(f"version {version} of the format instead of 2")


def _name(machine: Machine) -> None:
    name = machine.line() + b" " + machine.line()
    if name not in NAMES:
        raise machine.refuse(f"the name {name.decode('ascii', 'backslashreplace')!r}")
    machine.stack.append(Name(NAMES[name]))


def _call(machine: Machine) -> None:
    given, called = machine.pop(), machine.pop()
    match called, given:
        case Name("array"), (Name("ndarray"), (0,), bytes()):
            machine.stack.append(Thing("array"))
        case Name("dtype"), (bytes(letters), 0, 1):
            machine.stack.append(Thing("dtype", (letters,)))
        case _:
            raise machine.refuse("a call")


def _build(machine: Machine) -> None:
    state, built = machine.pop(), machine.stack[-1] if machine.stack else None
    if not isinstance(built, Thing) or not isinstance(state, tuple):
        raise machine.refuse("a state of something else")
    if built.what == "array":  # a type's state is about byte order and fields; bytes have none
        built.state = state


def _set_items(machine: Machine, items: list[object]) -> None:
    target = machine.stack[-1] if machine.stack else None
    keys = items[::2]
    if not isinstance(target, dict) or len(items) % 2 or not all(isinstance(key, bytes) for key in keys):
        raise machine.refuse("entries of something else")
    target.update(zip(keys, items[1::2], strict=True))


def _append(machine: Machine, items: list[object]) -> None:
    target = machine.stack[-1] if machine.stack else None
    if not isinstance(target, list):
        raise machine.refuse("items of something else")
    target.extend(items)


def _tuple(machine: Machine, items: list[object]) -> None:
    machine.stack.append(tuple(items))


def _note(machine: Machine, key: int) -> None:
    machine.notes[key] = machine.stack[-1] if machine.stack else None


def _recall(machine: Machine, key: int) -> None:
    if key not in machine.notes:
        raise machine.refuse("a note that was never made")
    machine.stack.append(machine.notes[key])


def _last(machine: Machine, count: int) -> list[object]:
    return [machine.pop() for _ in range(count)][::-1]


def _push(value: Callable[[Machine], object]) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value(machine))


STEPS: dict[bytes, Callable[[Machine], None]] = {
    b"\x80": _protocol,
    b"c": _name,
    b"R": _call,
    b"b": _build,
    b"(": _push(lambda machine: Mark()),
    b"}": _push(lambda machine: {}),
    b"]": _push(lambda machine: []),
    b")": _push(lambda machine: ()),
    b"N": _push(lambda machine: None),
    b"\x88": _push(lambda machine: True),
    b"\x89": _push(lambda machine: False),
    b"K": _push(lambda machine: machine.number("B")),
    b"M": _push(lambda machine: machine.number("H")),
    b"J": _push(lambda machine: machine.number("i")),
    b"U": _push(lambda machine: machine.take(machine.number("B"))),
    b"T": _push(lambda machine: machine.take(machine.number("I"))),
    b"q": lambda machine: _note(machine, machine.number("B")),
    b"r": lambda machine: _note(machine, machine.number("I")),
    b"h": lambda machine: _recall(machine, machine.number("B")),
    b"j": lambda machine: _recall(machine, machine.number("I")),
    b"\x85": lambda machine: _tuple(machine, _last(machine, 1)),
    b"\x86": lambda machine: _tuple(machine, _last(machine, 2)),
    b"\x87": lambda machine: _tuple(machine, _last(machine, 3)),
    b"t": lambda machine: _tuple(machine, machine.since_mark()),
    b"s": lambda machine: _set_items(machine, _last(machine, 2)),
    b"u": lambda machine: _set_items(machine, machine.since_mark()),
    b"a": lambda machine: _append(machine, _last(machine, 1)),
    b"e": lambda machine: _append(machine, machine.since_mark()),
}
