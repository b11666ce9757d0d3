"""A world in which something happens at a chosen call: a death, or a lost answer.

Every call that leaves the process, to AWS or to the API, is a boundary. The boundaries are found by
recording a run, so that a new call is covered when it is added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, TypeVar

import botocore.client
import httpx
import pytest
from botocore.exceptions import ConnectionClosedError
from moto import mock_aws

from local.workers_ai import WorkersAI, transport
from shared.errors import StorageError
from tests.support.journeys.forks import Forks
from tests.support.journeys.world import TIMEOUT_SECONDS, World, make_world

T = TypeVar("T")

Mode = Literal["before", "after", "unanswered"]
"""Death before the call; death after it."""

SUBMIT, ASK, OTHER = "WorkersAI submit", "WorkersAI ask", "WorkersAI other"
WRITES = frozenset(
    {
        "PutObject",
        "PutItem",
        "UpdateItem",
        "DeleteItem",
        "SendMessageBatch",
        "PutEvents",
        "SendTaskHeartbeat",
        "SendTaskSuccess",
        "SendTaskFailure",
        "CompleteMultipartUpload",
        SUBMIT,
        ASK,
    }
)
"""Calls that change something outside the process."""


class DiedError(BaseException):
    """The process has died: no code in it may catch this."""


class Boundaries:
    """Counts every call that leaves the process, and strikes the chosen ones."""

    def __init__(self) -> None:
        self.passed: list[str] = []
        self.strikes: Callable[[int, str], bool] = lambda number, name: False
        self.mode: Mode = "after"
        self.struck = ""
        """The call that was struck; the last one if there were several."""
        self.struck_at = 0
        """Its number."""
        self.watching = False
        self.forks = Forks()
        self.modes: dict[int, list[Mode]] = {}
        """Where the run is forked, by number of call."""

    def strike(self, number: int, mode: Mode) -> None:
        """Strike the call of this number, counted from now."""
        self.strike_where(partial(_is_call, number), mode)

    def strike_first(self, name: str, mode: Mode) -> None:
        """Strike the first call of this name."""
        self.strike_where(lambda at, called: called == name and not self.struck, mode)

    def strike_where(self, strikes: Callable[[int, str], bool], mode: Mode) -> None:
        """Strike the calls for which `strikes(number, name)` is true; numbers count from now."""
        self.passed.clear()
        self.strikes, self.mode, self.struck = strikes, mode, ""

    def cross(self, name: str, call: Callable[[], T], lost: Callable[[], Exception]) -> T:
        """Make a call; `lost` creates the error for a lost answer."""
        if not self.watching:
            return call()
        self.passed.append(name)
        for mode in self.modes.get(len(self.passed), ()):
            if self.forks.split():
                self.mode, self.modes = mode, {}
                self.strikes = partial(_is_call, len(self.passed))
                break
        if not self.strikes(len(self.passed), name):
            return call()
        self.struck, self.struck_at = name, len(self.passed)
        if self.mode == "before":
            raise DiedError
        call()
        raise lost() if self.mode == "unanswered" else DiedError


def _is_call(wanted: int, number: int, _name: str) -> bool:
    return number == wanted


def strike_each(strikes: Iterable[tuple[int, Mode]], run: Callable[[Boundaries], T]) -> list[T]:
    """What `run` returns with each of these strikes (number of call, mode).

    In the order of the calls.

    Raises:
        AssertionError: one of the runs failed, and which; or a call was never made.
    """
    boundaries, wanted = Boundaries(), list(strikes)
    for number, mode in wanted:
        boundaries.modes.setdefault(number, []).append(mode)

    def named() -> T:
        try:
            return run(boundaries)
        except Exception as error:
            struck = (
                boundaries.struck
                and f"{boundaries.mode} call {boundaries.struck_at}, {boundaries.struck}"
            )
            raise AssertionError(struck or "nothing struck") from error

    returned = boundaries.forks.run(named)
    assert len(returned) == len(wanted), "a call was never made"
    return returned


class Watched(httpx.BaseTransport):
    """A transport whose calls are boundaries."""

    def __init__(self, inner: httpx.BaseTransport, boundaries: Boundaries) -> None:
        self.inner = inner
        self.boundaries = boundaries

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        name = (
            OTHER
            if request.method == "GET"
            else ASK
            if b'"request_id"' in request.read()[:16]
            else SUBMIT
        )
        return self.boundaries.cross(
            name,
            lambda: self.inner.handle_request(request),
            lambda: httpx.ReadError("[Errno 104] Connection reset by peer", request=request),
        )


class Mortal(World):
    """A world whose functions may die; their messages are delivered again, as by SQS."""

    boundaries: Boundaries
    delivered: list[tuple[str, str]]
    """Queue and body of every message that was delivered."""

    def invoke(
        self, handler: Any, event: dict[str, Any], seconds: float = TIMEOUT_SECONDS
    ) -> set[str]:
        for record in event.get("Records", []):
            self.delivered.append((record["eventSourceARN"].rpartition(":")[2], record["body"]))
        outer, self.boundaries.watching = self.boundaries.watching, True
        try:
            return super().invoke(handler, event, seconds)
        except (DiedError, StorageError):
            return {record["messageId"] for record in event.get("Records", [])}
        finally:
            self.boundaries.watching = outer


@contextmanager
def mortal_world(api: WorkersAI, boundaries: Boundaries, **settings: object) -> Iterator[Mortal]:
    """A world in which every call is a boundary."""

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
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
        real = botocore.client.BaseClient._make_api_call  # type: ignore[attr-defined] # Private: not in the stubs.
        patch.setattr(botocore.client.BaseClient, "_make_api_call", call)
        world = Mortal(**vars(made))
        world.boundaries, world.delivered = boundaries, []
        yield world
