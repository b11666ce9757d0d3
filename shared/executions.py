"""Executions of AWS Step Functions that wait for a job.

What is noted of them, and that they are told of the work.

The upload's task token names the execution. While the job runs, each invocation that moves it on
sends a heartbeat, one a minute at most; functions/poll/results/announce.py reports the end. An
execution that is gone holds up no job. Jobs without a token cost no call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.names import JobState
from dropbatch.core.task_token import MAX_TOKEN, task_tokens
from shared.errors import RefusedError, StorageError
from shared.job_control import cancelled
from shared.models import CANCEL, ErrorDetail, Job, JobControl
from shared.observability import logger

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shared.aws.step_functions import Gone
    from shared.bootstrap import Services
    from shared.settings import Settings

BEAT_SECONDS = 60.0
"""Minimum seconds between two heartbeats of one job."""
EXECUTION_GONE = "execution_gone"
EXECUTION_REFUSED = "execution_refused"


def await_with(settings: Settings, metadata: Mapping[str, str]) -> tuple[str, ErrorDetail | None]:
    """The task token of an upload.

    And why nothing will be reported to the execution that waits with it.

    An upload that is only validated reports nothing, as it has no status and no manifest.
    """
    tokens = task_tokens(metadata)
    if not tokens:
        return "", None
    if len(tokens) > 1 or len(token := tokens.pop()) > MAX_TOKEN:
        message = (
            f"x-amz-meta-task-token must be one token of at most {MAX_TOKEN:,} "
            "characters. Nothing is reported."
        )
        return "", ErrorDetail("bad_task_token", message)
    if not settings.state_machine_arn:
        message = (
            "The stack has no StateMachineArn, so nothing is reported to the execution "
            "that waits for the job."
        )
        return "", ErrorDetail("no_state_machine", message)
    return token, None


def is_awaited(job: Job) -> bool:
    """Whether an execution waits for a job, as far as is known."""
    return bool(job.task_token) and (
        job.task_fault is None or job.task_fault.code != EXECUTION_GONE
    )


def gone_fault(gone: Gone) -> ErrorDetail:
    """What is noted of an execution that is gone."""
    why = (
        "Step Functions knows no task with this token"
        if gone.code == "InvalidToken"
        else "it no longer waits"
    )
    return ErrorDetail(
        EXECUTION_GONE, f"Nothing more is reported to the execution: {why} ({gone.code})."
    )


def refused_fault(refusal: RefusedError) -> ErrorDetail:
    """What is noted of reports that Step Functions refuses."""
    message = (
        f"Step Functions refuses what is reported to the execution: {refusal.code} "
        f"{refusal.said} Check that the token "
        "is of the state machine in StateMachineArn."
    )
    return ErrorDetail(EXECUTION_REFUSED, message)


def beat(services: Services, job: Job) -> Job:
    """Send a heartbeat to the execution that waits for an open job, if its minute has come.

    The minute is claimed first: a function that dies afterwards has left one heartbeat out. What
    the answer says is noted once; with the option `cancel_with_task`, an execution that is gone
    cancels the job by the same write.

    Returns:
        The job as it is afterwards.

    Raises:
        StorageError: DynamoDB failed.
    """
    now = services.now()
    if not is_awaited(job) or job.ended_at is not None or now < job.task_beat_at + BEAT_SECONDS:
        return job  # Once its end may be reported, the task may be gone for that reason.
    claimed = services.ledger.claim_beat(job, now)
    if claimed is None:
        return job
    try:
        gone = services.executions.beat(job.task_token)
    except RefusedError as refusal:
        return note_fault(services, claimed, refused_fault(refusal))
    except StorageError as error:
        logger.warning("heartbeat not sent", job_id=job.job_id, reason=str(error))
        return claimed
    return note_fault(services, claimed, gone_fault(gone) if gone else None)


def note_fault(services: Services, job: Job, fault: ErrorDetail | None) -> Job:
    """Note why nothing is reported to a job's execution, once; None: reports are taken.

    Return the job afterwards.

    Raises:
        StorageError: DynamoDB failed.
    """
    known = job.task_fault.code if job.task_fault else ""
    if known == (fault.code if fault else ""):
        return job
    control = None
    if fault:
        logger.warning(
            "execution not told", job_id=job.job_id, code=fault.code, reason=fault.message
        )
        is_open = job.state in {JobState.SPLITTING, JobState.IN_PROGRESS} and not job.cancelled
        if fault.code == EXECUTION_GONE and job.cancel_with_task and is_open:
            control = cancelled(job.control or JobControl(), CANCEL)
    return services.ledger.note_task_fault(job, fault, control) or job
