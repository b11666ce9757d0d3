"""Plans: what happens in a random world, drawn from a seed, as data; and smaller ones."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from local.workers_ai import Fault
from simulation.services.awkward import HALF, Awkward
from tests.simulation.cloudflare.events import Events, Hand, draw_events, draw_hands
from tests.simulation.worlds.unreadable import KINDS, Spoil
from tests.simulation.worlds.users import MODELS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FAULTS = (
    Fault(kind="3040", on="submit", times=3),
    Fault(kind="971", retry_after=30),
    Fault(kind="json_500", on="submit"),
    Fault(kind="refuse"),
    Fault(kind="accept_then_reset"),
    Fault(kind="accept_then_html"),
    Fault(kind="sync_answer"),
    Fault(kind="5006", on="submit"),
    Fault(kind="html", on="poll", times=2),
    Fault(kind="truncated_body"),
    Fault(kind="batch_fails"),
    Fault(kind="10404", on="poll", status=404, times=6),
    Fault(kind="stuck", seconds=4_000),
    Fault(kind="missing", first=1),
    Fault(kind="missing"),
    Fault(kind="repeated"),
    Fault(kind="item_fails", code=3040, first=1),
    Fault(kind="item_fails", code=5001),
    Fault(kind="10000", status=401),
)
DOUBTS = (
    Fault(kind="accept_then_error"),
    Fault(kind="accept_then_error", times=4),
    Fault(kind="accept_then_error", times=12),
    Fault(kind="accept_then_html", status=504),
    Fault(kind="html", on="submit", status=410, times=4),
    Fault(kind="html", on="submit", status=400, times=4),
    Fault(kind="10013", on="submit", times=3),
    Fault(kind="2021", times=8),
    Fault(kind="2041", on="submit", times=2),
    Fault(kind="2021", on="poll", times=8),
    Fault(kind="10013", on="poll", times=8),
    Fault(kind="424242", on="poll", status=409, times=8),
    Fault(kind="424242", on="poll", status=400, times=8),
    Fault(kind="5007", on="poll", times=8),
)
"""Replies that prove nothing."""
DOUBTS_SHARE = 0.4
"""Share of the other worlds in which some of them are added."""
ANSWER_FAULTS = (
    Fault(kind="partial", times=0),
    Fault(kind="unnumbered", times=0),
    Fault(kind="flood", message="items", factor=1, times=3),
    Fault(kind="flood", message="errors", factor=1, times=3),
)
"""Odd answers, drawn apart from the other faults."""
ANSWER_SHARE = 0.25
"""Share of the worlds with faults that have one of them."""
ODD_REPLIES = (
    Fault(kind="5001", on="poll", times=8),
    Fault(kind="5001", on="poll", times=24),
    Fault(kind="3030", on="poll", status=500, times=8),
    Fault(kind="missing", share=1.0, first=3, times=0),
    Fault(kind="placeholder", message="bare", first=1, times=0),
    Fault(kind="placeholder", message="queued", share=0.5, first=2, times=0),
    Fault(kind="placeholder", message="null", share=1.0, first=3, times=0),
    Fault(kind="stuck", seconds=5_400),
)
"""Replies that show no answer yet, although it comes."""
ODD_REPLY_SHARE = 0.25
"""Share of the worlds with faults that have one of them."""
MIXED_REPLIES = (
    (
        Fault(kind="5006", on="submit", nth=2, times=2),
        Fault(kind="5006", on="poll", status=400, times=4),
    ),
    (
        Fault(kind="5006", on="poll", status=500, times=20),
        Fault(kind="5006", on="poll", status=400, times=4),
    ),
    (Fault(kind="10404", on="poll", status=404, times=30), Fault(kind="no_answers", times=4)),
)
"""Replies of two kinds, of which neither comes often enough to be believed."""
MIXED_SHARE = 0.15
"""Share of the worlds with faults that have two of them."""
ROUTE_SHARE = 0.1
"""Share of the worlds with faults in which polls find no id for minutes or hours."""
FORMS: Mapping[str, tuple[object, ...]] = {
    "answers_per_batch": (0, 1),
    "clock_ahead": (0.0, 300.0, -300.0),
    "request_id_form": ("uuid", "req", "mixed"),
    "accept_after": (0.0, 0.0, 2.0, 15.0),
}
"""What nobody knows of the API. With the last one some POSTs take longer than is waited for."""
SPOILT_SHARE = 0.2
"""Share of the other worlds in which items become unreadable."""
CALM_SHARE = 0.2
"""Share of worlds in which nothing goes wrong, so that promises of speed can be judged."""


@dataclass(frozen=True, slots=True)
class Drop:
    """A user drops a file, `at` seconds after the world's beginning.

    `bad` of its `size` lines are no JSON; each has an `external_reference`, or none has.
    """

    at: float
    name: str
    size: int
    model: str = MODELS[0]
    bad: int = 0
    referenced: bool = True


@dataclass(frozen=True, slots=True)
class Command:
    """A user commands the job of a dropped file, or the stack if `name` is empty."""

    at: float
    name: str
    word: str


Act = Drop | Command | Hand | Spoil


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole world.

    Attributes:
        latency: median seconds that the API takes for a batch.
        settings: the functions' variables that differ from the template's defaults.
        api: the switches of the API that differ from their defaults.
        events: how completion events are; None if the functions do not know them, or the template's
            default holds.
    """

    seed: int
    awkward: Awkward = field(default_factory=Awkward)
    latency: float = 3.0
    settings: tuple[tuple[str, object], ...] = ()
    api: tuple[tuple[str, object], ...] = ()
    faults: tuple[Fault, ...] = ()
    acts: tuple[Act, ...] = ()
    events: Events | None = None

    @property
    def is_calm(self) -> bool:
        """Whether nothing goes wrong, so that the promises hold."""
        return (
            self.awkward == Awkward()
            and not self.faults
            and "accept_after" not in dict(self.api)
            and all(isinstance(act, Drop) for act in self.acts)
        )

    def lines(self) -> Iterator[str]:
        """The plan for people, a line each."""
        yield f"latency {self.latency:g} s, " + ", ".join(
            f"{name}={value}" for name, value in self.settings + self.api
        )
        for one in fields(self.awkward):
            if (value := getattr(self.awkward, one.name)) != one.default:
                yield f"AWS: {one.name} {value:g}"
        if self.events is not None:
            yield from self.events.lines()
        yield from (
            f"API: {_written('Fault', msgspec.to_builtins(fault))}" for fault in self.faults
        )
        for act in self.acts:
            named = {one: getattr(act, one.name) for one in fields(act) if one.name != "at"}
            given = {one.name: value for one, value in named.items() if value != one.default}
            yield f"{act.at:7.1f} s  {_written(type(act).__name__, given)}"


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    random = Random(seed)
    is_calm = random.random() < CALM_SHARE
    settings: dict[str, object] = {
        "MAX_REQUESTS_PER_BATCH": random.choice((2, 3, 10, 500)),
        "API_CALLS_PER_MINUTE": random.choice((1, 2, 20, 200)),
        "BATCH_DEADLINE_HOURS": 24 if is_calm else random.choice((1, 24)),
        "AMBIGUOUS_SUBMIT": random.choice(("resubmit", "resubmit", "fail")),
    }
    drops = [
        Drop(
            at=random.choice((0.0, 0.3, 5.0, 30.0)) * place,
            name=f"{place}.jsonl",
            size=(size := random.choice((0, 1, 2, 5, 17, 60))),
            model=random.choice(MODELS),
            bad=random.randint(0, 2) if size > 2 else 0,
        )
        for place in range(random.randint(1, 4))
    ]
    plan = Plan(
        seed,
        awkward=Awkward() if is_calm else Awkward.drawn(random),
        latency=random.choice((0.0, 3.0, 40.0, 600.0)),
        settings=tuple(settings.items()),
        api=_forms(seed, is_calm=is_calm),
        faults=()
        if is_calm
        else (
            *random.sample(FAULTS, random.randint(0, 4)),
            *_doubts(seed),
            *_odd_answers(seed),
            *_odd_replies(seed),
            *_no_route(seed),
            *_mixed_replies(seed),
        ),
        acts=tuple(drops),
    )
    return _with_events(plan if is_calm else _with_commands(plan, random, drops), drops)


def _forms(seed: int, *, is_calm: bool) -> tuple[tuple[str, object], ...]:
    apart = Random(f"{seed} forms")
    drawn = {name: apart.choice(values) for name, values in FORMS.items()}
    if is_calm:
        del drawn["accept_after"]
    return tuple((name, value) for name, value in drawn.items() if value != FORMS[name][0])


def _spoils(seed: int) -> list[Spoil]:
    apart = Random(f"{seed} spoilt")
    if apart.random() >= SPOILT_SHARE:
        return []
    kinds = apart.sample(KINDS, apart.randint(1, 3))
    return [Spoil(apart.choice((0.5, 3.0, 20.0, 200.0)), kind) for kind in kinds]


def _with_commands(plan: Plan, random: Random, drops: list[Drop]) -> Plan:
    return replace(plan, acts=(*drops, *_commands(random, drops), *_spoils(plan.seed)))


def _with_events(plan: Plan, drops: list[Drop]) -> Plan:
    """The same plan with completion events."""
    events, random = draw_events(plan.seed), Random(f"{plan.seed} references")
    if events is None:
        return plan
    dropped = [
        replace(one, referenced=events.takes_references and random.random() < HALF) for one in drops
    ]
    others = plan.acts[len(drops) :]
    hands = [] if plan.is_calm and events.is_sound else draw_hands(plan.seed)
    return replace(plan, events=events, acts=(*dropped, *others, *hands))


def _doubts(seed: int) -> list[Fault]:
    """Some replies that prove nothing."""
    random = Random(f"doubts {seed}")
    return random.sample(DOUBTS, random.randint(1, 3)) if random.random() < DOUBTS_SHARE else []


def _odd_answers(seed: int) -> list[Fault]:
    apart = Random(f"{seed} answers")
    return [apart.choice(ANSWER_FAULTS)] if apart.random() < ANSWER_SHARE else []


def _odd_replies(seed: int) -> list[Fault]:
    apart = Random(f"{seed} replies")
    if apart.random() >= ODD_REPLY_SHARE:
        return []
    chosen = apart.choice(ODD_REPLIES)
    second = [Fault(kind="5006", on="submit", nth=2, times=2)] if chosen.kind == "stuck" else []
    return [chosen, *second]


def _mixed_replies(seed: int) -> list[Fault]:
    apart = Random(f"{seed} mixed")
    return [*apart.choice(MIXED_REPLIES)] if apart.random() < MIXED_SHARE else []


def _no_route(seed: int) -> list[Fault]:
    apart = Random(f"{seed} route")
    times = apart.choice((30, 100, 300))
    return (
        [Fault(kind="10404", on="poll", status=404, times=times)]
        if apart.random() < ROUTE_SHARE
        else []
    )


def _commands(random: Random, drops: list[Drop]) -> Iterator[Command]:
    """Some commands for one job or the stack; what was paused is resumed in the end."""
    if random.random() < 0.5:
        return
    name, at, paused = random.choice(drops).name, random.choice((0.2, 3.0, 60.0)), set[str]()
    for word in random.sample(
        ("pause", "run", "cancel", "cancel now", "run"), random.randint(1, 3)
    ):
        target = random.choice((name, "")) if word in {"pause", "run"} else name
        yield Command(at, target, word)
        (paused.add if word == "pause" else paused.discard)(target)
        at += random.choice((0.5, 20.0, 300.0))
    for target in sorted(paused):
        yield Command(at, target, "run")


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans that lack one thing each."""
    for place in range(len(plan.acts)):
        yield replace(plan, acts=plan.acts[:place] + plan.acts[place + 1 :])
    for place in range(len(plan.faults)):
        yield replace(plan, faults=plan.faults[:place] + plan.faults[place + 1 :])
    for one in fields(plan.awkward):
        if getattr(plan.awkward, one.name) != one.default:
            changed: dict[str, Any] = {one.name: one.default}
            yield replace(plan, awkward=replace(plan.awkward, **changed))
    if plan.events is not None:
        yield replace(plan, events=None)
        yield from (replace(plan, events=one) for one in plan.events.smaller())
    for place, act in enumerate(plan.acts):
        if isinstance(act, Drop) and act.size > 1:
            half = replace(act, size=act.size // 2, bad=0)
            yield replace(plan, acts=(*plan.acts[:place], half, *plan.acts[place + 1 :]))
    for place in range(len(plan.api)):
        yield replace(plan, api=plan.api[:place] + plan.api[place + 1 :])
    for place in range(len(plan.settings)):
        yield replace(plan, settings=plan.settings[:place] + plan.settings[place + 1 :])


def _written(name: str, given: dict[str, Any]) -> str:
    """A call as one writes it."""
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in given.items())})"
