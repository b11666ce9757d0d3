"""Runs: a plan from its first upload to its judges, and the smallest that breaks the same law."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from local.workers_ai import Behaviour
from tests.simulation.cloudflare.events import Events, Hand
from tests.simulation.cloudflare.laws import EventLaws
from tests.simulation.cloudflare.others import OtherStack, by_hand
from tests.simulation.worlds.item_laws import ItemLaws
from tests.simulation.worlds.judges import Ending, Laws, Promises, Violation
from tests.simulation.worlds.plans import Act, Command, Drop, Plan, draw, smaller
from tests.simulation.worlds.unreadable import Spoil, spoil
from tests.simulation.worlds.users import Dropped, drop
from tests.simulation.worlds.world import World, simulated

SETTLE_SECONDS = 60 * 86_400.0
"""Every job ends within 50 days."""
AFTERWARDS_SECONDS = 3_600.0
"""Simulated seconds that are judged after the last job is over."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run came to.

    Attributes:
        trace: SHA-256 of everything that happened, in order.
        calls: simulated calls.
        seconds: simulated time.
        waits: seconds from ready to collected, of each batch, in the order in which they were
            collected.
    """

    plan: Plan
    violations: tuple[Violation, ...]
    trace: str
    calls: int
    seconds: float
    waits: tuple[float, ...] = ()


def run(
    plan: Plan, events: list[str] | None = None, settle_seconds: float = SETTLE_SECONDS
) -> Outcome:
    """Run a plan; `events` gets one line for each call and each write."""
    behaviour = Behaviour(
        embedder="hash", latency=plan.latency, latency_kind="lognormal", latency_spread=0.5
    )
    settings = dict(plan.settings)
    if plan.events is not None:
        behaviour, settings = plan.events.behaviour(behaviour), settings | plan.events.settings()
    behaviour = behaviour.changed(dict(plan.api))
    with simulated(plan.seed, plan.awkward, behaviour, **settings) as world:
        digest = hashlib.sha256()

        def note(line: str) -> None:
            digest.update(line.encode())
            if events is not None:
                events.append(line)

        world.trace = note
        laws = Laws(world, events)
        ItemLaws(laws)
        promises = Promises(laws)
        event_laws = EventLaws(laws, plan.events or Events(is_on=False))
        if plan.events is not None and plan.events.repeated:
            OtherStack(world, plan.events.repeated)
        world.inject(*plan.faults)
        dropped: list[Dropped] = []
        for act in sorted(plan.acts, key=lambda one: one.at):
            world.run(world.began + act.at - world.kernel.now)
            _happens(world, act, dropped, may_fail=not plan.is_calm)
        world.settle(settle_seconds)
        world.wait_for_late_things(AFTERWARDS_SECONDS)
        ending = Ending(laws)
        ending.judge_calls()
        # Of a write whose answer is lost nobody knows, if what was written cannot be read either.
        ending.judge(dropped, may_count=not (plan.awkward.answered_late and plan.awkward.throttled))
        event_laws.judge(dropped, plan)
        if plan.is_calm:
            promises.judge(dropped, world.calls_per_minute)
        return Outcome(
            plan,
            tuple(laws.violations),
            digest.hexdigest(),
            world.calls.total,
            world.kernel.now - world.began,
            tuple(event_laws.waits),
        )


def _happens(world: World, act: Act, dropped: list[Dropped], *, may_fail: bool) -> None:
    """Let one act of a plan happen."""
    match act:
        case Drop():
            dropped.append(_dropped(world, act, may_fail=may_fail))
        case Spoil():
            spoil(world, act.kind)
        case Hand():
            by_hand(world, act.what)
        case Command():
            jobs = {one.upload.key: one.upload.job_id for one in dropped}
            if target := jobs.get(f"inbox/{act.name}") if act.name else "stack":
                world.command(target, act.word)


def _dropped(world: World, act: Drop, *, may_fail: bool) -> Dropped:
    given: dict[str, Any] = {
        "model": act.model,
        "bad": act.bad,
        "may_fail": may_fail,
        "referenced": act.referenced,
    }
    return drop(world, act.name, act.size, **given)


def random_world(seed: int, events: list[str] | None = None) -> Outcome:
    """A small world with a bit of everything, decided by the seed."""
    return run(draw(seed), events)


def smallest(plan: Plan, law: str) -> Plan:
    """A plan without anything that is not needed to break a law.

    Taking one more thing away would keep it.

    What was kept once is tried again only after everything behind it, since little of it can go
    later. A plan that takes much longer to end is not smaller: without its last command a stack may
    be paused for weeks.
    """
    place = kept = 0
    longest = 2 * run(plan).seconds
    while kept < len(lacking := list(smaller(plan))):
        place %= len(lacking)
        if _breaks(lacking[place], law, longest):
            plan, kept = lacking[place], 0
        else:
            place, kept = place + 1, kept + 1
    return plan


def _breaks(plan: Plan, law: str, longest: float) -> bool:
    outcome = run(plan, settle_seconds=min(longest, SETTLE_SECONDS))
    return outcome.seconds <= longest and any(one.law == law for one in outcome.violations)
