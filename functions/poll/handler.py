"""Lambda 2's entry point: the schedule's tick and messages of the poll queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import process_partial_response

from functions.poll.messages import process_message
from functions.poll.schedule.tick import tick
from shared.bootstrap import build_in_init, services
from shared.invocation import Invocation
from shared.observability import LoggingBatchProcessor, logger, metrics

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from aws_lambda_powertools.utilities.typing import LambdaContext

processor = LoggingBatchProcessor()


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> Any:  # noqa: ANN401 - Powertools' return type
    """Process each message, or run one tick if the event holds none."""
    if "Records" in event:
        return process_partial_response(event, record_handler, processor, context)
    tick(Invocation.of(services(), context))
    return {}


def record_handler(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """Process one message."""
    process_message(Invocation.of(services(), lambda_context), record.body)


build_in_init()
