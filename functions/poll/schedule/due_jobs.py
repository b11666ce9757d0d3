"""Due jobs: an invocation visits the small ones itself.

And sends to queues the large ones and the uploads to read.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from dropbatch.core.names import JobState
from functions.poll.schedule.dispatch_submits import DISPATCHED_SECONDS
from functions.poll.schedule.due_items import each_contained, postponed
from functions.poll.sweep import next_sweep
from functions.poll.visit import visit_job
from shared.aws.queues import SplitMessage, VisitMessage
from shared.ledger import DueEntry
from shared.pacing.waits import shown_if_denied
from shared.retry import soon_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from shared.invocation import Invocation
    from shared.models import Job
    from shared.services import Services

LARGE_RECORDS, LARGE_UPLOAD_BYTES = 2_000, 8 << 20
"""Records or bytes above which a job's answers are collected and appended outside of ticks."""
IDLE_VISIT_SECONDS = 40.0
"""Seconds that a visit of a large job has that only shows how far it is.

Too few to append results.
"""
MAX_TURNS_WAITING, MAX_VISITS_WAITING = 20, 20
"""Messages that wait in the split queue and in the visit queue, up to which more are sent."""
NO_ROOM_SECONDS = 20.0
"""Seconds until the next look at a job for which there was no room, so that it hides no other."""


def is_large(job: Job, now: float) -> bool:
    """Whether a step of a job may take so long that a tick must not wait for it."""
    if job.total is None or next_sweep(job, now) is not None:
        return True
    return job.upload.size > LARGE_UPLOAD_BYTES or job.total > LARGE_RECORDS


def visit_due_jobs(invocation: Invocation, dues: list[DueEntry]) -> int:
    """Visit due jobs, and send to queues those whose upload is still being read, and large ones.

    Return how many.
    """
    services = invocation.services
    sent, found = _send_uploads(services, dues)
    large = [one for one in found if is_large(one[1], services.now())]
    sent += _send_jobs(services, large, VisitMessage, services.queues.visit_url, MAX_VISITS_WAITING)
    own = [one for one in found if one not in large]
    each_contained(services, own, lambda job: visit_job(invocation, job.job_id))
    return sent + len(own)


def show_idle_jobs(invocation: Invocation, dues: list[DueEntry]) -> int:
    """Visit due jobs only to show how far they are, the large ones only for a moment.

    Return how many.
    """
    services = invocation.services

    def visit(job: Job) -> None:
        now = services.now()
        ends = now + IDLE_VISIT_SECONDS if is_large(job, now) else math.inf
        visit_job(invocation.until(ends), job.job_id)

    sent, found = _send_uploads(services, dues)
    each_contained(services, found, visit)
    return sent + len(found)


def advance_jobs(invocation: Invocation, job_ids: Iterable[str]) -> None:
    """Visit jobs, each isolated from the others; a job that fails is due again at its `due_at`."""
    named = [(DueEntry(job_id, "", None), job_id) for job_id in job_ids]
    each_contained(invocation.services, named, partial(visit_job, invocation))


def _send_uploads(
    services: Services, dues: list[DueEntry]
) -> tuple[int, list[tuple[DueEntry, Job]]]:
    """Send the uploads that are still being read; return how many, and the other jobs."""
    read = each_contained(services, [(due, due.job_id) for due in dues], services.ledger.job)
    found = [(due, job) for due, job in zip(dues, read, strict=True) if job is not None]
    uploads = [one for one in found if one[1].state is JobState.SPLITTING]
    sent = _send_jobs(services, uploads, SplitMessage, services.queues.split_url, MAX_TURNS_WAITING)
    return sent, [one for one in found if one[1].state is not JobState.SPLITTING]


def _send_jobs(
    services: Services,
    found: list[tuple[DueEntry, Job]],
    message: Callable[[str], SplitMessage | VisitMessage],
    url: str,
    most: int,
) -> int:
    """Send a message for each job that is due, as long as there is room in the queue.

    Return how many were sent.
    """
    now = services.now()
    # The index may be out of date.
    due = [one for one in found if one[1].due_at is not None and one[1].due_at <= now]
    room = 0
    with shown_if_denied(services, (job for _, job in due)):
        room = max(most - services.queues.waiting(url), 0) if due else 0

    def postpone(job: Job, wait: float) -> Job | None:
        return services.ledger.postpone_job(job, now + wait)

    chosen = postponed(services, due[:room], lambda job: postpone(job, DISPATCHED_SECONDS))
    postponed(services, due[room:], lambda job: postpone(job, soon_after(NO_ROOM_SECONDS, 10)))
    with shown_if_denied(services, chosen):
        services.queues.send_all([message(job.job_id) for job in chosen])
    return len(chosen)
