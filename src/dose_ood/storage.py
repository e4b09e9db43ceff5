"""A safe directory: one JSON document and named sets of arrays, replaced as a whole and checked to the last bit."""

import hashlib
import json
import math
import os
import re
import reprlib
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from dose_ood.errors import DoseWarning, InputError

Json: TypeAlias = "Mapping[str, Json] | Sequence[Json] | str | float | None"  # bool and int are float to a type checker
Array: TypeAlias = NDArray[np.generic]

FORMAT = 1
DOCUMENT_LIMIT = 4 * 2**20
HEADER_LIMIT = 2**20
DEPTH_LIMIT = 32
DTYPES = {
    "BOOL": "bool",
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"F{bits}": f"float{bits}" for bits in (16, 32, 64)},
}

_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)  # an open one goes to the end, so this takes linear time
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


@dataclass(frozen=True, eq=False)
class Directory:
    """What a directory holds: the document, and the arrays of each file by name."""

    document: Mapping[str, Json]
    tensors: Mapping[str, Mapping[str, Array]]


@dataclass(frozen=True)
class Spec:
    """The dtype and shape an array must have; a size given by name is free, but the same wherever the name appears."""

    dtype: str
    shape: tuple[int | str, ...]

    @classmethod
    def of(cls, array: Array) -> "Spec":
        """The dtype and shape of `array`, exactly."""
        return cls(array.dtype.name, array.shape)


@dataclass(frozen=True)
class _File:
    size: int
    sha256: str


def save(
    path: str | os.PathLike[str], document: Mapping[str, Json], tensors: Mapping[str, Mapping[str, Array]], *, kind: str
) -> None:
    """Write `document` to `path/<kind>.json` and each set of arrays to `path/<name>.safetensors`.

    The same content gives the same bytes. Everything is written to a hidden sibling and then renamed, so `path` is
    never half written. An existing `path` is replaced only if it is an intact directory of this kind and holds no file
    of anybody else's; whenever the process dies, the old content or the new one can be loaded. Saves into one parent
    directory wait for each other (not on Windows, where one process at a time may save).

    Parameters
    ----------
    path
        The directory to make or replace. A link is followed, and what it names is replaced.
    document
        JSON values: no NaN, no infinity, integers of 64 bits, at most 32 levels. Tuples become lists.
    tensors
        For each file name, its arrays by name. Any memory layout and byte order is taken.
    kind
        What the directory is; `load` must be asked for the same.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name, "scale")
    >>> save(path, {"unit": "nats"}, {"estimator": {"mean_": np.array(0.5)}}, kind="scale")
    >>> sorted(file.name for file in path.iterdir())
    ['estimator.safetensors', 'scale.json']
    >>> found = load(path, kind="scale")
    >>> found.document, found.tensors["estimator"]["mean_"]
    ({'unit': 'nats'}, array(0.5))
    >>> folder.cleanup()
    """
    target = _resolve(path)
    contents = {_tensor_file(name): _encode(name, arrays) for name, arrays in tensors.items()}
    files = {name: _File(len(data), hashlib.sha256(data).hexdigest()) for name, data in contents.items()}
    contents[_document_file(kind)] = _seal(kind, document, files)
    if not target.parent.is_dir():
        raise InputError(f"cannot save to {target}: {target.parent} is not a directory")
    new = _sibling(target, "new")
    with _lock(target.parent):
        _check_replaceable(target, kind)
        try:
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            for name, data in contents.items():
                _write(new / name, data)
            _sync(new)
            _swap(new, target)
        finally:
            shutil.rmtree(new, ignore_errors=True)


def load(path: str | os.PathLike[str], *, kind: str) -> Directory:
    """Read what `save` wrote, or refuse it by name; files that `save` did not write are not looked at.

    The checksums find damage, not forgery: whoever can write the directory can also sign it again. So what is read
    is data and never code, and its meaning is for the caller to check (see `check`).

    If an interrupted `save` has left `path` missing, what it was about to replace is loaded, with a warning.

    Parameters
    ----------
    path
        The directory.
    kind
        What the directory must be.
    """
    target = _resolve(path)
    with suppress(InputError):  # a save may have replaced it while it was being read
        return _read(target, kind)
    with _lock(target.parent):  # no save goes on now, so what is wrong here is wrong indeed
        old = _sibling(target, "old")
        interrupted = _identity(target) is None and _identity(old) is not None
        found = _read(old if interrupted else target, kind)
    if interrupted:
        warnings.warn(f"{target} is missing, loaded {old}: a save was interrupted", DoseWarning, stacklevel=2)
    return found


def check(found: Mapping[str, Array], expected: Mapping[str, Spec], where: str) -> dict[str, int]:
    """Compare names, dtypes and shapes with what is expected, and give the sizes that have names.

    Examples
    --------
    >>> check({"scores_": np.zeros(3)}, {"scores_": Spec("float64", ("rows",))}, "estimator")
    {'rows': 3}
    >>> check({"scores_": np.zeros(3)}, {"scores_": Spec("float64", (4,))}, "estimator")
    Traceback (most recent call last):
    dose_ood.errors.InputError: estimator: scores_ must have shape (4,), got (3,)
    """
    for name in expected:
        if name not in found:
            raise InputError(f"{where}: {name} is missing")
    for name in found:
        if name not in expected:
            raise InputError(f"{where}: {reprlib.repr(name)} is not expected; expected are {', '.join(expected)}")
    sizes: dict[str, int] = {}
    for name, spec in expected.items():
        array = found[name]
        if array.dtype.name != spec.dtype:
            raise InputError(f"{where}: {name} must be {spec.dtype}, got {array.dtype.name}")
        if array.ndim == len(spec.shape):
            sizes = {size: n for size, n in zip(spec.shape, array.shape, strict=True) if isinstance(size, str)} | sizes
        wanted = tuple(sizes.get(size, size) if isinstance(size, str) else size for size in spec.shape)
        if array.shape != wanted:
            raise InputError(f"{where}: {name} must have shape {_shape(wanted)}, got {_shape(array.shape)}")
    return sizes


def _shape(sizes: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, sizes))}{',' if len(sizes) == 1 else ''})"


def _read(directory: Path, kind: str) -> Directory:
    document, files = _unseal(directory, kind)
    tensors = {}
    for name, expected in files.items():
        path = directory / name
        data = _bytes(path, expected.size)
        if len(data) != expected.size:
            raise InputError(f"{path} is damaged: it has {len(data):,} bytes, its document says {expected.size:,}")
        if hashlib.sha256(data).hexdigest() != expected.sha256:
            raise InputError(f"{path} is damaged: its checksum is not the one in the document")
        tensors[path.stem] = _decode(path, data)
    return Directory(document, tensors)


# The document: {"checksum", "document", "files", "format", "kind"}, rendered in one way only.


def _render(content: Mapping[str, Json]) -> bytes:
    return (json.dumps(content, allow_nan=False, ensure_ascii=False, indent=2, sort_keys=True) + "\n").encode()


def _seal(kind: str, document: Mapping[str, Json], files: Mapping[str, _File]) -> bytes:
    content: dict[str, Json] = {
        "format": FORMAT,
        "kind": kind,
        "document": _plain(document, "document", 2),
        "files": {name: {"bytes": file.size, "sha256": file.sha256} for name, file in files.items()},
    }
    data = _render({**content, "checksum": hashlib.sha256(_render(content)).hexdigest()})
    if len(data) > DOCUMENT_LIMIT:
        raise InputError(f"the document must have at most {DOCUMENT_LIMIT:,} bytes as JSON, got {len(data):,}")
    return data


def _unseal(directory: Path, kind: str) -> tuple[Mapping[str, Json], dict[str, _File]]:
    if _identity(directory) is None:
        raise InputError(f"{directory} does not exist")
    if not directory.is_dir():
        raise InputError(f"{directory} is not a directory")
    path = directory / _document_file(kind)
    data = _bytes(path, DOCUMENT_LIMIT)
    content = _parse(path, data)
    found = content.get("format")
    if type(found) is not int:
        raise InputError(f"{path} is not a document of this package: it has no format number")
    if found != FORMAT:
        newer = "; a newer version of this package is needed" if found > FORMAT else ""
        raise InputError(f"{path} has format {reprlib.repr(found)}, this version reads format {FORMAT}{newer}")
    if content.get("kind") != kind:
        raise InputError(f"{path} must be of kind {kind!r}, got {reprlib.repr(content.get('kind'))}")
    document, files = content.get("document"), content.get("files")
    if not _intact(content, data):
        raise InputError(f"{path} is damaged: its checksum does not match its content")
    if len(content) != 5 or not isinstance(document, Mapping) or not isinstance(files, Mapping):
        raise InputError(
            f"{path} must hold checksum, document, files, format and kind, got {reprlib.repr(set(content))}"
        )
    return document, {_listed(path, name): _file(path, name, entry) for name, entry in files.items()}


def _intact(content: Mapping[str, Json], data: bytes) -> bool:
    signed = {name: value for name, value in content.items() if name != "checksum"}
    try:
        return content.get("checksum") == hashlib.sha256(_render(signed)).hexdigest() and _render(content) == data
    except ValueError:  # half of a surrogate pair
        return False


def _listed(path: Path, name: str) -> str:
    if not name.endswith(".safetensors") or not _NAME.fullmatch(name.removesuffix(".safetensors")):
        raise InputError(f"{path} lists {reprlib.repr(name)}, which is not the name of a file of arrays")
    return name


def _file(path: Path, name: str, entry: Json) -> _File:
    if isinstance(entry, Mapping) and set(entry) == {"bytes", "sha256"}:
        size, sha256 = entry["bytes"], entry["sha256"]
        if type(size) is int and size >= 0 and isinstance(sha256, str) and _DIGEST.fullmatch(sha256):
            return _File(size, sha256)
    raise InputError(f"{path} must give the bytes and the sha256 of {name}, got {reprlib.repr(entry)}")


def _plain(value: Json, where: str, depth: int) -> Json:
    """The same JSON in dictionaries, lists, strings and numbers of Python's own; refused by name if it is not JSON."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, int):
        return _integer(value, where)
    if isinstance(value, float):
        return _finite(value, where)
    if depth > DEPTH_LIMIT:
        raise InputError(f"{where} is nested too deeply: the whole may have {DEPTH_LIMIT} levels")
    if isinstance(value, Mapping):
        return {_text(key, f"a key of {where}"): _plain(value[key], f"{where}.{key}", depth + 1) for key in value}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{position}]", depth + 1) for position, item in enumerate(value)]
    raise InputError(f"{where} must be a JSON value, got {type(value).__name__}")


def _text(value: str, where: str) -> str:
    if not isinstance(value, str):
        raise InputError(f"{where} must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where} must be Unicode text, got {reprlib.repr(value)}") from None
    return str(value)


def _integer(value: int, where: str) -> int:
    if not -(2**63) <= value < 2**64:
        raise InputError(f"{where} must be an integer of 64 bits, got one of {value.bit_length()}")
    return int(value)


def _finite(value: float, where: str) -> float:
    if not math.isfinite(value):
        raise InputError(f"{where} must be finite, as JSON has no other numbers, got {value}")
    return float(value)


def _parse(path: Path, data: bytes) -> dict[str, Json]:
    if _depth(data) > DEPTH_LIMIT:
        raise InputError(f"{path} is nested more than {DEPTH_LIMIT} levels deep")
    try:
        content = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_constant=lambda text: _finite(float(text), "a number"),
            parse_float=lambda text: _finite(float(text), "a number"),
            parse_int=lambda text: _integer(int(text), "a number"),
        )
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _depth(data: bytes) -> int:
    """How deep a parser will go, found without going there."""
    brackets = np.frombuffer(_STRING.sub(b"", data).translate(None, _NO_BRACKETS), np.uint8)
    return int(np.cumsum(np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)).max(initial=0))


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    result: dict[str, Json] = {}
    for name, value in pairs:
        if name in result:
            raise InputError(f"{reprlib.repr(name)} is given twice")
        result[name] = value
    return result


# The arrays.


def _encode(file: str, arrays: Mapping[str, Array]) -> bytes:
    plain = {}
    for name, array in arrays.items():
        where = f"{file}.{_text(name, f'a name in {file}')}"
        if name == "__metadata__":
            raise InputError(f"{where} cannot be the name of an array")
        dtype = np.asarray(array).dtype
        if dtype.name not in DTYPES.values():
            raise InputError(f"{where} must be an array of {', '.join(DTYPES.values())}, got {dtype}")
        plain[name] = np.asarray(array, dtype=dtype.newbyteorder("="), order="C")  # the library writes memory as it is
    data = safetensors.numpy.save(plain)
    if int.from_bytes(data[:8], "little") > HEADER_LIMIT:
        raise InputError(f"{file} has too many arrays: their names and shapes take more than {HEADER_LIMIT:,} bytes")
    return data


def _decode(path: Path, data: bytes) -> dict[str, Array]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or 8 + length > len(data):
        raise InputError(f"{path} is damaged: its header ends after the file does")
    if length > HEADER_LIMIT:
        raise InputError(f"{path} must have a header of at most {HEADER_LIMIT:,} bytes, got {length:,}")
    for name, entry in _parse(path, data[8 : 8 + length]).items():
        if not isinstance(entry, Mapping) or entry.get("dtype") not in list(DTYPES):  # may have no hash
            raise InputError(f"{path}: {reprlib.repr(name)} must have a dtype of {', '.join(DTYPES)}")
    try:
        arrays = safetensors.numpy.load(data)
    except (SafetensorError, ValueError, OverflowError) as error:
        raise InputError(f"{path} is damaged: {str(error)[:200]}") from None
    for name, array in arrays.items():
        if array.dtype == np.bool_ and (array.view(np.uint8) > 1).any():
            raise InputError(f"{path} is damaged: {reprlib.repr(name)} holds a byte that is neither true nor false")
    return {name: np.require(arrays[name], requirements=["A", "W"]) for name in sorted(arrays)}


# The file system.


def _document_file(kind: str) -> str:
    if not _NAME.fullmatch(kind):
        raise InputError(f"kind must be of a–z, 0–9 and _, got {kind!r}")
    return f"{kind}.json"


def _tensor_file(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise InputError(f"the name of a file of arrays must be of a–z, 0–9 and _, got {name!r}")
    return f"{name}.safetensors"


def _resolve(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError, ValueError) as error:  # a loop of links, a NUL in the name
        raise InputError(f"{path!r} is not a usable path: {error}") from None


def _sibling(target: Path, role: str) -> Path:
    return target.with_name(f".{target.name}.dose-{role}") if target.name else target


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def _bytes(path: Path, limit: int) -> bytes:
    """What a file holds that is there in person: no link out of the directory, no pipe to wait for, no device."""
    try:
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path} must be a regular file, not a link or anything else")
        if status.st_size > limit:
            raise InputError(f"{path} must have at most {limit:,} bytes, got {status.st_size:,}")
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} is missing") from None
    except (OSError, MemoryError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def _check_replaceable(target: Path, kind: str) -> None:
    if _identity(target) is None:
        return
    try:
        members = {_document_file(kind), *_unseal(target, kind)[1]}
    except InputError as error:
        raise InputError(f"{target} exists and is not replaced, as it is not an intact {kind}: {error}") from None
    others = sorted(file.name for file in target.iterdir() if file.name not in members or file.is_dir())
    if others:
        raise InputError(f"{target} is not replaced, as that would delete {', '.join(others)}")


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _swap(new: Path, target: Path) -> None:
    """Put `new` where `target` is, which is kept aside until that is done."""
    old = _sibling(target, "old")
    try:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)  # left by a save that was killed after it was done
            target.rename(old)
        new.rename(target)
    finally:
        if not target.exists() and old.exists():
            old.rename(target)
    _sync(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(directory: Path) -> None:
    if os.name == "posix":
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _lock(directory: Path) -> Iterator[None]:
    """One save at a time; the lock is the directory's own and dies with the process."""
    if os.name != "posix":
        yield
        return
    import fcntl

    handle = -1
    try:
        with suppress(OSError):  # a file system without locks, a directory that may not be listed
            handle = os.open(directory, os.O_RDONLY)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        if handle >= 0:
            os.close(handle)
