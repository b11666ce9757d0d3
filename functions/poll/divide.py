"""Division: a batch that was refused, or failed, is divided until each bad record is alone.

So a bad record fails alone, and the other thousands of its batch are answered: worth its lines,
because files with a bad record are common. How many pieces is decided once, in one write to the
batch; from then on every run carries out that decision: it stages and creates the pieces, the last
one first, and then makes the batch `divided`. A piece is a batch like any other.

What was tried is counted from the job's items at each decision, so no repeated write can count it
twice. As long as nothing of the job was taken, one batch is divided at a time, the smallest first:
a file of bad records only ends after few submits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from dropbatch.core.read.index import RecordIndex, build_body, record_spans
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.aws.queues import SUBMIT_GRACE_SECONDS, SubmitMessage
from shared.errors import InvariantError
from shared.ledger import Ledger
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Job, Records
from shared.observability import batch_log_fields, count, logger
from shared.retry import MAX_SECONDS_TO_ACCEPTANCE
from shared.services import Services
from shared.staged_batch import StagedInfo, decode_index, encode_index, original_spans

MAX_PIECES = 16  # Pieces of one batch: one hexadecimal digit
MAX_ISOLATION_SUBMITS = 2_000  # Pieces of one job; one bad record among 5,000 takes about 50
MAX_ALONE = 64  # Records that fail alone, while none is answered, before the rest is not sent
MAX_IN_VAIN = 99  # Pieces of a job of which nothing was taken
LOOK_FOR_EACH, LOOK_SHARE, MAX_LOOK_SECONDS = 5.0, 1 / 32, 300.0
"""Until a batch looks again: seconds for each that it waits for, at least a share of its age."""


def isolate(services: Services, batch: Batch) -> Batch | None:
    """Divide or end a claimed batch, or decide that; return it if its lines are to be written."""
    if batch.pieces == 0:
        decided = _decide(services, batch)
        if decided is None or decided.ending:
            return decided
        batch = decided
    _divide(services, batch)
    return None


@dataclass(slots=True)
class Tried:
    """What a job's items tell of its division."""

    pieces: int = 0  # into how many its batches were divided
    is_taken: bool = False  # accepted if the batch was refused, answered if it failed later
    alone: Counter[str] = field(default_factory=Counter)  # records that failed alone, by their code
    before: int = 0  # batches that come before this one


def _decide(services: Services, batch: Batch) -> Batch | None:
    """The batch once it is decided that it is divided, or ended; else None."""
    ledger, now = services.ledger, services.now()
    job = ledger.job(batch.job_id)
    if job is None:
        raise InvariantError(f"batch {batch.job_id}/{batch.number} has no job")
    if why := _why_not(job, batch, now):
        return ledger.end_without_answer(batch, _not_sent(batch, why), now)
    tried, wanted = _tried(ledger, batch), pieces_of(batch.records.sendable)
    if why := _why_in_vain(tried, batch.cause, wanted):
        ledger.refuse_rest(job, ErrorDetail("rejected", f"Not sent, because {why}."), now)
        return ledger.end_without_answer(batch, _not_sent(batch, why), now)
    if tried.pieces + wanted > MAX_ISOLATION_SUBMITS:
        why = f"this job has used up its {MAX_ISOLATION_SUBMITS:,} submits for finding bad records"
        return ledger.end_without_answer(batch, _not_sent(batch, why), now)
    if tried.before and not tried.is_taken:
        age = now - (batch.accepted_at or batch.waiting_since)
        look = max(LOOK_FOR_EACH * tried.before, age * LOOK_SHARE)
        ledger.postpone(batch, now + min(look, MAX_LOOK_SECONDS), claims=0)
        return None
    return ledger.decide_pieces(batch, wanted)


def pieces_of(records: int) -> int:
    """Into how many pieces a batch is divided, so that 16 records become 16 pieces at the end."""
    size = 1
    while size * MAX_PIECES < records:
        size *= MAX_PIECES
    return -(-records // size)


def _why_not(job: Job, batch: Batch, now: float) -> str:
    """Why the records of a batch end without being tried again; empty if they are."""
    since = batch.accepted_at or batch.waiting_since
    reasons = {
        "the job was stopped": job.error is not None,
        "the job was cancelled": bool(job.cancelled),
        "the job's deadline_hours were over": job.is_past_deadline(now),
        "the job had reached its max_cost": job.cost is not None and job.cost.is_reached,
        "Workers AI took none of the records that were tried": job.refused is not None,
        "it failed more than 7 days after it was to be submitted": (
            now - since > MAX_SECONDS_TO_ACCEPTANCE
        ),
    }
    return next((why for why, holds in reasons.items() if holds), "")


def _why_in_vain(tried: Tried, cause: str, wanted: int) -> str:
    """Why the rest of a job would be tried in vain; empty if it would not, as far as is known."""
    if tried.is_taken:
        return ""
    if (alone := tried.alone[cause]) >= MAX_ALONE:
        return f"Workers AI refused {alone} records alone ({cause}), and answered none"
    if tried.pieces + wanted > MAX_IN_VAIN:
        return f"Workers AI took none of the {tried.pieces} parts of this job that were tried"
    return ""


def _tried(ledger: Ledger, batch: Batch) -> Tried:
    """What the items of a batch's job tell of its division.

    Of 1,000 batches, the reads cost $0.001 if 50 are divided, and $0.013 if each is refused.
    """
    tried = Tried()
    for one in ledger.batches(batch.job_id, unreadable=[]):
        tried.pieces += one.pieces
        succeeded = one.part is not None and one.part.succeeded > 0
        tried.is_taken |= succeeded or (one.accepted > 0 and not batch.accepted)
        if one.records.sendable == 1 and one.cause and one.ending:
            tried.alone[one.cause] += 1
        tried.before += _comes_before(one, batch)
    return tried


def _comes_before(one: Batch, batch: Batch) -> bool:
    """Whether a batch is settled before another is divided, as long as nothing was taken."""
    if one.state in {BatchState.DONE, BatchState.DIVIDED} or one.ending:
        return False
    if one.pieces or len(one.number) > len(batch.number):
        return True
    is_before = len(one.number) == len(batch.number) and one.number < batch.number
    return is_before and one.state is not BatchState.QUEUED


def _not_sent(batch: Batch, why: str) -> ErrorDetail:
    reason = batch.isolating or ErrorDetail("rejected", "Workers AI refused this request")
    return ErrorDetail("rejected", f"Not sent alone, because {why}: {reason.message}", reason.said)


def _divide(services: Services, batch: Batch) -> None:
    """Stage and create all pieces, then make the batch `divided` and send their messages."""
    ledger, store, now = services.ledger, services.store, services.now()
    key, due_at = keys.staged(batch.job_id, batch.number), now + SUBMIT_GRACE_SECONDS
    rows = decode_index(store.get(key, batch.index_offset))
    bounds = boundaries(rows, batch.pieces)
    numbers = [f"{batch.number}.{index:x}" for index in range(len(bounds))]
    # The last piece first: it holds the end from which split continues, if this function dies.
    for number, (begin, end) in reversed(list(zip(numbers, bounds, strict=True))):
        piece = Batch(
            job_id=batch.job_id,
            number=number,
            state=BatchState.READY,
            records=_stage_piece(store, batch, number, rows, begin, end),
            created_at=now,
            due_at=due_at,
            work=DueKind.SUBMIT,
        )
        ledger.create_batch(piece)
    if ledger.finish_division(batch, services.now()):
        count("BatchesDivided")
        logger.info("batch divided", **batch_log_fields(batch), pieces=len(bounds))
        messages = [SubmitMessage(batch.job_id, number, due_at) for number in numbers]
        services.queues.send_all(messages)


def _stage_piece(
    store: ObjectStore, batch: Batch, number: str, rows: RecordIndex, begin: int, end: int
) -> Records:
    """Put the object of a piece, which has these rows of a batch; what it holds."""
    whole, key = batch.records, keys.staged(batch.job_id, batch.number)
    places, kept = record_spans(rows), original_spans(rows)
    sent = [place for place in places[begin:end] if place[1]]
    # The records of a piece are contiguous in the body, with their commas.
    body = build_body([store.get(key, sent[0][0], sum(sent[-1]) - sent[0][0])])
    start, size = kept[begin][0], sum(kept[end - 1]) - kept[begin][0]
    originals = store.get(key, whole.body_size + start, size)
    last = whole.end if end == len(rows) else None
    staged = StagedInfo(end - begin, len(sent), len(body), last, originals_size=size)
    content = body + originals + encode_index(rows.section(begin, end))
    store.put_if_absent(keys.staged(batch.job_id, number), content, staged.metadata())
    earlier = sum(length > 0 for _, length in places[:begin])
    before, upto = (
        whole.estimate * sends // whole.sendable for sends in (earlier, earlier + len(sent))
    )
    return Records(
        first_id=whole.first_id + begin,
        requests=staged.requests,
        sendable=staged.sendable,
        body_size=staged.body_size,
        end=staged.end,
        originals_size=size,
        suspected=batch.cause,
        estimate=upto - before,
        estimated_before=whole.estimated_before + before,
    )


def give_up(services: Services, batch: Batch) -> None:
    """End a batch that could not be divided for days, unless a piece exists: none comes now."""
    if any(services.ledger.batches(batch.job_id, prefix=f"{batch.number}.", limit=1)):
        services.ledger.finish_division(batch, services.now())
    else:
        reason = _not_sent(batch, "the batch could not be divided (see the poll function's log)")
        services.ledger.undo_pieces(batch, reason, services.now())


def boundaries(rows: RecordIndex, pieces: int) -> list[tuple[int, int]]:
    """Begin and end of each piece among the rows: all have about as many sendable ones."""
    sendable = [index for index, length in enumerate(rows.lengths) if length]
    begins = [0, *(sendable[piece * len(sendable) // pieces] for piece in range(1, pieces))]
    return list(zip(begins, [*begins[1:], len(rows)], strict=True))
