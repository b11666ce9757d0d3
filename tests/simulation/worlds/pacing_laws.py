"""Laws of pauses, of the account and of models.

What each write of such an item may make of what it replaces.

A write keeps the item's nonce if it claims a probe; any other write begins a pause or a wait, or
prolongs one. When a pause was written follows from the item itself, so these laws hold however long
the write was under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.aws.wire_items import changed, number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.services.dynamodb import Wire

UNPAID = {"quota_spent", "credits_spent", "spend_limit"}
STEPS = {
    "token_refused": (60.0, 300.0),
    "quota_spent": (1_800.0, 1_800.0),
    "credits_spent": (300.0, 300.0),
    "spend_limit": (300.0, 300.0),
    "outage": (15.0, 300.0),
    "model_waits": (15.0, 900.0),
}
"""Seconds from a pause's beginning to its first probe, and most seconds between two, by reason."""
MAY_REPLACE = {
    "token_refused": {*UNPAID, "outage"},
    **{reason: {*UNPAID, "outage"} - {reason} for reason in UNPAID},
    "outage": set[str](),
    "model_waits": set[str](),
}
"""Reasons of the pauses in force that a pause replaces; one for the same reason after a probe."""
PROBE = 90.0
"""Seconds that a probe has at least."""
SAME_WAIT, SLOW = 300.0, 150.0
"""Seconds after the end of a wait within which the next one continues it."""
PRECISE = 0.001
"""Times are stored to the microsecond."""

CLAIM = "a probe is claimed when it is due, and the next one follows its step"
STEP = "a step doubles only after a probe, and is bounded"
SINCE = "since says when a pause or a wait began"
REASON = "a pause replaces only what it may replace"
READ = "only the pause that was read is replaced"


def same(one: float, other: float) -> bool:
    """Whether two times are equal, but for how they are stored."""
    return abs(one - other) < PRECISE


def broken_by(
    read: Wire | None, old: Wire | None, new: Wire | None, now: float, *, has_probe: bool
) -> Iterator[str]:
    """Laws that a write of a pause breaks.

    Args:
        read: what the writer has last read of it.
        old: what the table held.
        new: what it holds now; None: the item was deleted.
        now: Unix seconds.
        has_probe: whether the writer has claimed a probe of this item.
    """
    if old is not None and (read is None or read["nonce"] != old["nonce"]):
        yield READ
    if new is None:
        return
    if old is not None and old["nonce"] == new["nonce"]:
        yield from _of_claim(old, new, now)
    else:
        yield from _of_pause(old, new, now, has_probe=has_probe)


def _of_claim(old: Wire, new: Wire, now: float) -> Iterator[str]:
    claimed = number(new, "next_probe") - max(number(new, "step"), PROBE)
    if claimed < number(old, "next_probe") - PRECISE or claimed > now + PRECISE:
        yield CLAIM
    if not changed(old, new) <= {"next_probe"}:
        yield SINCE


def _of_pause(old: Wire | None, new: Wire, now: float, *, has_probe: bool) -> Iterator[str]:
    reason, step = new["reason"]["S"], number(new, "step")
    begun = number(new, "next_probe") - step
    if begun > now + PRECISE:
        yield SINCE
    is_over = old is not None and "until" in old and begun >= number(old, "until")
    before = None if is_over else old
    was = before["reason"]["S"] if before is not None else ""
    if before is not None and was not in MAY_REPLACE[reason] | ({reason} if has_probe else set()):
        yield REASON
    since, (expected, longest) = begun, STEPS[reason]
    if before is not None and was == reason:
        since = number(before, "since")
        expected = min(2 * number(before, "step"), longest)
    if not same(number(new, "since"), since):
        yield SINCE
    if not same(step, expected):
        yield STEP


def broken_by_wait(read: Wire | None, new: Wire, now: float) -> Iterator[str]:
    """Laws that a write breaks after which all calls have to wait.

    Args:
        read: what the writer has last read of the rate.
        new: what the table holds now.
        now: Unix seconds.
    """
    since, ends = number(new, "held_since"), number(read or {}, "hold_until")
    if since > now + PRECISE:
        yield SINCE
    elif same(since, number(read or {}, "held_since")):
        if ends < now - SAME_WAIT - SLOW:
            yield SINCE
    elif ends > since - SAME_WAIT + PRECISE:
        yield SINCE
