"""Lambda 2's entry: the schedule's tick and messages of the poll queue. An event in, one call, an answer out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aws_lambda_powertools.utilities.batch import process_partial_response

from functions.poll.advance_job import advance_job
from functions.poll.tick import advance_batches, tick
from shared.aws.queues import AdvanceMessage, PollMessage, decode_message
from shared.bootstrap import services
from shared.observability import LoggingBatchProcessor, logger, metrics

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from aws_lambda_powertools.utilities.typing import LambdaContext

processor = LoggingBatchProcessor()


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> Any:  # noqa: ANN401 - Powertools' own answer
    """One tick, or for messages one look at the batches they name."""
    if "Records" in event:
        return process_partial_response(
            event=event, record_handler=record_handler, processor=processor, context=context
        )
    tick(services(), lambda: context.get_remaining_time_in_millis() / 1000)
    return {}


def record_handler(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """One message: batches to poll, or a job to visit."""

    def remaining() -> float:
        return lambda_context.get_remaining_time_in_millis() / 1000

    message = decode_message(record.body)
    match message:
        case PollMessage(batches):
            advance_batches(services(), batches, remaining)
        case AdvanceMessage(job_id):
            advance_job(services(), job_id, remaining)
        case _:
            raise msgspec.ValidationError("a message for another function")
