"""Laws of pauses and of waits of models.

What each write of such an item may make of what it replaces.

A write keeps the item's nonce if it claims a probe; any other write begins a pause or a wait, or
prolongs one. When a pause was written follows from the item itself, so these laws hold however long
the write was under way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.aws.wire_items import number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from simulation.services.dynamodb import Wire

UNPAID = {"quota_spent", "credits_spent", "spend_limit"}
PROBED_AFTER = {
    "token_refused": 60.0,
    "quota_spent": 1_800.0,
    "credits_spent": 300.0,
    "spend_limit": 300.0,
    "outage": 15.0,
}
"""Seconds from a pause's beginning to its first probe, by its reason."""
MAY_REPLACE = {
    "token_refused": {*UNPAID, "outage"},
    **{reason: {*UNPAID, "outage"} for reason in UNPAID},
    "outage": {"outage"},
}
"""Reasons of the pauses in force that a pause replaces; one for an outage only after a probe."""
TOKEN_SOON, TOKEN_LATER = 600.0, 300.0
"""Seconds for which a refused token is tried every minute.

And seconds between two tries after that.
"""
LONGEST_OUTAGE_STEP = 300.0
FIRST_MODEL_STEP, LONGEST_MODEL_STEP, MODEL_PROBE = 15.0, 900.0, 90.0
SAME_WAIT, SLOW = 300.0, 150.0
"""Seconds after the end of a wait within which the next one continues it.

And how long a write may be under way.
"""
JITTER = 0.2
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
    name: str, read: Wire | None, old: Wire | None, new: Wire | None, now: float, *, has_probe: bool
) -> Iterator[str]:
    """Laws that a write of a pause or of a model's wait breaks.

    Args:
        name: the item's sort key.
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
    is_pause = name.startswith("PAUSE")
    if old is not None and old["nonce"] == new["nonce"]:
        yield from (_of_claim(old, new, now) if is_pause else _of_model_claim(old, new, now))
    elif is_pause:
        yield from _of_pause(old, new, now, has_probe=has_probe)
    else:
        yield from _of_wait(read, old, new, now, has_probe=has_probe)


def _of_claim(old: Wire, new: Wire, now: float) -> Iterator[str]:
    step = number(new, "step")
    claimed = number(new, "next_probe") - step
    if claimed < number(old, "next_probe") - PRECISE or claimed > now + PRECISE:
        yield CLAIM
    is_old = old["reason"]["S"] == "token_refused" and claimed - number(old, "since") > TOKEN_SOON
    if not same(step, TOKEN_LATER if is_old else number(old, "step")):
        yield CLAIM
    if _others(old, new, "next_probe", "step"):
        yield SINCE


def _of_model_claim(old: Wire, new: Wire, now: float) -> Iterator[str]:
    claimed = number(new, "until") - MODEL_PROBE
    if claimed < number(old, "until") - PRECISE or claimed > now + PRECISE:
        yield CLAIM
    if _others(old, new, "until"):
        yield SINCE


def _of_pause(old: Wire | None, new: Wire, now: float, *, has_probe: bool) -> Iterator[str]:
    reason, step = new["reason"]["S"], number(new, "step")
    begun = number(new, "next_probe") - step
    if begun > now + PRECISE:
        yield SINCE
    before = (
        old if old is not None and ("until" not in old or begun < number(old, "until")) else None
    )
    was = before["reason"]["S"] if before is not None else ""
    if before is not None and was not in MAY_REPLACE[reason]:
        yield REASON
    since, expected = begun, PROBED_AFTER[reason]
    if before is not None and was == reason:
        since = number(before, "since")
        if reason == "outage":
            expected = min(2 * number(before, "step"), LONGEST_OUTAGE_STEP)
            if not has_probe:
                yield STEP
    if not same(number(new, "since"), since):
        yield SINCE
    if not same(step, expected):
        yield STEP


def _of_wait(
    read: Wire | None, old: Wire | None, new: Wire, now: float, *, has_probe: bool
) -> Iterator[str]:
    step = number(new, "step")
    longer = (
        min(2 * number(old, "step"), LONGEST_MODEL_STEP)
        if old is not None and has_probe
        else FIRST_MODEL_STEP
    )
    if not (same(step, longer) or same(step, FIRST_MODEL_STEP)):
        yield STEP
    if number(new, "until") > now + min((1 + JITTER) * step, LONGEST_MODEL_STEP) + PRECISE:
        yield STEP
    if read is not None and not has_probe and number(read, "until") > now:
        yield REASON
    if number(new, "since") > now + PRECISE:
        yield SINCE
    if old is not None and not same(number(new, "since"), number(old, "since")):
        yield SINCE


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


def _others(old: Wire, new: Wire, *names: str) -> bool:
    """Whether anything else than these attributes has changed.

    Another version may store what this one leaves out.
    """
    return any(
        _said(old, name) != _said(new, name)
        for name in (old.keys() | new.keys()) - {*names, "later"}
    )


def _said(item: Wire, name: str) -> Wire | None:
    return (
        None if item.get(name) == ({"N": "1"} if name == "token" else {"S": ""}) else item.get(name)
    )
