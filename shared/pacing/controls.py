"""Pauses and the rate, as data: what every function reads before it calls the API.

A pause is a circuit breaker. It opens when the API refuses every call (a refused token, a used-up
quota, an outage). It is half-open at each `next_probe`: one call, the probe, may try. A successful
probe closes it (`lift`), on the condition that the item, identified by its nonce, is still the one
that the probe has read; a pause written meanwhile stays. A wait of one model is a circuit breaker
for that model alone.

`shared.pacing.control_items` reads and writes them; no service and no clock is here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shared.retry import soon_after

LIFT_LOOK_SECONDS = 2.0
"""Seconds by which a submit is put off during a pause.

It goes behind others that are due, and is due when it ends.
"""
PAUSE_SK, RATE_SK = "PAUSE", "RATE"
"""Sort keys of the pause and of the rate."""
PAUSED_LOOK_SECONDS = 45.0
"""Maximum seconds between two looks of a poll: due within a minute of its end."""

MODEL_PROBE_SECONDS = 90.0
"""Seconds to the next probe of a waiting model."""
MAX_OUTAGE_WAIT_SECONDS = 300.0
"""Maximum seconds between two probes of an outage."""


class CallKind(StrEnum):
    """What a call of the API is for."""

    SUBMIT = "submit"
    POLL = "poll"


class PauseReason(StrEnum):
    """Why calls are paused; the value that users see in `waiting_for`."""

    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a reason, not a secret
    QUOTA_SPENT = "quota_spent"
    CREDITS_SPENT = "credits_spent"
    SPEND_LIMIT = "spend_limit"
    OUTAGE = "outage"


UNPAID = frozenset({PauseReason.QUOTA_SPENT, PauseReason.CREDITS_SPENT, PauseReason.SPEND_LIMIT})
"""Reasons that something must be paid, raised or waited for.

Such a pause ends at midnight at the latest.
"""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of all calls, or of all submits.

    Attributes:
        reason: why.
        until: Unix seconds at which it ends automatically. None: only a successful probe ends it.
        next_probe: Unix seconds; the first call after that may try.
        nonce: identifies the pause: a successful probe lifts exactly the one it read.
        since: Unix seconds at which it began.
        step: current seconds between probes.
        code: what the API said, for the user.
    """

    reason: PauseReason
    nonce: str
    since: float
    next_probe: float
    step: float
    until: float | None = None
    code: str = ""

    def is_over(self, now: float) -> bool:
        """Whether it has ended automatically."""
        return self.until is not None and now >= self.until

    def probed_at(self, now: float) -> float:
        """When a call may show that it is over, or it ends automatically, Unix seconds."""
        return min(max(self.next_probe, now), self.until or math.inf)

    def look_at(self, now: float) -> float:
        """When paused polls look again, Unix seconds.

        At its probe or its end, or soon enough if it is lifted.
        """
        return min(self.probed_at(now), now + PAUSED_LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class ModelWait:
    """A wait of one model: one batch tries at `until`, the others wait longer.

    `since`: its beginning; 0: unknown.
    """

    until: float
    step: float
    nonce: str
    code: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """The token bucket.

    Attributes:
        filled_at: milliseconds since the epoch at which it is full again.
        hold_until: Unix seconds until which Cloudflare asked every call to wait.
        held_since: Unix seconds at which the current run of rate limit waits, one after another,
            began.
    """

    filled_at: int = 0
    hold_until: float = 0.0
    held_since: float = 0.0


@dataclass(frozen=True, slots=True)
class StackControl:
    """The result of operators' commands (`control/stack`).

    It is not a circuit breaker: nothing probes it.

    Attributes:
        version: version of the object that was carried out last.
        held_since: Unix seconds since when submits are paused; 0 while they are not.
    """

    version: str = ""
    held_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Controls:
    """The control items as they were read together."""

    pause: Pause | None
    model_wait: ModelWait | None
    rate: Rate
    full_models: frozenset[str]
    """Models that are at their limit of outstanding batches."""
    stack: StackControl = field(default_factory=StackControl)

    def pause_in_force(self, now: float) -> Pause | None:
        """The pause, unless it has ended automatically.

        Its item stays until another pause replaces it.
        """
        return self.pause if self.pause and not self.pause.is_over(now) else None


@dataclass(frozen=True, slots=True)
class Permit:
    """A permit for one call; a probe's permit names what a good answer lifts."""

    pause: Pause | None = None
    model_wait: ModelWait | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """No call now.

    Attributes:
        until: when the item is due again, Unix seconds.
        paused: whether the wait stops a batch's clock, as pauses do.
        wake_at: when the poll function has to look at it if nobody lifts the pause before; 0: when
            it is due.
        since: Unix seconds since when Cloudflare refuses every poll; infinite if it does not.
    """

    until: float
    paused: bool
    wake_at: float = 0.0
    since: float = math.inf


def wait_for_lift(now: float, wake_at: float = math.inf) -> Denied:
    """No submit now, but as soon as a pause is lifted.

    `wake_at` is when to look if nobody lifts it.
    """
    return Denied(soon_after(now + LIFT_LOOK_SECONDS, 1), paused=True, wake_at=wake_at)


def wait_for_model(wait: ModelWait, now: float) -> Denied:
    """No submit of the model now, but when its wait is over."""
    return Denied(soon_after(max(wait.until, now) + 1, 14), paused=False)


def control_key(sk: str) -> dict[str, Any]:
    """Key of a control item."""
    return {"pk": {"S": "CONTROL"}, "sk": {"S": sk}}
