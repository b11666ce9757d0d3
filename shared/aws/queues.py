"""The work queues: SQS. Messages make work start soon; the ledger makes sure that it is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from shared.aws.client_errors import storage_errors
from shared.errors import StorageError

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

MAX_SUBMITS_WAITING = 50
"""Messages in the submit queue, up to which more are sent: what comes later waits behind them."""

SUBMIT_GRACE_SECONDS = 60.0
"""In which a batch's first message must be processed before a tick sends another."""

MAX_DELAY_SECONDS = 900
"""Maximum seconds that SQS can delay a message."""
QUEUE_GONE = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
"""Codes of a queue that somebody deleted."""

MAX_HOPS = 14
"""Invocations called by one another after which nothing more is sent: Lambda ends 16 of them."""


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all messages hold: invocations since the last one that no message called."""

    hops: int = 0


class SplitMessage(_Message, frozen=True, tag_field="do", tag="split"):
    """Continue to split a job's upload."""

    job_id: str


class SubmitMessage(_Message, frozen=True, tag_field="do", tag="submit"):
    """Submit a batch, unless somebody has worked on it since it was due at this time."""

    job_id: str
    number: str
    due_at: float = 0.0


class PollMessage(_Message, frozen=True, tag_field="do", tag="poll"):
    """Poll batches (job, number, when it was due) on which nobody has worked since."""

    batches: tuple[tuple[str, str, float], ...]


class VisitMessage(_Message, frozen=True, tag_field="do", tag="visit"):
    """Join the batches of a job that are done, and finish it if all are."""

    job_id: str


class WakeMessage(_Message, frozen=True, tag_field="do", tag="wake"):
    """Work on what is due until the next tick; `at` is the planned time, Unix seconds."""

    at: int


Message = WakeMessage | SplitMessage | SubmitMessage | PollMessage | VisitMessage

decode_message = msgspec.json.Decoder(Message).decode


@dataclass(frozen=True, slots=True)
class Queues:
    """The work queues by their URLs: each kind of message has its own room."""

    client: SQSClient
    upload_url: str
    urls: Mapping[type[Message], str]  # of the other queues, by what they take
    hops: int = 0  # of the message that called this invocation
    # gets job and number of each item that a message was sent for; the job itself has no number
    covered: Callable[[str, str], None] = lambda _job_id, _number: None

    @property
    def can_send(self) -> bool:
        """Whether another invocation may follow."""
        return self.hops < MAX_HOPS

    @property
    def can_wake(self) -> bool:
        """Whether an invocation may follow that may send messages: another would only postpone."""
        return self.hops < MAX_HOPS - 1

    def send(self, message: Message, delay: float = 0) -> None:
        """Send one message to the queue its kind belongs to, `delay` seconds from now."""
        self.send_all([message], delay)

    def send_all(self, messages: Sequence[Message], delay: float = 0) -> None:
        """Send messages of one kind, ten at a time; none at the end of a chain."""
        for start in range(0, len(messages) if self.can_send else 0, 10):
            chosen = messages[start : start + 10]
            entries = [self._entry(index, message, delay) for index, message in enumerate(chosen)]
            with storage_errors("SQS send_message_batch", QUEUE_GONE):
                answer = self.client.send_message_batch(
                    QueueUrl=self.urls[type(chosen[0])],
                    Entries=entries,  # type: ignore[arg-type]
                )
            if answer.get("Failed"):
                raise StorageError(
                    f"SQS refused {len(answer['Failed'])} of {len(chosen)} messages: "
                    f"{answer['Failed'][0]['Code']}"
                )
            for message in chosen:
                for job_id, number in _items_of(message):
                    self.covered(job_id, number)

    def _entry(self, index: int, message: Message, delay: float) -> dict[str, Any]:
        following = msgspec.structs.replace(message, hops=self.hops + 1)
        return {
            "Id": str(index),
            "MessageBody": msgspec.json.encode(following).decode(),
            "DelaySeconds": min(max(math.ceil(delay), 0), MAX_DELAY_SECONDS),
        }

    def hide_upload(self, receipt: str, seconds: float) -> None:
        """Set when an upload's message is delivered again, unless it is deleted by then."""
        with storage_errors("SQS change_message_visibility"):
            self.client.change_message_visibility(
                QueueUrl=self.upload_url, ReceiptHandle=receipt, VisibilityTimeout=round(seconds)
            )

    def waiting(self, kind: type[Message]) -> int:
        """About how many messages wait where these do; SQS may be a minute behind."""
        with storage_errors("SQS get_queue_attributes", QUEUE_GONE):
            answer = self.client.get_queue_attributes(
                QueueUrl=self.urls[kind], AttributeNames=["ApproximateNumberOfMessages"]
            )
        return int(answer["Attributes"]["ApproximateNumberOfMessages"])


def _items_of(message: Message) -> Iterable[tuple[str, str]]:
    """Job and number of each item that a message makes somebody work on."""
    match message:
        case PollMessage(batches):
            return [(job_id, number) for job_id, number, _ in batches]
        case SubmitMessage(job_id, number):
            return [(job_id, number)]
        case SplitMessage(job_id) | VisitMessage(job_id):
            return [(job_id, "")]
        case WakeMessage():
            return ()
