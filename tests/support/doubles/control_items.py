"""A rate budget without a table: a test provides what it reads, and what it writes is kept."""

from __future__ import annotations

from typing import Any

from shared.aws.attribute_values import attribute, attributes, plain
from shared.aws.dynamodb import ConditionFailedError
from shared.pacing.breaker import Controls, Pause, PauseReason, Rate, StackControl
from shared.pacing.budget import Budget

NOW = 1_795_253_400.0
"""09:30:00 UTC."""
MIDNIGHT = 1_795_305_600.0
"""The next one."""
MODEL = "@cf/a/one"
INTERVAL = 300
"""Milliseconds between two tokens at 200 calls a minute."""


def pause_of(
    reason: PauseReason = PauseReason.OUTAGE,
    *,
    next_probe: float = NOW + 100,
    until: float | None = None,
    since: float = NOW - 100,
    step: float = 60.0,
) -> Pause:
    """A pause with what matters to a test."""
    return Pause(reason, "nonce", since, next_probe, step, until, "code")


def wait_of(until: float, *, step: float = 15.0, since: float = NOW - 100) -> Pause:
    """A model's pause with what matters to a test."""
    return Pause(PauseReason.MODEL_WAITS, "nonce", since, until, step, code="code")


def taken(tokens: int, hold_until: float = 0.0, held_since: float = 0.0) -> Rate:
    """A token bucket from which this many tokens are taken at `NOW`, at 200 calls a minute."""
    return Rate(int(NOW * 1_000) + tokens * INTERVAL, hold_until, held_since)


class GivenBudget(Budget):
    """A budget that has read the given control items.

    Its table accepts every write except the first `loses`.

    Attributes:
        written: the arguments of each write that the table accepted.
        loses: writes that the table still rejects, because another process wrote meanwhile.
        filled_at: milliseconds at which the bucket is full after the last write.
        meanwhile: the token bucket's item as the next read finds it.
    """

    def __init__(
        self,
        calls: int = 200,
        *,
        pause: Pause | None = None,
        wait: Pause | None = None,
        rate: Rate | None = None,
        full: tuple[str, ...] = (),
        held_since: float = 0.0,
        loses: int = 0,
        meanwhile: Rate | None = None,
    ) -> None:
        super().__init__(None, "table", calls)  # type: ignore[arg-type]
        self.given = Controls(
            pause, wait, rate or Rate(), frozenset(full), StackControl("version", held_since)
        )
        self.written: list[dict[str, Any]] = []
        self.loses, self.meanwhile = loses, meanwhile
        self.filled_at = 0

    def controls(self, model: str = "") -> Controls:
        """The given control items."""
        return self.given

    def get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        """The token bucket's item."""
        return attributes(self.meanwhile) if self.meanwhile else None

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """A write."""
        if self.loses:
            self.loses -= 1
            raise ConditionFailedError(sent_again=False)
        self.written.append(arguments)
        values = {
            name: plain(value)
            for name, value in arguments.get("ExpressionAttributeValues", {}).items()
        }
        if ":cost" in values:
            values[":moved"] = (self.meanwhile or self.given.rate).filled_at + values[":cost"]
        self.filled_at = values.get(":moved", 0)
        return {"Attributes": {"filled_at": attribute(self.filled_at)}}
