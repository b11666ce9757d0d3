"""The format of a job's upload, and the names of its result files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from dropbatch.core.formats.table import Form, file_names
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.models import Job

Kind = Literal["output", "errors", "retry", "batches"]

JSON_LINES = "application/jsonl"


@dataclass(frozen=True, slots=True)
class ResultFile:
    """A result file's name and content type."""

    name: str
    content_type: str


def form_of(store: ObjectStore, job: Job) -> Form:
    """A job's format, with a table's header."""
    if not job.plan.is_table:
        return Form(job.plan.format or "native")
    names = store.get(keys.answer_columns(job.job_id)) if job.plan.answers else b"[]"
    answers = msgspec.json.decode(names, type=tuple[str, ...])
    return Form(job.plan.format, store.get(keys.header(job.job_id)), job.plan.delimiter, answers)


def result_file(job: Job, kind: Kind) -> ResultFile:
    """Name and content type of one of a job's result files."""
    names = file_names(Form(job.plan.format or "native"), job.upload.key)
    if kind == "output":
        return ResultFile(names.output, names.output_type)
    if kind == "retry":
        return ResultFile(names.retry, names.retry_type)
    return ResultFile(f"{kind}.jsonl", JSON_LINES)


def opening_of(store: ObjectStore, job: Job, kind: Kind) -> bytes:
    """What a result file begins with: a table's header; empty for others."""
    if kind not in {"output", "retry"} or not job.plan.is_table:
        return b""
    names = file_names(form_of(store, job), job.upload.key)
    return names.output_opening if kind == "output" else names.retry_opening
