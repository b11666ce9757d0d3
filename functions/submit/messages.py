"""Messages of the submit function: a batch to submit, an upload to continue, S3's notification of a new one."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from functions.submit.create_job import get_or_create_job
from functions.submit.failed_messages import count_failures, retry_soon_after_death
from functions.submit.split import split
from functions.submit.submit_batch import submit_batch
from functions.submit.upload_events import parse_notification
from functions.submit.validate_upload import validate
from shared.aws.queues import SplitMessage, SubmitMessage, decode_message
from shared.retry import retry_until_deadline
from shared.s3_keys import is_validation

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bootstrap import Services
    from shared.models import Job


def process_message(services: Services, body: str, receipt: str, remaining: Callable[[], float]) -> None:
    """Process one message.

    Args:
        services: the process's clients and settings.
        body: the message.
        receipt: its receipt handle.
        remaining: seconds this invocation has left.

    Raises:
        StorageError: an AWS service failed; the message is delivered again.
        msgspec.ValidationError: the message is for another function.
    """
    try:
        message = decode_message(body)
    except msgspec.ValidationError:
        # Until its job is created, only this message can retry an upload.
        with retry_soon_after_death(services, receipt, remaining):
            for upload in parse_notification(body):
                with services.called_by_message(0) as own:
                    if found := retry_until_deadline(partial(get_or_create_job, own, upload), own.sleep, remaining):
                        job, created = found
                        _read_upload(own, job, leased=created, remaining=remaining)
        return
    with services.called_by_message(message.hops) as own:
        match message:
            case SubmitMessage(job_id, number):
                with count_failures(own, job_id, number):
                    submit_batch(own, job_id, number, remaining)
            case SplitMessage(job_id):
                with count_failures(own, job_id):
                    if known := own.ledger.job(job_id):
                        _read_upload(own, known, leased=False, remaining=remaining)
            case _:
                raise msgspec.ValidationError("a message for another function")


def _read_upload(services: Services, job: Job, *, leased: bool, remaining: Callable[[], float]) -> None:
    """Split an upload, or only validate it, for one turn."""
    read = validate if is_validation(job.upload.key) else split
    read(services, job, leased=leased, remaining=remaining)
