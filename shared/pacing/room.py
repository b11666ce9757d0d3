"""How many calls may be made now, as data.

What the rate budget says of one token, and of all together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Free:
    """How many calls would be permitted now.

    Attributes:
        first: submits of jobs' first batches.
        submits: all submits, including these.
        polls: polls.
        paused: whether a pause prevents submits from using the available calls.
        look_at: when the pause may be probed or ends, Unix seconds; infinite while an operator has
            paused the stack.
        polls_paused: whether it prevents polls, too.
        next_token: when one of these kinds has a call again that has none now, Unix seconds; 0:
            each has one.
    """

    first: int = 0
    submits: int = 0
    polls: int = 0
    paused: bool = False
    look_at: float = 0.0
    polls_paused: bool = False
    next_token: float = 0.0


def together(each: Sequence[Free]) -> Free:
    """What several API tokens have together: paused only if all are."""
    if len(each) == 1:
        return each[0]
    return Free(
        sum(one.first for one in each),
        sum(one.submits for one in each),
        sum(one.polls for one in each),
        all(one.paused for one in each),
        min((one.look_at for one in each if one.paused), default=0.0),
        all(one.polls_paused for one in each),
        min((one.next_token for one in each if one.next_token), default=0.0),
    )


@dataclass(frozen=True, slots=True)
class ModelRoom:
    """How many batches of one model may be submitted now.

    Attributes:
        batches: how many; None for any number.
        until: when to look again at the others.
        full: whether the model is at its limit of outstanding batches, which may last for days.
    """

    batches: int | None
    until: float
    full: bool = False
