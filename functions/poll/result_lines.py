"""A batch's result lines, from what is staged and the API's answers.

The lines of a batch without any answer follow from what is staged and from why it ended. They
are written only when they are appended to a file, so ending a batch moves none of its bytes, and a
large one takes no longer than a small one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Literal

import msgspec

from dropbatch.core.formats.base import BatchFacts, Task, is_retried
from dropbatch.core.formats.table import Form, describer_of, file_names, target_of, writer_of
from dropbatch.core.read.index import RecordIndex, record_spans
from functions.poll.join import (
    Answered,
    Answers,
    Failure,
    Originals,
    failed_line,
    join,
    join_originals,
    retry_line,
)
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.keys import full_message
from shared.models import Batch, Job, Part
from shared.services import Services
from shared.staged_batch import decode_index

LINE_BYTES = 100  # Of a failed record's output line besides message and reference
FIELDS = {"output": "output", "errors": "error", "retry": "retry"}  # The member that a file takes
READ_AHEAD = 4  # Staged batches that are read while the lines of the one before are written

Read = Callable[[int, int], bytes]  # Reads bytes of what is staged, from a place on


def lines_of(
    services: Services, job: Job, batch: Batch, rows: RecordIndex, answers: Answers | None
) -> Iterator[bytes | Failure]:
    """The batch's result lines, in the upload's format; what is staged is read if they need it."""
    answered = _answered(services, job, batch, rows, answers)
    read = partial(services.store.get, keys.staged(job.job_id, batch.number))
    return _lines(services, job, batch, answered, read)


def _answered(
    services: Services, job: Job, batch: Batch, rows: RecordIndex, answers: Answers | None
) -> Answered:
    vectors = job.plan.known_model.task is Task.EMBEDDINGS
    return Answered(rows, batch.records.first_id, answers, _ending(services, batch), vectors)


def _lines(
    services: Services, job: Job, batch: Batch, answered: Answered, read: Read
) -> Iterator[bytes | Failure]:
    if not job.plan.converts:
        return join(answered, _request_reader(job, batch, answered.rows, read))
    form, records = form_of(services.store, job), batch.records
    originals = Originals(read(records.body_size, records.originals_size), describer_of(form))
    request_id = batch.submission.request_id if batch.submission else ""
    facts = BatchFacts(job.job_id, job.plan.model, request_id, batch.accepted_at or 0.0)
    writer = writer_of(form, target_of(job.plan.known_model))
    return join_originals(answered, originals, partial(writer.line, facts) if writer else None)


def _ending(services: Services, batch: Batch) -> tuple[str, str] | None:
    return (batch.ending.code, full_message(services.store, batch.ending)) if batch.ending else None


def _request_reader(
    job: Job, batch: Batch, rows: RecordIndex, read: Read
) -> Callable[[int], bytes]:
    """A function that returns a record's request on one line; it reads the body once."""

    @cache
    def body() -> tuple[bytes, list[tuple[int, int]]]:
        return read(0, batch.records.body_size), record_spans(rows)

    def request_of(index: int) -> bytes:
        content, places = body()
        start, length = places[index]
        request = content[start : start + length]
        return msgspec.json.format(request, indent=-1) if job.plan.is_document else request

    return request_of


def unwritten_part(services: Services, job: Job, batch: Batch) -> tuple[Part, Counter[str]]:
    """The part of a batch without any answer, its sizes estimated; and failed records by code."""
    code, message = _ending(services, batch) or ("missing_response", "")
    records, number = batch.records, batch.records.requests
    sent = records.originals_size or records.body_size
    if records.sendable == number:  # Then its item tells enough: references are part of the body.
        output = number * (LINE_BYTES + len(message)) + records.body_size + records.originals_size
        part = Part("", output, output + sent, sent, number, 0, number)
        return part, Counter({code: number})
    key = keys.staged(job.job_id, batch.number)
    rows = decode_index(services.store.get(key, batch.index_offset))
    failed = Counter(fault.code for fault in rows.faults.values())
    if sendable := len(rows) - failed.total():
        failed[code] += sendable
    if job.plan.converts:
        may_be = [(size, rows.faults.get(index)) for index, size in enumerate(rows.originals)]
        kept = [one for one in may_be if one[1] is None or is_retried(one[1].code, one[1].request)]
        retried = [size for size, _ in kept if size]
    else:
        retried = [length for length in rows.lengths if length]
        mended = [retry_line(rows[index]) for index in rows.faults]
        retried += [len(line) - 1 for line in mended if line]
    faults = sum(len(fault.message) + len(bytes(fault.request)) for fault in rows.faults.values())
    references = sum(len(bytes(one)) for one in rows.references)
    output = len(rows) * (LINE_BYTES + len(message)) + references + faults + records.originals_size
    retry = sum(retried) + len(retried)
    return Part("", output, output + sent, retry, len(retried), 0, len(rows)), failed


def unwritten_lines(
    services: Services, job: Job, batches: Iterable[Batch], kind: Kind
) -> Iterator[bytes]:
    """For each batch without any answer, its lines of one result file."""
    wanted = list(batches)
    # Output lines of native records hold nothing of their requests.
    from_index = kind == "output" and not job.plan.converts
    starts = [batch.index_offset if from_index else 0 for batch in wanted]
    places = [keys.staged(job.job_id, batch.number) for batch in wanted]
    found = services.store.read_ahead(list(zip(places, starts, strict=True)), READ_AHEAD)
    for batch, start, staged in zip(wanted, starts, found, strict=True):
        rows = decode_index(staged[batch.index_offset - start :])
        if from_index:
            code, message = _ending(services, batch) or ("", "")
            yield b"".join(
                failed_line(id_, row, row.code or code, row.message if row.code else message)
                for id_, row in enumerate(rows, batch.records.first_id)
            )
        else:
            answered = _answered(services, job, batch, rows, None)
            lines = _lines(services, job, batch, answered, partial(_section, staged))
            yield b"".join(getattr(line, FIELDS[kind]) for line in lines)


def _section(staged: bytes, start: int, length: int) -> bytes:
    return staged[start : start + length]


# ── the files that lines go to ────────────────────────────────────────────────────────────────────

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
