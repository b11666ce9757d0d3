"""A local Workers AI with a client of it, and a clock that stands still."""

from __future__ import annotations

from typing import Any

import httpx

from local.workers_ai import Behaviour, WorkersAI, transport

ACCOUNT = "0123456789abcdef0123456789abcdef"
BGE = "@cf/baai/bge-small-en-v1.5"
TEXTS = [{"text": f"text {index}", "external_reference": f"row-{index}"} for index in range(20)]


class LocalApi:
    """One local API with a clock that stands still, and a client of it."""

    def __init__(self, **switches: Any) -> None:
        self.now = 1_000_000.0
        self.api = WorkersAI(Behaviour(embedder="hash").changed(switches), now=lambda: self.now)
        self.client = httpx.Client(
            transport=transport(self.api),
            base_url="https://api.test/client/v4",
            headers={"authorization": "Bearer local-token"},
        )

    def run(
        self, model: str, body: Any, query: str = "?queueRequest=true", account: str = ACCOUNT, **more: Any
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
