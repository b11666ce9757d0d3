"""A job's records as columns of Arrow. Needs pyarrow.

Records are read some at a time, so that memory does not grow with them.
"""

from __future__ import annotations

import itertools
import json
import re
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dropbatch.client.records import (
    answer_column,
    delimiter_of,
    is_native,
    native_records,
    table_rows,
)
from dropbatch.core.formats.answers import vectors_of
from dropbatch.core.formats.base import encode, members_of, value_of
from dropbatch.core.formats.table import FORMATS
from dropbatch.core.formats.tables import Columns, answer_text, read_fields
from dropbatch.core.read.rows import split_row
from dropbatch.errors import Error, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dropbatch.client.records import Record, ResultFiles


CHUNK_RECORDS = 4_096
"""Records of one Arrow batch: 6 MB of embeddings of 384 numbers."""
JSON_BLOCK_BYTES = 16 << 20
PARSED_BYTES = 2 << 20
"""Bytes of a block that one thread of Arrow's JSON reader parses."""


def pyarrow() -> Any:  # noqa: ANN401 - pyarrow has no types
    """The module.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.ipc
    except ImportError:
        raise UsageError("This needs pyarrow: pip install 'dropbatch[data]'.") from None
    return pa


# ── a record's answer ─────────────────────────────────────────────────────────────────────────────


def vector_of(record: Record) -> list[float] | None:
    """A record's embedding; None if its answer is no embedding.

    Raises:
        Error: it has several.
    """
    result = record.result
    if isinstance(result, str):  # A table's cell holds an embedding as the API's JSON.
        members = members_of(result.encode()) if result.startswith("{") else None
        result = (
            msgspec.json.decode(result) if members and {"shape", "data"} <= members.keys() else None
        )
    if not isinstance(result, dict):
        return None
    if isinstance(result.get("embedding"), list):  # Bedrock's Titan
        return _numbers(result["embedding"])
    for name in ("embeddings", "float"):
        inner = result.get(name)
        if isinstance(inner, dict) and isinstance(inner.get("float"), list):
            inner = inner["float"]
        if isinstance(inner, list) and inner:
            return _only(record, inner) if isinstance(inner[0], list | dict) else _numbers(inner)
    found = vectors_of(members_of(encode(result)) or {})
    return _only(record, [value_of(one) for one in found]) if found else None


def _only(record: Record, found: list[Any]) -> list[float] | None:
    if len(found) > 1:
        raise Error(
            f"Record {record.id} has {len(found)} vectors. Send one text a record, or read "
            "them with `Job.results()`."
        )
    one = found[0].get("values") if isinstance(found[0], dict) else found[0]
    return _numbers(one) if isinstance(one, list) else None


def _numbers(found: list[Any]) -> list[float] | None:
    return found if all(isinstance(one, int | float) for one in found) else None


def text_of(record: Record) -> str | None:
    """A record's answer as text: its text or its tool calls, else the result as JSON.

    None if it failed.
    """
    if record.result is None:
        return None
    return record.result if isinstance(record.result, str) else answer_text(encode(record.result))


# ── columns ───────────────────────────────────────────────────────────────────────────────────────


def width_of(files: ResultFiles) -> int:
    """How many numbers the first answer's embedding has; 0 if it is none.

    Raises:
        Error: it has several.
    """
    first = next((one for one in files.records() if one.success), None)
    return len(vector_of(first) or ()) if first else 0


def record_batches(files: ResultFiles, *, columns: bool = False) -> Any:  # noqa: ANN401
    """A job's records as a `pyarrow.RecordBatchReader`.

    Columns: `id` int64, `external_reference` string, `success` bool, `embedding`
    fixed_size_list<float32>[n] or `answer` string, `error_code` and `error_message` string. Of a
    table, if its columns are wanted: these, then `success` and the answer's; if the table has one
    of these names, the answer's is `answer_2`.

    Args:
        files: the job's.
        columns: whether a table's own columns are wanted, instead of `id` and `external_reference`.

    Raises:
        Error: a record has several vectors, or one of another length.
    """
    pa = pyarrow()
    width = width_of(files)
    schema = _schema(pa, width)
    if width and is_native(files.format):
        batches = _native_batches(pa, files.output(), schema, width)
    else:
        batches = (_batch(pa, chunk, schema, width) for chunk in _chunks(files.records()))
    own = own_columns(pa, files) if columns and FORMATS[files.format].is_table else None
    if own is None:
        return pa.RecordBatchReader.from_batches(schema, batches)
    return _beside(pa, files, own, schema, batches)


def _beside(
    pa: Any,  # noqa: ANN401
    files: ResultFiles,
    own: OwnColumns,
    schema: Any,  # noqa: ANN401
    batches: Iterable[Any],  # noqa: ANN401, RUF100
) -> Any:  # noqa: ANN401
    """Batches of answers beside the columns of the table that was uploaded."""
    success, answer, *errors = [one.with_name(own.free(one.name)) for one in schema][2:]
    fields = [
        *map(pa.field, own.own, own.kinds),
        success,
        answer,
        *(pa.field(one, pa.string()) for one in own.members),
    ]
    whole = pa.schema([*fields, *errors])

    def joined() -> Iterator[Any]:
        for batch, (mine, members) in zip(
            batches, cells(pa, files, own, CHUNK_RECORDS), strict=True
        ):
            made = batch.columns[2:]
            yield pa.RecordBatch.from_arrays([*mine, *made[:2], *members, *made[2:]], schema=whole)

    return pa.RecordBatchReader.from_batches(whole, joined())


def vector_column(schema: Any) -> str | None:  # noqa: ANN401
    """The name of the column of embeddings; None if the answers are no embeddings."""
    pa = pyarrow()
    return next((one.name for one in schema if pa.types.is_fixed_size_list(one.type)), None)


def _schema(pa: Any, width: int) -> Any:  # noqa: ANN401
    answer = ("embedding", pa.list_(pa.float32(), width)) if width else ("answer", pa.string())
    return pa.schema(
        [
            ("id", pa.int64()),
            ("external_reference", pa.string()),
            ("success", pa.bool_()),
            answer,
            ("error_code", pa.string()),
            ("error_message", pa.string()),
        ]
    )


def _chunks(records: Iterator[Record]) -> Iterator[list[Record]]:
    while chunk := list(itertools.islice(records, CHUNK_RECORDS)):
        yield chunk


def _batch(pa: Any, records: list[Record], schema: Any, width: int) -> Any:  # noqa: ANN401
    if width:
        answers = _vectors(
            pa, [vector_of(one) if one.success else None for one in records], width, records
        )
    else:
        answers = pa.array([text_of(one) for one in records], pa.string())
    columns = [
        pa.array([one.id for one in records], pa.int64()),
        pa.array([_reference(one.external_reference) for one in records], pa.string()),
        pa.array([one.success for one in records], pa.bool_()),
        answers,
        pa.array([one.error and one.error.code for one in records], pa.string()),
        pa.array([one.error and one.error.message for one in records], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _reference(value: Any) -> str | None:  # noqa: ANN401
    return (
        value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    )


def _vectors(pa: Any, vectors: list[list[float] | None], width: int, records: list[Record]) -> Any:  # noqa: ANN401
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


# ── the native format, read by Arrow's JSON reader ────────────────────────────────────────────────


def _native_batches(pa: Any, output: Iterable[bytes], schema: Any, width: int) -> Iterator[Any]:  # noqa: ANN401
    """Embeddings are read by Arrow's JSON reader, a block at a time.

    What it does not take is read line by line.
    """
    for block in _whole_lines(output):
        made = _read_vectors(pa, block, schema, width)
        if made is not None:
            yield made
            continue
        for chunk in _chunks(native_records([block])):
            yield _batch(pa, chunk, schema, width)


def _whole_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Blocks of about `JSON_BLOCK_BYTES` that end with a line."""
    held = bytearray()
    for block in blocks:
        held += block
        if len(held) >= JSON_BLOCK_BYTES and (end := held.rfind(b"\n") + 1):
            yield bytes(held[:end])
            del held[:end]
    if held:
        yield bytes(held)


def _read_vectors(pa: Any, block: bytes, schema: Any, width: int) -> Any:  # noqa: ANN401
    """A block's batch, if its records have embeddings in the API's usual shape; else None."""
    from pyarrow import json as arrow_json

    numbers = pa.list_(pa.list_(pa.float32()))
    wanted = pa.schema(
        [
            *((name, schema.field(name).type) for name in ("id", "external_reference", "success")),
            ("result", pa.struct([("data", numbers)])),
            ("error", pa.struct([("code", pa.string()), ("message", pa.string())])),
        ]
    )
    options = arrow_json.ParseOptions(explicit_schema=wanted, unexpected_field_behavior="ignore")
    reading = arrow_json.ReadOptions(block_size=PARSED_BYTES)
    try:
        table = arrow_json.read_json(pa.BufferReader(block), reading, options).combine_chunks()
    except pa.ArrowInvalid:
        return None
    found = table.column("result").chunk(0).field("data") if table.num_rows else None
    if found is None:
        return None
    lengths = found.value_lengths()
    if not pa.compute.all(pa.compute.equal(lengths.drop_null(), 1)).as_py():
        return None
    if lengths.null_count != len(table) - pa.compute.sum(table.column("success")).as_py():
        return None
    vectors = found.flatten()
    values = vectors.flatten()
    if len(values) != width * len(vectors) or values.null_count:
        return None
    errors = table.column("error").chunk(0)
    answers = with_gaps(pa, pa.FixedSizeListArray.from_arrays(values, width), found)
    columns = [table.column(name).chunk(0) for name in ("id", "external_reference", "success")]
    return pa.RecordBatch.from_arrays(
        [*columns, answers, errors.field("code"), errors.field("message")], schema=schema
    )


def with_gaps(pa: Any, vectors: Any, found: Any) -> Any:  # noqa: ANN401
    """The vectors, with null for each record that has none."""
    if not found.null_count:
        return vectors
    present = found.is_valid()
    positions = pa.compute.subtract(pa.compute.cumulative_sum(present.cast(pa.int64())), 1)
    return vectors.take(pa.compute.if_else(present, positions, None))


_INTEGER = re.compile(rb"-?(?:0|[1-9]\d{0,18})")
_MAX_INTEGER = 2**63 - 1
_FLOAT = re.compile(rb"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:e[-+]?\d+)?")
_BOOLEAN = re.compile(rb"true|false")
_END_COLUMNS = 2
"""`error_code` and `error_message` end an output's rows."""


class OwnColumns(NamedTuple):
    """The columns of an upload in its output.

    Attributes:
        delimiter: between the fields.
        names: of all of the output's columns.
        answer: the place of the answer; the upload's own columns come before it.
        kinds: Arrow's type of each of the upload's own columns.
    """

    delimiter: bytes
    names: tuple[str, ...]
    answer: int
    kinds: tuple[Any, ...]

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


def own_columns(pa: Any, files: ResultFiles) -> OwnColumns | None:  # noqa: ANN401
    """The columns of a table's output; None of an empty one. Reads all rows, to find the types.

    A column of numbers, or of `true` and `false`, is one of these if every cell is written as Arrow
    writes them and none is in quotes, so that no text changes: `007` and `1.50` stay text. Dates
    are text.
    """
    rows = table_rows(files.output())
    header = next(rows, b"")
    if not header:
        return None
    delimiter = delimiter_of(header + b"\n")
    columns = Columns(header, delimiter)
    answer = answer_column(columns)
    kinds = [{"int64", "float64", "bool"} for _ in range(answer)]
    seen = [False] * answer
    left = set(range(answer))
    for row in rows if left else ():
        fields = split_row(row, delimiter)
        if len(fields) != len(columns.names):
            raise Error("The output was changed: a row does not fit its header.")
        for at in tuple(left):
            if cell := fields[at]:
                seen[at] = True
                kinds[at] &= _kinds_of(pa, cell)
                if not kinds[at]:
                    left.discard(at)
    types = (
        _type(pa, kind) if some else pa.string() for kind, some in zip(kinds, seen, strict=True)
    )
    return OwnColumns(delimiter, tuple(columns.names), answer, tuple(types))


def _kinds_of(pa: Any, cell: bytes) -> set[str]:  # noqa: ANN401
    """What a cell may be, besides text."""
    if _INTEGER.fullmatch(cell) and abs(int(cell)) <= _MAX_INTEGER:
        return {"int64", "float64"} if cell != b"-0" else {"float64"}
    if _BOOLEAN.fullmatch(cell):
        return {"bool"}
    if _FLOAT.fullmatch(cell) and pa.scalar(float(cell)).cast(pa.string()).as_py() == cell.decode():
        return {"float64"}
    return set()


def _type(pa: Any, kinds: set[str]) -> Any:  # noqa: ANN401
    for name in ("int64", "float64", "bool"):
        if name in kinds:
            return pa.type_for_alias(name)
    return pa.string()


def cells(
    pa: Any,  # noqa: ANN401
    files: ResultFiles,
    columns: OwnColumns,
    size: int,  # noqa: ANN401, RUF100
) -> Iterator[tuple[list[Any], list[Any]]]:
    """The upload's own columns, and those of the answer's members, some rows at a time.

    As Arrow's arrays.

    Args:
        pa: pyarrow.
        files: the job's.
        columns: as `own_columns` returned them.
        size: rows at a time.
    """
    rows = table_rows(files.output())
    next(rows, None)
    while some := list(itertools.islice(rows, size)):
        read = [_texts(row, columns) for row in some]
        own = [_array(pa, [one[at] for one in read], kind) for at, kind in enumerate(columns.kinds)]
        first = columns.answer + 1
        members = [
            pa.array([one[at] for one in read], pa.string())
            for at in range(first, first + len(columns.members))
        ]
        yield own, members


def _array(pa: Any, texts: list[str | None], kind: Any) -> Any:  # noqa: ANN401
    if pa.types.is_boolean(kind):
        return pa.array([None if one is None else one == "true" for one in texts], kind)
    read = {"int64": int, "double": float}.get(str(kind))
    return pa.array([None if one is None else read(one) for one in texts] if read else texts, kind)


def _texts(row: bytes, columns: OwnColumns) -> list[str | None]:
    """A row's values; None for an empty cell that is not in quotes."""
    raw = split_row(row, columns.delimiter)
    (found,) = read_fields([row], columns.delimiter)
    if not isinstance(found, list) or len(found) != len(raw):
        read = (read_fields([one], columns.delimiter) for one in raw)
        found = [one[0] if isinstance(one, list) and one else "" for (one,) in read]
    return [text if cell else None for text, cell in zip(found, raw, strict=True)]
