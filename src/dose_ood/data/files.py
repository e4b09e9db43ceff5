"""Files as their authors packed them: in a folder, a zip or a tar. Nothing is unpacked to a place that a file names."""

import gzip
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from dose_ood.errors import InputError
from dose_ood.tables import explaining

MOST_FILES = 2_000_000
MOST_BYTES = 2**31  # of a tar, unpacked: CIFAR10's has 185 MB
MEMBER_BYTES = 2**30  # of one file of an archive, unpacked
ZIPS = (".zip", ".whl")
TARS = (".tar", ".tar.gz", ".tgz")


@dataclass(frozen=True)
class Entry:
    """A file, wherever it is packed; `size` is what its folder or archive says."""

    name: str
    size: int
    open: Callable[[], AbstractContextManager[IO[bytes]]]

    @property
    def base(self) -> str:
        """The name without its folders."""
        return PurePosixPath(self.name).name


@dataclass(frozen=True)
class Files:
    """The files of a place, in the order of their names."""

    where: str
    entries: Sequence[Entry]

    def find(self, *names: str) -> Entry | None:
        """The file of the first of these names that is there, in whatever folder."""
        by_name = {entry.base: entry for entry in reversed(self.entries)}
        return next((by_name[name] for name in names if name in by_name), None)

    def need(self, *names: str) -> Entry:
        """The same; that there is none is an error."""
        found = self.find(*names)
        if found is None:
            raise InputError(f"{self.where}: expected a file {' or '.join(names)}, found none")
        return found


@contextmanager
def open_files(place: str | os.PathLike[str], archives: Sequence[str] = ()) -> Iterator[Files]:
    """The files of a folder, or of one archive (.zip, .whl, .tar, .tar.gz, .tgz), or a file alone.

    Parameters
    ----------
    archives
        Names of archives whose members count as files of the folder.
    """
    place = Path(place)
    if not place.exists():
        raise InputError(f"{place}: no such file or folder")
    with ExitStack() as stack:
        if place.is_dir():
            entries = []
            for path in _walk(place):
                inner = _is_archive(path) and path.name in archives
                entries += _members(path, stack) if inner else [_plain(path)]
        else:
            entries = _members(place, stack) if _is_archive(place) else [_plain(place)]
        yield Files(str(place), sorted(entries, key=lambda entry: entry.name))


@contextmanager
def opened(entry: Entry) -> Iterator[IO[bytes]]:
    """The file's content, unzipped if its name ends in .gz; what goes wrong is told in one sentence."""
    try:
        with explaining(f"cannot read {entry.name}"), entry.open() as raw:
            if entry.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield cast(IO[bytes], stream)
            else:
                yield raw
    except tarfile.TarError as error:
        raise InputError(f"cannot read {entry.name}: {error}") from error


def read_exactly(stream: IO[bytes], size: int, name: str) -> bytes:
    """`size` bytes; the caller has found that many to be reasonable."""
    content = stream.read(size)
    if len(content) != size:
        raise InputError(f"{name} is cut off: expected {size:,} more bytes, got {len(content):,}")
    return content


def read_whole(entry: Entry, most: int) -> bytes:
    """All of a file that has at most so many bytes."""
    if entry.size > most:
        raise InputError(f"{entry.name}: expected at most {most:,} bytes, got {entry.size:,}")
    with opened(entry) as stream:
        return read_exactly(stream, entry.size, entry.name)


def _is_archive(path: Path) -> bool:
    return path.name.lower().endswith((*ZIPS, *TARS))


def _walk(folder: Path) -> Iterator[Path]:
    count = 0
    for root, _, names in os.walk(folder):  # links to folders are not followed
        for name in names:
            count += 1
            if count > MOST_FILES:
                raise InputError(f"{folder}: expected at most {MOST_FILES:,} files")
            yield Path(root, name)


def _plain(path: Path) -> Entry:
    with explaining(f"cannot read {path}"):
        return Entry(path.as_posix(), path.stat().st_size, partial(_open, path))


def _open(path: Path) -> IO[bytes]:
    return path.open("rb")


def _members(path: Path, stack: ExitStack) -> list[Entry]:
    return _zip(path, stack) if path.name.lower().endswith(ZIPS) else _tar(path, stack)


def _zip(path: Path, stack: ExitStack) -> list[Entry]:
    with explaining(f"cannot read {path}"):
        archive = stack.enter_context(zipfile.ZipFile(path))
        entries = []
        for info in archive.infolist():
            _check(path, info.filename, info.file_size)
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise InputError(f"{path}: expected members packed by deflate and not locked, got {info.filename}")
            if not info.is_dir():
                entries.append(Entry(info.filename, info.file_size, partial(archive.open, info)))
    return entries


def _tar(path: Path, stack: ExitStack) -> list[Entry]:
    try:
        with explaining(f"cannot read {path}"):
            packed = not path.name.lower().endswith(".tar")
            file = _gunzip(path, stack) if packed else stack.enter_context(path.open("rb"))
            archive = stack.enter_context(tarfile.TarFile(fileobj=file))
            entries = []
            for info in archive:
                _check(path, info.name, info.size)
                if not info.isdir() and not info.isreg():
                    raise InputError(f"{path}: expected plain files, got a link or a device as {info.name}")
                if info.isreg():
                    entries.append(Entry(info.name, info.size, partial(_open_tarred, archive, info)))
    except tarfile.TarError as error:
        raise InputError(f"cannot read {path}: {error}") from error
    return entries


def _open_tarred(archive: tarfile.TarFile, info: tarfile.TarInfo) -> IO[bytes]:
    stream = archive.extractfile(info)
    if stream is None:
        raise InputError(f"{info.name} is no plain file")
    return stream


def _gunzip(path: Path, stack: ExitStack) -> IO[bytes]:
    """The content of a .gz as a nameless file on disk, so that a tar can be read in any order."""
    file = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115  # the stack closes it
    with gzip.open(path) as stream:
        while block := stream.read(2**20):
            if file.tell() + len(block) > MOST_BYTES:
                raise InputError(f"{path}: expected at most {MOST_BYTES:,} bytes unpacked, there are more")
            file.write(block)
    file.seek(0)
    return file


def _check(path: Path, name: str, size: int) -> None:
    if not name or name.startswith("/") or "\\" in name or ":" in name or ".." in PurePosixPath(name).parts:
        raise InputError(f"{path}: expected names inside the archive, got {name!r}")
    if size > MEMBER_BYTES:
        raise InputError(f"{path}: expected files of at most {MEMBER_BYTES:,} bytes, got {size:,} for {name}")
