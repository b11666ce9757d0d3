"""A job is over: the execution that waits for it is told, then EventBridge; each at least once.

Both come after the manifest and before the ledger's final state, so a function that dies in
between, or a service that fails, leaves the job due, and everything is told again. What is refused
for good is given up after some minutes. A token is used up by the first report that Step Functions
takes: an execution that is gone when a report is repeated has probably had it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core.names import JobState
from functions.poll.results.manifest import event_detail, task_cause
from shared.aws.step_functions import MAX_ERROR
from shared.errors import RefusedError
from shared.executions import gone_fault, is_awaited, note_fault, refused_fault
from shared.job_status import final_status, write_status
from shared.observability import count, logger

if TYPE_CHECKING:
    from shared.aws.step_functions import Gone
    from shared.bootstrap import Services
    from shared.models import ErrorDetail, Job

MAX_REFUSED_SECONDS = 300.0
"""Seconds after the end of a job for which it is told again although it is refused for good."""


def announce(
    services: Services, job: Job, manifest: dict[str, Any], now: float, *, again: bool
) -> None:
    """Tell who waits for a job that it is over.

    Args:
        services: the process's clients and settings.
        job: with its `completed_at`.
        manifest: as it was written.
        now: Unix seconds.
        again: whether an earlier run may have told it already.

    Raises:
        StorageError: not everybody was told; it must be repeated.
    """
    detail = event_detail(services.store.bucket, job, manifest)
    if is_awaited(job):
        noted = note_fault(services, job, _tell_execution(services, job, detail, now, again=again))
        if noted.task_fault != job.task_fault:
            write_status(services, job, final_status(replace(job, task_fault=noted.task_fault)))
    try:
        services.notices.publish_job_over(detail, now)
    except RefusedError as error:
        if _is_young(job, now):
            raise
        logger.error("event not published", job_id=job.job_id, reason=str(error))
        count("Errors")


def _tell_execution(
    services: Services, job: Job, detail: dict[str, Any], now: float, *, again: bool
) -> ErrorDetail | None:
    """Report to the execution.

    Return why it was not told, None if it was, perhaps by an earlier run.
    """
    try:
        gone = _report(services, job, detail)
    except RefusedError as refusal:
        if _is_young(job, now):
            raise
        count("Errors")
        return refused_fault(refusal)
    if gone is None:
        return None
    if again or gone.sent_again:
        logger.info(
            "execution gone: it was told before, or waits no longer",
            job_id=job.job_id,
            code=gone.code,
        )
        return None
    return gone_fault(gone)


def _report(services: Services, job: Job, detail: dict[str, Any]) -> Gone | None:
    if detail["state"] == JobState.COMPLETED:
        return services.executions.succeed(job.task_token, msgspec.json.encode(detail).decode())
    code = detail["error"]["code"] if detail["error"] else detail["state"]
    return services.executions.fail(job.task_token, code[:MAX_ERROR], task_cause(detail))


def _is_young(job: Job, now: float) -> bool:
    """Whether a job is over for so short a time that what is refused for good is tried again."""
    return job.ended_at is None or now - job.ended_at < MAX_REFUSED_SECONDS
