"""A job's columns as files: Parquet, CSV, Cloudflare Vectorize's. Needs pyarrow.

Records are written some at a time, so that memory does not grow with them.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from dropbatch.client.arrow import record_batches, vector_column
from dropbatch.client.download import (
    EXPORTS,
    Downloaded,
    blocks_of_file,
    check_kinds,
    download,
    writing,
)
from dropbatch.client.frames import pyarrow
from dropbatch.client.job import Job
from dropbatch.client.merge import Merged, merge_retries
from dropbatch.client.records import ResultFiles, files_of
from dropbatch.core.formats.base import encode_line as encode
from dropbatch.errors import UsageError

VECTORIZE = "vectorize"
"""The export that takes embeddings alone."""
MAX_VECTORIZE_NUMBERS = 1_536
MAX_VECTORIZE_ID = 64
"""Bytes of a vector's id: https://developers.cloudflare.com/vectorize/platform/limits/."""
MAX_VECTORIZE_REFERENCE = 10_000
"""Bytes of a reference in a vector's metadata, which has up to 10 KiB."""


@dataclass(frozen=True)
class Exported:
    """A file and what it has.

    Attributes:
        left_out: failed records that it leaves out.
        renamed: of Vectorize's: records whose id is not their reference.
    """

    path: Path
    records: int
    left_out: int = 0
    renamed: int = 0


def export(
    kind: str,
    files: ResultFiles,
    folder: Path,
    manifest: Mapping[str, Any],
    *,
    columns: bool = True,
) -> Exported:
    """Write one file of a job's records."""
    batches = record_batches(files, columns=columns and kind != VECTORIZE)
    path = folder / EXPORTS[kind]
    partial = path.with_name(f"{path.name}.part")
    try:
        if kind == VECTORIZE:
            if vector_column(batches.schema) is None:
                raise UsageError(
                    "vectorize: the job's answers are no embeddings. Choose parquet or csv."
                )
            written = _write_vectorize(batches, partial, manifest)
        else:
            written = {"records": _WRITERS[kind](batches, partial)}
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return Exported(path, **written)


def _write_parquet(batches: Any, path: Path) -> int:
    from pyarrow import parquet

    with parquet.ParquetWriter(path, batches.schema, compression="zstd") as writer:
        return _each(batches, writer.write_batch)


def _write_csv(batches: Any, path: Path) -> int:
    """CSV has no lists: an embedding is written as a JSON array."""
    pa = pyarrow()
    from pyarrow import csv

    vectors = vector_column(batches.schema)
    kinds = [(one.name, pa.string() if one.name == vectors else one.type) for one in batches.schema]
    schema = pa.schema(kinds)
    with csv.CSVWriter(str(path), schema) as writer:
        return _each(batches, lambda batch: writer.write_batch(_as_text(batch, schema)))


def _each(batches: Any, write: Callable[[Any], None]) -> int:
    records = 0
    for batch in batches:
        write(batch)
        records += batch.num_rows
    return records


_WRITERS = {"parquet": _write_parquet, "csv": _write_csv}


def _as_text(batch: Any, schema: Any) -> Any:
    vectors = vector_column(batch.schema)
    if vectors is None:
        return batch
    at = batch.schema.names.index(vectors)
    columns = [*batch.columns[:at], _vector_texts(batch), *batch.columns[at + 1 :]]
    return pyarrow().RecordBatch.from_arrays(columns, schema=schema)


def _vector_texts(batch: Any) -> Any:
    """The embeddings as JSON arrays, each number with as few digits as a float32 needs."""
    pa = pyarrow()
    column = batch.column(vector_column(batch.schema))
    numbers = column.values.cast(pa.string())
    ends = pa.array(range(0, len(numbers) + 1, column.type.list_size), pa.int32())
    joined = pa.compute.binary_join(pa.ListArray.from_arrays(ends, numbers), ",")
    texts = pa.compute.binary_join_element_wise("[", joined, "]", "")
    return pa.compute.if_else(column.is_valid(), texts, None)


def _write_vectorize(batches: Any, path: Path, manifest: Mapping[str, Any]) -> dict[str, int]:
    """Cloudflare Vectorize's lines; how many were written, left out and given an id.

    Vectorize refuses a long id, and keeps one of two vectors with one id: a record whose reference
    is missing, long or another record's has an id of its own.
    https://developers.cloudflare.com/vectorize/best-practices/insert-vectors/
    """
    if (width := batches.schema.field("embedding").type.list_size) > MAX_VECTORIZE_NUMBERS:
        raise UsageError(
            f"vectorize: vectors of {width:,} numbers; Vectorize takes up to "
            f"{MAX_VECTORIZE_NUMBERS:,}."
        )
    written = left_out = renamed = 0
    with path.open("wb") as file, closing(sqlite3.connect("", isolation_level=None)) as database:
        database.execute("CREATE TABLE ids (id TEXT PRIMARY KEY) WITHOUT ROWID")
        database.execute("BEGIN")
        for id_, reference, vector in _vectors(batches):
            if vector is None:
                left_out += 1
                continue
            metadata, name = {"model": manifest["model"], "record": id_}, reference
            if not _is_free(database, reference):
                name = f"{manifest['job_id']}-{id_}"
                metadata |= _kept(reference)
                renamed += 1
            parts = encode(name), vector.encode(), encode(metadata)
            file.write(b'{"id":%b,"values":%b,"metadata":%b}\n' % parts)
            written += 1
    return {"records": written, "left_out": left_out, "renamed": renamed}


def _vectors(batches: Any) -> Iterator[tuple[int, str | None, str | None]]:
    for batch in batches:
        columns = batch.column("id"), batch.column("external_reference"), _vector_texts(batch)
        yield from zip(*(one.to_pylist() for one in columns), strict=True)


def _is_free(database: sqlite3.Connection, reference: str | None) -> bool:
    if not reference or len(reference.encode()) > MAX_VECTORIZE_ID:
        return False
    return database.execute("INSERT OR IGNORE INTO ids VALUES (?)", (reference,)).rowcount == 1


def _kept(reference: str | None) -> dict[str, str]:
    has_room = reference and len(encode(reference)) < MAX_VECTORIZE_REFERENCE
    return {"external_reference": reference} if has_room else {}  # type: ignore[dict-item]


class Delivery(NamedTuple):
    """What was written: the job's own files, the manifest last; the merged output; the exports."""

    files: list[Downloaded]
    merged: Merged | None
    exports: list[Exported]


def deliver(
    job: Job,
    folder: Path,
    progress: Callable[[str, int, int], None],
    *,
    merged: bool = False,
    exports: Collection[str] = (),
    columns: bool = True,
    force: bool = False,
    manifest: dict[str, Any] | None = None,
) -> Delivery:
    """Do what `Job.download` says; read the manifest only if it is not given."""
    exports = (exports,) if isinstance(exports, str) else exports
    check_kinds(exports)
    if exports:
        pyarrow()
    beside = [EXPORTS[kind] for kind in exports]
    files = download(
        job, folder, progress, beside=beside, merged=merged, force=force, manifest=manifest
    )
    with writing(folder):
        newest = merge_retries(job, folder) if merged else None
        made = list[Exported]()
        if exports:
            own = json.loads(files[-1].path.read_bytes())
            plain = files_of(own, lambda entry: blocks_of_file(folder / entry["name"]))
            records = newest.files() if newest else plain
            made = [export(kind, records, folder, own, columns=columns) for kind in exports]
    return Delivery(files, newest, made)
