"""Finished jobs in files.

Outputs and `errors.jsonl` as the poll function writes them, in every format.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dropbatch.client.merge import Files
from dropbatch.core.formats.base import (
    BOM,
    NULL,
    BatchFacts,
    Outcome,
    RecordFault,
    encode,
    is_retried,
)
from dropbatch.core.formats.table import FORMATS, Form, describer_of, reader_of, writer_of
from dropbatch.core.read.rows import first_row, read_rows
from tests.support.converted import LLAMA, target_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

UNREADABLE = b"{bad"


@dataclass
class FinishedJob:
    """A job that is over.

    Attributes:
        files: as `dropbatch.client.merge` takes them.
        records: as written.
        lines: of the output, without a table's header; line ends included.
        failed: ids of failed records.
        retried: ids of those that are in the retry file.
        references: each record's reference as JSON; None without one.
        retry_file: the content of the retry file.
    """

    files: Files
    records: list[bytes]
    lines: list[bytes]
    failed: list[int]
    retried: list[int]
    references: list[bytes | None]
    retry_file: bytes


def finish(
    folder: Path, job_id: str, form: Form, content: bytes, fails: Callable[[int, bytes], bool]
) -> FinishedJob:
    """Write what a job of an upload leaves.

    Args:
        folder: where its files are written.
        job_id: its id.
        form: its format; the header is taken from the upload.
        content: the upload.
        fails: whether the API fails a record, by its id and its bytes.
    """
    is_table = FORMATS[form.format].is_table
    if is_table:
        form = Form(form.format, first_row(content).rstrip(b"\r"), form.delimiter)
        delimiter = form.columns.delimiter
        rows = read_rows([content.removeprefix(BOM)], delimiter)
        records = [bytes(row) for window in rows for row in window.records][1:]  # type: ignore[arg-type] # no long rows
    else:
        records = content.splitlines()
    records = [one for one in records if one]
    target = target_of(LLAMA)
    reader, writer, describe = reader_of(form, target), writer_of(form, target), describer_of(form)
    facts = BatchFacts(job_id, LLAMA, f"request-{job_id}", 1_790_000_000.0)
    job = FinishedJob(
        Files(job_id, form.format, 0, folder / f"{job_id}.output", None),
        records,
        [],
        [],
        [],
        [],
        b"",
    )
    errors = []
    retry = [form.columns.header] if is_table else []
    for id_, record in enumerate(records):
        is_readable = record != UNREADABLE or is_table or form.format == "text"
        fault = RecordFault("invalid_json", "unreadable", NULL)
        converted = reader.convert([record])[0] if is_readable else fault
        code = (
            converted.code
            if isinstance(converted, RecordFault)
            else "inference_failed"
            if fails(id_, record)
            else ""
        )
        reference = converted.reference
        message = f'failed in {job_id}, "again"\nand again' if code else ""
        result = None if code else encode({"response": f'answer {id_} of {job_id}, "quoted"\n'})
        native = {"id": id_, "external_reference": reference, "success": not code}
        native |= (
            {"error": {"code": code, "message": message}}
            if code
            else {"result": json.loads(result or b"")}
        )
        outcome = Outcome(id_, reference, record if is_readable else b"", result, code, message)
        job.lines.append(writer.line(facts, outcome) if writer else encode(native) + b"\n")
        job.references.append(None if reference == NULL else bytes(reference))
        if code:
            job.failed.append(id_)
            request = json.loads(describe(record)) if is_readable else record.decode()
            errors.append(encode(native | {"line": id_ + 1, "request": request}) + b"\n")
            if is_retried(code, NULL):
                job.retried.append(id_)
                retry.append(record)
    opening = form.columns.added_header() if is_table else b""
    job.files.output.write_bytes(opening + b"".join(job.lines))
    errors_path = folder / f"{job_id}.errors"
    errors_path.write_bytes(b"".join(errors))
    job.files = job.files._replace(
        retry_lines=len(job.retried), errors=errors_path if errors else None
    )
    job.retry_file = b"".join(one + b"\n" for one in retry)
    return job
