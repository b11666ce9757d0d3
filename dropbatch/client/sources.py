"""What can be submitted: files, pipes, streams, records, frames. Each becomes a stream of bytes with a name."""

from __future__ import annotations

import io
import json
import math
import secrets
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from dropbatch.errors import UsageError
from dropbatch.tables.frames import SUFFIXES, beginning_of, csv_chunks, is_table, table_of_file, table_of_frame

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping

    from dropbatch.tables.frames import Table


@dataclass(frozen=True)
class Source:
    """What is uploaded.

    Attributes:
        name: of the upload, if it has no other.
        stream: its bytes; closed after the upload unless it is the user's own.
        size: in bytes; None if it is not known before the end.
        options: that follow from what it is.
    """

    name: str
    stream: BinaryIO
    size: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)


def open_source(
    source: str | os.PathLike[str] | BinaryIO | Iterable[Mapping[str, Any]] | object, template: object = None
) -> Source:
    """Open what a user submits.

    Args:
        source: a path (of a file, a named pipe, a Parquet or Arrow file); a binary stream; an iterable of records; or
            a frame: anything with Arrow's stream interface, such as a DataFrame of pandas or polars, or a Table.
        template: the option, if it is given: which columns of a table are needed.

    Raises:
        UsageError: it cannot be read, or is none of these.
    """
    named = template if isinstance(template, str) else ""
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        return _file(Path(source), named)
    if hasattr(source, "__arrow_c_stream__"):
        try:
            return _table(table_of_frame(source), _unnamed(".csv"), named)
        except TypeError:  # a series
            raise _no_source(source) from None
    if isinstance(source, io.TextIOBase):
        raise UsageError("A file that is submitted must be open for bytes: open(path, 'rb').")
    if hasattr(source, "read"):
        name = getattr(source, "name", None)
        given = Path(name).name if isinstance(name, str) else ""
        if given == "<stdin>":
            return Source(_unnamed("", "stdin-"), source)  # type: ignore[arg-type]
        given = given if given.strip("<>") == given else ""
        if hasattr(source, "seekable") and source.seekable() and is_table(beginning_of(source)):  # type: ignore[arg-type]
            return _table(
                table_of_file(source), Path(given).with_suffix(".csv").name if given else _unnamed(".csv"), named
            )
        return Source(given or _unnamed(".jsonl"), source)  # type: ignore[arg-type]
    if isinstance(source, dict | bytes) or not hasattr(source, "__iter__"):
        raise _no_source(source)
    return Source(_unnamed(".jsonl"), stream_of(_lines(source)))


def _no_source(source: object) -> UsageError:
    return UsageError(
        f"A {type(source).__name__} cannot be submitted. Give a path, a binary file, an iterable of dicts, or a "
        "frame of pandas, polars or pyarrow."
    )


CHUNK_BYTES = 1 << 20
_TABLE = {"format": "csv"}


def _file(path: Path, template: str) -> Source:
    try:
        size = path.stat().st_size if path.is_file() else None
        if path.suffix.lower() in SUFFIXES or (size and _is_table(path)):
            return _table(table_of_file(path), path.with_suffix(".csv").name, template)
        return Source(path.name if size is not None else _unnamed("", "stdin-"), path.open("rb"), size)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UsageError as error:
        error.args = (f"{path}: {error}",)
        raise


def _is_table(path: Path) -> bool:
    with path.open("rb") as file:
        return is_table(beginning_of(file))


def _unnamed(suffix: str, prefix: str = "") -> str:
    return f"{prefix}{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}{suffix}"


# ── records ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(records: Iterable[Mapping[str, Any]]) -> Iterator[bytes]:
    """Records as JSON Lines.

    Half of a surrogate pair stays as it is, escaped: the stack fails that record alone, as in any file.
    """
    for number, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UsageError(f"Record {number:,} must be a dict, such as {{'text': …}}, not {type(record).__name__}.")
        if None in record:  # As `csv.DictReader` names the fields that a header does not.
            raise UsageError(f"Record {number:,} has a member without a name: {record[None]!r:.60}.")
        try:
            yield _encode(record).encode() + b"\n"
        except UnicodeEncodeError:
            yield json.dumps(record, default=_plain, separators=(",", ":")).encode() + b"\n"
        except (TypeError, ValueError, RecursionError) as error:
            why = _fault_in(record, "") or f"It cannot be written as JSON: {error}."
            raise UsageError(f"Record {number:,}: {why}") from error


_REFUSED: dict[type, str] = {
    Decimal: "is a Decimal. Write float(…), or str(…) for its exact digits",
    **dict.fromkeys((bytes, bytearray, memoryview), "has bytes. Write their text, or base64"),
    **dict.fromkeys((set, frozenset), "is a set, which has no order. Write a list"),
    timedelta: "is a timedelta. Write its total_seconds(), or text",
}
"""Types that JSON does not have, and that could become several things."""


def _plain(value: Any) -> Any:  # noqa: ANN401
    """A value that JSON lacks, as one that it has: NumPy's as Python's; a time, a UUID, an Enum, a data class as usual.

    Raises:
        TypeError: what it should become is not certain.
    """
    if _why_refused(value):
        raise TypeError
    if callable(getattr(value, "tolist", None)):
        return value.tolist()
    return value.isoformat() if type(value) is not datetime and isinstance(value, date) else msgspec.to_builtins(value)


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"), default=_plain).encode


def _why_refused(value: object) -> str:
    """Why a value is not written; empty if it is, or if nobody knows."""
    kind = type(value).__name__
    if kind in {"NAType", "NaTType"} or (isinstance(value, float) and not math.isfinite(value)):
        missing = "None" if kind in {"NAType", "NaTType"} or math.isnan(value) else "a number"  # type: ignore[arg-type]
        return f"is {value}, which JSON does not have. Write {missing}, or leave it out; or submit the frame itself"
    return next((why for refused, why in _REFUSED.items() if isinstance(value, refused)), "")


def _fault_in(value: object, path: str) -> str:
    """Where in a record a value is that cannot be written, and what to do; empty if there is none."""
    if path.count(".") + path.count("[") > _MAX_DEPTH:
        return ""
    if why := _why_refused(value):
        return f"{path} {why}."
    inner: Iterable[tuple[str, object]] = ()
    if isinstance(value, dict):
        inner = ((f"{path}.{name}" if path else str(name), one) for name, one in value.items())
    elif isinstance(value, list | tuple):
        inner = ((f"{path}[{index}]", one) for index, one in enumerate(value))
    elif value is not None and not isinstance(value, str | int | float):
        try:
            return _fault_in(_plain(value), f"{path}.")
        except (TypeError, ValueError):
            return f"{path} is a {type(value).__name__}, which cannot be written as JSON."
    return next((found for name, one in inner if (found := _fault_in(one, name))), "")


_MAX_DEPTH = 50
"""Levels of a record that are searched for a value that cannot be written."""


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _table(table: Table, name: str, template: str) -> Source:
    """A table as a CSV upload."""
    return Source(name, stream_of(csv_chunks(table, template)), None, _TABLE)


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
