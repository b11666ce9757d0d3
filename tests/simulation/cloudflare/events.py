"""How completion events are in a world.

Drawn from its seed, as data that can be printed and made smaller.

What others do in the account is in `others`; what must hold is in `laws`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any, Literal

from shared.settings import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from local.workers_ai import Behaviour

SETTING = "COMPLETION_EVENTS"
ARE_SUPPORTED = SETTING in ENVIRONMENT
"""Whether the functions know completion events; without them no world has any."""
SHARE = 0.5
"""Share of the worlds that have events."""
SOUND_SHARE = 0.5
"""Share of these in which every event comes, and soon."""
PROMPT_SECONDS = 10.0
"""Events that come within so many seconds, in 95 of 100 cases, come soon."""
HANDS = ("delete queue", "worker consumer", "disable", "refuse", "garbage")


@dataclass(frozen=True, slots=True)
class Hand:
    """A person does something to the queue in Cloudflare's dashboard (`what` of `HANDS`)."""

    at: float
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Events:
    """Events of a world. Chances are per batch, or per call of Queues; seconds are medians."""

    is_on: bool = True
    delay: float = 1.0
    #: Sigma of the lognormal distribution of the delay.
    spread: float = 0.5
    lost: float = 0.0
    #: An event comes an hour late.
    late: float = 0.0
    twice: float = 0.0
    #: The last event comes with the acceptance.
    early: float = 0.0
    #: `failed` comes in place of `succeeded`.
    false: float = 0.0
    #: A call of Queues fails.
    failing: float = 0.0
    #: What calls of Queues are answered with, for ever.
    refused: str = ""
    #: Messages of others beside each event.
    foreign: float = 0.0
    #: Share of this stack's submits that another stack of the account repeats for itself.
    repeated: float = 0.0
    takes_references: bool = True
    per: Literal["model", "source", "any"] = "model"
    names: Literal["full", "without_cf", "short"] = "full"
    ids: Literal["req", "bare", "mixed"] = "req"
    bodies: Literal["base64", "text", "object"] = "base64"

    @property
    def is_sound(self) -> bool:
        """Whether every event of every model comes, and soon."""
        troubles = (
            self.lost or self.late or self.failing or self.refused or self.false or self.early
        )
        return (
            self.is_on and self.per != "source" and not troubles and self.slowest <= PROMPT_SECONDS
        )

    @property
    def slowest(self) -> float:
        """Seconds within which 95 of 100 events come."""
        return float(self.delay * 2.718281828459045 ** (1.645 * self.spread))

    def settings(self) -> dict[str, object]:
        """The functions' variables."""
        return {SETTING: "yes" if self.is_on else "no"}

    def behaviour(self, behaviour: Behaviour) -> Behaviour:
        """How the API behaves."""
        rates = {
            "event_lost": self.lost,
            "event_late": self.late,
            "event_twice": self.twice,
            "event_early": self.early,
            "event_false": self.false,
            "queues:10250": self.failing / 3,
            "queues:reset": self.failing / 3,
            "queues:hang": self.failing / 3,
        }
        changes: Mapping[str, object] = {
            "event_delay": self.delay,
            "event_delay_spread": self.spread,
            "fault_rates": {name: rate for name, rate in rates.items() if rate},
            "queues_refused": self.refused,
            "foreign_events": self.foreign,
            "refuse_reference": [] if self.takes_references else ["*"],
            "subscriptions_per": self.per,
            "event_names": self.names,
            "event_ids": self.ids,
            "event_bodies": self.bodies,
        }
        return behaviour.changed(changes)

    def lines(self) -> Iterator[str]:
        """What differs from the default, for people."""
        changed = [f"{name} {value}" for name, value in self._changed().items()]
        yield "events: " + (", ".join(changed) or "each comes")

    def smaller(self) -> Iterator[Events]:
        """Events that are in one respect as usual."""
        usual = Events()
        for name in self._changed():
            as_usual: dict[str, Any] = {name: getattr(usual, name)}
            yield replace(self, **as_usual)

    def _changed(self) -> dict[str, object]:
        usual = Events()
        named = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in named.items() if value != getattr(usual, name)}


TROUBLES: Mapping[str, tuple[object, ...]] = {
    "is_on": (False,),
    "delay": (10.0, 60.0, 600.0),
    "spread": (1.5,),
    "lost": (0.05, 0.5, 1.0),
    "late": (0.1, 1.0),
    "early": (0.2,),
    "false": (0.2, 1.0),
    "failing": (0.1, 0.5),
    "refused": ("403/10000", "401/10000", "404/7003", "405/7001", "page"),
    "takes_references": (False,),
    "per": ("source",),
}
"""What goes wrong with events, each with how badly."""
FORMS: Mapping[str, tuple[object, ...]] = {
    "delay": (0.0, 0.3, 2.0),
    "twice": (0.0, 0.0, 0.3),
    "foreign": (0.0, 0.0, 0.5, 5.0),
    "repeated": (0.0, 0.0, 0.5),
    "per": ("model", "any"),
    "names": ("full", "without_cf", "short"),
    "ids": ("req", "bare", "mixed"),
    "bodies": ("base64", "text", "object"),
}
"""What may differ although every event comes."""


def draw_events(seed: int) -> Events | None:
    """The events of a seed's world."""
    random = Random(f"{seed} events")
    if not ARE_SUPPORTED or random.random() >= SHARE:
        return None
    given: dict[str, Any] = {name: random.choice(choices) for name, choices in FORMS.items()}
    if random.random() >= SOUND_SHARE:
        for name in random.sample(sorted(TROUBLES), random.randint(1, 3)):
            given[name] = random.choice(TROUBLES[name])
    return Events(**given)


def draw_hands(seed: int) -> list[Hand]:
    """What persons do to the queue, in every fourth world."""
    random = Random(f"{seed} hands")
    if random.random() >= 0.25:
        return []
    times = sorted(
        random.choice((0.5, 10.0, 60.0, 600.0, 4_000.0)) for _ in range(random.randint(1, 3))
    )
    return [Hand(at, random.choice(HANDS)) for at in times]
