"""One file from a host: resumed where it stopped, never longer than it may be, and kept only if its hash is right."""

import hashlib
import http.client
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from dose_ood.data.catalogue import Remote
from dose_ood.errors import InputError
from dose_ood.tables import explaining

Progress: TypeAlias = Callable[[str, int, int], None]  # what, bytes done, bytes in all

TRIES = 3
TIMEOUT = 10.0  # seconds without a byte
BLOCK = 2**16


class CutOffError(Exception):
    """The connection ended before the file did."""


def download(remote: Remote, folder: Path, timeout: float = TIMEOUT, progress: Progress | None = None) -> Path:
    """The file in `folder`, byte for byte; what has come so far stays as .part beside it when the connection ends.

    A file with a wrong hash is removed. If a part of it was there before, that may have been at fault, and the whole is
    fetched once more.
    """
    target = folder / remote.file
    part = target.with_name(f"{target.name}.part")
    with explaining(f"cannot write {target}"):
        if target.exists() and _sha256(target) == remote.sha256:
            return target
        resumed = part.exists() and part.stat().st_size > 0
        _complete(remote, part, timeout, progress)
        if resumed and _sha256(part) != remote.sha256:
            part.unlink()
            _complete(remote, part, timeout, progress)
        found = _sha256(part)
        if found != remote.sha256:
            part.unlink()
            raise InputError(f"{remote.url} has other content than is known (sha256 {found[:12]}…), and was removed")
        part.replace(target)
    return target


def _complete(remote: Remote, part: Path, timeout: float, progress: Progress | None) -> None:
    for _ in range(TRIES):
        done = part.stat().st_size if part.exists() else 0
        if done > remote.size:
            part.unlink()
        if done == remote.size:
            return
        try:
            _continue(remote, part, timeout, progress)
        except CutOffError:
            continue
    done = part.stat().st_size if part.exists() else 0
    if done != remote.size:
        so_far = f"{done:,} of {remote.size:,} bytes"
        raise InputError(f"{remote.url} was cut off {TRIES} times, after {so_far}; the same command goes on from there")


def _continue(remote: Remote, part: Path, timeout: float, progress: Progress | None) -> None:
    """Ask for what is missing; a host that does not do that sends the whole again."""
    done = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "dose-ood", "Accept-Encoding": "identity"}
    if done:
        headers["Range"] = f"bytes={done}-"
    try:
        with _open(remote, headers, timeout) as response:
            start = _start(response, done)
            length = response.headers.get("Content-Length")
            if length is not None and start + int(length) != remote.size:
                raise InputError(f"{remote.url}: expected {remote.size:,} bytes, the host has {start + int(length):,}")
            _copy(response, part, start, remote, progress)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and done:
            part.unlink()
            raise CutOffError from error
        said = " ".join(str(error.reason).split("\n")[0].split())
        raise InputError(f"{remote.url}: the host answers {error.code} ({said.rstrip(':. ')})") from error
    except urllib.error.URLError as error:
        raise InputError(f"{remote.url} cannot be reached: {error.reason}") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise CutOffError from error


def _open(remote: Remote, headers: dict[str, str], timeout: float) -> http.client.HTTPResponse:
    """HTTP and HTTPS, through the user's proxy and a few redirections; no other scheme, local files least of all."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPErrorProcessor,
        urllib.request.UnknownHandler,
    ):
        opener.add_handler(handler())
    request = urllib.request.Request(remote.url, headers=headers)  # noqa: S310  # other schemes have no handler
    try:
        response = opener.open(request, timeout=timeout)
    except TimeoutError as error:
        raise InputError(f"{remote.url}: the host has not answered for {timeout:g} s") from error
    if not isinstance(response, http.client.HTTPResponse):
        raise InputError(f"{remote.url}: expected an answer by HTTP, got another")
    return response


def _start(response: http.client.HTTPResponse, done: int) -> int:
    """The byte at which the answer begins."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    told = re.match(r"bytes (\d+)-", response.headers.get("Content-Range", ""))
    return int(told[1]) if told and int(told[1]) <= done else done


def _copy(
    response: http.client.HTTPResponse, part: Path, start: int, remote: Remote, progress: Progress | None
) -> None:
    part.parent.mkdir(parents=True, exist_ok=True)
    with part.open("r+b" if start else "wb") as file:
        file.seek(start)
        file.truncate()
        done = start
        while block := response.read1(BLOCK):
            done += len(block)
            if done > remote.size:
                file.truncate(0)
                raise InputError(f"{remote.url}: expected {remote.size:,} bytes, the host sends more")
            file.write(block)
            if progress is not None:
                progress(remote.file, done, remote.size)
    if done < remote.size:
        raise CutOffError


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
