"""Cloudflare's Queues API and event subscriptions in memory, behind httpx.

A test says what it refuses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.support.doubles.api_client import ACCOUNT, enveloped, refusal

BASE = f"/client/v4/accounts/{ACCOUNT}"
Refusal = Callable[[str, str], httpx.Response | None]


@dataclass
class CloudflareQueues:
    """Queues by id, each with its consumers and messages; the subscriptions.

    And every call that was made.
    """

    queues: dict[str, dict[str, Any]] = field(default_factory=dict)
    consumers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    subscriptions: dict[str, dict[str, Any]] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    leased: dict[str, dict[str, Any]] = field(default_factory=dict)
    one_per_model: bool = True
    refuses: Refusal = lambda _method, _path: None
    """Returns a response for a call that is refused; gets method and path below the account."""
    calls: list[str] = field(default_factory=list)
    """Method and path of each call."""
    made: int = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix(BASE)
        self.calls.append(f"{request.method} {path}")
        if (refused := self.refuses(request.method, path)) is not None:
            return refused
        body = json.loads(request.content) if request.content else {}
        for pattern, handle in self._routes():
            if matched := re.fullmatch(pattern, f"{request.method} {path}"):
                return handle(*matched.groups(), body)
        return httpx.Response(404, json=refusal(7003))

    def send(self, kind: str, request_id: str, model: str = "@cf/baai/bge-m3", **more: Any) -> None:
        """Put an event in the queue, as Cloudflare does."""
        self.messages.append(
            {
                "body": json.dumps(
                    {
                        "type": f"cf.workersAi.model.batch.{kind}",
                        "source": {"type": "workersAi.model", "modelName": model},
                        "payload": {"requestId": f"req-{request_id}"},
                        "metadata": {
                            "accountId": ACCOUNT,
                            "eventTimestamp": "2026-11-21T09:30:00Z",
                            **more,
                        },
                    }
                )
            }
        )

    def _routes(self) -> list[tuple[str, Callable[..., httpx.Response]]]:
        return [
            ("GET /queues", lambda _: good(list(self.queues.values()))),
            ("POST /queues", self._make_queue),
            ("PATCH /queues/(\\w+)", self._correct_queue),
            ("DELETE /queues/(\\w+)", lambda one, _: self._delete(self.queues, one)),
            ("GET /queues/(\\w+)/consumers", lambda one, _: good(self.consumers.get(one, []))),
            ("POST /queues/(\\w+)/consumers", self._make_consumer),
            ("PUT /queues/(\\w+)/consumers/(\\w+)", self._correct_consumer),
            ("POST /queues/(\\w+)/messages/pull", self._pull),
            ("POST /queues/(\\w+)/messages/ack", self._acknowledge),
            (
                "GET /event_subscriptions/subscriptions",
                lambda _: good(list(self.subscriptions.values())),
            ),
            ("POST /event_subscriptions/subscriptions", self._subscribe),
            (
                "DELETE /event_subscriptions/subscriptions/(\\w+)",
                lambda one, _: self._delete(self.subscriptions, one),
            ),
        ]

    def _id(self, kind: str) -> str:
        self.made += 1
        return f"{kind}{self.made}"

    def _make_queue(self, body: dict[str, Any]) -> httpx.Response:
        if any(one["queue_name"] == body["queue_name"] for one in self.queues.values()):
            return httpx.Response(400, json=refusal(11009, "Queue name is already taken"))
        queue = {"queue_id": self._id("q"), **body}
        self.queues[queue["queue_id"]] = queue
        return good(queue)

    def _correct_queue(self, queue_id: str, body: dict[str, Any]) -> httpx.Response:
        self.queues[queue_id]["settings"] = body["settings"]
        return good(self.queues[queue_id])

    def _make_consumer(self, queue_id: str, body: dict[str, Any]) -> httpx.Response:
        if self.consumers.get(queue_id):
            return httpx.Response(400, json=refusal(11004, "consumer exists"))
        self.consumers[queue_id] = [{"consumer_id": self._id("c"), **body}]
        return good(self.consumers[queue_id][0])

    def _correct_consumer(
        self, queue_id: str, consumer_id: str, body: dict[str, Any]
    ) -> httpx.Response:
        self.consumers[queue_id] = [{"consumer_id": consumer_id, **body}]
        return good(None)

    def _subscribe(self, body: dict[str, Any]) -> httpx.Response:
        model = body["source"]["model_name"]
        for one in self.subscriptions.values():
            if one["name"] == body["name"] or (
                self.one_per_model and one["source"]["model_name"] == model
            ):
                return httpx.Response(409, json=refusal(10040, "subscription exists"))
        made = {"id": self._id("s"), **body}
        self.subscriptions[made["id"]] = made
        return good(made)

    def _delete(self, found: dict[str, dict[str, Any]], one: str) -> httpx.Response:
        return good(found.pop(one)) if one in found else httpx.Response(404, json=refusal(10041))

    def _pull(self, queue_id: str, body: dict[str, Any]) -> httpx.Response:
        if queue_id not in self.queues:
            return httpx.Response(404, json=refusal(11000))
        taken, self.messages = (
            self.messages[: body["batch_size"]],
            self.messages[body["batch_size"] :],
        )
        found = [
            {"lease_id": self._id("l"), "id": "m", "attempts": 1, "timestamp_ms": 1.0, **one}
            for one in taken
        ]
        self.leased |= {one["lease_id"]: one for one in found}
        return good({"message_backlog_count": len(self.messages), "messages": found})

    def _acknowledge(self, _queue_id: str, body: dict[str, Any]) -> httpx.Response:
        if not all(isinstance(one["lease_id"], str) for one in body["acks"]):
            return httpx.Response(400, json=refusal(10026))
        for one in body["acks"]:
            self.leased.pop(one["lease_id"], None)
        return good({"ackCount": len(body["acks"])})

    def deliver_again(self) -> None:
        """Let what was pulled and not acknowledged be visible again."""
        self.messages = [*self.leased.values(), *self.messages]
        self.leased = {}


def good(result: Any) -> httpx.Response:
    return httpx.Response(200, json=enveloped(result))
