"""Images in: a file of arrays, a folder of pictures or a data set's name become uint8 of shape (n, c, h, w)."""

import hashlib
import io
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.data.arrow import is_saved_dataset, read_saved_dataset
from dose_ood.data.catalogue import CATALOGUE
from dose_ood.data.folder import SAMPLES, data_folder, names_in, path_of
from dose_ood.data.pictures import pillow, read_folder
from dose_ood.data.shifts import SHIFTS
from dose_ood.errors import InputError
from dose_ood.noise import generator
from dose_ood.tables import explaining, replacing

Images: TypeAlias = NDArray[np.uint8]
Rows: TypeAlias = NDArray[np.int64]

PARTS = ("train", "test")
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
        A .npy or .npz file, a folder of pictures (taken in the order of their names), a folder that Hugging Face's
        `save_to_disk` wrote, or the name of a data set: NAME.npz in the folder that the environment variable DOSE_DATA
        names, or else in the user's cache, or a sample that ships with the package. PART is train or test, where there
        are such parts; SHIFT is a name in `SHIFTS`, such as hflip.

    Examples
    --------
    >>> read_images("fashion_mnist_sample").shape, read_images("mnist_sample:test:hflip").shape
    ((8000, 1, 28, 28), (2000, 1, 28, 28))
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
    folder = data_folder()
    for place_of_sets in (folder, SAMPLES):
        found = path_of(name, place_of_sets)
        if found.exists():
            return found
    if name in CATALOGUE:
        raise InputError(f"{name} is not in the data folder ({folder}): get it with dose data fetch {name}")
    there = ", ".join(names_in(folder) + names_in(SAMPLES))
    raise InputError(f"{name} is no file or folder, and no data set in the data folder ({folder}); there: {there}")


def _read_array(path: Path, part: str | None) -> NDArray[np.generic]:
    with explaining(f"cannot read {path}"):
        if path.suffix.lower() == ".npy":
            if part is not None:
                raise InputError(f"{path} is a single array and has no part {part!r}")
            return _map_array(path)
        with path.open("rb") as file:  # np.load by name leaves a broken archive open
            archive = np.load(file, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise InputError(f"{path}: expected an archive of arrays, got something else under its name")
            return np.asarray(archive[_member(path, archive, part)])


def _map_array(path: Path) -> NDArray[np.generic]:
    with path.open("rb") as file:
        start = file.read(len(np.lib.format.MAGIC_PREFIX))
    if start != np.lib.format.MAGIC_PREFIX:
        raise InputError(f"{path}: expected an array that NumPy saved, got a file that starts with {start!r}")
    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))  # reads no archive and unpickles nothing
    except ValueError as error:
        if "mmap" not in str(error):
            raise
        size = path.stat().st_size
        raise InputError(f"{path} is cut short: its header promises more than its {size:,} bytes") from None


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
            f"{where}: expected images of shape (n, h, w), (n, h, w, 3) or (n, c, h, w) and none of it 0, "
            f"got {array.shape}"
        )
    images = array.astype(np.uint8, copy=False)
    if images.ndim == 3:
        return images[:, None]
    first, last = images.shape[1] in (1, 3), images.shape[3] in (1, 3)
    if first == last:
        raise InputError(f"{where}: expected 1 or 3 channels, either first or last, got shape {images.shape}")
    return images if first else images.transpose(0, 3, 1, 2)


def _read_folder(folder: Path, part: str | None) -> Images:
    if is_saved_dataset(folder):
        where, images = read_saved_dataset(folder, part)
        return _as_images(images, where)
    if part is not None:
        if not (folder / part).is_dir():
            raise InputError(f"{folder} is a folder of pictures and has no part {part!r}")
        folder = folder / part
    return read_folder(folder)


def write_sheet(path: str | os.PathLike[str], images: Images, columns: int, scale: int = 2) -> None:
    """Write images of shape (n, c, h, w) side by side into one picture, row by row, each pixel `scale` pixels wide."""
    count, _, height, width = images.shape
    picture = png_bytes(np.broadcast_to(images, (count, 3, height, width)), columns, scale)
    with explaining(f"cannot write {path}"), replacing(path) as temporary:
        temporary.write_bytes(picture)


def png_bytes(images: Images, columns: int, scale: int = 1, gap: int = 255) -> bytes:
    """Such a picture as the bytes of a PNG, grey if the images are; `gap` is the grey level between them."""
    with pillow():
        import PIL.Image
    count, channels, height, width = images.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + 1) + 1, columns * (width + 1) + 1, channels), gap, np.uint8)
    for position, image in enumerate(images):
        top, left = (
            1 + place * (size + 1) for place, size in zip(divmod(position, columns), (height, width), strict=True)
        )
        sheet[top : top + height, left : left + width] = image.transpose(1, 2, 0)
    big = sheet.repeat(scale, axis=0).repeat(scale, axis=1)
    buffer = io.BytesIO()
    PIL.Image.fromarray(big[:, :, 0] if channels == 1 else big).save(buffer, format="PNG", optimize=True)
    return buffer.getvalue()
