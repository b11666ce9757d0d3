"""Lambda 1's entry point: messages of the upload queue and the submit queue.

A new upload becomes a job, a job's upload is read on, a batch is submitted. If the function fails
or dies at a message, the error counts as a claim of the item, which is due again by itself and ends
in time. Only an upload's first message has no item yet: it is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import msgspec
from aws_lambda_powertools.utilities.batch import process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.submit.read import count_failures, lease_turn, take_turn
from functions.submit.stage import split
from functions.submit.submit import submit_batch
from functions.submit.upload import create_job
from shared.aws.object_events import parse_notification
from shared.aws.queues import SplitMessage, SubmitMessage, decode_message
from shared.bootstrap import build_in_init, services
from shared.errors import StorageError, UploadDeniedError
from shared.observability import LoggingBatchProcessor, logger, metrics
from shared.services import Invocation

DEATH_MARGIN_SECONDS = 30.0
"""After an invocation's end: its message is delivered again if it died."""
FAILED_AGAIN_SECONDS = 900.0
"""Until the message of an upload that failed is delivered again."""

processor = LoggingBatchProcessor()


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Process each message; the response names those that failed, and SQS delivers them again."""
    return process_partial_response(
        event=event, record_handler=record_handler, processor=processor, context=context
    )


def record_handler(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """Process one message."""
    process_message(Invocation.of(services(), lambda_context), record.body, record.receipt_handle)


def process_message(invocation: Invocation, body: str, receipt: str) -> None:
    """Process one message, with its receipt handle."""
    try:
        message = decode_message(body)
    except msgspec.ValidationError:
        _read_new_uploads(invocation, body, receipt)
        return
    with invocation.called_by_message(message.hops) as own:
        match message:
            case SubmitMessage(job_id, number, due_at):
                with count_failures(own.services, job_id, number):
                    submit_batch(own, job_id, number, due_at)
            case SplitMessage(job_id):
                with count_failures(own.services, job_id):
                    known = own.services.ledger.job(job_id)
                    job = known and lease_turn(own.services, known)
                if job:
                    take_turn(own, job, split)
            case _:
                raise msgspec.ValidationError("a message for another function")


def _read_new_uploads(invocation: Invocation, body: str, receipt: str) -> None:
    with _retry_soon_after_death(invocation, receipt):
        for upload in parse_notification(body):
            with invocation.called_by_message(0) as own:
                if created := own.retry(partial(create_job, own.services, upload)):
                    take_turn(own, created.job, split, created.options)


@contextmanager
def _retry_soon_after_death(invocation: Invocation, receipt: str) -> Iterator[None]:
    """Have a message back soon if this process dies; the call that says so delays nothing."""
    queues = invocation.services.queues

    def hide(seconds: float) -> None:
        with suppress(StorageError):  # Then it is delivered again later.
            queues.hide_upload(receipt, seconds)

    with ThreadPoolExecutor(1) as thread:
        hidden = thread.submit(hide, invocation.seconds_left + DEATH_MARGIN_SECONDS)
        try:
            yield
        except Exception as error:
            hidden.result()
            hide(error.wait if isinstance(error, UploadDeniedError) else FAILED_AGAIN_SECONDS)
            raise


build_in_init()
