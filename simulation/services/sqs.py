"""SQS in memory: standard queues, without order, with delays, duplicates and dead letters."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from simulation.services.calls import Calls, reads, writes
from simulation.services.errors import refused
from simulation.services.expressions import NotSimulatedError

MAX_DELAY_SECONDS = 900
MAX_ENTRIES = 10


@dataclass(slots=True)
class Message:
    """A message of a queue.

    Attributes:
        visible_at: Unix seconds from which it can be received.
        received: how often it was received.
        first_at: when it was received first.
    """

    id: str
    body: str
    visible_at: float
    sent_at: float
    received: int = 0
    first_at: float = 0.0

    @property
    def receipt(self) -> str:
        """The receipt handle of its newest delivery."""
        return f"{self.id}/{self.received}"


class Queue:
    """One queue: `messages` that were not deleted, by id, and `dead` letters."""

    def __init__(
        self,
        name: str,
        visibility: float = 30.0,
        retention: float = 345_600.0,
        most_receives: float = math.inf,
    ) -> None:
        """Describe an empty queue, whose name is also its URL; times are in seconds.

        After `most_receives` deliveries a message is a dead letter.
        """
        self.name = name
        self.visibility = visibility
        self.retention = retention
        self.most_receives = most_receives
        self.messages: dict[str, Message] = {}
        self.dead: list[Message] = []
        self._coming: list[tuple[float, str]] = []
        self._ready: list[str] = []

    def show(self, message: Message, at: float) -> None:
        message.visible_at = at
        heappush(self._coming, (at, message.id))

    def visible(self, now: float) -> int:
        """The number of messages that can be received."""
        while self._coming and self._coming[0][0] <= now:
            at, message_id = heappop(self._coming)
            message = self.messages.get(message_id)
            if message is not None and message.visible_at == at:
                self._ready.append(message_id)
        return len(self._ready)

    def delete(self, message_id: str, now: float) -> None:
        """Delete a message, also one that can be received again."""
        message = self.messages.pop(message_id, None)
        if message is not None and message.visible_at <= now and message_id in self._ready:
            self._ready.remove(message_id)

    def receive(self, now: float, random: Random) -> Message | None:
        """Any visible message, hidden from now on; None if there is none."""
        while self.visible(now):
            place = random.randrange(len(self._ready))
            self._ready[place], self._ready[-1] = self._ready[-1], self._ready[place]
            message = self.messages.get(self._ready.pop())
            if message is None:
                continue
            if message.sent_at + self.retention < now:
                del self.messages[message.id]
            elif message.received >= self.most_receives:
                self.dead.append(self.messages.pop(message.id))
            else:
                message.received += 1
                message.first_at = message.first_at or now
                self.show(message, now + self.visibility)
                return message
        return None


class SQS:
    """A client for some queues, whose URLs are their names."""

    def __init__(
        self, calls: Calls, queues: dict[str, Queue], sent: Callable[[Queue, float], None]
    ) -> None:
        """`sent` is called with a queue and the time at which a message of it becomes visible."""
        self.calls = calls
        self.queues = queues
        self.sent = sent
        self._ids = count(1)

    @writes("sqs.send_message_batch")
    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        if any(one.get("DelaySeconds", 0) > MAX_DELAY_SECONDS for one in Entries):
            raise NotSimulatedError("an entry that is refused alone, for its delay")
        if not 0 < len(Entries) <= MAX_ENTRIES:
            raise refused("AWS.SimpleQueueService.TooManyEntriesInBatchRequest", "SendMessageBatch")
        for entry in Entries:
            self.put(QueueUrl, entry["MessageBody"], entry.get("DelaySeconds", 0))
        return {"Successful": [{"Id": one["Id"]} for one in Entries]}

    def put(self, name: str, body: str, delay: float = 0.0) -> None:
        """Put a message in a queue without a call, as other services do."""
        queue = self.queues[name]
        now = self.calls.now()
        message = Message(f"m{next(self._ids):08}", body, now + delay, now)
        queue.messages[message.id] = message
        queue.show(message, now + delay)
        self.sent(queue, message.visible_at)

    @writes("sqs.change_message_visibility")
    def change_message_visibility(
        self, *, QueueUrl: str, ReceiptHandle: str, VisibilityTimeout: int
    ) -> dict[str, Any]:
        """Set when a received message can be received again."""
        message_id, _, received = ReceiptHandle.partition("/")
        queue = self.queues[QueueUrl]
        message = queue.messages.get(message_id)
        if message is None or message.received != int(received):
            raise refused("InvalidParameterValue", "ChangeMessageVisibility")
        if message.visible_at <= self.calls.now():
            raise refused("AWS.SimpleQueueService.MessageNotInflight", "ChangeMessageVisibility")
        queue.show(message, self.calls.now() + VisibilityTimeout)
        self.sent(queue, message.visible_at)
        return {}

    @reads("sqs.get_queue_attributes")
    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:
        if AttributeNames != ["ApproximateNumberOfMessages"]:
            raise NotSimulatedError(f"queue attributes {AttributeNames}")
        return {
            "Attributes": {AttributeNames[0]: str(self.queues[QueueUrl].visible(self.calls.now()))}
        }
