"""A local Workers AI with a client of it, and a clock that stands still."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx

from local.workers_ai import Behaviour, WorkersAI, transport

ACCOUNT = "0123456789abcdef0123456789abcdef"
BGE = "@cf/baai/bge-small-en-v1.5"
TEXTS = [{"text": f"text {index}", "external_reference": f"row-{index}"} for index in range(20)]


class LocalApi:
    """One local API with a clock that stands still, or one that is there already."""

    def __init__(self, api: WorkersAI | None = None, **switches: Any) -> None:
        self.now = 1_000_000.0
        self.api = api or WorkersAI(
            Behaviour(embedder="hash").changed(switches), now=lambda: self.now
        )
        self.client = httpx.Client(
            transport=transport(self.api),
            base_url="https://api.test/client/v4",
            headers={"authorization": "Bearer local-token"},
        )

    def run(
        self,
        model: str,
        body: Any,
        query: str = "?queueRequest=true",
        account: str = ACCOUNT,
        **more: Any,
    ) -> httpx.Response:
        """Call a model."""
        return self.client.post(f"/accounts/{account}/ai/run/{model}{query}", json=body, **more)

    def submit(self, model: str = BGE, requests: Any = TEXTS) -> Any:
        """Submit a batch; return its id."""
        reply = self.run(model, {"requests": requests})
        assert reply.is_success, reply.text
        return reply.json()["result"]["request_id"]

    def poll(self, request_id: str, model: str = BGE, query: str = "") -> httpx.Response:
        """Poll a batch once."""
        return self.run(model, {"request_id": request_id}, query)

    def finished(self, request_id: str, model: str = BGE) -> Any:
        """The result of a batch after ten seconds."""
        self.now += 10
        return self.poll(request_id, model).json()["result"]


def code(reply: httpx.Response) -> tuple[int, int]:
    """Status and first error code of a reply."""
    return reply.status_code, reply.json()["errors"][0]["code"]


class LocalQueue:
    """A queue of a local API with an HTTP consumer, and a client of it."""

    def __init__(self, world: LocalApi, **settings: int) -> None:
        self.world = world
        self.subscriptions = f"/accounts/{ACCOUNT}/event_subscriptions/subscriptions"
        made = world.client.post(self.at(""), json={"queue_name": "events"})
        self.id = made.json()["result"]["queue_id"]
        consumer = {"type": "http_pull", "settings": settings}
        assert world.client.post(self.at(f"{self.id}/consumers"), json=consumer).is_success

    def at(self, rest: str, account: str = ACCOUNT) -> str:
        """A path below the account's queues."""
        return f"/accounts/{account}/queues/{rest}".rstrip("/")

    def subscribe(self, model: str = BGE, name: str = "first", **changes: Any) -> httpx.Response:
        """Let a model's events come to this queue."""
        body = {
            "name": name,
            "enabled": True,
            "source": {"type": "workersAi.model", "model_name": model},
            "destination": {"type": "queues.queue", "queue_id": self.id},
            "events": ["batch.queued", "batch.succeeded", "batch.failed"],
        }
        return self.world.client.post(self.subscriptions, json=body | changes)

    def call(self, what: str, body: Any) -> httpx.Response:
        """Call the queue's messages."""
        return self.world.client.post(self.at(f"{self.id}/messages/{what}"), json=body)

    def push(self, *bodies: Any) -> None:
        """Send messages."""
        assert self.call("batch", {"messages": [{"body": body} for body in bodies]}).is_success

    def pull(self, **asked: Any) -> httpx.Response:
        """Pull once."""
        return self.call(
            "pull", {name: value for name, value in asked.items() if value is not None}
        )

    def messages(self, **asked: Any) -> list[dict[str, Any]]:
        """The messages of one pull."""
        pulled: list[dict[str, Any]] = self.pull(**{"batch_size": 100} | asked).json()["result"][
            "messages"
        ]
        return pulled

    def ack(self, *leases: str) -> dict[str, Any]:
        """Acknowledge messages."""
        reply: dict[str, Any] = self.call(
            "ack", {"acks": [{"lease_id": one} for one in leases]}
        ).json()["result"]
        return reply

    def bodies_of(self, messages: list[dict[str, Any]]) -> list[Any]:
        """What messages say; None where one is not JSON."""
        return [_decoded(base64.b64decode(message["body"])) for message in messages]

    def taken(self) -> list[Any]:
        """What the messages of one pull say, once they are acknowledged."""
        messages = self.messages()
        self.ack(*(message["lease_id"] for message in messages))
        return self.bodies_of(messages)


def _decoded(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
