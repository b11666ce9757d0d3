"""Stage: what is read of an upload becomes batches. It may die at any point and run twice.

Keeps the promise that nothing is lost, sent twice or out of place. For each batch the staged object
is written first (write-once), the item second. If a run dies between, the next one resumes after
the last item and cuts the same batches: it finds the objects. So items are created in order, while
the objects of several batches are put at the same time: one that is put ahead of its item has no
effect until the item names it.

An object that exists may come from a run of another version that cut the upload differently. Its
metadata holds where its batch begins. If the item of the batch before ends there, the object
counts, and every run uses it. If not, no item can name it, and it is replaced on the condition that
it is still the same object.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace

from dropbatch.core.errors import UploadRefused
from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint
from dropbatch.core.prices import estimate
from dropbatch.core.read.cut import Cut
from functions.submit.options import put_job_record
from functions.submit.read import Turn, count_failures
from functions.submit.submit import submit_known
from shared import keys
from shared.aws.object_store import ObjectStore
from shared.aws.queues import SUBMIT_GRACE_SECONDS, SubmitMessage, VisitMessage
from shared.errors import InvariantError, StorageError
from shared.job_control import obey
from shared.job_status import build_status, noted_wait, write_status
from shared.ledger import still_leased
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Job, Records
from shared.observability import count, logger
from shared.pacing import cost
from shared.retry import MAX_CLAIMS
from shared.services import Services
from shared.staged_batch import StagedInfo, encode_index

STATUS_EVERY_SECONDS = 10.0
"""Between two writes of `status.json` while an upload is read."""
RENEW_EVERY_SECONDS, LEASE_RENEWAL_SECONDS = 5.0, 45.0
"""Between two renewals of a run's lease, and how long each lasts."""
MAX_PUTS = 8
"""Objects put at the same time."""
MAX_AHEAD, MAX_BYTES_AHEAD = 16, 20_000_000
"""Most objects whose items are not created yet, and their bytes: two of the largest batches."""
FIRST_BATCHES = 50
"""Batches at a job's beginning that are sent by message, or end at once if they are never sent."""
FIRST_VISIT_SECONDS = 10.0
"""Until a job that was read is visited to show how far it is; an answer brings a visit before."""
SWEPT_SECONDS = 3_600.0
"""Until a batch that is never submitted is due, if no sweep ended it before."""
UNREAD = ErrorDetail(
    "internal", "Dropbatch could not read the whole upload; the submit function's log shows why."
)
NOTHING_TO_SEND = ErrorDetail("internal", "no record of this batch could be sent")


# ── one turn ──────────────────────────────────────────────────────────────────────────────────────


def split(turn: Turn) -> None:
    """Split a job's upload for one turn; raises `LeaseLostError`."""
    services = turn.services
    # It may have been commanded before it existed.
    job = turn.job = obey(services, turn.job) or turn.job
    error = job.error or (UNREAD if job.claims > MAX_CLAIMS else None)
    staged = Staged(Checkpoint())
    try:
        if error is None and not job.cancelled:
            turn.plan()
            staged = _stage(turn)
            error = turn.job.error
            if not staged.is_read and not (turn.job.cancelled or error):
                services.ledger.release_job(turn.job, services.now(), wait=None)
                return
    except UploadRefused as fault:
        logger.warning("upload failed", job_id=job.job_id, code=fault.code)
        error = ErrorDetail(fault.code, fault.message)
    if staged.only is None or error is not None:
        _end(services, turn.job, staged, error)
        return
    # The POST takes a second, in which the job's reading ends.
    with ThreadPoolExecutor(1) as thread:
        ending = thread.submit(_end, services, turn.job, staged, None)
        try:
            _submit(turn, *staged.only)
        finally:
            ending.result()


def _submit(turn: Turn, batch: Batch, body: bytes) -> None:
    """Submit a new job's only batch here: a message would need a second process."""
    # If AWS fails, the batch is due again.
    with suppress(StorageError), count_failures(turn.services, batch.job_id, batch.number):
        submit_known(turn.invocation, turn.job, batch, batch.due_at, body)


def _end(services: Services, job: Job, staged: Staged, error: ErrorDetail | None) -> None:
    """The upload is read to its end, or nothing more of it is read."""
    if error is not None or job.cancelled:
        staged = replace(staged, place=_end_of_last(job, services.ledger.last_batch(job.job_id)))
        if not job.plan.form:
            put_job_record(services, job)
    elif services.now() < job.lease_until:
        # Without this, a small job would seem unread until its first visit.
        _write_status(services, replace(job, state=JobState.IN_PROGRESS, total=staged.place.record))
    total, now = staged.place.record, services.now()
    read = {"to_end": staged.is_read, "has_endings": staged.has_endings}
    due, work = now, DueKind.JOB
    if staged.is_sent and not (staged.has_endings or error or job.cancelled):
        due, work = now + FIRST_VISIT_SECONDS, DueKind.ROUTINE
    if services.ledger.end_split(job, total, error, due, work, **read) is None:
        return
    logger.info("upload read to its end", job_id=job.job_id, records=total)
    # Its batches' answers, or the message below, bring the first visit.
    services.left.cover(job.job_id)
    if not staged.is_sent:  # No answer will, and a tick may be a minute away.
        services.queues.send(VisitMessage(job.job_id))


def _end_of_last(job: Job, last: Batch | None) -> Checkpoint:
    """The end of a job's last batch; where its records begin if it has none."""
    return _end_of(last) if last else Checkpoint(job.plan.start, job.plan.start_line)


def _end_of(batch: Batch) -> Checkpoint:
    if batch.records.end is None:
        raise InvariantError(f"batch {batch.job_id}/{batch.number} has no end")
    return batch.records.end


def _write_status(services: Services, job: Job) -> None:
    write_status(services, job, build_status(job, noted_wait(job, services.now())))


@dataclass(frozen=True, slots=True)
class Staged:
    """What has been staged of an upload when a turn ends."""

    place: Checkpoint
    is_read: bool = False
    is_sent: bool = False  # whether any batch is to be submitted
    has_endings: bool = False  # whether a sweep ends batches that are not
    only: tuple[Batch, bytes] | None = None  # a new job's only batch and its body, not sent yet


def _stage(turn: Turn) -> Staged:
    last = None if turn.is_new else turn.services.ledger.last_batch(turn.job.job_id)
    staging = _Staging.after(turn, last)
    with ExitStack() as stack:
        stack.callback(staging.send_held)  # even if what follows it cannot be read
        puts, reads = ThreadPoolExecutor(MAX_PUTS), ThreadPoolExecutor(1)
        for pool in (puts, reads):
            stack.callback(pool.shutdown, cancel_futures=True)
        while (staged := staging.stage(puts, reads)) is None:
            pass  # what is stored counts: the rest is cut from its end
        if staged.is_read and staging.number == 1:
            only, staging.held = staging.held, None
            return replace(staged, only=only)
    return staged


@dataclass(slots=True)
class _Staging:
    """The batches that a turn stages: the next one's number, and where it begins."""

    turn: Turn
    before: Before
    number: int
    place: Checkpoint
    status_at: float
    renewed_at: float = 0.0
    held: tuple[Batch, bytes] | None = None  # a new job's first batch, until there is a second

    @classmethod
    def after(cls, turn: Turn, last: Batch | None) -> _Staging:
        """The staging of the batches after the last one; the turn's time begins."""
        services, place = turn.services, _end_of_last(turn.job, last)
        number = int(last.number[:8]) + 1 if last else 0
        turn.begin(place)
        return cls(turn, batches_before(services, last), number, place, services.now())

    def stage(self, puts: Executor, reads: Executor) -> Staged | None:
        """Stage batches up to the turn's end; None if a stored one ends elsewhere than cut."""
        turn, services = self.turn, self.turn.services
        cuts = turn.read(self.place, self.number, reads)
        ahead = put_ahead(services.store, puts, turn.job.job_id, self.number, self.place, cuts)
        for candidate in ahead:
            is_late = services.now() >= self.renewed_at + RENEW_EVERY_SECONDS
            if self.place != turn.begun and is_late:
                self._renew_lease()
                if turn.job.cancelled or turn.job.error:
                    return Staged(self.place)
            known = create_batch(services, turn.job, candidate, self.before, self._send)
            self.place = _end_of(known)
            self.number += 1
            self.before.add(known)
            if self.place != candidate.end:
                return None
        has_endings = self.before.has_endings(self.number)
        return Staged(self.place, turn.finished, self.before.ordinal > 0, has_endings)

    def _send(self, batch: Batch, body: bytes) -> None:
        """Have a batch submitted; a new job's first one waits for whether it is the only one."""
        self.send_held()
        self.held = batch, body
        if self.number or not self.turn.is_new:
            self.send_held()

    def send_held(self) -> None:
        """Have the batch that is held submitted by a message."""
        if self.held:
            batch, self.held = self.held[0], None
            message = SubmitMessage(batch.job_id, batch.number, batch.due_at or 0.0)
            self.turn.services.queues.send(message)

    def _renew_lease(self) -> None:
        turn, now = self.turn, self.turn.services.now()
        until, known = now + LEASE_RENEWAL_SECONDS, turn.job.reading
        bytes_read = max(known.bytes_read, turn.bytes_read)
        reading = replace(known, bytes_read=bytes_read)
        changes = {"lease_until": until, "due_at": until, "claims": 0}
        kept = turn.services.ledger.update_leased_job(
            turn.job, {**changes, "reading": reading, "wait": None}
        )
        turn.job, self.renewed_at = still_leased(kept, turn.job.job_id), now
        if now >= self.status_at + STATUS_EVERY_SECONDS:
            self.status_at = now
            _write_status(turn.services, turn.job)


# ── objects ───────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class StagedAhead:
    """A batch that was cut, and whose object is being put, unless one is found."""

    number: int
    first_id: int
    end: Checkpoint
    key: str
    body: bytes
    ours: StagedInfo
    found: Future[tuple[StagedInfo, str]]  # with the ETag if another run put it


def put_ahead(
    store: ObjectStore,
    threads: Executor,
    job_id: str,
    number: int,
    begin: Checkpoint,
    cuts: Iterator[Cut],
) -> Iterator[StagedAhead]:
    """Put the objects of batches, several at a time; yield the batches in order, once stored.

    What `cuts` raises is raised after the batches before it. The caller owns the threads, for which
    the garbage collector must not wait if it closes a generator.
    """
    waiting: deque[StagedAhead] = deque()
    problem: Exception | None = None
    while True:
        try:
            cut = next(cuts, None)
        except (UploadRefused, StorageError) as error:
            problem, cut = error, None
        if cut is None:
            break
        key, ours = keys.staged(job_id, f"{number:08d}"), StagedInfo.of_cut(cut, begin)
        body = b"".join((cut.body, cut.originals, encode_index(cut.rows)))
        found = threads.submit(_put, store, key, body, ours)
        waiting.append(StagedAhead(number, cut.first_id, cut.end, key, body, ours, found))
        number, begin = number + 1, cut.end
        del body, cut  # keep in memory only what `waiting` counts
        while waiting and (waiting[0].found.done() or _is_full(waiting)):
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()
    if problem:
        raise problem


def _is_full(waiting: deque[StagedAhead]) -> bool:
    return len(waiting) > MAX_AHEAD or sum(len(one.body) for one in waiting) > MAX_BYTES_AHEAD


def _put(store: ObjectStore, key: str, body: bytes, ours: StagedInfo) -> tuple[StagedInfo, str]:
    """Put an object unless one exists; the stored one's metadata, and its ETag if not ours."""
    if store.put_if_absent(key, body, ours.metadata()):
        return ours, ""
    there = store.existing(key)
    return StagedInfo.of(there.metadata), there.etag


def settle(store: ObjectStore, candidate: StagedAhead) -> StagedInfo:
    """Which object is a batch's, once the item before it exists: its metadata."""
    found, etag = candidate.found.result()
    if found.begin == candidate.ours.begin:
        return found
    store.replace(candidate.key, candidate.body, etag, candidate.ours.metadata())
    return candidate.ours


# ── items ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Before:
    """Of a job's batches before the next: how many have a sendable record, and their estimates."""

    ordinal: int = 0
    estimate: int = 0

    def has_endings(self, batches: int) -> bool:
        """Whether so many batches were created only to end them that a sweep is worth it."""
        return batches > FIRST_BATCHES and self.ordinal < batches

    def add(self, batch: Batch) -> None:
        """Add a batch as it is in the ledger."""
        self.ordinal += batch.records.sendable > 0
        self.estimate = batch.records.estimated_before + batch.records.estimate


def batches_before(services: Services, last: Batch | None) -> Before:
    """Totals of the batches up to the last one, whether or not it was divided into pieces."""
    if last is None:
        return Before()
    number = last.number[:8]
    whole = services.ledger.batch(last.job_id, number) if number != last.number else last
    if whole is None or whole.records.ordinal is None:
        raise InvariantError(f"batch {last.job_id}/{number} cannot be read, or was not counted")
    before = Before(whole.records.ordinal)
    before.add(whole)
    return before


def create_batch(
    services: Services,
    job: Job,
    candidate: StagedAhead,
    before: Before,
    send: Callable[[Batch, bytes], None],
) -> Batch:
    """Create a batch whose object exists; return it as it is in the ledger.

    It is sent with its body, which is empty if another run has put that, if its time has come and
    there is a call for it. Otherwise it is due then: batches follow at the rate of calls, so that
    jobs take turns.
    """
    name, staged, now = f"{candidate.number:08d}", settle(services.store, candidate), services.now()
    ending = job.ending(now) if staged.sendable else NOTHING_TO_SEND
    estimated = _estimate(job, candidate, staged)
    slot = _slot(services, job, before, estimated, now)
    is_sent = ending is None and slot <= now and _has_call(services, before, now)
    # The first ones end now; the sweep after the upload was read ends the others.
    ended_at = now if candidate.number < FIRST_BATCHES else now + SWEPT_SECONDS
    batch = Batch(
        job_id=job.job_id,
        number=name,
        state=BatchState.READY,
        records=Records(
            first_id=candidate.first_id,
            requests=staged.requests,
            sendable=staged.sendable,
            body_size=staged.body_size,
            end=staged.end,
            ordinal=before.ordinal,
            originals_size=staged.originals_size,
            estimate=estimated,
            estimated_before=before.estimate,
        ),
        created_at=now,
        due_at=ended_at if ending else slot + SUBMIT_GRACE_SECONDS * is_sent,
        # Its time limit for acceptance starts with its slot.
        paused=0.0 if ending else slot - now,
        work=DueKind.POLL if ending else DueKind.SUBMIT if before.ordinal else DueKind.FIRST,
        ending=ending,
    )
    if services.ledger.create_batch(batch) is None:
        known = services.ledger.batch(job.job_id, name)
        if known is None:
            raise InvariantError(f"batch {job.job_id}/{name} exists but cannot be read")
        return known
    count("BatchesCut")
    count("RecordsIn", batch.records.requests)
    if is_sent:
        is_ours = not candidate.found.result()[1]
        send(batch, candidate.body[: batch.records.body_size] if is_ours else b"")
    return batch


def _has_call(services: Services, before: Before, now: float) -> bool:
    """Whether a message has a batch submitted now, and makes no other job's first batch wait."""
    if not before.ordinal:
        return True
    return before.ordinal < FIRST_BATCHES and services.budget.free_calls(now).submits > 0


def _estimate(job: Job, candidate: StagedAhead, staged: StagedInfo) -> int:
    if not staged.sendable or job.cost is None:
        return 0
    body, model = candidate.body[: candidate.ours.body_size], job.plan.known_model
    return estimate(model, body, staged.body_size, staged.sendable, job.output_tokens)


def _slot(services: Services, job: Job, before: Before, estimated: int, now: float) -> float:
    """When a batch may be submitted: the first ones at once, others at the submit rate."""
    budget = services.budget
    ahead = max(before.ordinal - budget.burst // 2, 0)
    slot = max(job.created_at + ahead * budget.slot_seconds, now)
    if cost.allows(job, before.estimate, estimated):
        return slot
    return max(slot, now + cost.COST_LOOK_SECONDS)
