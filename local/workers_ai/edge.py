"""The API's edge: which resource a path names, whether the caller may use it, and how often.

This module knows no models.
"""

import re
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError, error

PREFIX = "/client/v4"
_ACCOUNT = re.compile(r"[0-9a-f]{32}")
_BEARER = re.compile(r"Bearer [A-Za-z0-9_.~+/=-]+")
# The one method that each resource answers to; queues and subscriptions look at theirs themselves.
_METHODS = {"run": "POST", "search": "GET", "verify": "GET"}
_PATHS: dict[Literal["run", "search", "verify", "queues", "subscriptions"], re.Pattern[str]] = {
    "verify": re.compile("tokens/verify"),
    "search": re.compile("ai/models/search"),
    "run": re.compile("ai/run/(.+)"),
    "queues": re.compile("queues((?:/.*)?)"),
    "subscriptions": re.compile("event_subscriptions/subscriptions((?:/.*)?)"),
}
"""Below an account."""


class Route(NamedTuple):
    """A resource, the account in its path, and what follows: the model that is run, for example."""

    resource: Literal["run", "search", "verify", "queues", "subscriptions"]
    account: str = ""
    rest: str = ""

    @property
    def kind(self) -> str:
        """What its calls are counted as."""
        return self.rest.rpartition("/")[2] if self.is_of_messages else self.resource

    @property
    def is_of_messages(self) -> bool:
        """Whether it is a pull or an acknowledgement."""
        return self.resource == "queues" and "/messages/" in self.rest


class Asked(NamedTuple):
    """A call of a resource."""

    method: str
    route: Route
    query: Mapping[str, list[str]]
    authorization: str | None
    body: bytes
    now: float


def route(method: str, path: str) -> Route | ApiError:
    """The resource that a path names, or the edge's refusal."""
    found = _resource(path)
    if isinstance(found, Route) and method != _METHODS.get(found.resource, method):
        return error(7001, f"{method} not supported for requested URI.")
    return found


def _resource(path: str) -> Route | ApiError:  # One for each kind of path.
    inner = path.removeprefix(PREFIX)
    if inner == path:
        return error(7000)
    if inner == "/user/tokens/verify":
        return Route("verify")
    parts = inner.split("/", 3)
    if parts[:2] != ["", "accounts"] or len(parts) < 4:
        return error(7000)
    account, rest = parts[2], parts[3]
    if not _ACCOUNT.fullmatch(account):
        return error(7003, f"Could not route to {path}, perhaps your object identifier is invalid?")
    for resource, pattern in _PATHS.items():
        if (found := pattern.fullmatch(rest)) is not None:
            return Route(resource, account, "".join(found.groups()))
    return error(7000)


def refusal(asked: Asked, behaviour: Behaviour) -> ApiError | None:
    """Why a caller may not use an account's resource; None if it may."""
    authorization, account = asked.authorization, asked.route.account
    if authorization is None or not _BEARER.fullmatch(authorization):
        return error(9106)
    token = authorization.removeprefix("Bearer ")
    if token in behaviour.foreign_tokens:
        return error(9109)
    if token not in behaviour.tokens:
        return error(10000)
    if account and behaviour.accounts and account not in behaviour.accounts:
        return error(9109)
    return None


class Verdict(NamedTuple):
    allowed: bool
    remaining: int
    seconds: float
    """Until a place is free again; for a refused call, until the block ends."""


class Windows:
    """Calls of tokens: one moving window for each; who exceeds it is blocked for as long."""

    def __init__(self) -> None:
        self._calls: defaultdict[str, deque[float]] = defaultdict(deque)
        self._blocked_until: dict[str, float] = {}

    def take(self, key: str, now: float, limit: int, window: float) -> Verdict:
        if not limit:  # The call is not counted.
            return Verdict(allowed=True, remaining=0, seconds=0.0)
        until = self._blocked_until.get(key, 0.0)
        if now < until:
            return Verdict(allowed=False, remaining=0, seconds=until - now)
        calls = self._calls[key]
        while calls and calls[0] <= now - window:
            calls.popleft()
        if len(calls) >= limit:
            self._blocked_until[key] = now + window
            calls.clear()
            return Verdict(allowed=False, remaining=0, seconds=window)
        calls.append(now)
        return Verdict(allowed=True, remaining=limit - len(calls), seconds=calls[0] + window - now)


def decoded(body: bytes) -> object:
    """What a body says; None if it is no JSON."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
