"""The staged objects of jobs that are over.

An hour later those that the results hold too, after some days the others.

A job that is over stays in the `due` index until they are deleted. A function that dies leaves the
rest to the next
one: what was deleted is not listed again. What is left after all tries, the bucket's lifecycle rule
deletes. These are few where S3 refuses to delete an object, because it is locked or a policy
forbids it: that will not change soon.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from functions.poll.schedule.due_items import in_parallel
from shared import keys
from shared.claims import MAX_CLAIMS, claim_seconds
from shared.errors import RefusedError, UnreadableItemError
from shared.models import DueKind, Job, Staging
from shared.observability import count, logger

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.ledger import DueEntry

MAX_JOBS_DELETED = 200
"""Jobs whose staged objects one tick deletes."""
FIRST_SECONDS = 3_600.0
"""Seconds from a job's end until replies, parts and segments are deleted.

No function that reads them runs so long.
"""
MIN_FIRST_BYTES = 4 << 20
"""Bytes of results below which all objects are deleted together.

Keeping their parts costs less than another pass.
"""
CLAIM_SECONDS = 180.0
MAX_REFUSED_TRIES, REFUSED_SECONDS = 5, 86_400.0
"""Tries for each job whose objects S3 refuses to list or to delete.

And seconds between two of them.
"""


def first_deletion(job: Job, staging: Staging, now: float) -> float:
    """When the first objects of a job that ends now are deleted, Unix seconds."""
    return (
        min(now + FIRST_SECONDS, staging.until)
        if job.output.size >= MIN_FIRST_BYTES
        else staging.until
    )


def delete_staged(services: Services, ends: float) -> None:
    """Delete what is due, a page of 1,000 objects at least of each of the oldest jobs.

    Until `ends` (Unix seconds).

    Raises:
        StorageError: the table's index could not be read.
    """
    due, _ = services.ledger.due(DueKind.CLEANUP, services.now(), MAX_JOBS_DELETED)
    in_parallel(lambda one: _delete_contained(services, one, ends), due)


def _delete_contained(services: Services, due: DueEntry, ends: float) -> None:
    """No error of one job delays the others.

    It is due again later, whether it was claimed or not.
    """
    try:
        _delete(services, due, ends)
    except Exception as error:  # noqa: BLE001 - see above
        logger.exception("staged objects not deleted", job_id=due.job_id)
        count("Errors")
        _postpone(services, due, is_readable=not isinstance(error, UnreadableItemError))


def _postpone(services: Services, due: DueEntry, *, is_readable: bool) -> None:
    """Count a claim of a job that could not be claimed.

    After the last one, the lifecycle rule deletes its objects.
    """
    try:
        claims = services.ledger.claims_of(due) + 1
        if not is_readable or claims > MAX_CLAIMS:
            services.ledger.forget_cleanup(due)
        else:
            services.ledger.set_aside(
                due, claims, services.now() + claim_seconds(claims - 1, CLAIM_SECONDS)
            )
    except Exception:  # noqa: BLE001 - the table itself fails: the job is due in the next tick
        logger.exception("clean-up not put off", job_id=due.job_id)


def _delete(services: Services, due: DueEntry, ends: float) -> None:
    now = services.now()
    job = services.ledger.job(due.job_id)
    if job is None or job.staging is None or job.due_at is None or job.due_at > now:
        return  # The index was out of date.
    if job.claims > MAX_CLAIMS:
        services.ledger.end_cleanup(job)
        logger.error("staged objects left to the lifecycle rule", job_id=job.job_id)
        return
    claimed = services.ledger.claim_cleanup(job, now + claim_seconds(job.claims, CLAIM_SECONDS))
    if claimed is None or claimed.staging is None:
        return
    staging, everything = claimed.staging, now >= claimed.staging.until
    mark, refusal = _delete_pages(services, job.job_id, staging.mark, ends, everything=everything)
    if refusal:
        _retry_later(services, claimed, staging, refusal, now)
    elif mark:
        services.ledger.continue_cleanup(claimed, replace(staging, mark=mark), now)
    elif everything:
        services.ledger.end_cleanup(claimed)
    else:
        services.ledger.continue_cleanup(claimed, replace(staging, mark=""), staging.until)


def _delete_pages(
    services: Services, job_id: str, mark: str, ends: float, *, everything: bool
) -> tuple[str, RefusedError | None]:
    """Delete one page at least.

    Return the key up to which this came, empty at the end, and what S3 refused.
    """
    refusal = None
    while True:
        # What was deleted is not listed again: a pass over everything begins anew with each page.
        try:
            found, mark = services.store.versions(
                keys.staging(job_id), "" if everything and not refusal else mark
            )
        except RefusedError as error:
            return mark, error
        if unwanted := [one for one in found if everything or keys.is_in_results(one.key)]:
            try:
                services.store.delete(unwanted)
            except RefusedError as error:  # The other pages are deleted all the same.
                refusal = error
        if not mark or services.now() >= ends:
            return mark, refusal


def _retry_later(
    services: Services, job: Job, staging: Staging, refusal: RefusedError, now: float
) -> None:
    """Try to delete everything again a day later.

    After the last try, leave it to the lifecycle rule.
    """
    tries = staging.refused + 1
    if tries < MAX_REFUSED_TRIES:
        due_at = max(staging.until, now + REFUSED_SECONDS)
        services.ledger.continue_cleanup(job, replace(staging, mark="", refused=tries), due_at)
        return
    services.ledger.end_cleanup(job)
    logger.warning(
        "staged objects left to the lifecycle rule", job_id=job.job_id, reason=str(refusal)
    )
