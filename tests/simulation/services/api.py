"""The local Workers AI as an HTTP client sees it, on the simulated clock and without HTTP.

Stands for `httpx.Client` in `shared.workers_ai.client`, of which it has the one method that is used
there.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx

from local.workers_ai import routes
from local.workers_ai.replies import Cut, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from local.workers_ai.api import WorkersAI
    from simulation.services.calls import Calls

READ_SECONDS = 60.0
"""Patience of a call that names none."""


class Response:
    """What `shared.workers_ai.client` reads of a response."""

    def __init__(self, reply: Reply) -> None:
        """Keep a reply whose headers have arrived."""
        self.reply = reply
        self.status_code = reply.status
        self.headers = dict(reply.headers)

    def iter_bytes(self) -> Iterator[bytes]:
        """The body, until the connection is cut."""
        body = self.reply.body[: self.reply.cut_after]
        if body:
            yield body
        if self.reply.cut is not None:
            raise _broken(self.reply.cut)


class Http:
    """A client for the simulated API."""

    def __init__(
        self,
        calls: Calls,
        api: WorkersAI,
        on_call: Sequence[Callable[[str, str, bytes], None]],
        on_answer: Sequence[Callable[[str, Mapping[str, str], bytes, Reply], None]] = (),
    ) -> None:
        """Answer from the local Workers AI.

        Args:
            calls: where each is counted.
            api: the local Workers AI.
            on_call: told of each call its path, query and body before it is carried out.
            on_answer: told of each call its address, headers and body, and of its reply, when it
                was carried out.
        """
        self.calls = calls
        self.on_call, self.on_answer = on_call, on_answer
        self.api = api

    @contextmanager
    def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        content: bytes | Iterable[bytes] | None = None,
        timeout: httpx.Timeout | None = None,
        extensions: object = None,
    ) -> Iterator[Response]:
        """One exchange: the API takes effect in the middle of it."""
        del extensions
        body = content if isinstance(content, bytes) else b"".join(content or ())
        address = urlsplit(url)
        patience = timeout.read if timeout and timeout.read else READ_SECONDS

        operation = "queues.call" if is_of_queues(address.path) else "api.call"
        self.calls.take(operation, 0.5)
        for tell in self.on_call:
            tell(address.path, address.query, body)
        reply = routes.handle(self.api, method, address.path, address.query, headers, body)
        for hear in self.on_answer:
            hear(url, headers, body, reply)
        self.calls.total += 1
        self.calls.by_operation[operation] = self.calls.by_operation.get(operation, 0) + 1
        if reply.cut is Cut.REFUSE:
            raise httpx.ConnectError("simulated")
        if reply.delay > patience or math.isinf(reply.delay):
            self.calls.kernel.wait(patience)
            raise httpx.ReadTimeout("simulated")
        self.calls.kernel.wait(reply.delay)
        self.calls.take(operation, 0.5)
        if reply.cut is not None and reply.cut_after is None:
            raise _broken(reply.cut)
        yield Response(reply)


def is_of_queues(path: str) -> bool:
    """Whether a call is one of Queues, which takes nothing of the rate budget."""
    return "/queues" in path or "/event_subscriptions/" in path


def _broken(cut: Cut) -> Exception:
    return (
        httpx.ReadError("simulated") if cut is Cut.RESET else httpx.RemoteProtocolError("simulated")
    )
