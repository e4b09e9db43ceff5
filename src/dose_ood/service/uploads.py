"""Uploads: a picture, an .npy of images or a table becomes samples; sizes are checked before anything is decoded."""

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from dose_ood.columns import numbers, positions
from dose_ood.errors import InputError
from dose_ood.service.judge import Images, Matrix, Samples, columns_of
from dose_ood.service.parquet import read_parquet
from dose_ood.service.pictures import read_picture
from dose_ood.service.settings import Refusal, Settings
from dose_ood.tables import FOREIGN

Kind = Literal["picture", "npy", "parquet", "csv"]

TYPES: dict[str, Kind | None] = {
    "image/png": "picture",
    "image/jpeg": "picture",
    "image/bmp": "picture",
    "application/x-npy": "npy",
    "application/vnd.apache.parquet": "parquet",
    "application/x-parquet": "parquet",
    "text/csv": "csv",
    "application/octet-stream": None,
}
MAGIC: tuple[tuple[bytes, Kind], ...] = (
    (b"\x89PNG\r\n\x1a\n", "picture"),
    (b"\xff\xd8\xff", "picture"),
    (b"BM", "picture"),
    (b"\x93NUMPY", "npy"),
    (b"PAR1", "parquet"),
)
HEADER_LINE = 2**16  # bytes of a CSV's line of names


@dataclass(frozen=True)
class Taste:
    """What a detector takes.

    Parameters
    ----------
    statistics
        The names of its columns.
    shape
        Channels, height and width of its images; None if it takes tables alone.
    """

    statistics: tuple[str, ...]
    shape: tuple[int, ...] | None


def read_upload(body: bytes, content_type: str, taste: Taste, settings: Settings) -> Samples:
    """The samples in an upload of a content type in `TYPES`."""
    kind = _kind(body, content_type)
    if kind in ("picture", "npy") and taste.shape is None:
        raise Refusal(
            422, f"expected a table of {', '.join(taste.statistics)}, as the detector holds no model, got images"
        )
    readers: dict[Kind, Callable[[], Samples]] = {
        "picture": lambda: Samples(images=read_picture(body, taste.shape or ())),
        "npy": lambda: Samples(images=read_npy(body, taste.shape or (), settings)),
        "parquet": lambda: Samples(values=read_parquet(body, taste.statistics, settings)),
        "csv": lambda: Samples(values=read_csv(body, taste.statistics, settings)),
    }
    with refusing(f"cannot read the {kind}"):
        samples = readers[kind]()
    if not len(samples):
        raise Refusal(422, "expected at least one sample, got none")
    return samples


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Answer 422, in one sentence, to content that a reader does not understand."""
    try:
        yield
    except InputError as error:
        raise Refusal(422, str(error)) from error
    except (*FOREIGN, SyntaxError, TypeError, KeyError, RecursionError) as error:
        said = (str(error).splitlines() or [""])[0].rstrip(". ")[:200] or type(error).__name__
        raise Refusal(422, f"{what}: {said}") from error


def _kind(body: bytes, content_type: str) -> Kind:
    plain = content_type.partition(";")[0].strip().lower()
    if plain not in TYPES:
        raise Refusal(415, f"expected a content type of {', '.join(TYPES)}, got {plain[:60]!r}")
    if not body:
        raise Refusal(422, "expected a picture, an .npy of images or a table, got an empty body")
    declared = TYPES[plain]
    found: Kind = next((kind for magic, kind in MAGIC if body.startswith(magic)), "csv")
    if declared is not None and declared != found:
        raise Refusal(422, f"expected a {declared}, as the content type {plain} says, got something else")
    if declared is None and found == "csv" and b"\0" in body[:4096]:
        raise Refusal(422, "expected a PNG, JPEG or BMP picture, .npy, Parquet or CSV, got something else")
    return found


def read_npy(body: bytes, shape: tuple[int, ...], settings: Settings) -> Images:
    """The images of an .npy, from its header and as many bytes as it says; never an object."""
    file = io.BytesIO(body)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise InputError(f"expected .npy of version 1.0 or 2.0, got {version[0]}.{version[1]}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found, fortran, dtype = read(file)
    if dtype != np.uint8:
        raise InputError(
            f"expected an .npy of uint8 images, got {str(dtype)[:60]}; statistics need names: Parquet or CSV"
        )
    count = check_images(found, shape, settings)
    start = file.tell()
    size = count * int(np.prod(shape))
    if len(body) - start != size:
        raise InputError(f"expected {size:,} bytes of pixels, as the .npy's shape says, got {len(body) - start:,}")
    array = np.frombuffer(body, np.uint8, size, start).reshape(found, order="F" if fortran else "C")
    return as_images(array, shape)


def check_images(found: Sequence[int], shape: tuple[int, ...], settings: Settings) -> int:
    """The number of images in an array of this shape, if it is one of images and they are not too many."""
    channels, *size = shape
    single = [(channels, *size), (*size, channels), *([tuple(size)] if channels == 1 else [])]
    if not all(type(length) is int and length >= 0 for length in found):
        raise InputError(f"expected a shape of whole numbers, got {list(found)!r:.80}")
    if tuple(found[1:]) in single:
        count = found[0]
    elif tuple(found) in single:
        count = 1
    else:
        expected = ", ".join(map(str, shape))
        raise InputError(f"expected images of shape (n, {expected}), got {tuple(found)!r:.80}")
    if count > settings.images:
        raise Refusal(413, f"expected at most {settings.images:,} images in a request, got {count:,}")
    return count


def as_images(array: NDArray[np.uint8], shape: tuple[int, ...]) -> Images:
    """Images as (n, c, h, w), from any shape that `check_images` lets pass."""
    channels, *size = shape
    last = (*size, channels)
    if array.shape[1:] == shape or array.shape == shape:
        return array.reshape(-1, *shape)
    if array.shape[1:] == last or array.shape == last:
        return np.moveaxis(array.reshape(-1, *last), 3, 1)
    return array.reshape(-1, *shape)


def read_csv(body: bytes, names: Sequence[str], settings: Settings) -> Matrix:
    """The named columns of a CSV; cells that are no numbers make their row a bad one."""
    rows = body.count(b"\n") + (not body.endswith(b"\n")) - 1
    if rows > settings.rows:
        raise Refusal(413, f"expected at most {settings.rows:,} rows in a request, got {rows:,} lines")
    head = body[:HEADER_LINE].removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    header = next(csv.reader(io.StringIO(head)), [])
    positions(names, header, "the CSV")
    options = pa_csv.ConvertOptions(
        include_columns=list(names), column_types=dict.fromkeys(names, "string"), strings_can_be_null=False
    )
    reading = pa_csv.ReadOptions(use_threads=False)
    table = pa_csv.read_csv(io.BytesIO(body), read_options=reading, convert_options=options)
    columns = {name: numbers(table.column(name).combine_chunks()) for name in names}
    return columns_of(columns, names)
