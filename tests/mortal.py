"""A world whose functions die, or lose an answer, at a chosen call: the machinery of the crash matrix and the model.

Every call that leaves the process, of AWS and of the API alike, is a boundary. Which there are is found by recording a
run, so that a new call is covered the day it is added.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import botocore.client
import httpx
import pytest
from botocore.exceptions import ConnectionClosedError
from moto import mock_aws

from local.workers_ai import transport
from shared.errors import StorageError
from tests.world import World, make_world

if TYPE_CHECKING:
    from collections.abc import Iterator

    from local.workers_ai import WorkersAI

Mode = Literal["before", "after", "unanswered"]
"""Death before the call; death after it; the call takes effect, but its answer is lost and the code sees an error."""

SUBMIT, ASK, OTHER = "WorkersAI submit", "WorkersAI ask", "WorkersAI other"
WRITES = frozenset(
    {
        "PutObject",
        "PutItem",
        "UpdateItem",
        "DeleteItem",
        "SendMessageBatch",
        "PutEvents",
        "CompleteMultipartUpload",
        SUBMIT,
        ASK,
    }
)
"""Calls that change something outside. What is lost with a process depends only on what it had written."""


class DiedError(BaseException):
    """The process is gone: nothing in it may catch this."""


class Boundaries:
    """Every call that leaves the process, counted; one of them may be struck."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.strikes_at, self.mode = 0, "after"
        self.strikes_name = ""
        self.struck = ""
        self.watching = False
        self.lock = threading.Lock()

    def strike(self, number: int, mode: Mode) -> None:
        """Strike the call of this number, counted from now."""
        self.passed.clear()
        self.strikes_at, self.mode, self.struck, self.strikes_name = number, mode, "", ""

    def strike_first(self, name: str, mode: Mode) -> None:
        """Strike the first call of this name."""
        self.strike(0, mode)
        self.strikes_name = name

    def cross(self, name, call, lost):
        """Make a call; `lost` makes the error that a lost answer looks like."""
        if not self.watching:
            return call()
        with self.lock:
            self.passed.append(name)
            mine = len(self.passed) == self.strikes_at or (name == self.strikes_name and not self.struck)
            if mine:
                self.struck = name
        if not mine:
            return call()
        if self.mode == "before":
            raise DiedError
        call()
        raise lost() if self.mode == "unanswered" else DiedError


class Watched(httpx.BaseTransport):
    """The API behind a boundary."""

    def __init__(self, inner: httpx.BaseTransport, boundaries: Boundaries) -> None:
        self.inner = inner
        self.boundaries = boundaries

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = OTHER if request.method == "GET" else ASK if b'"request_id"' in request.read()[:16] else SUBMIT
        return self.boundaries.cross(
            name,
            lambda: self.inner.handle_request(request),
            lambda: httpx.ReadError("[Errno 104] Connection reset by peer", request=request),
        )


class Mortal(World):
    """A world whose function may die; its messages come again, as SQS promises."""

    boundaries: Boundaries
    delivered: list[tuple[str, str]]
    """Queue and body of every message that was ever delivered."""

    def invoke(self, handler, event):
        for record in event.get("Records", []):
            self.delivered.append((record["eventSourceARN"].rpartition(":")[2], record["body"]))
        self.boundaries.watching = True
        try:
            return super().invoke(handler, event)
        except (DiedError, StorageError):
            return {record["messageId"] for record in event.get("Records", [])}
        finally:
            self.boundaries.watching = False


@contextmanager
def mortal_world(api: WorkersAI, boundaries: Boundaries, **settings: object) -> Iterator[Mortal]:
    """A Dropbatch all of whose calls are boundaries."""

    def call(client, operation, arguments):
        return boundaries.cross(
            operation,
            lambda: real(client, operation, arguments),
            lambda: ConnectionClosedError(endpoint_url=client.meta.endpoint_url),
        )

    with (
        pytest.MonkeyPatch.context() as patch,
        mock_aws(),
        contextmanager(make_world)(Watched(transport(api), boundaries), patch, **settings) as made,
    ):
        real = botocore.client.BaseClient._make_api_call
        patch.setattr(botocore.client.BaseClient, "_make_api_call", call)
        world = Mortal(**vars(made))
        world.boundaries, world.delivered = boundaries, []
        yield world
