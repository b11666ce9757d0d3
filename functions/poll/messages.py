"""Messages of the poll function: batches to poll, a job to visit, a wake-up, S3's notification of a command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from functions.poll.schedule.advance_job import advance_job
from functions.poll.schedule.control import controlled_keys, follow_job_control, follow_stack_control, is_open
from functions.poll.schedule.tick import REPEAT_SECONDS, advance_batches, wake
from shared import s3_keys as keys
from shared.aws.queues import AdvanceMessage, PollMessage, WakeMessage, decode_message
from shared.observability import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bootstrap import Services

VISIT_AGAIN_SECONDS = 15.0
"""Seconds until a job is visited again after a command that arrived during another visit."""


def process_message(services: Services, body: str, remaining: Callable[[], float]) -> None:
    """Process one message.

    Args:
        services: the process's clients and settings.
        body: the message.
        remaining: seconds this invocation has left.

    Raises:
        StorageError: an AWS service failed; the message is delivered again.
        msgspec.ValidationError: the message is for another function.
    """
    try:
        message = decode_message(body)
    except msgspec.ValidationError:
        for key in controlled_keys(body):
            with services.called_by_message(0) as own:
                _follow_command(own, key, remaining)
        return
    if isinstance(message, WakeMessage):
        wake(services, message, remaining)
        return
    with services.called_by_message(message.hops) as own:
        match message:
            case PollMessage(batches):
                advance_batches(own, batches, remaining)
            case AdvanceMessage(job_id):
                if not advance_job(own, job_id, remaining):
                    # The run that holds the job may have read it before the message was sent.
                    own.sleep(REPEAT_SECONDS)
                    advance_job(own, job_id, remaining)
            case _:
                raise msgspec.ValidationError("a message for another function")


def _follow_command(services: Services, key: str, remaining: Callable[[], float]) -> None:
    """Carry out the command that an object holds, and visit its job."""
    if key == keys.STACK_CONTROL:
        follow_stack_control(services)
    elif (job_id := keys.controlled_job(key)) is None:
        logger.warning("no control object", key=key[:100])
    elif is_open(follow_job_control(services, job_id)) and not advance_job(services, job_id, remaining):
        services.queues.send(AdvanceMessage(job_id), delay=VISIT_AGAIN_SECONDS)
