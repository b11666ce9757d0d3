"""Lambda 1's entry: messages of the upload queue and the submit queue. An event in, one call, an answer out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
from aws_lambda_powertools.utilities.batch import process_partial_response

from functions.submit.failures import failures_counted, soon_again_after_death
from functions.submit.jobs import job_for
from functions.submit.send import submit
from functions.submit.split import split
from shared.insist import insist
from shared.observability import Messages, logger, metrics
from shared.queues import BatchMessage, JobMessage, decode_message
from shared.s3_events import arrivals
from shared.services import services

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from aws_lambda_powertools.utilities.typing import LambdaContext

processor = Messages()


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
        with soon_again_after_death(everything, record.receipt_handle, remaining):
            for arrival in arrivals(record.body):
                if found := insist(partial(job_for, everything, arrival), everything, remaining):
                    job, created = found
                    split(everything, job, leased=created, remaining=remaining)
        return
    match message:
        case BatchMessage(job_id, number):
            with failures_counted(everything, job_id, number):
                submit(everything, job_id, number, remaining)
        case JobMessage(job_id):
            with failures_counted(everything, job_id):
                if known := everything.ledger.job(job_id):
                    split(everything, known, leased=False, remaining=remaining)
        case _:
            raise msgspec.ValidationError("a message for another function")
