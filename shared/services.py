"""What the use cases work with: clients and settings, and the running invocation's time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

from aws_lambda_powertools.utilities.typing import LambdaContext

from shared.errors import StorageError
from shared.ledger import Ledger
from shared.pacing.wake import LeftDue, wake
from shared.retry import exponential

if TYPE_CHECKING:
    from shared.aws.event_bus import EventBus
    from shared.aws.object_store import ObjectStore
    from shared.aws.queues import Queues
    from shared.events.subscribe import Events
    from shared.pacing.breaker import Known, Permit
    from shared.pacing.budget import Budget
    from shared.pacing.cadence import Cadence
    from shared.pacing.wake import Wakes
    from shared.settings import Settings
    from shared.workers_ai.client import WorkersAI


T = TypeVar("T")

CALLER_RESERVE_SECONDS = 10.0
"""Left for the caller of `retry` if the step never succeeds."""


@dataclass(frozen=True, slots=True)
class Services:
    """The settings and clients that the use cases work with."""

    settings: Settings
    ledger: Ledger
    store: ObjectStore
    queues: Queues
    api: WorkersAI
    budget: Budget
    times: Cadence
    notices: EventBus
    wakes: Wakes
    known: Known
    events: Events | None = None
    """Cloudflare's events of batches; None if they are not used."""
    left: LeftDue = field(default_factory=LeftDue)
    """What the running invocation leaves due, if these services are its own."""
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep

    def of_invocation(self, hops: int = 0) -> Services:
        """Services of one invocation, which note what it leaves due; `hops` as of its message."""
        left = LeftDue()
        ledger = Ledger(self.ledger.client, self.ledger.table, left.note)
        return replace(
            self,
            ledger=ledger,
            queues=replace(self.queues, hops=hops, covered=left.cover),
            left=left,
        )

    def lift(self, permit: Permit, model: str) -> None:
        """End the pause that a good call has probed, and have what waited for that looked at."""
        if self.budget.lift(permit, model):
            wake(self, self.now(), at_once=True)


@dataclass(frozen=True, slots=True)
class Invocation:
    """One invocation of a function; Lambda ends it at its deadline, Unix seconds."""

    services: Services
    deadline: float

    @staticmethod
    def of(services: Services, context: LambdaContext) -> Invocation:
        """The invocation that Lambda describes by a context."""
        return Invocation(services, services.now() + context.get_remaining_time_in_millis() / 1000)

    @property
    def seconds_left(self) -> float:
        """Seconds until its end."""
        return self.deadline - self.services.now()

    def allows(self, seconds: float) -> bool:
        """Whether so many seconds are left."""
        return self.seconds_left >= seconds

    def until(self, end: float) -> Invocation:
        """The same invocation with an earlier end, Unix seconds."""
        return replace(self, deadline=min(self.deadline, end))

    def retry(self, step: Callable[[], T]) -> T:
        """Run a step, again if necessary, until no AWS service fails in it or time is used up."""
        tries = 0
        while True:
            before = self.seconds_left
            try:
                return step()
            except StorageError:
                wait = exponential(0.2, tries, 5.0)
                left = self.seconds_left
                # A call that hung is likely to hang as long again.
                if left < CALLER_RESERVE_SECONDS + wait + (before - left):
                    raise
                self.services.sleep(wait)
                tries += 1

    @contextmanager
    def called_by_message(self, hops: int) -> Iterator[Invocation]:
        """The same invocation, called by a message: it wakes others for what it leaves due."""
        own = self.services.of_invocation(hops)
        try:
            yield replace(self, services=own)
        finally:
            if (at := own.left.earliest()) < math.inf:
                wake(own, at)
