"""Lambda 2's entry: the schedule's tick and messages of the poll queue. An event in, one call, an answer out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from aws_lambda_powertools.utilities.batch import process_partial_response

from functions.poll.finish import visit
from functions.poll.tick import bring_on, tick
from shared.observability import Messages, logger, metrics
from shared.queues import AskMessage, VisitMessage, decode_message
from shared.services import services

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from aws_lambda_powertools.utilities.typing import LambdaContext

processor = Messages()


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
        case AskMessage(batches):
            bring_on(services(), batches, remaining)
        case VisitMessage(job_id):
            visit(services(), job_id, remaining)
        case _:
            raise msgspec.ValidationError("a message for another function")
