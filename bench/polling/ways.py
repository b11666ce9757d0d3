"""Ways to decide how long to wait before the next poll.

The product's own, and those it is compared with.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shared.pacing import poll_schedule as cadence
from shared.pacing.completion_times import SIGHTING_READ_EVERY

MINUTE = 60.0
MIN_SECONDS = 5.0
"""Seconds between two polls of the ways without memory."""
READ_SECONDS = 30.0
"""Seconds for which a process caches a model's times."""


class Way:
    """A way to decide how many seconds to wait, from a batch's age; it may learn."""

    def wait(self, age: float, now: float, chance: float) -> float:
        """Seconds until the next poll of a batch that was found pending at this age."""
        raise NotImplementedError

    def first(self, number: int, now: float, chance: float) -> float:  # noqa: ARG002 - what another way uses
        """Seconds until the first poll of a batch that was just accepted."""
        return self.wait(0.0, now, chance)

    def finished(self, number: int, bound: cadence.Bound, chance: float) -> None:
        """Note that a batch was found finished."""

    def pending(self, accepted: float, now: float) -> None:
        """Note that a batch was found pending."""

    def behind(self, accepted: float, now: float) -> float:  # noqa: ARG002 - what another way uses
        """Seconds for which a batch is held back."""
        return 0.0


@dataclass
class Growing(Way):
    """Waits a share of the age, between 5 s and 15 minutes."""

    share: float

    def wait(self, age: float, now: float, chance: float) -> float:  # noqa: ARG002 - what another way uses
        """A share of its age."""
        return min(max(age * self.share, MIN_SECONDS), cadence.MAX_SECONDS) * (0.9 + 0.2 * chance)


class EveryMinute(Way):
    """Polls every batch each minute."""

    def wait(self, age: float, now: float, chance: float) -> float:  # noqa: ARG002
        """A minute."""
        return MINUTE


@dataclass
class Knowing(Way):
    """The product's rule with the true distribution from the start.

    The best that learning can reach.
    """

    spread: cadence.Distribution

    def wait(self, age: float, now: float, chance: float) -> float:  # noqa: ARG002
        """By the true distribution."""
        return cadence.next_poll(self.spread, age, chance)


@dataclass
class Learned(Way):
    """The product's own way; it reads its memory every `READ_SECONDS`."""

    bounds: list[cadence.Bound] = field(default_factory=list)
    spread: cadence.Distribution = cadence.ASSUMED
    read_at: float = 0.0
    in_order: bool = False
    processes: int = 3
    """Processes that poll in turn.

    Each reads every `SIGHTING_READ_EVERY` seconds what all have found pending.
    """
    shared: cadence.Sighting | None = None
    known: dict[int, tuple[float, cadence.Sighting | None]] = field(default_factory=dict)
    """For each process, when it read what is shared, and what it knows."""
    chance: random.Random = field(default_factory=lambda: random.Random(1))

    def pending(self, accepted: float, now: float) -> None:
        """Remember it in one process, and share it."""
        if self.in_order:
            process = self.chance.randrange(self.processes)
            read_at, known = self.known.get(process, (0.0, None))
            self.known[process] = read_at, cadence.earlier_pending(known, (now, accepted))
            self.shared = cadence.earlier_pending(self.shared, (now, accepted))

    def behind(self, accepted: float, now: float) -> float:
        """As long as it is behind one that was just found pending.

        Where the model works in order.
        """
        if not self.in_order or self.chance.random() < cadence.ASKED_ANYWAY:
            return 0.0
        process = self.chance.randrange(self.processes)
        read_at, known = self.known.get(process, (0.0, None))
        if self.shared and now - read_at >= SIGHTING_READ_EVERY:
            known = cadence.earlier_pending(known, self.shared)
            self.known[process] = now, known
        return cadence.seconds_behind(known, accepted, now)

    def wait(self, age: float, now: float, chance: float) -> float:
        """By the distribution of the remembered bounds."""
        self._read(now)
        return cadence.next_poll(self.spread, age, chance, in_order=self.in_order)

    def first(self, number: int, now: float, chance: float) -> float:
        """The same; while nothing is known, only the first batches are polled early."""
        self._read(now)
        rested = now - max((at for _, _, at in self.bounds), default=0) >= cadence.REST_SECONDS
        return cadence.first_poll(self.spread, f"{number:08d}", chance, rested=rested)

    def _read(self, now: float) -> None:
        if now - self.read_at >= READ_SECONDS:
            self.spread, self.read_at = cadence.distribution(tuple(self.bounds), now), now
            self.in_order = cadence.is_in_order(tuple(self.bounds), now)

    def finished(self, number: int, bound: cadence.Bound, chance: float) -> None:
        """Remember the bound if the batch is sampled."""
        if not cadence.is_sampled(f"{number:08d}"):
            return
        slot = int(chance * cadence.SAMPLES)
        if slot < len(self.bounds):
            self.bounds[slot] = bound
        else:
            self.bounds.append(bound)


class Forgetful(Learned):
    """The same, but whatever a batch took is forgotten after six hours, as it was before."""

    def first(self, number: int, now: float, chance: float) -> float:
        """What is known is never old."""
        self._read(now)
        return cadence.first_poll(self.spread, f"{number:08d}", chance)

    def _read(self, now: float) -> None:
        self.bounds = [one for one in self.bounds if now - one[2] < cadence.LONG_LIFE_SECONDS]
        super()._read(now)


class Late(Learned):
    """The same, but no poll comes sooner than after five seconds, as it was before."""

    def wait(self, age: float, now: float, chance: float) -> float:
        """At least five seconds."""
        return max(super().wait(age, now, chance), MIN_SECONDS)

    def first(self, number: int, now: float, chance: float) -> float:
        """At least five seconds."""
        return max(super().first(number, now, chance), MIN_SECONDS)


@dataclass
class Apart(Learned):
    """The same, but no process knows what others have found pending."""

    def pending(self, accepted: float, now: float) -> None:
        """Remember it in one process."""
        super().pending(accepted, now)
        self.shared = None


class Unordered(Learned):
    """The same, but no order is seen and no batch is held back, as it was before."""

    def _read(self, now: float) -> None:
        super()._read(now)
        self.in_order = False

    def behind(self, accepted: float, now: float) -> float:  # noqa: ARG002 - as its parent
        """Never."""
        return 0.0
