"""Which events a batch causes, when each arrives at its queues, and what it says.

And the messages of others. It knows no queue: what arrives is handed on.
"""

import heapq
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from local.workers_ai.batches import Batch, drawn_seconds
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import error
from local.workers_ai.faults import chance
from local.workers_ai.queues.queue import drawn_id

LATE_SECONDS = 3600.0
FULL = "cf.workersAi.model."
_MAX_MESSAGE_BYTES = 128_000


class Events:
    """The events that are still to happen or to arrive. `WorkersAI` holds its lock.

    `subscribed` names the subscriptions that are to hear of an account's model's event of one name
    now; `deliver` takes a message for one of these.
    """

    def __init__(
        self,
        subscribed: Callable[[str, str, str], list[str]],
        deliver: Callable[[str, bytes, float], None],
    ) -> None:
        self._subscribed = subscribed
        self._deliver = deliver
        self._coming: list[tuple[float, int, Callable[[float, Behaviour], None]]] = []
        self._turn = 0

    def accepted(self, batch: Batch, now: float) -> None:
        """A batch was accepted: its events happen now, and when it is finished."""
        self._at(now, lambda at, behaviour: self._happens(batch, "queued", at, behaviour))
        self._ends(batch, now)

    def advance(self, now: float, behaviour: Behaviour) -> None:
        while self._coming and self._coming[0][0] <= now:
            at, _, act = heapq.heappop(self._coming)
            act(at, behaviour)

    def _at(self, time: float, act: Callable[[float, Behaviour], None]) -> None:
        self._turn += 1
        heapq.heappush(self._coming, (time, self._turn, act))

    def _ends(self, batch: Batch, now: float) -> None:
        early = any(fault.kind == "event_early" for fault in batch.faults)
        at = now if early else batch.completes_at

        def end(at: float, behaviour: Behaviour) -> None:
            if batch.completes_at > at and not early:
                self._ends(batch, at)
                return
            failed = batch.failure is not None or any(
                fault.kind == "event_false" for fault in batch.faults
            )
            self._happens(batch, "failed" if failed else "succeeded", at, behaviour)

        if at != float("inf"):
            self._at(at, end)

    def _happens(self, batch: Batch, what: str, at: float, behaviour: Behaviour) -> None:
        """An event of a batch happens: whoever is subscribed now hears of it, sooner or later."""
        name = f"batch.{what}"
        struck = {fault.kind: fault for fault in batch.faults if fault.message in ("", what)}
        if "event_lost" in struck:
            return
        late = struck.get("event_late")
        for subscription in self._subscribed(batch.account, batch.model, name):
            body = event(batch, what, subscription, at, behaviour)
            for copy in range(1 + ("event_twice" in struck)):
                delay = _delay(what, f"{batch.request_id} {copy}", behaviour)
                if late is not None:
                    delay += late.seconds if late.seconds >= 0 else LATE_SECONDS
                self._arrives(subscription, body, at + delay)
            delay = _delay(what, f"{batch.request_id} foreign", behaviour)
            for other in foreign(batch, what, subscription, at, behaviour):
                self._arrives(subscription, other, at + delay)

    def _arrives(self, subscription: str, body: bytes, at: float) -> None:
        self._at(at, lambda time, _: self._deliver(subscription, body, time))


def _delay(what: str, drawn_by: str, behaviour: Behaviour) -> float:
    """Seconds until an event is in its queue."""
    drawn = chance("event", behaviour.seed, what, drawn_by)
    return drawn_seconds(drawn, behaviour.event_delay, "lognormal", behaviour.event_delay_spread)


def event(batch: Batch, what: str, subscription: str, at: float, behaviour: Behaviour) -> bytes:
    payload: dict[str, Any] = {"requestId": _shown(batch.request_id, behaviour)}
    if what == "failed":
        status, code, message = batch.failure or error(3030)
        payload |= {"message": message, "internalCode": code, "httpCode": status}
    return _body(batch, what, payload, subscription, at, behaviour)


def _body(
    batch: Batch,
    what: str,
    payload: dict[str, Any],
    subscription: str,
    at: float,
    behaviour: Behaviour,
) -> bytes:
    prefixes = {"full": FULL, "without_cf": FULL.removeprefix("cf."), "short": ""}
    happened = datetime.fromtimestamp(at + behaviour.clock_ahead, UTC)
    time = happened.isoformat(timespec="milliseconds")
    whole = {
        "type": f"{prefixes[behaviour.event_names]}batch.{what}",
        "source": {"type": "workersAi.model", "modelName": batch.model},
        "payload": payload,
        "metadata": {
            "accountId": batch.account,
            "eventSubscriptionId": subscription,
            "eventSchemaVersion": 1,
            "eventTimestamp": time.replace("+00:00", "Z"),
        },
    }
    return msgspec.json.encode(whole)


def _shown(request_id: str, behaviour: Behaviour) -> str:
    bare = request_id.removeprefix("req-")
    forms = {"as_sent": request_id, "bare": bare, "req": f"req-{bare}"}
    forms["mixed"] = forms[("bare", "req")[int(2 * chance("event", behaviour.seed, request_id))]]
    return forms[behaviour.event_ids]


def foreign(
    batch: Batch, what: str, subscription: str, at: float, behaviour: Behaviour
) -> Iterator[bytes]:
    """The messages of others that come beside an event of a batch."""
    drawn = chance("foreign", behaviour.seed, batch.request_id, what)
    for number in range(int(behaviour.foreign_events + drawn)):
        draw = (behaviour.seed, batch.request_id, what, number)
        make = _FOREIGN[int(chance("foreign kind", *draw) * len(_FOREIGN))]
        payload = {"requestId": _shown(other_id(*draw), behaviour)}
        yield make(lambda sent: _body(batch, what, sent, subscription, at, behaviour), payload)


def other_id(*draw: object) -> str:
    """The id of a batch that this API never accepted."""
    drawn = drawn_id("other stack", *draw)
    return f"{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-8{drawn[17:20]}-{drawn[20:]}"


_FOREIGN: tuple[Callable[[Callable[[dict[str, Any]], bytes], dict[str, Any]], bytes], ...] = (
    lambda body, payload: body(payload),
    lambda body, payload: body(payload).replace(b"workersAi.model", b"r2"),
    lambda body, payload: body(payload).replace(b'"requestId"', b'"request"'),
    lambda body, payload: body({**payload, "requestId": 7}),
    lambda body, payload: body(payload)[:-1],
    lambda *_: b'["not an object"]',
    lambda *_: b"\xff\xfe not JSON \x00",
    lambda *_: b'{"type":"' + b"x" * (_MAX_MESSAGE_BYTES - 11) + b'"}',
)
"""Another stack's batch, another source's event, three that lack what an event has."""
