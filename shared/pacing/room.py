"""How many calls may be made now, as data."""

from __future__ import annotations

from dataclasses import dataclass


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
