"""Lambda 2's entry point: the schedule's tick, and messages of its queue."""

from __future__ import annotations

from typing import Any

import msgspec
from aws_lambda_powertools.utilities.batch import process_partial_response
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord
from aws_lambda_powertools.utilities.typing import LambdaContext

from dropbatch.core import names
from functions.poll.commands import follow_stack_control
from functions.poll.due_polls import REPEAT_SECONDS, advance_batches
from functions.poll.tick import tick, wake
from functions.poll.visit import visit_job
from shared.aws.object_events import parse_notification
from shared.aws.queues import PollMessage, VisitMessage, WakeMessage, decode_message
from shared.bootstrap import build_in_init, services
from shared.job_control import follow_job_control
from shared.observability import LoggingBatchProcessor, logger, metrics
from shared.pacing.wake import wake as plan_wake
from shared.services import Invocation

processor = LoggingBatchProcessor()


@logger.inject_lambda_context
@metrics.log_metrics
def lambda_handler(event: dict[str, Any], context: LambdaContext) -> Any:
    """Process each message, or run one tick if the event holds none."""
    if "Records" in event:
        return process_partial_response(event, record_handler, processor, context)
    tick(Invocation.of(services(), context))
    return {}


def record_handler(record: SQSRecord, lambda_context: LambdaContext) -> None:
    """Process one message."""
    process_message(Invocation.of(services(), lambda_context), record.body)


def process_message(invocation: Invocation, body: str) -> None:
    """Process one message."""
    try:
        message = decode_message(body)
    except msgspec.ValidationError:
        for command in parse_notification(body):
            with invocation.called_by_message(0) as own:
                _follow_command(own, command.key)
        return
    if isinstance(message, WakeMessage):
        wake(invocation, message)
        return
    with invocation.called_by_message(message.hops) as own:
        match message:
            case PollMessage(batches):
                advance_batches(own, batches)
            case VisitMessage(job_id):
                if not visit_job(own, job_id):
                    # The run that holds the job may have read it before the message was sent.
                    own.services.sleep(REPEAT_SECONDS)
                    visit_job(own, job_id)
            case _:
                raise msgspec.ValidationError("a message for another function")


def _follow_command(invocation: Invocation, key: str) -> None:
    """Carry out the command that an object holds, and visit its job."""
    services = invocation.services
    if key == names.STACK_CONTROL:
        follow_stack_control(services)
        # The command may have ended what others wait for.
        plan_wake(services, services.now(), at_once=True)
    elif (job_id := names.controlled_job(key)) is None:
        logger.warning("no control object", key=key[:100])
    else:
        follow_job_control(services, job_id)
        if not visit_job(invocation, job_id):
            services.queues.send(VisitMessage(job_id), delay=15.0)


build_in_init()
