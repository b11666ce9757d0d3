"""Lambda 1's entry: messages of the upload queue and the submit queue. An event in, one call, an answer out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from aws_lambda_powertools.utilities.batch import process_partial_response

from functions.submit.create_job import get_or_create_job
from functions.submit.failed_messages import count_failures, retry_soon_after_death
from functions.submit.split import split
from functions.submit.submit_batch import submit_batch
from functions.submit.upload_events import parse_notification
from shared.aws.queues import SplitMessage, SubmitMessage, decode_message
from shared.bootstrap import services
from shared.observability import LoggingBatchProcessor, logger, metrics
from shared.retry import retry_until_deadline

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from aws_lambda_powertools.utilities.typing import LambdaContext

processor = LoggingBatchProcessor()


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> Any:  # noqa: ANN401 - Powertools' own answer
    """Work on each message; those that failed are named in the answer and come again."""
    return process_partial_response(event=event, record_handler=record_handler, processor=processor, context=context)


def record_handler(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """One message: a batch to submit, a job to go on with, or S3's news of uploads."""

    def remaining() -> float:
        return lambda_context.get_remaining_time_in_millis() / 1000

    everything = services()
    try:
        message = decode_message(record.body)
    except msgspec.ValidationError:
        # Until its job is written down an upload has only this message.
        with retry_soon_after_death(everything, record.receipt_handle, remaining):
            for arrival in parse_notification(record.body):
                if found := retry_until_deadline(
                    partial(get_or_create_job, everything, arrival), everything, remaining
                ):
                    job, created = found
                    split(everything, job, leased=created, remaining=remaining)
        return
    match message:
        case SubmitMessage(job_id, number):
            with count_failures(everything, job_id, number):
                submit_batch(everything, job_id, number, remaining)
        case SplitMessage(job_id):
            with count_failures(everything, job_id):
                if known := everything.ledger.job(job_id):
                    split(everything, known, leased=False, remaining=remaining)
        case _:
            raise msgspec.ValidationError("a message for another function")
