"""Lambda 1's entry point: messages of the upload queue and the submit queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from aws_lambda_powertools.utilities.batch import process_partial_response

from functions.submit.messages import process_message
from shared.bootstrap import build_in_init, services
from shared.observability import LoggingBatchProcessor, logger, metrics
from shared.services import Invocation

if TYPE_CHECKING:
    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
    from aws_lambda_powertools.utilities.typing import LambdaContext

processor = LoggingBatchProcessor()


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> Any:  # noqa: ANN401 - Powertools' return type
    """Process each message; the response names those that failed, and SQS delivers them again."""
    return process_partial_response(
        event=event, record_handler=record_handler, processor=processor, context=context
    )


def record_handler(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """Process one message."""
    invocation = Invocation.of(services(), lambda_context)
    # In its queue, that is: a process that starts for it takes a second, too, but no other message
    # waits behind that.
    received, sent = (
        record.attributes.approximate_first_receive_timestamp,
        record.attributes.sent_timestamp,
    )
    process_message(
        invocation, record.body, record.receipt_handle, (int(received) - int(sent)) / 1000
    )


build_in_init()
