"""What can be submitted: files, pipes, objects of S3, streams, records, texts, frames.

Each becomes a stream of bytes with a name.
"""

from __future__ import annotations

import io
import os
import secrets
import stat
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from dropbatch.errors import Error, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ARROW_SUFFIXES = (".parquet", ".arrow", ".feather")
CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Source:
    """What is uploaded.

    Attributes:
        name: of the upload, if it has no other.
        stream: its bytes; closed after the upload unless it is the user's own.
        size: in bytes; None if it is not known before the end.
        options: that follow from what it is.
        stored: its bucket, key and version, if it lies in S3: then it is copied, and the stream is only for the check.
        metadata: its own, if it lies in S3.
    """

    name: str
    stream: BinaryIO
    size: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)


def open_source(source: str | os.PathLike[str] | BinaryIO | Iterable[Mapping[str, Any]] | object) -> Source:
    """Open what a user submits.

    Args:
        source: a path (of a file, a named pipe, a Parquet or Arrow file); a binary stream; an iterable of records or
            of texts; or a frame: anything with Arrow's stream interface, such as a DataFrame of pandas or polars, or a
            Table; or a series of texts.

    Raises:
        UsageError: it cannot be read, or is none of these.
    """
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return _file(Path(source))
    if hasattr(source, "__arrow_c_stream__"):
        return Source(_unnamed(".csv"), _csv_stream(_batches_of(source)), None, _TABLE)
    if isinstance(source, io.TextIOBase):
        raise UsageError("A file that is submitted must be open for bytes: open(path, 'rb').")
    if hasattr(source, "read"):
        name = getattr(source, "name", None)
        given = Path(name).name if isinstance(name, str) else ""
        stream = _steady(source, given)
        if given == "<stdin>":
            return Source(_unnamed("", "stdin-"), stream)
        return Source(given if given.strip("<>") == given and given else _unnamed(".jsonl"), stream)
    if isinstance(source, dict | bytes) or not hasattr(source, "__iter__"):
        raise _no_source(source)
    records = iter(source)
    first = list(islice(records, 1))
    if first and isinstance(first[0], str):
        return Source(_unnamed(".csv"), stream_of(_text_rows(chain(first, records))), None, _TABLE)
    return Source(_unnamed(".jsonl"), stream_of(_lines(chain(first, records))))


def _no_source(source: object) -> UsageError:
    return UsageError(
        f"A {type(source).__name__} cannot be submitted. Give a path, a binary file, an iterable of dicts or of "
        "texts, or a frame of pandas, polars or pyarrow."
    )


_TABLE = {"format": "csv"}


def upload_name(path: Path) -> str:
    """The name of a file's upload: its own, or that of the table which is made of it; empty if it is a pipe."""
    if path.suffix in ARROW_SUFFIXES:
        return path.with_suffix(".csv").name
    return path.name if path.is_file() else ""


def _file(path: Path) -> Source:
    try:
        name = upload_name(path)
        if path.suffix in ARROW_SUFFIXES:
            return Source(name, _csv_stream(_arrow_batches(path)), None, _TABLE)
        if not name:
            return Source(_unnamed("", "stdin-"), path.open("rb"))
        return Source(name, io.BufferedReader(_Steady(path.open("rb", buffering=0), path, owned=True)), _size_of(path))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UsageError as error:
        error.source = str(path)
        raise


def _size_of(path: Path) -> int:
    return path.stat().st_size


def _steady(stream: Any, name: str) -> BinaryIO:  # noqa: ANN401
    """A user's own stream; if it is a regular file, one that must not become shorter while it is read."""
    if not isinstance(stream, io.BufferedReader | io.BufferedRandom | io.FileIO):
        return stream  # type: ignore[no-any-return] # It has `read`.
    try:
        is_file = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return stream
    return io.BufferedReader(_Steady(stream, name, owned=False)) if is_file else stream


class _Steady(io.RawIOBase):
    """A regular file that is read. Half of a file that another program writes anew must not become a job."""

    def __init__(self, file: io.FileIO | io.BufferedReader | io.BufferedRandom, name: object, *, owned: bool) -> None:
        self._file, self._name, self._owned = file, name, owned
        self._size = os.fstat(file.fileno()).st_size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401
        count = self._file.readinto(buffer)
        if not count and (held := self._file.tell()) < self._size:
            raise Error(
                f"{self._name} became shorter while it was read: it had {self._size:,} bytes, and ends after {held:,}. "
                "It is not uploaded."
            )
        return count

    def close(self) -> None:
        if self._owned:
            self._file.close()
        super().close()


def _unnamed(suffix: str, prefix: str = "") -> str:
    return f"{prefix}{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}{suffix}"


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(records: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UsageError(f"Record {number:,} must be a dict, such as {{'text': …}}, not {type(record).__name__}.")
        try:
            yield encode(record) + b"\n"
        except (TypeError, ValueError, OverflowError) as error:
            raise UsageError(f"Record {number:,} cannot be written as JSON: {error}.") from error


def _text_rows(texts: Iterable[Any]) -> Iterator[bytes]:
    """Texts as a table of one column; in it, a text may have line ends."""
    yield b"text\n"
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UsageError(f"Record {number:,} must be a text, as the first one, not {type(text).__name__}.")
        try:
            yield b'"%b"\n' % text.replace('"', '""').encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"Record {number:,} has a character that is not Unicode text: {error.reason}.") from error


# ── frames ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _arrow() -> Any:  # noqa: ANN401 - pyarrow has no types
    try:
        import pyarrow as pa
    except ImportError:
        raise UsageError("Frames, Parquet and Arrow files need pyarrow: pip install 'dropbatch[data]'.") from None
    return pa


def _batches_of(frame: Any) -> Any:  # noqa: ANN401
    """The record batches of a frame, or of a series of texts."""
    pa = _arrow()
    try:
        return pa.RecordBatchReader.from_stream(frame)
    except (pa.ArrowException, OverflowError) as error:
        if "non-struct type" in str(error):
            return _series_batches(pa, frame)
        why = ". ".join(map(str, error.args))
        raise UsageError(f"The frame cannot be read: {why}. Give each column one type: text or numbers.") from error


def _series_batches(pa: Any, series: Any) -> Any:  # noqa: ANN401
    """A series of texts as the only column of a frame, with its name."""
    column = pa.chunked_array(series)
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not any(is_text(kind) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        raise UsageError(f"A {type(series).__name__} of {kind} cannot be submitted. Give one of texts, or a frame.")
    name = getattr(series, "name", None)
    return pa.table({name if isinstance(name, str) and name else "text": column}).to_reader()


def _arrow_batches(path: Path) -> Any:  # noqa: ANN401
    """The record batches of a file, read one after another."""
    pa = _arrow()
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            file = parquet.ParquetFile(path)
            return pa.RecordBatchReader.from_batches(file.schema_arrow, file.iter_batches())
        opened = pa.ipc.open_file(path)
        batches = (opened.get_batch(index) for index in range(opened.num_record_batches))
        return pa.RecordBatchReader.from_batches(opened.schema, batches)
    except pa.ArrowInvalid as error:
        raise UsageError(f"It cannot be read: {error}") from error


def _csv_stream(batches: Any) -> BinaryIO:  # noqa: ANN401
    """Record batches as a CSV upload: Arrow's own CSV writer, a header, and null as the empty cell.

    A null of an only column would be a blank line, which is no row; it is written as "".
    """
    pa = _arrow()
    from pyarrow import csv

    kept = [name for name in batches.schema.names if not name.startswith("__index_level_")]
    if nested := [one.name for one in batches.schema if pa.types.is_nested(one.type)]:
        raise UsageError(f"Column {nested[0]!r} is nested; a table's cells are text or numbers. Write it as JSON text.")
    if twice := [name for name, count in Counter(kept).items() if count > 1]:
        raise UsageError(f"Two columns have the name {twice[0]!r}. Rename one.")

    def chunks() -> Iterator[bytes]:
        written = io.BytesIO()
        only = len(kept) == 1
        kinds = [pa.string() if only else _plain(batches.schema.field(name).type) for name in kept]
        schema = pa.schema(list(zip(kept, kinds, strict=True)))
        try:
            writer = csv.CSVWriter(written, schema)
            for batch in batches:
                for rows in _slices(batch):
                    columns = map(_with_plain_categories, rows.select(kept).columns)
                    cells = pa.record_batch([*columns], kept).cast(schema)
                    if only:
                        cells = pa.record_batch([cells.column(0).fill_null("")], schema)
                    writer.write_batch(cells)
                    yield written.getvalue()
                    written.seek(0)
                    written.truncate()
            writer.close()
        except pa.ArrowException as error:
            raise UsageError(f"The frame cannot be written as CSV: {error}") from error
        yield written.getvalue()

    return stream_of(chunks())


def _slices(batch: Any) -> Iterator[Any]:  # noqa: ANN401
    """Rows of about `CHUNK_BYTES`, without a copy: a frame is often one batch."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _plain(kind: Any) -> Any:  # noqa: ANN401
    """A column's type as Arrow's CSV writer takes it."""
    types = _arrow().types
    if types.is_dictionary(kind):
        return _plain(kind.value_type)
    return _arrow().string() if types.is_string_view(kind) else kind


def _with_plain_categories(column: Any) -> Any:  # noqa: ANN401
    """A column; polars has views as categories, which Arrow cannot write."""
    pa = _arrow()
    if not pa.types.is_dictionary(column.type) or not pa.types.is_string_view(column.type.value_type):
        return column
    return pa.DictionaryArray.from_arrays(column.indices, column.dictionary.cast(pa.string()))


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:  # noqa: ANN401
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def stream_of(chunks: Iterator[bytes]) -> BinaryIO:
    """Chunks of bytes as a stream; the next one is made when it is needed."""
    return io.BufferedReader(_Chunks(chunks), CHUNK_BYTES)
