"""Images in: a file of arrays, a folder of pictures or a data set's name become uint8 of shape (n, c, h, w)."""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.data.shifts import SHIFTS
from dose_ood.errors import InputError
from dose_ood.noise import generator
from dose_ood.tables import explaining, replacing

if TYPE_CHECKING:
    from PIL.Image import Image

Images: TypeAlias = NDArray[np.uint8]
Rows: TypeAlias = NDArray[np.int64]

CACHE = "DOSE_DATA"  # the environment variable that names the folder of data sets
PARTS = ("train", "test")
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MODES = {"1": "L", "L": "L", "RGB": "RGB"}
CHUNK = 4096


@dataclass(frozen=True)
class Split:
    """The rows to train on and the rows held out, each in increasing order."""

    train: Rows
    held_out: Rows


def split(count: int, seed: int = 0, share: float = 0.1) -> Split:
    """Hold out a share of the rows, drawn by `seed` alone.

    Examples
    --------
    >>> parts = split(60_000)
    >>> len(parts.train), len(parts.held_out)
    (54000, 6000)
    """
    held_out = round(count * share)
    if not 0 < held_out < count:
        raise InputError(f"expected enough images to hold out {share:.0%} of them and train on the rest, got {count}")
    order = generator("held-out split", seed).permutation(count)
    return Split(np.sort(order[held_out:]), np.sort(order[:held_out]))


def fingerprint(images: NDArray[np.generic]) -> str:
    """A checksum of shape and pixels: the same for the same images, whatever their layout in memory."""
    digest = hashlib.sha256(f"{images.dtype.str} {tuple(images.shape)}".encode())
    for start in range(0, len(images), CHUNK):
        digest.update(np.ascontiguousarray(images[start : start + CHUNK]).data)
    return digest.hexdigest()


def read_images(source: str | os.PathLike[str]) -> Images:
    """Images from `SOURCE[:PART][:SHIFT]`.

    Parameters
    ----------
    source
        A .npy or .npz file, a folder of pictures (taken in the order of their names), or the name of a data set found
        as NAME.npz in the folder that the environment variable DOSE_DATA names. PART is train or test, for an .npz
        that holds `train_x` and `test_x`; SHIFT is a name in `SHIFTS`, such as hflip.
    """
    place, part, shift = _parse(os.fspath(source))
    path = _find(place)
    if path.is_dir():
        images = _read_folder(path, part)
    elif path.suffix.lower() in (".npy", ".npz"):
        images = _as_images(_read_array(path, part), str(path))
    else:
        raise InputError(f"{path}: expected a .npz or .npy file or a folder of pictures")
    return images if shift is None else SHIFTS[shift](images, 0)


def _parse(source: str) -> tuple[str, str | None, str | None]:
    place, shift, part = source, None, None
    if ":" in place and place.rsplit(":", 1)[1] in SHIFTS:
        place, shift = place.rsplit(":", 1)
    if ":" in place and place.rsplit(":", 1)[1] in PARTS:
        place, part = place.rsplit(":", 1)
    return place, part, shift


def _find(place: str) -> Path:
    path = Path(place)
    if place and path.exists():
        return path
    name, _, rest = place.partition(":")
    if not re.fullmatch(r"\w+", name):
        raise InputError(f"{place}: no such file or folder")
    if rest:
        raise InputError(
            f"{place}: expected NAME[:PART][:SHIFT] with a part of {', '.join(PARTS)} or a shift of {', '.join(SHIFTS)}"
        )
    cache = os.environ.get(CACHE)
    if not cache:
        raise InputError(f"{name} is no file or folder; to use a data set by name, let {CACHE} name their folder")
    found = Path(cache, f"{name}.npz")
    if not found.exists():
        there = ", ".join(sorted(file.stem for file in Path(cache).glob("*.npz"))) or "none"
        raise InputError(f"{name} is no file or folder, and no data set in {CACHE} ({cache}); there: {there}")
    return found


def _read_array(path: Path, part: str | None) -> NDArray[np.generic]:
    with explaining(f"cannot read {path}"):
        if path.suffix.lower() == ".npy":
            if part is not None:
                raise InputError(f"{path} is a single array and has no part {part!r}")
            return np.asarray(np.load(path, mmap_mode="r", allow_pickle=False))
        with path.open("rb") as file:  # np.load by name leaves a broken archive open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(f"{path}: expected an archive of arrays, got something else under its name")
            return np.asarray(archive[_member(path, archive, part)])


def _member(path: Path, archive: Mapping[str, NDArray[np.generic]], part: str | None) -> str:
    names = list(archive)
    if part is not None:
        wanted = f"{part}_x"
        if wanted not in names:
            raise InputError(f"{path} has no {wanted!r}; it has {', '.join(names) or 'nothing'}")
        return wanted
    for name in ("train_x", "x"):
        if name in names:
            return name
    if len(names) == 1:
        return names[0]
    hint = "; say :test for the test part" if "test_x" in names else ""
    raise InputError(f"{path}: expected train_x, x or a single array, got {', '.join(names) or 'nothing'}{hint}")


def _as_images(array: NDArray[np.generic], where: str) -> Images:
    """The array as (n, c, h, w); colour may come first or last."""
    if array.dtype != np.uint8:
        raise InputError(f"{where}: expected grey levels from 0 to 255 as uint8, got {array.dtype}")
    if array.ndim not in (3, 4) or 0 in array.shape:
        raise InputError(
            f"{where}: expected images of shape (n, h, w), (n, h, w, 3) or (n, c, h, w), got {array.shape}"
        )
    images = array.astype(np.uint8, copy=False)
    if images.ndim == 3:
        return images[:, None]
    first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
    if first == last:
        raise InputError(f"{where}: expected 1 or 3 channels, either first or last, got shape {images.shape}")
    return images if first else images.transpose(0, 3, 1, 2)


@contextmanager
def _pillow() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError("pictures need Pillow: pip install pillow") from error


def _read_folder(folder: Path, part: str | None) -> Images:
    if part is not None:
        raise InputError(f"{folder} is a folder of pictures and has no part {part!r}")
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in PICTURES and file.name[0] != ".")
    if not files:
        raise InputError(f"{folder}: expected pictures ({', '.join(PICTURES)}), found none")
    first = _read_picture(files[0])
    images = np.empty((len(files), *first.shape), np.uint8)
    for row, file in enumerate(files):
        picture = _read_picture(file)
        if picture.shape != first.shape:
            raise InputError(f"{file}: expected {_size(first)} as in {files[0].name}, got {_size(picture)}")
        images[row] = picture
    return images


def _read_picture(file: Path) -> Images:
    with _pillow():
        import PIL.Image
    try:
        with PIL.Image.open(file) as picture:
            return _pixels(picture, file)
    except (OSError, ValueError, SyntaxError, PIL.Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} cannot be read as a picture: {str(error).splitlines()[0]}") from error


def _pixels(picture: "Image", file: Path) -> Images:
    if picture.mode == "P" and "transparency" not in picture.info:
        picture = picture.convert("RGB")
    if picture.mode not in MODES:
        raise InputError(f"{file}: expected a grey or RGB picture of 8 bits, got mode {picture.mode}")
    pixels = np.asarray(picture.convert(MODES[picture.mode]), np.uint8)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def _size(picture: Images) -> str:
    channels, height, width = picture.shape
    return f"{width}×{height} {'grey' if channels == 1 else 'RGB'}"


def write_sheet(path: str | os.PathLike[str], images: Images, columns: int, scale: int = 2) -> None:
    """Write images of shape (n, c, h, w) side by side into one picture, row by row, each pixel `scale` pixels wide."""
    with _pillow():
        import PIL.Image
    count, _, height, width = images.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1, 3), 255, np.uint8)
    for position, image in enumerate(images):
        top, left = (
            1 + place * (size + 1) for place, size in zip(divmod(position, columns), (height, width), strict=True)
        )
        sheet[top : top + height, left : left + width] = np.broadcast_to(image, (3, height, width)).transpose(1, 2, 0)
    big = sheet.repeat(scale, axis=0).repeat(scale, axis=1)
    with explaining(f"cannot write {path}"), replacing(path) as temporary:
        PIL.Image.fromarray(big).save(temporary, format="PNG")
