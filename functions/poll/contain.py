"""Due items, each processed in isolation.

One that cannot be read or processed delays no other, and ends in time.

An error counts as a claim, unless the processing began with one. A batch whose job is missing or
cannot be read is set aside in the same way, until its claims are used up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from shared.errors import StorageError, UnreadableItemError
from shared.ledger import DueEntry
from shared.models import Batch, Job
from shared.observability import count, count_broken_law, logger, report_stuck
from shared.retry import MAX_CLAIMS, claim_seconds
from shared.services import Services

S = TypeVar("S")
T = TypeVar("T")

THREADS = 8


class DueItem(NamedTuple):
    """A due batch, its job, and its entry in the index."""

    due: DueEntry
    job: Job
    batch: Batch


def in_parallel(step: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Run a step for many items in threads; return the results in the same order."""
    if not items:
        return []
    with ThreadPoolExecutor(min(THREADS, len(items))) as threads:
        return list(threads.map(step, items))


def each_contained(
    services: Services, items: Sequence[tuple[DueEntry, S]], step: Callable[[S], T]
) -> list[T | None]:
    """Run a step for each item in threads, as `contained` does; results in the same order."""
    return in_parallel(lambda one: contained(services, one[0], lambda: step(one[1])), items)


def postponed(
    services: Services, items: Sequence[tuple[DueEntry, S]], postpone: Callable[[S], object]
) -> list[S]:
    """Postpone items before they are sent, so that no cycle reads them; return those it did."""
    done = each_contained(services, items, postpone)
    return [item for (_, item), is_done in zip(items, done, strict=True) if is_done]


def contained(services: Services, due: DueEntry, step: Callable[[], T]) -> T | None:
    """Run the step of one item; return None if it failed, which is logged and counts as a claim."""
    try:
        return step()
    except Exception as error:  # noqa: BLE001 - no error of one item may delay the others
        logger.exception("item failed", job_id=due.job_id, number=due.number)
        if isinstance(error, UnreadableItemError):
            count_broken_law()
        else:
            count("Errors")
        set_aside(services, due)
        return None


def set_aside(services: Services, due: DueEntry) -> None:
    """Count a claim of an item that cannot be processed: it is due later, or ends."""
    if due.due_at is None:
        return  # A message named it; the index makes it due.
    try:
        now = services.now()
        claims = services.ledger.claims_of(due) + 1
        if claims > MAX_CLAIMS:
            if services.ledger.retire(due, now):
                logger.error("item given up", job_id=due.job_id, number=due.number)
            return
        until = now + claim_seconds(claims - 1, 60.0)
        if services.ledger.set_aside(due, claims, until):
            report_stuck(claims, due.job_id, due.number)
    except Exception:  # noqa: BLE001 - the table itself fails: the item is due in the next cycle
        logger.exception("item not set aside", job_id=due.job_id, number=due.number)
        count("Errors")


def load(services: Services, dues: Iterable[DueEntry]) -> list[DueItem]:
    """Read batches and their jobs that are due now, as far as they can be read."""
    dues = list(dues)
    job_ids = list(dict.fromkeys(due.job_id for due in dues))

    def read(job_id: str) -> Job | StorageError | None:
        try:
            return readable_job(services, job_id)
        except StorageError as error:
            return error  # Of its own batches; others are read.

    jobs = dict(zip(job_ids, in_parallel(read, job_ids), strict=True))

    def look(due: DueEntry) -> DueItem | None:
        batch = services.ledger.batch(due.job_id, due.number)
        if batch is None or batch.due_at is None:
            return None
        if batch.due_at > services.now() and batch.due_at != due.due_at:
            return None  # Somebody has worked on it since.
        job = jobs[due.job_id]
        if isinstance(job, StorageError):
            raise job
        if job is None:
            logger.error("batch without a readable job", job_id=due.job_id, number=due.number)
            count_broken_law()
            set_aside(services, due)
            return None
        return DueItem(due, job, batch)

    found = each_contained(services, [(due, due) for due in dues], look)
    return [one for one in found if one]


def readable_job(services: Services, job_id: str) -> Job | None:
    """A batch's job; None if it is missing or unreadable, and ends through its own entry."""
    try:
        return services.ledger.job(job_id)
    except UnreadableItemError:
        logger.exception("job not readable", job_id=job_id)
        return None
