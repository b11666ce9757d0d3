"""Cloudflare's Queues API and its event subscriptions, as far as Dropbatch uses them.

Nothing that this API says is about the token's right to run models: it pauses no call, and its
calls take nothing of the rate budget. Every call is made once; what a caller repeats must be
harmless when it is done twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import msgspec

from dropbatch.core.formats.base import begins
from shared.events.messages import Message, messages_in
from shared.observability import count
from shared.workers_ai.client import MAX_FETCHED_BYTES, WorkersAI
from shared.workers_ai.results import TooManyItemsError, decode_member

BATCH_SIZE, MAX_DELIVERIES, VISIBLE_AGAIN_MS, KEPT_FOR = 100, 100, 30_000, 3_600
"""Messages of one pull; deliveries of one, after which it is deleted; milliseconds until one
that is not acknowledged is delivered again; and seconds that the queue keeps a message."""
_PULLS = {"batch_size": BATCH_SIZE, "visibility_timeout_ms": VISIBLE_AGAIN_MS}
CONSUMER = {"type": "http_pull", "settings": {**_PULLS, "max_retries": MAX_DELIVERIES}}
QUEUE_SETTINGS = {"message_retention_period": KEPT_FOR}
EVENTS = ("batch.succeeded", "batch.failed")
SUBSCRIPTIONS = "/event_subscriptions/subscriptions"
PAGE, MAX_PAGES = 100, 20
NOT_ALLOWED = frozenset({401, 403, 404, 405, 429})  # The token may not, or nothing is there
MAX_PULLED_BYTES = 18_000_000  # Bytes of a pull's reply: its messages, of 128 KB each, in base64
MAX_MESSAGES = 2 * BATCH_SIZE
MAX_REASON = 200
REFUSED_FOR, FAILED_FOR = 3_600.0, 60.0  # Seconds to the next try after a refusal, a failure


class _Body(msgspec.Struct):
    success: msgspec.Raw = msgspec.Raw(b"null")
    errors: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Body).decode


class QueuesRefusedError(Exception):
    """The API did not do what was asked; `status` is 0 if there was no reply."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(f"{status or 'no answer'}: {words}"[:MAX_REASON])
        self.status = status

    @property
    def is_gone(self) -> bool:
        """Whether what the call was about does not exist."""
        return self.status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}

    @property
    def may_exist(self) -> bool:
        """Whether what was to be made may be there already."""
        is_answered = HTTPStatus.BAD_REQUEST <= self.status < HTTPStatus.INTERNAL_SERVER_ERROR
        return is_answered and self.status not in NOT_ALLOWED

    @property
    def again_in(self) -> float:
        """Seconds to the next try: an hour if one in a minute would be refused too."""
        is_answered = 0 < self.status < HTTPStatus.INTERNAL_SERVER_ERROR
        is_lasting = is_answered and self.status != HTTPStatus.TOO_MANY_REQUESTS
        return REFUSED_FOR if is_lasting else FAILED_FOR


@dataclass(frozen=True, slots=True)
class QueuesApi:
    """The Queues API of one account."""

    api: WorkersAI  # the client of the account's models: the same address rules, the same token
    now: Callable[[], float]  # the clock, Unix seconds
    until: float = math.inf  # when its calls have to be over, Unix seconds

    def queue(self, name: str) -> dict[str, Any] | None:
        """The queue of this name; None if there is none."""
        found = self._pages(f"/queues?name={name}&")
        return next((one for one in found if one.get("queue_name") == name), None)

    def make_queue(self, name: str) -> str:
        """Make a queue that keeps its messages for `KEPT_FOR`; return its id."""
        made = self._call("POST", "/queues", {"queue_name": name, "settings": QUEUE_SETTINGS})
        return _text(made, "queue_id")

    def delete_queue(self, queue_id: str) -> None:
        """Delete a queue, with what is in it."""
        self._delete(f"/queues/{queue_id}")

    def consumers(self, queue_id: str) -> list[dict[str, Any]]:
        """Who may read a queue."""
        found = self._call("GET", f"/queues/{queue_id}/consumers")
        return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []

    def make_consumer(self, queue_id: str) -> None:
        """Let HTTP clients read a queue."""
        self._call("POST", f"/queues/{queue_id}/consumers", CONSUMER)

    def subscriptions(self) -> Iterator[dict[str, Any]]:
        """The account's event subscriptions."""
        return self._pages(f"{SUBSCRIPTIONS}?")

    def subscribe(self, name: str, model: str, queue_id: str) -> str:
        """Have the events of a model's batches sent to a queue; return the subscription's id."""
        source = {"type": "workersAi.model", "model_name": model}
        wanted = {"name": name, "source": source, **_wanted(queue_id)}
        return _text(self._call("POST", SUBSCRIPTIONS, wanted), "id")

    def correct_subscription(self, subscription_id: str, queue_id: str) -> None:
        """Have a subscription send what is needed, to a queue."""
        self._call("PATCH", f"{SUBSCRIPTIONS}/{subscription_id}", _wanted(queue_id))

    def unsubscribe(self, subscription_id: str) -> None:
        """Delete an event subscription."""
        self._delete(f"{SUBSCRIPTIONS}/{subscription_id}")

    def pull(self, queue_id: str) -> list[Message]:
        """Take up to `BATCH_SIZE` messages, which nobody else gets for `VISIBLE_AGAIN_MS`."""
        content = self._fetch("POST", f"/queues/{queue_id}/messages/pull", _PULLS, MAX_PULLED_BYTES)
        try:
            return messages_in(content, MAX_MESSAGES)
        except TooManyItemsError as error:
            raise QueuesRefusedError(HTTPStatus.OK, "more messages than were asked for") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            words = f"messages that cannot be read: {error}"
            raise QueuesRefusedError(HTTPStatus.OK, words) from error

    def acknowledge(self, queue_id: str, messages: Sequence[Message]) -> None:
        """Have pulled messages deleted; one without a lease would spoil the call for the others."""
        leases = [one.lease_id for one in messages if bytes(one.lease_id).startswith(b'"')]
        if leases:
            body = {"acks": [{"lease_id": one} for one in leases], "retries": []}
            self._call("POST", f"/queues/{queue_id}/messages/ack", body)

    def _delete(self, path: str) -> None:
        """Delete; what is gone already is deleted."""
        try:
            self._call("DELETE", path)
        except QueuesRefusedError as refused:
            if not refused.is_gone:
                raise

    def _pages(self, path: str) -> Iterator[dict[str, Any]]:
        for page in range(1, MAX_PAGES + 1):
            found = self._call("GET", f"{path}page={page}&per_page={PAGE}")
            if not isinstance(found, list):
                return
            yield from (one for one in found if isinstance(one, dict))
            if len(found) < PAGE:
                return

    def _call(self, method: str, path: str, body: object = None) -> Any:
        try:
            return msgspec.json.decode(self._fetch(method, path, body))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise QueuesRefusedError(HTTPStatus.OK, "a reply that cannot be read") from error

    def _fetch(
        self, method: str, path: str, body: object, most: int = MAX_FETCHED_BYTES
    ) -> msgspec.Raw:
        """The member `result` of a good reply, as JSON."""
        seconds = min(5.0, self.until - self.now())
        if seconds <= 0:
            raise QueuesRefusedError(0, "no time left")
        count("QueueCalls")
        sent = None if body is None else msgspec.json.encode(body)
        status, content = self.api.fetch(method, path, sent, seconds, most)
        try:
            told = _decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise QueuesRefusedError(status, "not the API's JSON") from None
        is_good = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
        if is_good and not begins(told.success, b"f"):
            return told.result
        raise QueuesRefusedError(status, _words(told.errors))


def _wanted(queue_id: str) -> dict[str, Any]:
    destination = {"type": "queues.queue", "queue_id": queue_id}
    return {"enabled": True, "destination": destination, "events": EVENTS}


def _text(made: object, name: str) -> str:
    found = made.get(name) if isinstance(made, dict) else None
    if not isinstance(found, str) or not found:
        raise QueuesRefusedError(HTTPStatus.OK, f"a reply without {name}")
    return found


def _words(told: msgspec.Raw) -> str:
    """Code and message of the first error."""
    errors = decode_member(told)
    first = errors[0] if isinstance(errors, list) and errors else {}
    if not isinstance(first, dict):
        return "refused"
    return f"{first.get('code', '')} {first.get('message', '')}".strip() or "refused"
