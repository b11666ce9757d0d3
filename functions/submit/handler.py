"""Lambda 1's entry point: messages of the upload queue and the submit queue.

A new upload becomes a job, a job's upload is read on, a batch is submitted. If the function fails
or dies at a message, the error counts as a claim of the item, which is due again by itself and ends
in time. Only an upload's first message has no item yet: it is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from aws_lambda_powertools.utilities.batch import process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from functions.submit.read import lease_turn, take_turn
from functions.submit.stage import split
from functions.submit.submit import submit_batch
from functions.submit.upload import create_job
from shared.aws.object_events import parse_notification
from shared.aws.queues import SplitMessage, SubmitMessage, decode_message
from shared.bootstrap import build_in_init, services
from shared.errors import RefusedError, StorageError, UploadDeniedError
from shared.observability import LoggingBatchProcessor, logger, metrics, report_stuck
from shared.pacing.waits import show_denied
from shared.retry import retry_seconds
from shared.services import Invocation, Services

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
                with _count_failures(own.services, job_id, number):
                    submit_batch(own, job_id, number, due_at)
            case SplitMessage(job_id):
                with _count_failures(own.services, job_id):
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
                if job := own.retry(partial(create_job, own.services, upload)):
                    take_turn(own, job, split)


@contextmanager
def _count_failures(services: Services, job_id: str, number: str = "") -> Iterator[None]:
    """Count an error before an item was claimed as a claim: its message would fail forever."""
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


build_in_init()
