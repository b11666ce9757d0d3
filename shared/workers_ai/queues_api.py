"""Cloudflare's Queues API and its event subscriptions, as far as Dropbatch uses them.

Knows no job and no table.

Nothing that this API says is about the token's right to run models: it pauses no call, and counts
as none. Every call is made once with each token; what a caller repeats must be harmless when it is
done twice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec

from dropbatch.core.formats.base import begins
from shared.errors import StorageError
from shared.observability import count
from shared.workers_ai.client import MAX_FETCHED_BYTES
from shared.workers_ai.queue_messages import Message, messages_in
from shared.workers_ai.results import TooManyItemsError, decode_member

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shared.workers_ai.client import WorkersAI
    from shared.workers_ai.transports import Credentials

BATCH_SIZE, MAX_DELIVERIES, VISIBLE_AGAIN_MS, KEPT_SECONDS = 100, 100, 30_000, 3_600
"""Messages of one pull; deliveries of one, after which it is deleted.

Milliseconds until one that is not acknowledged
is delivered again; and seconds that the queue keeps a message: what an older event says was found
by a poll.
"""
CONSUMER = {
    "type": "http_pull",
    "settings": {
        "batch_size": BATCH_SIZE,
        "max_retries": MAX_DELIVERIES,
        "visibility_timeout_ms": VISIBLE_AGAIN_MS,
    },
}
QUEUE_SETTINGS = {"message_retention_period": KEPT_SECONDS}
EVENTS = ("batch.queued", "batch.succeeded", "batch.failed")
MODEL_SOURCE, QUEUE_DESTINATION = "workersAi.model", "queues.queue"
PAGE, MAX_PAGES = 100, 20
FORBIDDEN = frozenset({401, 403, 404, 405})
"""Statuses that say that the token may not do this, or that there is nothing to do it to."""
OF_TOKEN = frozenset({401, 403})
"""Those of them that another token may not get."""
CALL_SECONDS = 5.0
MAX_PULLED_BYTES = 18_000_000
"""Bytes of a pull's reply: its messages, of 128 KB each, in base64."""
MAX_MESSAGES = 2 * BATCH_SIZE
"""Messages of a pull's reply at most: small ones that fill its bytes would fill the memory."""
MAX_REASON = 200


class _Body(msgspec.Struct):
    success: msgspec.Raw = msgspec.Raw(b"null")
    errors: msgspec.Raw = msgspec.Raw(b"null")
    result: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(_Body).decode


class QueuesRefusedError(Exception):
    """The API did not do what was asked.

    Attributes:
        status: HTTP status; 0 if there was no reply.
        lasting: whether a later try is useless until somebody changes the token or the account.
    """

    def __init__(self, status: int, words: str, *, lasting: bool = False) -> None:
        super().__init__(f"{status or 'no answer'}: {words}"[:MAX_REASON])
        self.status = status
        self.lasting = lasting

    @property
    def is_gone(self) -> bool:
        """Whether what the call was about does not exist."""
        return self.status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}

    @property
    def may_exist(self) -> bool:
        """Whether what was to be made may be there already."""
        return (
            HTTPStatus.BAD_REQUEST <= self.status < HTTPStatus.INTERNAL_SERVER_ERROR
            and not self.lasting
        )


class NoCallLeftError(QueuesRefusedError):
    """The call was not made, because the rate budget had none left."""

    def __init__(self) -> None:
        super().__init__(0, "the rate budget has no call left")


@dataclass(frozen=True, slots=True)
class QueuesApi:
    """The Queues API of one account.

    Attributes:
        api: the client of the account's models: the same address rules, the same token.
        now: the clock, Unix seconds.
        until: when its calls have to be over, Unix seconds.
        permit: whether one more call may be made.
        pass_on: has another token make the calls than one that was refused; whether there is one.
    """

    api: WorkersAI
    now: Callable[[], float]
    until: float = math.inf
    permit: Callable[[], bool] = lambda: True
    pass_on: Callable[[Credentials], bool] = lambda _: False

    def queue(self, name: str) -> dict[str, Any] | None:
        """The queue of this name; None if there is none."""
        return next(
            (one for one in self._pages(f"/queues?name={name}&") if one.get("queue_name") == name),
            None,
        )

    def make_queue(self, name: str) -> dict[str, Any]:
        """Make a queue that keeps its messages for `KEPT_SECONDS`."""
        made = self._call("POST", "/queues", {"queue_name": name, "settings": QUEUE_SETTINGS})
        return made if isinstance(made, dict) else {}

    def correct_queue(self, queue_id: str) -> None:
        """Set for how long a queue keeps its messages."""
        self._call("PATCH", f"/queues/{queue_id}", {"settings": QUEUE_SETTINGS})

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

    def correct_consumer(self, queue_id: str, consumer_id: str) -> None:
        """Set how an HTTP client's messages are delivered."""
        self._call("PUT", f"/queues/{queue_id}/consumers/{consumer_id}", CONSUMER)

    def subscriptions(self) -> Iterator[dict[str, Any]]:
        """The account's event subscriptions."""
        return self._pages("/event_subscriptions/subscriptions?")

    def subscribe(self, name: str, model: str, queue_id: str) -> str:
        """Have the events of a model's batches sent to a queue; return the subscription's id."""
        made = self._call(
            "POST",
            "/event_subscriptions/subscriptions",
            {
                "name": name,
                "enabled": True,
                "source": {"type": MODEL_SOURCE, "model_name": model},
                "destination": {"type": QUEUE_DESTINATION, "queue_id": queue_id},
                "events": EVENTS,
            },
        )
        return str(made.get("id", "")) if isinstance(made, dict) else ""

    def unsubscribe(self, subscription_id: str) -> None:
        """Delete an event subscription."""
        self._delete(f"/event_subscriptions/subscriptions/{subscription_id}")

    def pull(self, queue_id: str) -> list[Message]:
        """Take up to `BATCH_SIZE` messages, which nobody else gets for `VISIBLE_AGAIN_MS`."""
        body = {"visibility_timeout_ms": VISIBLE_AGAIN_MS, "batch_size": BATCH_SIZE}
        content = self._fetch("POST", f"/queues/{queue_id}/messages/pull", body, MAX_PULLED_BYTES)
        try:
            return messages_in(content, MAX_MESSAGES)
        except TooManyItemsError as error:
            raise QueuesRefusedError(HTTPStatus.OK, "more messages than were asked for") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise QueuesRefusedError(
                HTTPStatus.OK, f"messages that cannot be read: {error}"
            ) from error

    def acknowledge(self, queue_id: str, messages: Sequence[Message]) -> None:
        """Have pulled messages deleted."""
        acks = [
            {"lease_id": one.lease_id} for one in messages if bytes(one.lease_id).startswith(b'"')
        ]
        if not acks:  # One without a lease would spoil the call for the others.
            return
        body = {"acks": acks, "retries": []}
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

    def _call(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - the API's own JSON
        try:
            return msgspec.json.decode(self._fetch(method, path, body))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise QueuesRefusedError(HTTPStatus.OK, "a reply that cannot be read") from error

    def _fetch(
        self, method: str, path: str, body: object, most: int = MAX_FETCHED_BYTES
    ) -> msgspec.Raw:
        """The member `result` of a good reply, as JSON.

        A call that is refused for its token is made with the next one.

        Raises:
            QueuesRefusedError: there was no reply, or one that is not good.
            NoCallLeftError: it was not made.
        """
        while True:
            try:
                return self._fetch_once(method, path, body, most)
            except QueuesRefusedError as refused:
                if refused.status not in OF_TOKEN or not self._is_passed_on():
                    raise

    def _is_passed_on(self) -> bool:
        try:
            return self.pass_on(self.api.credentials(False))  # noqa: FBT003 - its only argument
        except StorageError:
            return False

    def _fetch_once(self, method: str, path: str, body: object, most: int) -> msgspec.Raw:
        seconds = min(CALL_SECONDS, self.until - self.now())
        if seconds <= 0:
            raise QueuesRefusedError(0, "no time left")
        if not self.permit():
            raise NoCallLeftError
        count("QueueCalls")
        sent = None if body is None else msgspec.json.encode(body)
        status, content, _ = self.api.fetch(method, path, sent, seconds, most)
        try:
            told = _decode(content)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # A page in place of the API's JSON is a firewall or a proxy, which answers the next
            # call likewise.
            raise QueuesRefusedError(
                status, "not the API's JSON", lasting=0 < status < HTTPStatus.INTERNAL_SERVER_ERROR
            ) from None
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES and not begins(told.success, b"f"):
            return told.result
        raise QueuesRefusedError(status, _words(told.errors), lasting=status in FORBIDDEN)


def _words(told: msgspec.Raw) -> str:
    """Code and message of the first error."""
    errors = decode_member(told)
    first = errors[0] if isinstance(errors, list) and errors else {}
    if not isinstance(first, dict):
        return "refused"
    return f"{first.get('code', '')} {first.get('message', '')}".strip() or "refused"
