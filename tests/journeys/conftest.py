"""A whole Dropbatch in this process.

AWS, the handlers, the local Workers AI behind httpx, on one simulated clock.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest
from botocore.client import BaseClient
from moto import mock_aws

from local.workers_ai import Behaviour, WorkersAI, transport
from tests.support.aws.resources import WAYS, limit_s3
from tests.support.journeys.command_line import CommandLine
from tests.support.journeys.world import World, make_world


@pytest.fixture(autouse=True)
def _limits_of_s3(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test calls, S3 rejects what is beyond its limits."""
    limit_s3(monkeypatch)


@pytest.fixture
def api() -> WorkersAI:
    """The API, with answers that a test can compute."""
    return WorkersAI(Behaviour(embedder="hash", latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves


@pytest.fixture
def before_calls(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a function called with operation and arguments before each call of AWS, whoever makes it.

    It may raise, or return an answer: then AWS is not called.
    """

    def begin(before: Callable[[str, dict[str, Any]], Any]) -> None:
        real = BaseClient._make_api_call  # type: ignore[attr-defined] # Private: not in the stubs.

        def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
            answer = before(operation, arguments)
            return real(client, operation, arguments) if answer is None else answer

        monkeypatch.setattr(BaseClient, "_make_api_call", call)

    return begin


@pytest.fixture
def way() -> dict[str, str]:
    """Settings of the transport that reaches the API."""
    return WAYS["rest"]


@pytest.fixture
def start(
    api: WorkersAI, way: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., World]]:
    """Start a Dropbatch whose settings differ from the template's defaults as given.

    Without completion events.

    They have journeys of their own, and deaths and random worlds have them too. The API is `api`,
    or what another httpx transport, given as `http`, leads to.
    """
    with ExitStack() as started:

        def begin(http: httpx.BaseTransport | None = None, **settings: Any) -> World:
            started.enter_context(mock_aws())
            chosen = {"COMPLETION_EVENTS": "no", **way, **settings}
            return started.enter_context(
                contextmanager(make_world)(http or transport(api), monkeypatch, **chosen)
            )

        yield begin


@pytest.fixture
def world(start: Callable[..., World]) -> World:
    """A Dropbatch with the template's defaults, but without completion events."""
    return start()


@pytest.fixture
def command(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    """The command line on a Dropbatch with the template's defaults."""
    return CommandLine(world, monkeypatch, capsys)
