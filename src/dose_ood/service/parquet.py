"""A Parquet table from untrusted bytes: what its pages say they expand to is added up before one is expanded."""

import struct
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dose_ood.columns import check_numeric, numbers, positions
from dose_ood.errors import InputError
from dose_ood.service.judge import Matrix, columns_of
from dose_ood.service.settings import Refusal, Settings

MARK = b"PAR1"
FOOTER = 2**20  # bytes of the description at a file's end
BATCH = 8192
WHERE = "the Parquet table"


def read_parquet(body: bytes, names: Sequence[str], settings: Settings) -> Matrix:
    """The named columns of a Parquet file; a missing value makes its row a bad one."""
    _check_footer(body)
    with pq.ParquetFile(
        pa.BufferReader(body), pre_buffer=False, thrift_string_size_limit=FOOTER, thrift_container_size_limit=100_000
    ) as file:
        positions(names, file.schema_arrow.names, WHERE)
        check_numeric(file.schema_arrow, names, WHERE, "")
        _check_rows(file.metadata.num_rows, settings)
        if file.metadata.num_rows < 1:
            raise InputError(f"{WHERE} has no rows")
        _check_pages(body, file.metadata, names, settings)
        parts: dict[str, list[np.ndarray[tuple[int], np.dtype[np.float64]]]] = {name: [] for name in names}
        rows = 0
        for batch in file.iter_batches(BATCH, columns=list(names), use_threads=False):
            rows += batch.num_rows
            _check_rows(rows, settings)
            for name in names:
                parts[name].append(numbers(batch.column(name)))
    if not rows:
        raise InputError(f"{WHERE} has no rows")
    return columns_of({name: np.concatenate(part) for name, part in parts.items()}, names)


def _check_footer(body: bytes) -> None:
    if len(body) < 12 or not (body.startswith(MARK) and body.endswith(MARK)):
        raise InputError(f"expected a whole Parquet file, which begins and ends with PAR1, got {len(body):,} bytes")
    size = int.from_bytes(body[-8:-4], "little")
    if size > min(FOOTER, len(body) - 12):
        raise InputError(f"expected a Parquet footer of at most {min(FOOTER, len(body) - 12):,} bytes, got {size:,}")


def _check_rows(rows: int, settings: Settings) -> None:
    if rows > settings.rows:
        raise Refusal(413, f"expected at most {settings.rows:,} rows in a request, got {rows:,} or more")


def _check_pages(body: bytes, metadata: pq.FileMetaData, names: Sequence[str], settings: Settings) -> None:
    """Refuse pages that would expand to more than is allowed; the sizes are those the decoder goes by."""
    total = 0
    for group in range(metadata.num_row_groups):
        for position in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(position)
            if chunk.path_in_schema not in names and not chunk.path_in_schema.startswith(tuple(f"{n}." for n in names)):
                continue
            start = chunk.data_page_offset
            if chunk.has_dictionary_page and chunk.dictionary_page_offset:
                start = min(start, chunk.dictionary_page_offset)
            for size in _page_sizes(body, start, start + chunk.total_compressed_size):
                total += size
                if total > settings.decoded:
                    raise Refusal(413, f"expected a table of at most {settings.decoded:,} bytes, got {total:,} or more")


def _page_sizes(body: bytes, start: int, end: int) -> Iterator[int]:
    """The size of each page of a column when expanded, from the pages' own headers."""
    if not 4 <= start <= end <= len(body):
        raise InputError(f"expected the pages of a column inside the file, got bytes {start:,} to {end:,}")
    while start < end:
        header = _Header(body, start, end)
        expanded, compressed = header.sizes()
        if expanded < 0 or compressed < 0 or header.position + compressed > end:
            raise InputError("expected the pages of a column to fit it, got one that does not")
        yield expanded
        start = header.position + compressed


class _Header:
    """The head of a page, in Thrift's compact protocol, of which only fields 2 and 3 (sizes) are wanted."""

    def __init__(self, body: bytes, position: int, end: int) -> None:
        self.body, self.position, self.end = body, position, min(end, position + 2**16)

    def sizes(self) -> tuple[int, int]:
        """Bytes of the page expanded, and as it is."""
        found = self._struct(0)
        if not {2, 3} <= found.keys():
            raise InputError("expected a Parquet page with its sizes, got something else")
        return found[2], found[3]

    def _byte(self) -> int:
        if self.position >= self.end:
            raise InputError("expected a Parquet page's header, got one that does not end")
        self.position += 1
        return self.body[self.position - 1]

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value
            if shift > 63:
                raise InputError("expected numbers of 64 bits in a Parquet page's header, got a longer one")

    def _signed(self) -> int:
        value = self._number()
        return (value >> 1) ^ -(value & 1)

    def _struct(self, depth: int) -> dict[int, int]:
        found: dict[int, int] = {}
        field = 0
        while kind := self._byte():
            delta = kind >> 4
            field = field + delta if delta else self._signed()
            value = self._value(kind & 0x0F, depth)
            if value is not None:
                found[field] = value
        return found

    def _value(self, kind: int, depth: int) -> int | None:
        if depth > 8:
            raise InputError("expected a shallow Parquet page header, got a deep one")
        if kind in (1, 2):  # true, false
            return None
        if kind == 3:
            self._byte()
        elif kind in (4, 5, 6):
            return self._signed()
        elif kind == 7:
            self.position += struct.calcsize("d")
        elif kind == 8:
            length = self._number()  # moves the position itself
            self.position += length
        elif kind in (9, 10):
            self._list(depth)
        elif kind == 12:
            self._struct(depth + 1)
        else:
            raise InputError(f"expected a Parquet page's header, got a field of type {kind}")
        return None

    def _list(self, depth: int) -> None:
        head = self._byte()
        count = head >> 4 if head >> 4 != 15 else self._number()
        for _ in range(min(count, self.end)):
            if head & 0x0F in (1, 2):
                self._byte()
            else:
                self._value(head & 0x0F, depth + 1)
