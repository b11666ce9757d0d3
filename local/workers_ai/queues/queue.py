"""One queue: its messages, leases and attempts. It knows neither HTTP nor what a message says."""

import heapq
import random
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

_WINDOW = 3
"""A pull chooses among this many times the messages asked for: their order is nobody's promise."""


def drawn_id(*parts: object) -> str:
    """An id of 32 hexadecimal digits: the same parts always draw the same."""
    return blake2b(" ".join(map(str, parts)).encode(), digest_size=16).hexdigest()


@dataclass(slots=True)
class Consumer:
    """Who reads a queue: an HTTP client, or a Worker."""

    consumer_id: str
    created_at: float
    type: Literal["http_pull", "worker"] = "http_pull"
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Message:
    id: str
    body: bytes
    content_type: str
    stored_at: float
    attempts: int = 0
    """How often it was handed out."""
    free_at: float = 0.0
    """When it may be handed out (again)."""
    lease_id: str = ""
    entry: int = 0
    """The entry of its queue's heap that counts; older ones are passed over."""


@dataclass(slots=True)
class Queue:
    """A queue with its messages, at least once and in no order."""

    queue_id: str
    name: str
    account: str
    created_at: float
    settings: dict[str, Any]
    consumer: Consumer | None = None
    pulled: int = 0
    acked: int = 0
    _messages: dict[str, Message] = field(default_factory=dict)
    _ready: list[tuple[float, int, str]] = field(default_factory=list)
    """A heap of when each message may be handed out next."""
    _leases: dict[str, str] = field(default_factory=dict)
    _turn: int = 0

    def put(self, body: bytes, content_type: str, now: float) -> None:
        self._turn += 1
        message = Message(drawn_id(self.queue_id, self._turn), body, content_type, now)
        self._messages[message.id] = message
        self._free(message, now)

    def pull(self, most: int, seconds: float, now: float, seed: int) -> list[Message]:
        """Hand out at most so many messages, each leased for so many seconds."""
        self._expire(now)
        ready: list[Message] = []
        while self._ready and self._ready[0][0] <= now and len(ready) < most * _WINDOW:
            _, entry, message_id = heapq.heappop(self._ready)
            message = self._messages.get(message_id)
            if message is None or message.entry != entry:
                continue
            if self.consumer and message.attempts > self.consumer.settings["max_retries"]:
                self._forget(message)
                continue
            ready.append(message)
        random.Random(f"{seed} {self.queue_id} {self._turn}").shuffle(ready)
        for message in ready[most:]:
            self._free(message, message.free_at)
        for message in ready[:most]:
            self._leases.pop(message.lease_id, None)
            message.attempts += 1
            message.lease_id = drawn_id("lease", message.id, message.attempts)
            self._leases[message.lease_id] = message.id
            self._free(message, now + seconds)
            self.pulled += 1
        return ready[:most]

    def ack(self, lease_id: str, now: float) -> bool:
        """Delete a message, if its lease still holds."""
        message = self._messages.get(self._leases.get(lease_id, ""))
        if message is None or now >= message.free_at:
            return False
        self._forget(message)
        self.acked += 1
        return True

    def backlog(self, now: float) -> int:
        """Messages that are stored, leased or not."""
        self._expire(now)
        return len(self._messages)

    def _free(self, message: Message, at: float) -> None:
        self._turn += 1
        message.free_at, message.entry = at, self._turn
        heapq.heappush(self._ready, (at, self._turn, message.id))

    def _expire(self, now: float) -> None:
        """Delete what is older than the queue keeps it."""
        oldest = now - float(self.settings["message_retention_period"])
        while self._messages:
            message = next(iter(self._messages.values()))
            if message.stored_at >= oldest:
                return
            self._forget(message)

    def _forget(self, message: Message) -> None:
        self._messages.pop(message.id)
        self._leases.pop(message.lease_id, None)
