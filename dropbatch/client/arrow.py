"""A job's records as columns of Arrow. Needs pyarrow.

Records are read some at a time, so that memory does not grow with them.
"""

from __future__ import annotations

import itertools
import json
from array import array
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from dropbatch.client.frames import pyarrow
from dropbatch.client.records import (
    Record,
    ResultFiles,
    answer_position,
    delimiter_of,
    is_native,
    lines_of,
    table_rows,
)
from dropbatch.core.formats.answers import text_value
from dropbatch.core.formats.base import NULL, members_of
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.formats.tables import Columns, read_fields
from dropbatch.core.read.rows import split_row
from dropbatch.errors import Error

CHUNK_RECORDS = 4_096
"""Records of one Arrow batch: 6 MB of embeddings of 384 numbers."""


def record_batches(files: ResultFiles, *, columns: bool = False) -> Any:
    """A job's records as a `pyarrow.RecordBatchReader`; what columns, `Job.to_arrow` says."""
    pa = pyarrow()
    first = next((one for one in files.records() if one.success), None)
    width = len((first and first.embedding) or ())  # How many numbers an embedding has.
    schema = _schema(pa, width)
    batches = (_batch(pa, chunk, schema, width) for chunk in _chunks(files.records()))
    own = own_columns(files) if columns and not is_native(files.format) else None
    if own is None:
        return pa.RecordBatchReader.from_batches(schema, batches)
    return _beside(pa, files, own, schema, batches)


def vector_column(schema: Any) -> str | None:
    """The name of the column of embeddings; None if the answers are no embeddings."""
    pa = pyarrow()
    return next((one.name for one in schema if pa.types.is_fixed_size_list(one.type)), None)


def _schema(pa: Any, width: int) -> Any:
    answer = ("embedding", pa.list_(pa.float32(), width)) if width else ("answer", pa.string())
    return pa.schema(
        [
            ("id", pa.int64()),
            ("external_reference", pa.string()),
            ("success", pa.bool_()),
            answer,
            ("finish_reason", pa.string()),
            ("error_code", pa.string()),
            ("error_message", pa.string()),
        ]
    )


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    while chunk := list(itertools.islice(records, CHUNK_RECORDS)):
        yield chunk


def _batch(pa: Any, records: list[Record], schema: Any, width: int) -> Any:
    if width:
        answers = _vectors(pa, [one.embedding for one in records], width, records)
    else:
        answers = pa.array([one.text for one in records], pa.string())
    errors = [one.error or one.flaw for one in records]
    columns = [
        pa.array([one.id for one in records], pa.int64()),
        pa.array([_reference(one.external_reference) for one in records], pa.string()),
        pa.array([one.success for one in records], pa.bool_()),
        answers,
        pa.array([one.finish_reason or None for one in records], pa.string()),
        pa.array([one and one.code for one in errors], pa.string()),
        pa.array([one and one.message for one in errors], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _reference(value: Any) -> str | None:
    return (
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )


def _vectors(pa: Any, vectors: list[list[float] | None], width: int, records: list[Record]) -> Any:
    numbers = array("f")
    blank = array("f", bytes(4 * width))
    for record, vector in zip(records, vectors, strict=True):
        if vector is not None and len(vector) != width:
            raise Error(
                f"Record {record.id} has a vector of {len(vector)} numbers; the first has {width}."
            )
        numbers.extend(blank if vector is None else vector)
    mask = pa.array([one is None for one in vectors]) if None in vectors else None
    values = pa.Array.from_buffers(pa.float32(), len(numbers), [None, pa.py_buffer(numbers)])
    return pa.FixedSizeListArray.from_arrays(values, width, mask=mask)


_END_COLUMNS = 3
"""`finish_reason`, `error_code` and `error_message` end an output's rows."""


class OwnColumns(NamedTuple):
    """The columns of an output: the upload's own come before the answer's place."""

    delimiter: bytes
    names: tuple[str, ...]
    answer: int

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the upload's own columns."""
        return self.names[: self.answer]

    @property
    def members(self) -> tuple[str, ...]:
        """The names of the columns with the answer's members."""
        return self.names[self.answer + 1 : len(self.names) - _END_COLUMNS]

    def free(self, name: str) -> str:
        """A name for another column, with a number if the upload has one of that name."""
        taken, number, choice = {*self.own, *self.members}, 2, name
        while choice in taken:
            choice, number = f"{name}_{number}", number + 1
        return choice


def own_columns(files: ResultFiles) -> OwnColumns | None:
    """The columns of rows with their answers, of objects by the first; None without any."""
    if not FORMATS[files.format].has_rows:
        return None
    if FORMATS[files.format].is_json:
        names = tuple(members_of(next(lines_of(files.output()), b"")) or ())
        return OwnColumns(b"", names, answer_position(names)) if names else None
    header = next(table_rows(files.output()), b"")
    if not header:
        return None
    delimiter = delimiter_of(header + b"\n")
    columns = Columns(header, delimiter)
    return OwnColumns(delimiter, tuple(columns.names), answer_position(columns.names))


def _beside(
    pa: Any, files: ResultFiles, own: OwnColumns, schema: Any, batches: Iterable[Any]
) -> Any:
    success, answer, *ends = [one.with_name(own.free(one.name)) for one in schema][2:]
    mine = [pa.field(one, pa.string()) for one in own.own]
    members = [pa.field(one, pa.string()) for one in own.members]
    whole = pa.schema([*mine, success, answer, *members, *ends])

    def joined() -> Iterator[Any]:
        for batch, texts in zip(batches, _texts(files, own), strict=True):
            made = batch.columns[2:]
            cells = [pa.array(column, pa.string()) for column in texts]
            before, after = cells[: own.answer], cells[own.answer + 1 :]
            columns = [*before, *made[:2], *after[: len(members)], *made[2:]]
            yield pa.RecordBatch.from_arrays(columns, schema=whole)

    return pa.RecordBatchReader.from_batches(whole, joined())


def _texts(files: ResultFiles, own: OwnColumns) -> Iterator[list[tuple[str | None, ...]]]:
    if own.delimiter:
        rows = (_values(row, own) for row in itertools.islice(table_rows(files.output()), 1, None))
    else:
        rows = (_cells(line, own) for line in lines_of(files.output()))
    while some := list(itertools.islice(rows, CHUNK_RECORDS)):
        yield list(zip(*some, strict=True))


def _cells(line: bytes, own: OwnColumns) -> list[str | None]:
    """An object's members as text; None for null and for one that it lacks."""
    members = members_of(line) or {}
    raws = [members.get(name, NULL) for name in own.names]
    return [None if raw == NULL else text_value(raw) for raw in raws]


def _values(row: bytes, own: OwnColumns) -> list[str | None]:
    """A row's values; None for an empty cell that is not in quotes."""
    raw = split_row(row, own.delimiter)
    if len(raw) != len(own.names):
        raise Error("The output was changed: a row does not fit its header.")
    (found,) = read_fields([row], own.delimiter)
    if not isinstance(found, list):
        read = (read_fields([one], own.delimiter) for one in raw)
        found = [one[0] if isinstance(one, list) and one else "" for (one,) in read]
    return [text if cell else None for text, cell in zip(found, raw, strict=True)]
