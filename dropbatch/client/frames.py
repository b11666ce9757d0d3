"""Frames, and Parquet and Arrow files, as the CSV that is uploaded. Needs pyarrow.

A column that cannot be a cell, such as a list, is left out with a warning unless it is needed: it
is the input, the reference, or in the template. A list of messages is a cell of JSON.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from dropbatch.core.formats.base import encode
from dropbatch.core.formats.rows import (
    INPUT_COLUMNS,
    MESSAGES,
    REFERENCE_COLUMNS,
    Template,
    first_of,
)
from dropbatch.errors import UploadRefused, UsageError

CHUNK_BYTES = 1 << 20
SUFFIXES = (".parquet", ".pq", ".arrow", ".arrows", ".ipc", ".feather")
PARQUET, ARROW_FILE, ARROW_STREAM = b"PAR1", b"ARROW1", b"\xff\xff\xff\xff"
"""What the files begin with; Hugging Face's `Dataset.save_to_disk` writes a stream."""
MAGIC_BYTES = 6
MAX_WHOLE = float(1 << 63)
SCIENTIFIC = 1e10
"""From here on, Arrow writes a float with an exponent."""


@dataclass(frozen=True)
class Table:
    """What is read as a table: its schema, and its record batches with at least these columns."""

    schema: Any
    batches: Callable[[Sequence[str]], Iterable[Any]]


def pyarrow() -> Any:
    """The module, which is loaded only where it is needed."""
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError:
        raise UsageError("This needs pyarrow: pip install 'dropbatch[data]'.") from None
    return pa


def is_table(beginning: bytes) -> bool:
    """Whether a file that begins so is one of Parquet's or Arrow's."""
    return beginning.startswith((PARQUET, ARROW_FILE, ARROW_STREAM))


def table_of_file(file: Any) -> Table:
    """The table in a Parquet or Arrow file, of which only the columns that are needed are read."""
    pa = pyarrow()
    try:
        beginning = beginning_of(file)
        if beginning.startswith(ARROW_FILE):
            return _arrow_table(pa, pa.ipc.open_file, file)
        if beginning.startswith(ARROW_STREAM):
            return _arrow_table(pa, pa.ipc.open_stream, file)
        from pyarrow import parquet

        opened = parquet.ParquetFile(file)
        schema = opened.schema_arrow
        return Table(
            schema,
            lambda names: opened.iter_batches(columns=None if len(names) == len(schema) else names),
        )
    except pa.ArrowException as error:
        raise UsageError(f"It cannot be read: {error}") from error


def beginning_of(file: BinaryIO) -> bytes:
    """The first bytes of a file that can be read again from there."""
    at = file.tell()
    beginning = file.read(MAGIC_BYTES)
    file.seek(at)
    return beginning


def _arrow_table(pa: Any, reader: Any, file: Any) -> Table:
    start = file.tell()
    opened = reader(file)

    def batches(names: Sequence[str]) -> Iterator[Any]:
        fields = [opened.schema.get_field_index(name) for name in names]
        file.seek(start)
        again = reader(file, options=pa.ipc.IpcReadOptions(included_fields=fields))
        if reader is pa.ipc.open_stream:
            yield from again
        else:
            yield from (again.get_batch(index) for index in range(again.num_record_batches))

    return Table(opened.schema, batches)


_UNREADABLE = (TypeError, ValueError, OverflowError)
"""What pandas and pyarrow raise for values that make no column, beside Arrow's own."""


def table_of_frame(frame: Any) -> Table:
    """The table that a frame is: anything with Arrow's stream interface."""
    pa = pyarrow()
    try:
        reader = pa.RecordBatchReader.from_stream(frame)
    except (*_UNREADABLE, pa.ArrowException) as error:
        if "non-struct type" in str(error):
            raise TypeError from error
        if hasattr(frame, "columns"):
            _check_names(list(map(str, frame.columns)))
        words = [error] if isinstance(error, UnicodeError) else error.args
        why = ". ".join(str(one).rstrip(".") for one in words)
        raise UsageError(
            f"The frame cannot be read: {why}. Give each column one type, text or numbers, or "
            "leave it out."
        ) from error
    return Table(reader.schema, lambda _: reader)


def csv_chunks(table: Table, template: str = "") -> tuple[Iterator[bytes], list[str]]:
    """A table as CSV, some rows at a time, and what is left out. Null and NaN are empty cells."""
    pa = pyarrow()
    names = [one for one in table.schema.names if not one.startswith("__index_level_")]
    _check_names(names)
    left_out = dict[str, str]()
    needed = _needed(names, template)
    for name in names:
        kind = table.schema.field(name).type
        if not _is_chat(pa, name, kind) and (why := _no_cell(pa, kind)):
            left_out[name] = why
    kept = [name for name in names if name not in left_out]
    for name, why in left_out.items():
        if name in needed or not kept:
            raise UsageError(f"Column {name!r} cannot be sent: {why}.")
        if len(kept) == 1 and not template:
            what_is_left = (
                f"Without it, {kept[0]!r} is left. If that is the text, template names it"
            )
            raise UsageError(f"Column {name!r} cannot be sent: {why}. {what_is_left}.")
    notes = [f"Column {name!r} is left out: {why}." for name, why in left_out.items()]
    return _chunks(pa, table, kept), notes


def _check_names(names: list[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UsageError(f"Two columns have the name {twice[0]!r}. Rename one.")


def _needed(names: list[str], template: str) -> set[str]:
    def first(candidates: Sequence[str]) -> list[int]:
        found = first_of(names, candidates)
        return [] if found is None else [found]

    try:
        chosen = first([MESSAGES, *INPUT_COLUMNS])
        wanted = Template(template, names).columns if template else chosen
    except UploadRefused:  # The check of the upload says so.
        wanted = []
    return {names[index] for index in (*wanted, *first(REFERENCE_COLUMNS))}


_AS_TEXT = "a cell is text or a number. Write it as text"


def _no_cell(pa: Any, kind: Any) -> str:
    """Why a column of this type cannot be written as cells; empty if it can."""
    kind, types = _plain(kind), pa.types
    if types.is_nested(kind):
        return f"it is nested, and {_AS_TEXT}, such as JSON"
    if types.is_duration(kind) or types.is_interval(kind):
        return f"it has durations, and {_AS_TEXT}, or as a number of seconds"
    if isinstance(kind, pa.BaseExtensionType):
        return f"its type is {kind}, and {_AS_TEXT}"
    if types.is_fixed_size_binary(kind) or _is_binary(pa, kind):
        return f"it has bytes, and {_AS_TEXT}"
    return ""


def _is_chat(pa: Any, name: str, kind: Any) -> bool:
    """Whether a column has messages of a chat: they are written as JSON."""
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if name.strip().casefold() != MESSAGES or not (is_list and pa.types.is_struct(kind.value_type)):
        return False
    return {"role", "content"} <= {one.name for one in kind.value_type}


def _as_json(value: Any) -> Any:
    """A value without the nulls that a struct has for members that are not there."""
    if isinstance(value, dict):
        return {name: _as_json(one) for name, one in value.items() if one is not None}
    return [_as_json(one) for one in value] if isinstance(value, list) else value


def _is_binary(pa: Any, kind: Any) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _plain(kind: Any) -> Any:
    """The type of a column's values, without what only stores them in another way."""
    pa = pyarrow()
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    is_text = isinstance(kind, pa.BaseExtensionType) and (
        pa.types.is_string(kind.storage_type) or pa.types.is_large_string(kind.storage_type)
    )
    return kind.storage_type if is_text else kind


def _chunks(pa: Any, table: Table, kept: list[str]) -> Iterator[bytes]:
    from pyarrow import csv

    written, row = io.BytesIO(), 0
    empty = pa.record_batch([pa.array([], pa.string())] * len(kept), kept)
    csv.CSVWriter(written, empty.schema).close()  # the header
    try:
        for batch in table.batches(kept):
            for rows in _slices(batch):
                columns = [
                    _cells(pa, rows.column(name), name, row, only=len(kept) == 1) for name in kept
                ]
                cells = pa.record_batch(columns, kept)
                options = csv.WriteOptions(include_header=False)
                with csv.CSVWriter(written, cells.schema, write_options=options) as writer:
                    writer.write_batch(cells)
                row += rows.num_rows
                yield written.getvalue()
                written.seek(0)
                written.truncate()
    except (pa.ArrowException, OSError) as error:
        raise UsageError(f"The table cannot be read after row {row:,}: {error}") from error
    yield written.getvalue()


def _slices(batch: Any) -> Iterator[Any]:
    """Rows of about `CHUNK_BYTES`, without a copy: a frame is often one batch."""
    rows = max(1, batch.num_rows * CHUNK_BYTES // max(batch.nbytes, 1))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _cells(pa: Any, column: Any, name: str, row: int, *, only: bool) -> Any:
    types = pa.types
    try:
        if isinstance(column.type, pa.BaseExtensionType):
            column = column.storage
        if types.is_dictionary(column.type):
            column = _cells(pa, column.dictionary, name, row, only=False).take(column.indices)
        kind = column.type
        if types.is_nested(kind):
            found = (one and encode(_as_json(one)).decode() for one in column.to_pylist())
            column = pa.array(found, pa.string())
        elif types.is_floating(kind):
            column = _numbers(pa, column)
        elif types.is_string_view(kind):
            column = column.cast(pa.string())
        return column.cast(pa.string()).fill_null("") if only else column
    except pa.ArrowException as error:
        last = row + len(column)
        raise UsageError(
            f"Rows {row + 1:,} to {last:,} of column {name!r} cannot be written: {error}"
        ) from error


def _numbers(pa: Any, column: Any) -> Any:
    """Floats: NaN is null, whole ones are written without a fraction and an exponent."""
    compute = pa.compute
    column = column.cast(pa.float32()) if pa.types.is_float16(column.type) else column
    column = compute.if_else(compute.is_nan(column), pa.scalar(None, column.type), column)
    size = compute.abs(column)
    is_whole = compute.and_(
        compute.less(size, MAX_WHOLE), compute.equal(compute.floor(column), column)
    )
    if compute.all(is_whole, min_count=0).as_py():
        return column.cast(pa.int64())
    if not compute.any(compute.and_(is_whole, compute.greater_equal(size, SCIENTIFIC))).as_py():
        return column
    whole = compute.if_else(is_whole, column, pa.scalar(0, column.type)).cast(pa.int64())
    return compute.if_else(is_whole, whole.cast(pa.string()), column.cast(pa.string()))
