"""Collect: the API's answers for one batch become its part, written once.

Joins from disk, in constant memory.

A batch that was never submitted gets no object: its part only counts, and its lines are written as
they are joined.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import msgspec

from dropbatch.core.formats.base import REFUSED_CODES
from dropbatch.core.names import JobState
from dropbatch.core.read.index import build_body, record_spans
from functions.poll.batch.join import (
    Answers,
    add_reply,
    merge_round,
    retryable_places,
    sort_answers,
)
from functions.poll.batch.paid import priced
from functions.poll.batch.result_lines import lines_of, unwritten_part
from shared import keys
from shared.models import Batch, Job, Part, PartialReply, Usage
from shared.observability import batch_log_fields, count, logger
from shared.staged_batch import decode_index, decode_ranges, encode_ranges
from shared.workers_ai.results import Answer, parse_answer

if TYPE_CHECKING:
    from dropbatch.core.read.index import RecordIndex
    from shared.bootstrap import Services

MISSING_ITEM_WAITS = (15.0, 60.0)
"""Seconds to wait before a batch is polled again because items were missing.

Each of its ids twice.
"""

RETRY_SECONDS = (20.0, 120.0)
"""Seconds before each retry of records that failed for lack of capacity or a similar cause."""
MAX_RETRIES = len(RETRY_SECONDS)

METRIC_OF_CODE = {
    **dict.fromkeys(REFUSED_CODES - {"rejected"}, "RecordsUnreadable"),
    **dict.fromkeys(("rejected", "inference_failed"), "RecordsRefused"),
}
"""The metric that counts failed records with a code.

The file's fault, the API's answer, or (all others) no answer.
"""

VISIT_SECONDS = 60.0
"""Seconds within which a job with a new part is visited even if the invocation that wrote the part dies."""

MAX_LINES_IN_MEMORY = 1 << 20

WRITE_BYTES = 256 << 10
"""Bytes of lines that are written together, as many as a processor's cache holds."""


@dataclass(frozen=True, slots=True)
class StoredReply:
    """A complete reply and the key it is stored under."""

    key: str
    answer: Answer


def collect(services: Services, job: Job, batch: Batch, reply: StoredReply | None) -> bool:
    """Write the batch's part and make it `done`; return whether it is.

    Args:
        services: the process's clients and settings.
        job: the batch's job.
        batch: as claimed.
        reply: the API's answer to the current round; None if none will come, and `batch.ending`
            holds why.

    Raises:
        StorageError: an AWS service failed; the batch is due again at its `due_at`.
        msgspec.MsgspecError: an earlier round's reply cannot be read again.
    """
    if reply is None and not batch.submissions:
        return _finish(services, job, batch, *unwritten_part(services, job, batch))
    rows = decode_index(
        services.store.get(keys.staged(job.job_id, batch.number), batch.index_offset)
    )
    references = rows.references_sent()
    with ExitStack() as stack:
        replies = Replies(services, batch, references, stack)
        answers, latest = replies.read()
        if reply is not None:
            places = replies.places(batch.round)
            latest = replies.add(latest, reply.answer, batch.round)
            missing = len(places) - len(latest.items)
            if missing and batch.missing_polls < _most_missing_polls(batch):
                _poll_again(services, batch, reply.key, missing)
                return False
            _log_odd_items(batch, latest)
        if latest is not None:
            answers = replies.merge_round(answers, latest, batch.round)
        if reply is not None and answers is not None:
            again = retryable_places(answers)
            if again and batch.round < MAX_RETRIES and not job.ending(services.now()):
                _begin_round(services, batch, rows, again, reply.key)
                return False
        part, failed = _write_part(services, job, batch, rows, answers)
        del answers
    return _finish(services, job, batch, part, failed)


def _finish(services: Services, job: Job, batch: Batch, part: Part, failed: Counter[str]) -> bool:
    """Make a batch `done`; return whether this call did."""
    _expect_visit(services, job)
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


def _expect_visit(services: Services, job: Job) -> None:
    """Make the job due soon, before a batch of it is final.

    This invocation, which visits it next, may die.
    """
    now = services.now()
    if job.state is not JobState.IN_PROGRESS or job.due_at is None or job.lease_until > now:
        return
    # Later, or long ago: many jobs wait for a visit.
    if not -VISIT_SECONDS <= job.due_at - now <= VISIT_SECONDS:
        services.ledger.bring_visit_forward(job, now + VISIT_SECONDS / 2)


def try_missing_again(services: Services, batch: Batch) -> bool:
    """Submit separately the records that incomplete replies of the current round did not answer.

    Returns:
        Whether they get another round; if not, they end here.

    Raises:
        StorageError: an AWS service failed.
        msgspec.MsgspecError: an earlier reply cannot be read again.
    """
    if batch.round == MAX_RETRIES:
        return False
    rows = decode_index(
        services.store.get(keys.staged(batch.job_id, batch.number), batch.index_offset)
    )
    with ExitStack() as stack:
        replies = Replies(services, batch, rows.references_sent(), stack)
        answers, latest = replies.read()
        if latest is None:
            return False
        places = replies.places(batch.round)
        missing = [
            place
            for at, place in enumerate(places)
            if at not in latest.items and at not in latest.contradicted
        ]
        if not missing:
            return False
        answers = replies.merge_round(answers, latest, batch.round)
        again = sorted({*missing, *retryable_places(answers)})
    _begin_round(services, batch, rows, again, "")
    return True


def _most_missing_polls(batch: Batch) -> int:
    """How many replies may lack items before the last one.

    Each id of the batch is polled once, and once a wait.
    """
    return len(batch.pollable) * (len(MISSING_ITEM_WAITS) + 1) - 1


def _poll_again(services: Services, batch: Batch, key: str, missing: int) -> None:
    """Poll again because a reply lacks items.

    What it holds counts: the API may not know the id for much longer.
    """
    logger.info("items missing", **batch_log_fields(batch), missing=missing)
    turn = batch.missing_polls * len(MISSING_ITEM_WAITS) // _most_missing_polls(batch)
    services.ledger.schedule_poll(
        batch,
        services.now() + MISSING_ITEM_WAITS[turn],
        missing_polls=batch.missing_polls + 1,
        partial_replies=(*batch.partial_replies, PartialReply(key, batch.round)),
    )


@dataclass(slots=True)
class Replies:
    """The stored replies of one batch, and which records they answer.

    Attributes:
        references: the `external_reference` of each record in the first round's body.
        stack: holds large replies on disk.
    """

    services: Services
    batch: Batch
    references: list[msgspec.Raw]
    stack: ExitStack

    def read(self) -> tuple[Answers | None, Answers | None]:
        """The answers of earlier rounds, merged.

        And those of incomplete replies of the current round.
        """
        answers: Answers | None = None
        for round_ in range(self.batch.round):
            if (found := self._answers_of(round_)) is not None:
                answers = self.merge_round(answers, found, round_)
        return answers, self._answers_of(self.batch.round)

    def _answers_of(self, round_: int) -> Answers | None:
        """What all stored replies of a round hold; None if there are none."""
        answers: Answers | None = None
        stored = [one.key for one in self.batch.partial_replies if one.round == round_]
        for key in (*stored, *self.batch.answered[round_ : round_ + 1]):
            if key:
                answers = self.add(
                    answers, parse_answer(self.services.store.spool(key, self.stack)), round_
                )
        return answers

    def add(self, answers: Answers | None, answer: Answer, round_: int) -> Answers:
        """Add a reply to a round's answers."""
        references = [self.references[place] for place in self.places(round_)]
        found = sort_answers(answer, references)
        if answers is None:
            return found
        add_reply(answers, found)
        return answers

    def merge_round(self, answers: Answers | None, found: Answers, round_: int) -> Answers:
        """Add a round's answers to those of the rounds before it."""
        if round_ == 0:
            return found
        merged = answers or Answers()
        merge_round(merged, found, self.places(round_))
        return merged

    def places(self, round_: int) -> list[int]:
        """The places of a round's records in the first round's body.

        Raises:
            StorageError: S3 failed, or what was staged does not exist.
        """
        if round_ == 0:
            return list(range(len(self.references)))
        key = keys.staged(self.batch.job_id, self.batch.number, round_)
        stored = self.services.store.existing(key)
        return decode_ranges(self.services.store.get(key, int(stored.metadata["body-size"])))


def _begin_round(
    services: Services, batch: Batch, rows: RecordIndex, places: list[int], answered: str
) -> None:
    """Stage the records that are tried again, without the others.

    And send the batch to be submitted.

    What an earlier run staged for this round counts: that run may have got another reply. Records
    that it did not choose keep the answers they have.
    """
    body = services.store.get(keys.staged(batch.job_id, batch.number), 0, batch.body_size)
    sendable = [span for span in record_spans(rows) if span[1]]
    again = build_body([body[sendable[place][0] : sum(sendable[place])] for place in places])
    key = keys.staged(batch.job_id, batch.number, batch.round + 1)
    metadata = {"body-size": str(len(again)), "requests": str(len(places))}
    if not services.store.put_if_absent(key, again + encode_ranges(places), metadata):
        metadata = dict(services.store.existing(key).metadata)
    logger.info("records tried again", **batch_log_fields(batch), records=metadata["requests"])
    wait = RETRY_SECONDS[batch.round]
    now = services.now()
    size, requests = int(metadata["body-size"]), int(metadata["requests"])
    services.ledger.begin_round(batch, answered, size, now, now + wait, round_requests=requests)


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
    """Spool output, errors and retry lines, then put them as one object.

    If one already exists, that one counts.

    Returns:
        The part, and how many records failed with which code.
    """
    key = keys.part(job.job_id, batch.number, batch.attempt)
    usage = priced(job.plan.known_model, answers.usage) if answers else Usage()
    retries = waiting = 0
    failed: Counter[str] = Counter()
    with tempfile.TemporaryFile() as spool, _spool() as errors, _spool() as retry:
        ready: list[bytes] = []
        for line in lines_of(services, job, batch, rows, answers):
            if isinstance(line, bytes):
                ready.append(line)
            else:
                failed[line.code] += 1
                ready.append(line.output)
                errors.write(line.error)
                if line.retry:
                    retries += 1
                    retry.write(line.retry)
            waiting += len(ready[-1])
            if waiting > WRITE_BYTES:
                spool.write(b"".join(ready))
                ready, waiting = [], 0
        spool.write(b"".join(ready))
        sizes = spool.tell(), errors.tell(), retry.tell()
        for side in (errors, retry):
            side.seek(0)
            shutil.copyfileobj(side, spool, WRITE_BYTES)
        spool.seek(0)
        part = Part(key, *sizes, retries, len(rows) - failed.total(), failed.total(), usage)
        metadata = {
            "part": msgspec.json.encode(part).decode(),
            "failed": msgspec.json.encode(failed).decode(),
        }
        if services.store.put_if_absent(key, spool, metadata):
            return part, failed
    written = services.store.existing(key).metadata
    failed = Counter(msgspec.json.decode(written.get("failed", "{}"), type=dict[str, int]))
    return msgspec.json.decode(written["part"], type=Part), failed


def _spool() -> IO[bytes]:
    return tempfile.SpooledTemporaryFile(MAX_LINES_IN_MEMORY)
