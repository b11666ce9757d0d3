"""Accepted batches: their bill, their times, and their bodies until their results expire.

This module knows nothing of HTTP.
"""

import uuid
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from statistics import NormalDist
from typing import Any

from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError
from local.workers_ai.faults import Fault, chance

ACCEPT_SPREAD = 1.5
"""Sigma of the time until a batch exists: one of twenty takes twelve times the median."""


@dataclass(slots=True)
class Batch:
    request_id: str
    account: str
    model: str
    count: int
    sha256: str
    accepted_at: float
    running_at: float
    completes_at: float
    inline: bool = False
    """Answered synchronously instead of queued."""
    failure: ApiError | None = None
    failing: dict[int, ApiError] = field(default_factory=dict)
    """Items that fail, by position."""
    faults: tuple[Fault, ...] = ()
    polls: int = 0
    answers: int = 0
    """Complete answers given."""

    def shown_id(self, behaviour: Behaviour) -> str | int:
        if behaviour.request_id_form == "mixed" and self.polls:
            return other_form(self.request_id)
        return int(self.request_id) if behaviour.request_id_form == "integer" else self.request_id

    def bill(self) -> dict[str, Any]:
        """What the account is charged for, and how it was polled."""
        names = "request_id", "account", "model", "count", "sha256", "inline", "polls", "answers"
        ends = None if self.completes_at == float("inf") else self.completes_at
        return {name: getattr(self, name) for name in names} | {
            "time": self.accepted_at,
            "completes_at": ends,
            "failed": self.failure is not None,
        }


class Batches:
    """All batches ever accepted. Not thread-safe: `WorkersAI` holds its lock around every call."""

    def __init__(self) -> None:
        self._all: dict[str, Batch] = {}
        self._kept: OrderedDict[str, Batch] = OrderedDict()
        self._bodies: dict[str, bytes] = {}
        self._same: Counter[str] = Counter()
        self._attempts: Counter[tuple[str, bytes]] = Counter()

    def accept(
        self,
        account: str,
        model: str,
        body: bytes,
        requests: list[Any],
        behaviour: Behaviour,
        now: float,
    ) -> Batch:
        """Accept a batch: from here on it is billed."""
        self._expire(behaviour, now)
        digest = sha256(body).hexdigest()
        # The id is drawn from what was sent and how often it was sent before, so that the same run
        # has the same ids even when its calls arrive in another order.
        key = f"{behaviour.seed} {account} {model} {digest}"
        self._same[key] += 1
        drawn = blake2b(f"{key} {self._same[key]}".encode(), digest_size=16).digest()
        request_id = str(uuid.UUID(bytes=drawn, version=4))
        is_mixed = behaviour.request_id_form == "mixed" and drawn[0] % 2
        if behaviour.request_id_form == "req" or is_mixed:
            request_id = f"req-{request_id}"
        elif behaviour.request_id_form == "integer":
            request_id = str(int.from_bytes(drawn[:6]) + 1)
        drawn_by = chance("accept", behaviour.seed, request_id)
        at = now + drawn_seconds(drawn_by, behaviour.accept_after, "lognormal", ACCEPT_SPREAD)
        latency = _latency(behaviour, request_id)
        batch = Batch(
            request_id, account, model, len(requests), digest, at, at + latency / 2, at + latency
        )
        self._all[request_id] = self._kept[request_id] = batch
        self._bodies[request_id] = body
        return batch

    def attempt(self, fault: Fault, request: bytes) -> int:
        """Count one more attempt of a request, identified by its JSON, as this fault sees it."""
        key = (repr(fault), blake2b(request, digest_size=16).digest())
        self._attempts[key] += 1
        return self._attempts[key]

    def find(self, request_id: str, behaviour: Behaviour, now: float) -> Batch | None:
        """The batch of this id while its results are available."""
        batch = self._kept.get(request_id)
        if batch is not None and _expired(batch, behaviour, now):
            self.forget(batch)
            return None
        return batch

    def body(self, batch: Batch) -> bytes:
        return self._bodies[batch.request_id]

    def forget(self, batch: Batch) -> None:
        """From here on the id is unknown; the bill stays."""
        self._kept.pop(batch.request_id, None)
        self._bodies.pop(batch.request_id, None)

    def bill(self) -> list[dict[str, Any]]:
        return [batch.bill() for batch in self._all.values()]

    def _expire(self, behaviour: Behaviour, now: float) -> None:
        """Forget the oldest batches whose results have expired."""
        while self._kept:
            batch = next(iter(self._kept.values()))
            if not _expired(batch, behaviour, now):
                return
            self.forget(batch)


def _expired(batch: Batch, behaviour: Behaviour, now: float) -> bool:
    used_up = bool(behaviour.answers_per_batch) and batch.answers >= behaviour.answers_per_batch
    return used_up or bool(behaviour.retention and now > batch.completes_at + behaviour.retention)


def other_form(request_id: str) -> str:
    """An id with `req-` if it has none, and without if it has."""
    bare = request_id.removeprefix("req-")
    return bare if bare != request_id else f"req-{bare}"


def _latency(behaviour: Behaviour, request_id: str) -> float:
    drawn = chance("latency", behaviour.seed, request_id)
    return drawn_seconds(drawn, behaviour.latency, behaviour.latency_kind, behaviour.latency_spread)


def drawn_seconds(drawn: float, median: float, kind: str, spread: float) -> float:
    """The seconds of a distribution that a number from 0 to 1 draws."""
    drawn = min(max(drawn, 1e-9), 1 - 1e-9)
    if kind == "uniform":
        median *= 1 + spread * (2 * drawn - 1)
    elif kind == "lognormal":
        median *= 2.718281828459045 ** (NormalDist().inv_cdf(drawn) * spread)
    return max(0.0, median)
