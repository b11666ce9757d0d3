"""Collect: the API's answers for one batch become its part, written once, in constant memory.

A batch that ends without any answer gets no object: its part only counts, and its lines are written
as they are appended.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO

import msgspec

from dropbatch.core.formats.base import REFUSED_CODES, Task
from dropbatch.core.read.index import RecordIndex
from functions.poll.join import (
    Answers,
    Failure,
    add_reply,
    count_incomplete,
    places_without_capacity,
    sort_answers,
)
from functions.poll.result_lines import lines_of, unwritten_part
from shared import keys
from shared.models import Batch, Job, Part
from shared.observability import batch_log_fields, count, logger
from shared.pacing.cost import priced
from shared.services import Services
from shared.staged_batch import decode_index
from shared.workers_ai.results import Answer, parse_answer
from shared.workers_ai.usage import Usage

MISSING_ITEM_WAITS = (15.0, 60.0, 120.0)  # To each further poll after a reply that lacked items
CAPACITY_WAITS = (20.0, 120.0)  # Seconds to each further submit of a batch that failed whole for it
MAX_SUBMITS = 3  # Submits of a batch, those with an unknown outcome included

METRIC_OF_CODE = {
    **dict.fromkeys(REFUSED_CODES - {"rejected"}, "RecordsUnreadable"),
    **dict.fromkeys(("rejected", "inference_failed"), "RecordsRefused"),
}
"""The metric of failed records with a code: the file's fault, the API's, or (others) no answer."""


MAX_LINES_IN_MEMORY = 1 << 20
WRITE_BYTES = 256 << 10  # Bytes of lines written together: a processor's cache holds them


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A complete reply and the key it is stored under."""

    key: str
    answer: Answer


def collect(services: Services, job: Job, batch: Batch, reply: StoredReply | None) -> bool:
    """Write the batch's part and make it `done`; return whether it is."""
    if reply is None and not batch.partial_replies:
        return _finish(services, batch, *unwritten_part(services, job, batch))
    rows = _index(services, batch)
    with ExitStack() as stack:
        answers = read_answers(services, batch, rows, reply, stack)
        if reply is not None and answers is not None:
            missing = batch.records.sendable - len(answers.items)
            if missing and len(batch.partial_replies) < len(MISSING_ITEM_WAITS):
                _poll_again(services, batch, reply.key, missing)
                return False
            _log_odd_items(batch, answers)
            is_whole = len(places_without_capacity(answers)) == batch.records.sendable
            if is_whole and failed_for_capacity(services, job, batch):
                return False
        part, failed = _write_part(services, job, batch, rows, answers)
        del answers
    return _finish(services, batch, part, failed)


def failed_for_capacity(services: Services, job: Job, batch: Batch) -> bool:
    """Submit a batch again that failed as a whole for capacity; return whether it is."""
    now = services.now()
    if batch.submits >= MAX_SUBMITS or job.ending(now):
        return False
    logger.info("batch failed for capacity", **batch_log_fields(batch))
    services.ledger.resubmit(batch, now, now + CAPACITY_WAITS[batch.submits - 1])
    return True


def is_partial(services: Services, batch: Batch, answer: Answer) -> bool:
    """Whether an answer of a batch that is still running lacks records."""
    if not answer.unfinished:
        return False
    if len(answer.items) < batch.records.sendable:
        return True
    rows, reply = _index(services, batch), StoredReply("", answer)
    with ExitStack() as stack:
        found = read_answers(services, batch, rows, reply, stack)
        return found is None or len(found.items) < batch.records.sendable


def _index(services: Services, batch: Batch) -> RecordIndex:
    key = keys.staged(batch.job_id, batch.number)
    return decode_index(services.store.get(key, batch.index_offset))


def _finish(services: Services, batch: Batch, part: Part, failed: Counter[str]) -> bool:
    """Make a batch `done`; return whether this call did."""
    finished = services.ledger.finish_batch(batch, part, services.now())
    if finished:
        count("BatchesDone")
        count("RecordsSucceeded", part.succeeded)
        for code, records in failed.items():
            count(METRIC_OF_CODE.get(code, "RecordsUnanswered"), records)
        count("TokensUsed", part.usage.total_tokens or 0)
        logger.info(
            "batch done", **batch_log_fields(finished), polls=finished.polls, failed=dict(failed)
        )
    return finished is not None


def _poll_again(services: Services, batch: Batch, key: str, missing: int) -> None:
    """Poll again because a reply lacks items; what it holds counts."""
    logger.info("items missing", **batch_log_fields(batch), missing=missing)
    replies = batch.partial_replies
    due_at = services.now() + MISSING_ITEM_WAITS[len(replies)]
    services.ledger.schedule_poll(batch, due_at, partial_replies=(*replies, key))


def read_answers(
    services: Services, batch: Batch, rows: RecordIndex, reply: StoredReply | None, stack: ExitStack
) -> Answers | None:
    """What the stored replies of a batch that lacked items and the latest hold, if there is any."""
    references = rows.references_sent()
    answers: Answers | None = None
    stored = (parse_answer(services.store.spool(key, stack)) for key in batch.partial_replies)
    for answer in (*stored, *((reply.answer,) if reply else ())):
        found = sort_answers(answer, references)
        if answers is None:
            answers = found
        else:
            add_reply(answers, found)
    return answers


def _log_odd_items(batch: Batch, answers: Answers) -> None:
    if answers.foreign or answers.repeated or answers.contradicted:
        logger.warning(
            "odd items",
            **batch_log_fields(batch),
            foreign=answers.foreign,
            repeated=answers.repeated,
            contradicted=len(answers.contradicted),
        )


def _write_part(
    services: Services, job: Job, batch: Batch, rows: RecordIndex, answers: Answers | None
) -> tuple[Part, Counter[str]]:
    """Put output, errors and retry lines as one object; the part, and failed records by code."""
    key = keys.part(job.job_id, batch.number, batch.attempt)
    usage = priced(job.plan.known_model, answers.usage) if answers else Usage()
    with tempfile.TemporaryFile() as spool, _spool() as errors, _spool() as retry:
        lines = lines_of(services, job, batch, rows, answers)
        failed, retries = _write_lines(lines, spool, errors, retry)
        sizes = spool.tell(), errors.tell(), retry.tell()
        for side in (errors, retry):
            side.seek(0)
            shutil.copyfileobj(side, spool, WRITE_BYTES)
        spool.seek(0)
        for_capacity = len(places_without_capacity(answers)) if answers else 0
        incomplete = 0
        if answers and job.plan.known_model.task is not Task.EMBEDDINGS:
            incomplete = count_incomplete(answers)
        good = len(rows) - failed.total()
        part = Part(key, *sizes, retries, good, failed.total(), usage, for_capacity, incomplete)
        metadata = {
            "part": msgspec.json.encode(part).decode(),
            "failed": msgspec.json.encode(failed).decode(),
        }
        if services.store.put_if_absent(key, spool, metadata):
            return part, failed
    written = services.store.existing(key).metadata
    failed = Counter(msgspec.json.decode(written.get("failed", "{}"), type=dict[str, int]))
    return msgspec.json.decode(written["part"], type=Part), failed


def _write_lines(
    lines: Iterator[bytes | Failure], output: IO[bytes], errors: IO[bytes], retry: IO[bytes]
) -> tuple[Counter[str], int]:
    """Write the lines of each section; failed records by code, and how many lines retry them."""
    failed: Counter[str] = Counter()
    ready, waiting, retries = list[bytes](), 0, 0
    for line in lines:
        if isinstance(line, bytes):
            ready.append(line)
        else:
            failed[line.code] += 1
            retries += bool(line.retry)
            ready.append(line.output)
            errors.write(line.error)
            retry.write(line.retry)
        waiting += len(ready[-1])
        if waiting > WRITE_BYTES:
            output.write(b"".join(ready))
            ready, waiting = [], 0
    output.write(b"".join(ready))
    return failed, retries


def _spool() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(MAX_LINES_IN_MEMORY)
