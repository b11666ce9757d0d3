"""Collect: what the API answered for one batch becomes its part, written once. Joins from disk, in flat memory."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from typing import IO, TYPE_CHECKING

import msgspec

from functions.poll.join import Answers, join, read_answers
from shared import keys
from shared.errors import StorageError
from shared.observability import count, logger
from shared.sidecar import decode_rows, spans
from shared.words import Batch, Job, Part, Usage

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable

    from shared.services import Services
    from shared.sidecar import Row

MISSING_ASKS = (60.0, 180.0)
"""Seconds to wait before an answer is asked for again because items were missing: twice, over some minutes."""

IN_MEMORY = 1 << 20

AT_ONCE = 256 << 10
"""Bytes of lines that are written and hashed together, while a processor's cache holds them."""


def collect(services: Services, job: Job, batch: Batch, body: bytes | mmap.mmap | None) -> bool:
    """Write the batch's part and make it `done`; whether it is.

    Args:
        services: all there is.
        job: the batch's job.
        batch: as claimed.
        body: the API's complete reply; None where none is to come and `batch.ending` says why.

    Raises:
        StorageError: a service refused or broke off; the batch's `due_at` brings it up again.
        msgspec.MsgspecError: the reply is not what it was taken for.
    """
    staged = keys.staged(job.job_id, batch.number)
    rows = decode_rows(services.store.get(staged, batch.body_size))
    answers = None
    if body is not None:
        answers = read_answers(body, [row.reference for row in rows if row.length])
        unanswered = batch.sendable - len(answers.items)
        if unanswered and batch.missing_asks < len(MISSING_ASKS):
            logger.info("items missing", job_id=job.job_id, number=batch.number, missing=unanswered)
            wait = MISSING_ASKS[batch.missing_asks]
            services.ledger.note_answer(batch, services.now() + wait, missing_asks=batch.missing_asks + 1)
            return False
        if answers.foreign or answers.repeated or answers.contradicted:
            logger.warning(
                "odd items",
                job_id=job.job_id,
                number=batch.number,
                foreign=answers.foreign,
                repeated=answers.repeated,
                contradicted=len(answers.contradicted),
            )
    part = _write_part(services, job, batch, rows, answers)
    finished = services.ledger.finish_batch(batch, part, services.now())
    if finished:
        count("RecordsSucceeded", part.succeeded)
        count("RecordsFailed", part.failed)
    return finished is not None


def _write_part(services: Services, job: Job, batch: Batch, rows: list[Row], answers: Answers | None) -> Part:
    """Spool output, errors and retry lines, then put them as one object; whoever finds it there takes its word."""
    key = keys.part(job.job_id, batch.number, batch.attempt)
    ending = (batch.ending.code, batch.ending.message) if batch.ending else None
    usage = answers.usage if answers else Usage()
    succeeded = failed = retries = waiting = 0
    digest = hashlib.sha256()
    with tempfile.TemporaryFile() as spool, _side() as errors, _side() as retry:

        def put_down(block: bytes) -> None:
            digest.update(block)
            spool.write(block)

        ready: list[bytes] = []
        for line in join(rows, batch.first_id, answers, ending, _request_reader(services, job, batch, rows)):
            ready.append(line.output)
            waiting += len(line.output)
            if waiting > AT_ONCE:
                put_down(b"".join(ready))
                ready, waiting = [], 0
            if line.error:
                failed += 1
                errors.write(line.error)
                if line.retry:
                    retries += 1
                    retry.write(line.retry)
            else:
                succeeded += 1
        put_down(b"".join(ready))
        output_size = spool.tell()
        errors_size, retry_size = errors.tell(), retry.tell()
        for side in (errors, retry):
            side.seek(0)
            while block := side.read(AT_ONCE):
                put_down(block)
        spool.seek(0)
        part = Part(key, output_size, errors_size, retry_size, retries, succeeded, failed, digest.hexdigest(), usage)
        if services.store.put_once(key, spool, {"part": msgspec.json.encode(part).decode()}):
            return part
    there = services.store.head(key)
    if there is None:
        raise StorageError(f"{key} was there and is gone")
    return msgspec.json.decode(there.metadata["part"], type=Part)


def _side() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(IN_MEMORY)


def _request_reader(services: Services, job: Job, batch: Batch, rows: list[Row]) -> Callable[[int], bytes]:
    """Gives a row's request on one line; the body is read when the first failed record asks, mostly never."""

    @cache
    def body() -> tuple[bytes, list[tuple[int, int]]]:
        return services.store.get(keys.staged(job.job_id, batch.number), 0, batch.body_size), spans(rows)

    def request_of(index: int) -> bytes:
        content, places = body()
        start, length = places[index]
        request = content[start : start + length]
        return msgspec.json.format(request, indent=-1) if job.plan.is_document else request

    return request_of
