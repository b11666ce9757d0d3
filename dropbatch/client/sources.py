"""What can be submitted, each as a stream with a name: files, pipes, S3, records, frames."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import msgspec

from dropbatch.client.frames import (
    SUFFIXES,
    Table,
    beginning_of,
    csv_chunks,
    is_table,
    pyarrow,
    table_of_file,
    table_of_frame,
)
from dropbatch.client.stack import S3, Stack, blocks, find_object, object_file
from dropbatch.core.formats.rows import REFERENCE_COLUMNS, first_of
from dropbatch.core.options import option_name
from dropbatch.core.read.lines import inner_values
from dropbatch.errors import Error, UsageError

CHUNK_BYTES = 1 << 20
_TABLE, _ROWS = {"format": "csv"}, {"format": "objects"}


@dataclass(frozen=True)
class Source:
    """What is uploaded.

    Attributes:
        name: of the upload, if it has no other.
        stream: its bytes; closed after the upload unless it is the user's own.
        options: that follow from what it is.
        stored: where it lies in S3: then it is copied, and the stream is only for the check.
        etag: of an object in S3 that has no version.
        digest: the ETag of an object in S3.
    """

    name: str
    stream: BinaryIO
    size: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] | None = None
    etag: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    digest: str = ""


def given_options(options: Mapping[str, object]) -> dict[str, object]:
    """The options that are set; a template that is a path is read."""
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if option_name(name) == "template" and isinstance(value, os.PathLike):
            given[name] = read_template(Path(value))
    return given


def read_template(path: Path) -> str:
    """The template in a file, without the line feed at its end."""
    try:
        return path.read_text("utf-8-sig").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"template: {path} cannot be read as UTF-8: {error}.") from error


def open_source(
    source: str | os.PathLike[str] | BinaryIO | Iterable[Mapping[str, Any]] | object,
    template: object = None,
    stack: Stack | None = None,
) -> Source:
    """Open what a user submits: what it may be, `Client.submit` says; with a stack also of S3."""
    named = template if isinstance(template, str) else ""
    if stack and isinstance(source, str) and is_stored(source):
        return _open_stored(stack, source, named)
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return _file(Path(source), named)
    if hasattr(source, "__arrow_c_stream__"):
        try:
            return table_source(table_of_frame(source), _unnamed(".csv"), named)
        except TypeError:
            return table_source(_series_table(source), _unnamed(".csv"), named)
    if hasattr(source, "read"):
        return _open_stream(source, named)
    if isinstance(source, dict | bytes) or not hasattr(source, "__iter__"):
        raise UsageError(
            f"A {type(source).__name__} cannot be submitted. Give a path, a binary file, an "
            "iterable of dicts or of texts, or a frame of pandas, polars or pyarrow."
        )
    records = iter(source)
    first = list(islice(records, 1))
    if first and isinstance(first[0], str):
        return Source(_unnamed(".csv"), stream_of(_text_rows(chain(first, records))), None, _TABLE)
    if isinstance(source, csv.DictReader) or hasattr(source, "features"):  # Of Hugging Face.
        return Source(_unnamed(".jsonl"), stream_of(_lines(chain(first, records))), None, _ROWS)
    size = None if first else 0
    return Source(_unnamed(".jsonl"), stream_of(_lines(chain(first, records))), size)


def _open_stream(source: Any, template: str) -> Source:
    if isinstance(source, io.TextIOBase):
        raise UsageError("A file that is submitted must be open for bytes: open(path, 'rb').")
    name = getattr(source, "name", None)
    given = Path(name).name if isinstance(name, str) else ""
    stream = _steady(source, given)
    if given == "<stdin>":
        return Source(_unnamed("", "stdin-"), stream)
    given = given if given.strip("<>") == given else ""
    if hasattr(source, "seekable") and source.seekable() and is_table(beginning_of(source)):
        own = Path(given).with_suffix(".csv").name if given else _unnamed(".csv")
        return table_source(table_of_file(source), own, template)
    return Source(given or _unnamed(".jsonl"), stream)


def upload_name(path: Path) -> str:
    """The name of a file's upload: its own, or its table's; empty if it is a pipe."""
    if _is_table(path):
        return path.with_suffix(".csv").name
    return path.name if path.is_file() else ""


def _file(path: Path, template: str) -> Source:
    try:
        name = upload_name(path)
        if _is_table(path):
            return table_source(table_of_file(pyarrow().OSFile(str(path))), name, template)
        if not name:
            return Source(_unnamed("", "stdin-"), path.open("rb"))
        steady = _Steady(path.open("rb", buffering=0), path, owned=True)
        return Source(name, io.BufferedReader(steady), path.stat().st_size)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UsageError as error:
        error.source = str(path)
        raise


def _is_table(path: Path) -> bool:
    if path.suffix.lower() in SUFFIXES:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return is_table(beginning_of(file))


def _steady(stream: Any, name: str) -> BinaryIO:
    """A user's own stream; if it is a regular file, one that must not be written anew meanwhile."""
    if not isinstance(stream, io.BufferedReader | io.BufferedRandom | io.FileIO):
        return stream  # type: ignore[no-any-return] # It has `read`.
    try:
        is_file = stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except OSError:
        return stream
    return io.BufferedReader(_Steady(stream, name, owned=False)) if is_file else stream


class _Steady(io.RawIOBase):
    """A regular file: half of one that is written anew must not become a job. It may grow."""

    def __init__(
        self, file: io.FileIO | io.BufferedReader | io.BufferedRandom, name: object, *, owned: bool
    ) -> None:
        self._file, self._name, self._owned = file, name, owned
        self._size, self._modified = self._state()

    def _state(self) -> tuple[int, int]:
        found = os.fstat(self._file.fileno())
        return found.st_size, found.st_mtime_ns

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def readinto(self, buffer: Any) -> int | None:
        if count := self._file.readinto(buffer):
            return count
        size, modified = self._state()
        if (held := self._file.tell()) < self._size:
            raise Error(
                f"{self._name} became shorter while it was read: it had {self._size:,} bytes, and "
                f"ends after {held:,}. It is not uploaded."
            )
        if size == self._size and modified != self._modified:
            raise Error(f"{self._name} was changed while it was read. It is not uploaded.")
        return count

    def close(self) -> None:
        if self._owned:
            self._file.close()
        super().close()


def _unnamed(suffix: str, prefix: str = "") -> str:
    return f"{prefix}{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}{suffix}"


def _lines(records: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Records as JSON Lines. Half of a surrogate pair stays escaped: that record fails alone."""
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UsageError(
                f"Record {number:,} must be a dict, such as {{'text': …}}, not "
                f"{type(record).__name__}."
            )
        if None in record:  # As `csv.DictReader` names the fields that a header does not.
            raise UsageError(
                f"Record {number:,} has a member without a name: {record[None]!r:.60}."
            )
        try:
            yield _encode(record).encode() + b"\n"
        except UnicodeEncodeError:
            yield json.dumps(record, default=_plain, separators=(",", ":")).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            why = _fault_in(record, "") or f"It cannot be written as JSON: {error}."
            raise UsageError(f"Record {number:,}: {why}") from error


def _text_rows(texts: Iterable[Any]) -> Iterator[bytes]:
    yield b"text\n"
    for number, text in enumerate(texts, 1):
        if not isinstance(text, str):
            raise UsageError(
                f"Record {number:,} must be a text, as the first one, not {type(text).__name__}."
            )
        try:
            yield b'"%b"\n' % text.replace('"', '""').encode()
        except UnicodeEncodeError as error:
            raise UsageError(
                f"Record {number:,} has a character that is not Unicode text: {error.reason}."
            ) from error


_REFUSED: dict[type, str] = {
    Decimal: "is a Decimal. Write float(…), or str(…) for its exact digits",
    **dict.fromkeys((bytes, bytearray, memoryview), "has bytes. Write their text, or base64"),
    **dict.fromkeys((set, frozenset), "is a set, which has no order. Write a list"),
    timedelta: "is a timedelta. Write its total_seconds(), or text",
}
"""Types that JSON does not have, and that could become several things."""


def _plain(value: Any) -> Any:
    """A value that JSON lacks as one that it has: NumPy's as Python's, a time, a UUID, an Enum."""
    if _why_refused(value):
        raise TypeError
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    return (
        value.isoformat()
        if type(value) is not datetime and isinstance(value, date)
        else msgspec.to_builtins(value)
    )


_encode = json.JSONEncoder(
    allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain
).encode


def _why_refused(value: object) -> str:
    """Why a value is not written; empty if it is, or if nobody knows."""
    kind = type(value).__name__
    number = value if isinstance(value, float) else 0.0
    is_missing = kind in {"NAType", "NaTType"} or math.isnan(number)
    if is_missing or math.isinf(number):
        missing = "None" if is_missing else "a number"
        return (
            f"is {value}, which JSON does not have. Write {missing}, or leave it out; or "
            "submit the frame itself"
        )
    return next((why for refused, why in _REFUSED.items() if isinstance(value, refused)), "")


def _fault_in(value: object, path: str) -> str:
    """Where in a record a value is that cannot be written, and why; empty if there is none."""
    if path.count(".") + path.count("[") > _MAX_DEPTH:
        return ""
    if why := _why_refused(value):
        return f"{path} {why}."
    if value is not None and not isinstance(value, str | int | float | dict | list | tuple):
        try:
            return _fault_in(_plain(value), f"{path}.")
        except (TypeError, ValueError):
            return f"{path} is a {type(value).__name__}, which cannot be written as JSON."
    found = (_fault_in(one, name) for name, one in inner_values(value, path))
    return next(filter(None, found), "")


_MAX_DEPTH = 50
"""Levels of a record that are searched for a value that cannot be written."""


def _series_table(series: Any) -> Table:
    pa = pyarrow()
    column = pa.chunked_array(series)
    kind, types = column.type, pa.types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
        words = f"A {type(series).__name__} of {kind} cannot be submitted. Give one of texts, or a"
        raise UsageError(f"{words} frame.")
    name = getattr(series, "name", None)
    is_own = isinstance(name, str) and name and first_of([name], REFERENCE_COLUMNS) is None
    return table_of_frame(pa.table({name if is_own else "text": column}))


def table_source(
    table: Table, name: str, template: str, metadata: Mapping[str, str] | None = None
) -> Source:
    """A table as a CSV upload."""
    chunks, notes = csv_chunks(table, template)
    return Source(
        name, stream_of(chunks), None, _TABLE, metadata=metadata or {}, notes=tuple(notes)
    )


class _Chunks(io.RawIOBase):
    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._left = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
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


def is_stored(source: object) -> bool:
    """Whether a source is named as an object of S3."""
    return isinstance(source, str) and source.startswith(S3)


def stored_name(url: str) -> str:
    """The name of the upload that an object becomes: its own, or its table's."""
    name = url.rpartition("/")[2]
    return PurePosixPath(name).with_suffix(".csv").name if names_table(name) else name


def _open_stored(stack: Stack, url: str, template: str) -> Source:
    """Open an object that is named `s3://bucket/key`."""
    bucket, head = find_object(stack, url)
    key = url.removeprefix(S3).partition("/")[2]
    place, pinned, etag = {"Bucket": bucket, "Key": key}, {}, ""
    if head.version != "null":
        place["VersionId"] = head.version
    else:
        etag = head.etag
        pinned = {"IfMatch": f'"{etag}"'}
    pinned = place | pinned
    if names_table(key):
        file = object_file(stack.s3, pinned, head.size)
        try:
            table = table_of_file(file)
        except UsageError as error:
            error.source = url
            raise
        made = table_source(table, stored_name(url), template, head.metadata)
        return replace(made, digest=head.etag)
    stream = stream_of(blocks(stack.s3, pinned, head.size))
    return Source(
        stored_name(url),
        stream,
        head.size,
        stored=place,
        etag=etag,
        metadata=head.metadata,
        digest=head.etag,
    )


def names_table(key: str) -> bool:
    """Whether an object's name says that it is a file of Parquet or Arrow."""
    return key.lower().endswith(SUFFIXES)
