"""Pictures, decoded by Pillow within bounds: only plain formats, only so many pixels."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from dose_ood.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

Images: TypeAlias = NDArray[np.uint8]

PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")  # others of Pillow's start programs
MODES = {"1": "L", "L": "L", "RGB": "RGB"}
MOST_PIXELS = 2**26


@contextmanager
def pillow() -> Iterator[None]:
    """Say in one sentence what is missing, if Pillow is."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError("pictures need Pillow: pip install pillow") from error


@contextmanager
def open_picture(file: Path | IO[bytes], name: str) -> Iterator["Image"]:
    """A picture whose header has been read and found reasonable."""
    with pillow():
        import PIL.Image
    bomb = (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning)
    try:
        with PIL.Image.open(file, formats=FORMATS) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise InputError(
                    f"{name}: expected at most {MOST_PIXELS:,} pixels, got {picture.width:,}×{picture.height:,}"
                )
            yield picture
    except (OSError, ValueError, SyntaxError, *bomb) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{name} cannot be read as a picture: {str(error).splitlines()[0]}") from error


def read_picture(file: Path | IO[bytes], name: str) -> Images:
    """The pixels of a grey or RGB picture, shape (c, h, w)."""
    with open_picture(file, name) as picture:
        if picture.mode == "P" and "transparency" not in picture.info:
            picture = picture.convert("RGB")
        if picture.mode not in MODES:
            raise InputError(f"{name}: expected a grey or RGB picture of 8 bits, got mode {picture.mode}")
        pixels = np.asarray(picture.convert(MODES[picture.mode]), np.uint8)
        return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def stack_pictures(pictures: Iterable[Images], names: Sequence[str]) -> Images:
    """Pictures of one size as an array; one of another size is refused by its name."""
    images: Images | None = None
    for row, picture in enumerate(pictures):
        if images is None:
            images = np.empty((len(names), *picture.shape), np.uint8)
        if picture.shape != images.shape[1:]:
            raise InputError(f"{names[row]}: expected {_size(images[0])} as in {_base(names[0])}, got {_size(picture)}")
        images[row] = picture
    if images is None:
        raise InputError("expected at least one picture")
    return images


def picture_files(folder: Path) -> list[Path]:
    """The pictures of a folder or, if it has none itself, of the folders in it, in the order of their names."""
    return _pictures(folder.iterdir()) or _pictures(folder.rglob("*"))


def read_folder(folder: Path) -> Images:
    """The pictures of a folder, as an array."""
    files = picture_files(folder)
    if not files:
        raise InputError(f"{folder}: expected pictures ({', '.join(PICTURES)}), found none")
    return stack_pictures((read_picture(file, str(file)) for file in files), [str(file) for file in files])


def thumbnail(file: IO[bytes], name: str, size: tuple[int, int], prepare: "Callable[[Image], Image]") -> Images:
    """A picture, prepared and brought to (width, height) by a box filter, as Pillow has it: shape (h, w[, 3])."""
    with open_picture(file, name) as picture:
        import PIL.Image

        return np.asarray(prepare(picture).resize(size, PIL.Image.Resampling.BOX), np.uint8)


def _pictures(files: Iterable[Path]) -> list[Path]:
    return sorted(file for file in files if file.suffix.lower() in PICTURES and file.name[0] != ".")


def _base(name: str) -> str:
    return name.rsplit("/", 1)[-1]


def _size(picture: Images) -> str:
    channels, height, width = picture.shape
    return f"{width}×{height} {'grey' if channels == 1 else 'RGB'}"
