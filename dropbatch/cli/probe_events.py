"""The part of `doctor --probe` that asks about completion events: a queue of its own is made, read and deleted."""

from __future__ import annotations

import base64
import json
import re
import uuid
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from dropbatch.cli.cloudflare import Reply
    from dropbatch.cli.probe import Prober

NAMES = ["batch.queued", "batch.succeeded", "batch.failed"]
MAX_EVENT_SECONDS = 120.0
PULLS = 5
"""So many pulls are made between two looks at how many calls are left."""
REFUSED, GONE = 300, 404
_LEFT = re.compile(r"\br=(\d+)")


class EventProbe:
    """Asks its questions in the name of a prober."""

    def __init__(self, prober: Prober) -> None:
        """Nothing is made yet."""
        self.prober, self.api = prober, prober.api
        self.made: list[tuple[str, str]] = []
        """Step and path of what is to be deleted, in order of creation."""

    def run(self) -> None:
        """Make a queue and a subscription, send a batch, read its events; delete what was made."""
        self.prober.say("A queue for completion events ...")
        try:
            queue = self._queue()
            if queue:
                self._is_counted(queue)
                if self._subscribe(queue):
                    self._events(queue)
        finally:
            for step, path in reversed(self.made):
                reply = self._call(f"delete {step}", "DELETE", path)
                if reply.status >= REFUSED and reply.status != GONE:
                    self.prober.say(f"Delete it by hand: {path} ({reply.status}/{reply.code}).")

    def _queue(self) -> str:
        """The path of a new queue with an HTTP consumer; empty if there may be none."""
        made = self._call("queue", "POST", "/queues", {"queue_name": f"dropbatch-probe-{uuid.uuid4().hex[:8]}"})
        if made.status >= REFUSED or not isinstance(made.result, dict) or "queue_id" not in made.result:
            self.prober.facts["events"] = f"no queue: {made.status}/{made.code}"
            self.prober.like["queues_refused"] = "page" if made.body is None else f"{made.status}/{made.code}"
            return ""
        path = f"/queues/{made.result['queue_id']}"
        self.made.append(("queue", path))
        consumer = {"type": "http_pull", "settings": {"batch_size": 100, "max_retries": 100}}
        reply = self._call("consumer", "POST", f"{path}/consumers", consumer)
        if reply.status >= REFUSED:
            self.prober.facts["events"] = f"no consumer: {reply.status}/{reply.code}"
            return ""
        return path

    def _is_counted(self, queue: str) -> None:
        """Compare how many calls are left before and after some pulls, as another call's header tells it."""
        before = self._left()
        for _ in range(PULLS):
            pulled = self._call("pull", "POST", f"{queue}/messages/pull", {"batch_size": 100})
        if pulled.status >= REFUSED:
            self.prober.facts["pull"] = f"{pulled.status}/{pulled.code}"
        after = self._left()
        if before is not None and after is not None and before > after:
            self.prober.like["pulls_count"] = before - after > PULLS

    def _left(self) -> int | None:
        headers = self.api.get(f"/accounts/{self.api.account}/ai/models/search?per_page=1").headers
        found = _LEFT.search(headers.get("ratelimit", ""))
        return int(found[1]) if found else None

    def _subscribe(self, queue: str) -> bool:
        body = {
            "name": queue.rpartition("/")[2],
            "enabled": True,
            "source": {"type": "workersAi.model", "model_name": self.prober.model},
            "destination": {"type": "queues.queue", "queue_id": queue.rpartition("/")[2]},
            "events": NAMES,
        }
        reply = self._call("subscription", "POST", "/event_subscriptions/subscriptions", body)
        found = reply.result
        if reply.status >= REFUSED or not isinstance(found, dict) or "id" not in found:
            self.prober.facts["events"] = f"no subscription: {reply.status}/{reply.code}"
            return False
        self.made.append(("subscription", f"/event_subscriptions/subscriptions/{found['id']}"))
        names = found.get("events") or []
        self.prober.like["subscription_names"] = "short" if set(names) <= set(NAMES) else "full"
        return True

    def _events(self, queue: str) -> None:
        """Send a batch; read its events until it is over."""
        prober = self.prober
        submit = self.api.run(prober.model, {"requests": [{"text": "one"}]})
        request_id = submit.result.get("request_id") if isinstance(submit.result, dict) else None
        if not isinstance(request_id, str):
            return
        seconds: dict[str, float] = {}
        deadline = prober.clock() + MAX_EVENT_SECONDS
        while prober.clock() < deadline and not {"succeeded", "failed"} & seconds.keys():
            reply = self._call("pull", "POST", f"{queue}/messages/pull", {"batch_size": 100})
            messages = reply.result.get("messages", []) if isinstance(reply.result, dict) else []
            for message in messages:
                self._read(message, request_id, seconds)
            if messages:
                acks = [{"lease_id": message["lease_id"]} for message in messages]
                self._call("ack", "POST", f"{queue}/messages/ack", {"acks": acks, "retries": []})
            prober.sleep(1.0)
        prober.facts["events"] = seconds or f"none within {MAX_EVENT_SECONDS:g} s"

    def _read(self, message: dict[str, Any], request_id: str, seconds: dict[str, float]) -> None:
        """Note the shape of an event of this batch, and how long it took to its queue."""
        form, event = decoded(message.get("body"))
        payload = event.get("payload") if isinstance(event, dict) else None
        told = payload.get("requestId") if isinstance(payload, dict) else None
        if not isinstance(told, str) or told.removeprefix("req-") != request_id.removeprefix("req-"):
            return
        name = str(event.get("type", ""))
        self.prober.like |= {
            "event_bodies": form,
            "event_names": "full" if name.startswith("cf.") else "short" if name.startswith("batch.") else "without_cf",
            "event_ids": "req" if told.startswith("req-") else "bare",
        }
        happened = _seconds(event.get("metadata"))
        if happened:
            seconds[name.rpartition(".")[2]] = round(message.get("timestamp_ms", 0) / 1000 - happened, 1)

    def _call(self, step: str, method: str, path: str, body: object = None) -> Reply:
        return self.prober.note(step, self.api.call(method, f"/accounts/{self.api.account}{path}", body))


def decoded(body: object) -> tuple[str, Any]:
    """The form of a message's body, and what it says; None if it is not JSON."""
    if not isinstance(body, str):
        return "object", body
    for form, read in _FORMS:
        try:
            return form, json.loads(read(body))
        except ValueError:
            continue
    return "text", None


_FORMS: tuple[tuple[str, Callable[[str], str | bytes]], ...] = (
    ("text", lambda body: body),
    ("base64", lambda body: base64.b64decode(body, validate=True)),
)


def _seconds(metadata: object) -> float:
    """When an event happened, Unix seconds; 0 if it does not tell."""
    told = metadata.get("eventTimestamp") if isinstance(metadata, dict) else None
    try:
        return datetime.fromisoformat(str(told)).timestamp()
    except ValueError:
        return 0.0
