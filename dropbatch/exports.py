"""Results as columns: Arrow, Parquet, CSV, JSON Lines, NumPy's file format, Cloudflare Vectorize's. Needs pyarrow.

Records are read some at a time, so that memory does not grow with them.
"""

from __future__ import annotations

import itertools
import json
from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropbatch.downloads import blocks_of_file
from dropbatch.errors import Error, NotFound, UsageError
from dropbatch.formats.answers import vectors_of
from dropbatch.formats.base import encode, members_of, value_of
from dropbatch.formats.tables import answer_text
from dropbatch.names import EXPORTS
from dropbatch.results import is_native, native_records, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from dropbatch.results import Record

CHUNK_RECORDS = 4_096
"""Records of one Arrow batch: 6 MB of embeddings of 384 numbers."""
JSON_BLOCK_BYTES = 16 << 20
PARSED_BYTES = 2 << 20
"""Bytes of a block that one thread of Arrow's JSON reader parses."""

VECTORS_ONLY = frozenset({"npy", "vectorize"})


@dataclass(frozen=True)
class Exported:
    """A file, its records, and how many failed ones it leaves out."""

    path: Path
    records: int
    left_out: int


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


# ── a record's answer ────────────────────────────────────────────────────────────────────────────────────────────────


def vector_of(record: Record) -> list[float] | None:
    """A record's embedding; None if its answer is no embedding.

    Raises:
        Error: it has several.
    """
    result = record.result
    if not isinstance(result, dict):
        return None
    if isinstance(result.get("embedding"), dict):  # Gemini's
        result = result["embedding"]
    if isinstance(result.get("embedding"), list):  # Bedrock's Titan
        return _numbers(result["embedding"])
    for name in ("values", "embeddings", "float"):
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
            f"Record {record.id} has {len(found)} vectors. Send one text a record, or read them with `Job.results()`."
        )
    one = found[0].get("values") if isinstance(found[0], dict) else found[0]
    return _numbers(one) if isinstance(one, list) else None


def _numbers(found: list[Any]) -> list[float] | None:
    return found if all(isinstance(one, int | float) for one in found) else None


def text_of(record: Record) -> str | None:
    """A record's answer as text: its text or its tool calls, else the result as JSON; None if it failed."""
    if record.result is None:
        return None
    return record.result if isinstance(record.result, str) else answer_text(encode(record.result))


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def record_batches(output: Iterable[bytes], errors: Iterable[bytes], format_: str) -> Any:  # noqa: ANN401
    """A job's records as a `pyarrow.RecordBatchReader`.

    Columns: `id` int64, `external_reference` string, `success` bool, `embedding` fixed_size_list<float32>[n] or
    `answer` string, `error_code` and `error_message` string.

    Args:
        output: blocks of the output.
        errors: blocks of `errors.jsonl`.
        format_: the job's format.

    Raises:
        Error: a record has several vectors, or one of another length.
    """
    pa = pyarrow()
    if is_native(format_):
        return _native_batches(pa, output)
    records = records_of(output, errors, format_)
    head, width = _until_answered(records)
    schema = _schema(pa, width)
    chunks = _chunks(itertools.chain(head, records))
    return pa.RecordBatchReader.from_batches(schema, (_batch(pa, chunk, schema, width) for chunk in chunks))


def _until_answered(records: Iterator[Record]) -> tuple[list[Record], int]:
    """Records up to the first that has an answer, and how many numbers its embedding has; 0 for text."""
    head = []
    for record in records:
        head.append(record)
        if record.success or len(head) == CHUNK_RECORDS:
            return head, len(vector_of(record) or ())
    return head, 0


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
        answers = _vectors(pa, [vector_of(one) if one.success else None for one in records], width, records)
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
    return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _vectors(pa: Any, vectors: list[list[float] | None], width: int, records: list[Record]) -> Any:  # noqa: ANN401
    numbers = array("f")
    blank = array("f", bytes(4 * width))
    for record, vector in zip(records, vectors, strict=True):
        if vector is not None and len(vector) != width:
            raise Error(f"Record {record.id} has a vector of {len(vector)} numbers; the first has {width}.")
        numbers.extend(blank if vector is None else vector)
    mask = pa.array([one is None for one in vectors]) if None in vectors else None
    values = pa.Array.from_buffers(pa.float32(), len(numbers), [None, pa.py_buffer(numbers)])
    return pa.FixedSizeListArray.from_arrays(values, width, mask=mask)


# ── the native format, read by Arrow's JSON reader ───────────────────────────────────────────────────────────────────


def _native_batches(pa: Any, output: Iterable[bytes]) -> Any:  # noqa: ANN401
    """Embeddings are read by Arrow's JSON reader, a block at a time; what it does not take is read line by line."""
    blocks = _whole_lines(output)
    head: list[bytes] = []
    width = 0
    for block in blocks:
        head.append(block)
        first = next((one for one in native_records([block]) if one.success), None)
        if first:
            width = len(vector_of(first) or ())
            break
    schema = _schema(pa, width)

    def batches() -> Iterator[Any]:
        for block in itertools.chain(head, blocks):
            made = _read_vectors(pa, block, schema, width) if width else None
            if made is not None:
                yield made
                continue
            for chunk in _chunks(native_records([block])):
                yield _batch(pa, chunk, schema, width)

    return pa.RecordBatchReader.from_batches(schema, batches())


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
    answers = _with_gaps(pa, pa.FixedSizeListArray.from_arrays(values, width), found)
    columns = [table.column(name).chunk(0) for name in ("id", "external_reference", "success")]
    return pa.RecordBatch.from_arrays([*columns, answers, errors.field("code"), errors.field("message")], schema=schema)


def _with_gaps(pa: Any, vectors: Any, found: Any) -> Any:  # noqa: ANN401
    """The vectors, with null for each record that has none."""
    if not found.null_count:
        return vectors
    present = found.is_valid()
    positions = pa.compute.subtract(pa.compute.cumulative_sum(present.cast(pa.int64())), 1)
    return vectors.take(pa.compute.if_else(present, positions, None))


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def export_folder(folder: Path, kind: str) -> Exported:
    """Write one file beside a job's downloaded results.

    Args:
        folder: has the job's manifest and files.
        kind: one of `dropbatch.names.EXPORTS`.

    Raises:
        NotFound: the job has no output.
        UsageError: `npy` or `vectorize` of records that are no embeddings; nothing is written.
    """
    manifest = json.loads((folder / "manifest.json").read_bytes())
    files = {file["kind"]: folder / file["name"] for file in manifest["files"]}
    if "output" not in files:
        raise NotFound(f"Job {manifest['job_id']} has no output.")
    blocks = {name: blocks_of_file(path) for name, path in files.items()}
    batches = record_batches(blocks["output"], blocks.get("errors", ()), manifest["format"] or "native")
    return export(kind, batches, folder, manifest["model"])


def export(kind: str, batches: Any, folder: Path, model: str) -> Exported:  # noqa: ANN401
    """Write one file of a job's records.

    Args:
        kind: one of `dropbatch.names.EXPORTS`.
        batches: of `record_batches`.
        folder: where the file is written.
        model: the job's model, which Vectorize's metadata names.

    Raises:
        UsageError: `npy` or `vectorize` of records that are no embeddings; nothing is written.
    """
    if kind in VECTORS_ONLY and "embedding" not in batches.schema.names:
        raise UsageError(f"--as {kind}: the job's answers are no embeddings. Choose parquet, arrow, csv or jsonl.")
    path = folder / EXPORTS[kind]
    partial = path.with_name(f"{path.name}.part")
    try:
        records, left_out = _WRITERS[kind](batches, partial, model)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Exported(path, records, left_out)


def _write_parquet(batches: Any, path: Path, _model: str) -> tuple[int, int]:  # noqa: ANN401
    from pyarrow import parquet

    with parquet.ParquetWriter(path, batches.schema, compression="zstd") as writer:
        return _each(batches, writer.write_batch), 0


def _write_arrow(batches: Any, path: Path, _model: str) -> tuple[int, int]:  # noqa: ANN401
    pa = pyarrow()
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batches.schema) as writer:
        return _each(batches, writer.write_batch), 0


def _write_csv(batches: Any, path: Path, _model: str) -> tuple[int, int]:  # noqa: ANN401
    """CSV has no lists: an embedding is written as a JSON array."""
    pa = pyarrow()
    from pyarrow import csv

    schema = pa.schema([(one.name, pa.string() if one.name == "embedding" else one.type) for one in batches.schema])
    with csv.CSVWriter(str(path), schema) as writer:
        return _each(batches, lambda batch: writer.write_batch(_as_text(pa, batch, schema))), 0


def _as_text(pa: Any, batch: Any, schema: Any) -> Any:  # noqa: ANN401
    if "embedding" not in batch.schema.names:
        return batch
    texts = _vector_texts(batch)
    at = batch.schema.names.index("embedding")
    return pa.RecordBatch.from_arrays([*batch.columns[:at], texts, *batch.columns[at + 1 :]], schema=schema)


def _write_jsonl(batches: Any, path: Path, _model: str) -> tuple[int, int]:  # noqa: ANN401
    with path.open("wb") as file:

        def write(batch: Any) -> None:  # noqa: ANN401
            if "embedding" not in batch.schema.names:
                file.writelines(encode(row) + b"\n" for row in batch.to_pylist())
                return
            rows = batch.drop_columns("embedding").to_pylist()
            for row, vector in zip(rows, _vector_texts(batch).to_pylist(), strict=True):
                file.write(b'%b,"embedding":%b}\n' % (encode(row)[:-1], (vector or "null").encode()))

        return _each(batches, write), 0


def _vector_texts(batch: Any) -> Any:  # noqa: ANN401
    """The embeddings as JSON arrays, each number with as few digits as a float32 needs; null for none."""
    pa = pyarrow()
    column = batch.column("embedding")
    vectors, width = column.drop_null(), column.type.list_size
    numbers = vectors.flatten().cast(pa.string())
    lists = pa.ListArray.from_arrays(pa.array(range(0, len(numbers) + 1, width), pa.int32()), numbers)
    joined = pa.compute.binary_join(lists, ",")
    texts = pa.compute.binary_join_element_wise("[", joined, "]", "")
    return texts if not column.null_count else _with_gaps(pa, texts, column)


def _write_npy(batches: Any, path: Path, _model: str) -> tuple[int, int]:  # noqa: ANN401
    """One row a record, float32, NaN where the record failed; the header is written again when the rows are known."""
    width = batches.schema.field("embedding").type.list_size
    gap = array("f", [float("nan")] * width).tobytes()
    with path.open("wb") as file:
        file.write(_npy_header(0, width))

        def write(batch: Any) -> None:  # noqa: ANN401
            column = batch.column("embedding")
            if not column.null_count:
                file.write(column.flatten().buffers()[1][4 * column.offset * width :][: 4 * width * len(column)])
                return
            for one in column.to_pylist():
                file.write(gap if one is None else array("f", one).tobytes())

        records = _each(batches, write)
        file.seek(0)
        file.write(_npy_header(records, width))
    return records, 0


def _npy_header(rows: int, width: int) -> bytes:
    """The header of NumPy's format, version 1.0, always of 128 bytes."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {width}), }}"
    return b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"


def _write_vectorize(batches: Any, path: Path, model: str) -> tuple[int, int]:  # noqa: ANN401
    """Cloudflare Vectorize's lines: https://developers.cloudflare.com/vectorize/best-practices/insert-vectors/."""
    left_out = 0
    with path.open("wb") as file:

        def write(batch: Any) -> None:  # noqa: ANN401
            nonlocal left_out
            ids, references = batch.column("id").to_pylist(), batch.column("external_reference").to_pylist()
            for id_, reference, vector in zip(ids, references, _vector_texts(batch).to_pylist(), strict=True):
                if vector is None:
                    left_out += 1
                    continue
                metadata = encode({"model": model, "record": id_})
                name = encode(reference or str(id_))
                file.write(b'{"id":%b,"values":%b,"metadata":%b}\n' % (name, vector.encode(), metadata))

        records = _each(batches, write)
    return records - left_out, left_out


def _each(batches: Any, write: Callable[[Any], None]) -> int:  # noqa: ANN401
    records = 0
    for batch in batches:
        write(batch)
        records += batch.num_rows
    return records


_WRITERS = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "npy": _write_npy,
    "vectorize": _write_vectorize,
}
