"""An item that nobody can read, of whatever kind: it delays no other (law 3)."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest

from local.workers_ai import Fault
from tests.simulation.cloudflare.events import Events
from tests.simulation.worlds import runs
from tests.simulation.worlds.judges import Laws
from tests.simulation.worlds.plans import Command, Drop, Plan
from tests.simulation.worlds.unreadable import KINDS, Spoil, kind_of
from tests.simulation.worlds.users import MODELS

PLAN = Plan(
    3,
    latency=20.0,
    settings=(("MAX_REQUESTS_PER_BATCH", 2),),
    faults=(
        Fault(kind="3040", on="submit", contains='"1.jsonl'),
        Fault(kind="2021", on="submit", contains='"2.jsonl'),
    ),
    acts=(
        Drop(0.0, "0.jsonl", 5),
        Drop(1.0, "1.jsonl", 9, MODELS[1]),
        Drop(130.0, "2.jsonl", 9),  # It pauses the account: after the others are over.
        Command(0.1, "", "pause"),
        Command(0.3, "", "run"),
    ),
    events=Events(),
)
"""In which an item of each kind is written."""
MOST_SECONDS = 90.0
"""By which other jobs may end later: until the next tick, and what it has to begin anew."""


@cache
def played(kind=""):
    """Kinds of items that were written, when each job was over, what was spoilt and broken."""
    kinds, over, worlds = set(), {}, []

    def watch(world, key, new):
        kinds.add(kind_of(key))
        if key[1] == "META" and "completed_at" in (new or {}):
            over.setdefault(new["upload"]["M"]["key"]["S"], world.kernel.now - world.began)

    class Watched(Laws):
        def __init__(self, world, *given):
            super().__init__(world, *given)
            worlds.append(world)
            world.dynamodb.watchers.append(lambda key, _, new: watch(world, key, new))

    acts = (*PLAN.acts, Spoil(2.0, kind)) if kind else PLAN.acts
    with patch.object(runs, "Laws", Watched):
        outcome = runs.run(replace(PLAN, acts=acts))
    return kinds, over, [kind_of(key) for key in worlds[0].spoilt], outcome.violations


def test_table_has_no_other_kind_of_item():
    """A new kind belongs in `KINDS`: then worlds spoil items of it."""
    kinds, *_, violations = played()
    assert violations == ()
    assert kinds == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_item_delays_no_other(kind):
    undisturbed, (_, over, spoilt, violations) = played()[1], played(kind)

    assert spoilt == [kind]
    assert violations == ()
    assert len(over) >= len(undisturbed) - (kind in {"JOB#", "BATCH#"})
    late = {key: at - undisturbed[key] for key, at in over.items()}
    assert max(late.values()) < MOST_SECONDS, late
