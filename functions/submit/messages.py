"""Messages of the submit function.

A batch to submit, an upload to continue, S3's notification of a new one.

The invocation that reads a small upload submits its first batch, too: no message is sent, received
and paid for. If it dies before, the batch is due a minute after it was created, as if its message
had been lost.

If the function fails or dies at a message, an error on an item counts as a claim, so that the item
ends in time. Only an upload's first message has no item yet that would become due again.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from functions.submit.create_job import create_job
from functions.submit.split import split
from functions.submit.submit import POST_SECONDS, SETTLE_SECONDS, submit_batch
from functions.submit.turn import lease_turn, take_turn
from shared.aws.object_events import parse_notification
from shared.aws.queues import FIRST_BATCH, SplitMessage, SubmitMessage, decode_message
from shared.errors import RefusedError, StorageError, UploadDeniedError
from shared.observability import logger
from shared.pacing.waits import show_denied
from shared.retry import report_stuck, retry_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shared.models import Job
    from shared.services import Invocation, Services

DEATH_MARGIN_SECONDS = 30.0
"""Seconds after an invocation's end at which its message is delivered again if it died."""
MAX_WAITED_SECONDS = 1.0
"""Seconds that a message was in its queue at most whose invocation submits, too.

After more, others wait behind it.
"""
BEGIN_SUBMIT_SECONDS = 10.0
"""Seconds in which a batch is read that is submitted."""
FAILED_AGAIN_SECONDS = 900.0
"""Seconds until the message of an invocation that failed is delivered again.

Five tries take over an hour.
"""


def process_message(invocation: Invocation, body: str, receipt: str, waited: float) -> None:
    """Process one message.

    Args:
        invocation: this one.
        body: the message.
        receipt: its receipt handle.
        waited: seconds that it was in its queue.

    Raises:
        StorageError: an AWS service failed; the message is delivered again.
        msgspec.ValidationError: the message is for another function.
    """
    try:
        message = decode_message(body)
    except msgspec.ValidationError:
        # Until its job is created, only this message can retry an upload.
        with _retry_soon_after_death(invocation, receipt):
            for upload in parse_notification(body):
                with invocation.called_by_message(0) as own:
                    if job := own.retry(partial(create_job, own.services, upload)):
                        _read_upload(own, job, waited)
        return
    with invocation.called_by_message(message.hops) as own:
        match message:
            case SubmitMessage(job_id, number, due_at):
                with _count_failures(own.services, job_id, number):
                    submit_batch(own, job_id, number, due_at)
            case SplitMessage(job_id):
                with _count_failures(own.services, job_id):
                    known = own.services.ledger.job(job_id)
                    job = known and lease_turn(own.services, known)
                if job:
                    _read_upload(own, job, waited)
            case _:
                raise msgspec.ValidationError("a message for another function")


def _read_upload(invocation: Invocation, job: Job, waited: float) -> None:
    """Split the upload of a leased job for one turn.

    Submit its first batch if that is left.
    """
    if not take_turn(invocation, job, split, submits_first=waited <= MAX_WAITED_SECONDS):
        return
    services = invocation.services
    if not invocation.allows(POST_SECONDS + SETTLE_SECONDS + BEGIN_SUBMIT_SECONDS):
        return  # It is due within a minute.
    try:
        with _count_failures(services, job.job_id, FIRST_BATCH):
            submit_batch(invocation, job.job_id, FIRST_BATCH)
    except (
        StorageError
    ) as error:  # The upload was read: its message is done, and the batch is due again soon.
        logger.warning("first batch not submitted", job_id=job.job_id, reason=str(error))


@contextmanager
def _count_failures(services: Services, job_id: str, number: str = "") -> Iterator[None]:
    """Count an error before an item was claimed as a claim of it.

    Otherwise its message would fail forever.

    Nothing was sent for it, so it is due again soon, whatever lease its message had.
    """
    try:
        yield
    except Exception as error:
        with suppress(StorageError):
            if isinstance(error, RefusedError) and (job := services.ledger.job(job_id)):
                show_denied(services, replace(job, lease_until=0.0), error)
        now = services.now()
        if found := services.ledger.unclaimed(job_id, number, now):
            due, claims = found
            again_at = now + retry_seconds(claims)
            if services.ledger.set_aside(due, claims + 1, again_at):
                services.left.look(again_at, job_id, number)
            report_stuck(claims + 1, job_id, number)
        raise


@contextmanager
def _retry_soon_after_death(invocation: Invocation, receipt: str) -> Iterator[None]:
    """Have the message of an upload delivered again soon if this invocation dies.

    Not after the queue's 15 minutes.
    """
    queues = invocation.services.queues
    with suppress(StorageError):  # Then it is delivered again later.
        queues.hide(queues.upload_url, receipt, invocation.seconds_left + DEATH_MARGIN_SECONDS)
    try:
        yield
    except Exception as error:
        with suppress(StorageError):
            wait = error.wait if isinstance(error, UploadDeniedError) else FAILED_AGAIN_SECONDS
            queues.hide(queues.upload_url, receipt, wait)
        raise
