"""Messages of the poll function: batches to poll, or a job to visit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from functions.poll.advance_job import advance_job
from functions.poll.tick import advance_batches
from shared.aws.queues import AdvanceMessage, PollMessage, decode_message

if TYPE_CHECKING:
    from collections.abc import Callable

    from shared.bootstrap import Services


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
    message = decode_message(body)
    match message:
        case PollMessage(batches):
            advance_batches(services, batches, remaining)
        case AdvanceMessage(job_id):
            advance_job(services, job_id, remaining)
        case _:
            raise msgspec.ValidationError("a message for another function")
