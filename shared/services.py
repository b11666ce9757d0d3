"""What the use cases work with, and what each invocation leaves due at its end."""

from __future__ import annotations

import math
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shared.ledger import Ledger
from shared.pacing.wake import LeftDue, wake

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shared.aws.event_bus import EventBus
    from shared.aws.object_store import ObjectStore
    from shared.aws.queues import Queues
    from shared.events.subscribe import Events
    from shared.pacing.breaker import Permit
    from shared.pacing.budget import Budget
    from shared.pacing.cadence import Cadence
    from shared.pacing.known import Known
    from shared.pacing.wake import Wakes
    from shared.settings import Settings
    from shared.workers_ai.client import WorkersAI


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
        """Services of one invocation, which note what it leaves due.

        Args:
            hops: of the message that called it; 0: no message did.
        """
        left = LeftDue()
        ledger = Ledger(self.ledger.client, self.ledger.table, left.note)
        return replace(
            self,
            ledger=ledger,
            queues=replace(self.queues, hops=hops, covered=left.cover),
            left=left,
        )

    @contextmanager
    def called_by_message(self, hops: int) -> Iterator[Services]:
        """Services of an invocation that a message called.

        At its end it wakes the poll function for what it left due.

        Args:
            hops: of the message.
        """
        own = self.of_invocation(hops)
        try:
            yield own
        finally:
            if (at := own.left.earliest()) < math.inf:
                wake(own, at)

    def lift(self, permit: Permit, model: str) -> None:
        """End the pause and the wait that a good call has probed.

        Have what waited for the pause's end looked at.
        """
        if self.budget.lift(permit, model):
            wake(self, self.now(), at_once=True)
