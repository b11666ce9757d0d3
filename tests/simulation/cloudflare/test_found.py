"""Worlds with completion events that once broke a law, each as small as it was then."""

import pytest

from local.workers_ai import Fault
from simulation import Awkward
from tests.simulation.cloudflare.events import Events, Hand
from tests.simulation.worlds.plans import MODELS, Drop, Plan
from tests.simulation.worlds.runs import run

pytestmark = pytest.mark.slow

HANGS = Fault(kind="accept_then_hang", seconds=600)
BEHIND = Awkward(unprocessed=0.1, throttled=0.01, notified_twice=0.1, clock_behind_seconds=25)
FOUND = {
    "two set-ups at once, because clocks differ: each made more calls than it had tokens for": Plan(
        61_000_334,
        BEHIND,
        latency=600.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 2), ("API_CALLS_PER_MINUTE", 20)),
        acts=(
            Drop(0.0, "0.jsonl", 1, waits=1e9),
            Drop(5.0, "1.jsonl", 17, MODELS[1], bad=1, waits=20.0),
        ),
        events=Events(),
    ),
    "a pause began during the set-up, after the permit to submit": Plan(
        61_000_213,
        Awkward(unprocessed=0.1, answered_late=0.02, delivered_twice=0.2, clock_behind_seconds=25),
        latency=40.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 2),),
        faults=(Fault(kind="accept_no_request_id"),),
        acts=(
            Drop(0.0, "0.jsonl", 17, MODELS[1], bad=1, waits=1e9, referenced=False),
            Drop(0.9, "3.jsonl", 5, waits=1e9, referenced=False),
        ),
        events=Events(),
    ),
    "events switched off with two calls a minute: the command's message failed": Plan(
        71_000_378,
        latency=600.0,
        settings=(("API_CALLS_PER_MINUTE", 2),),
        acts=(Drop(0.6, "2.jsonl", 1), Hand(10.0, "off")),
        events=Events(),
    ),
    "two calls a minute: each pull took a poll's token, and its acknowledgement another": Plan(
        61_000_145,
        latency=600.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 2), ("API_CALLS_PER_MINUTE", 2)),
        acts=(
            Drop(0.0, "0.jsonl", 17, MODELS[1], bad=1, referenced=False),
            Drop(0.6, "2.jsonl", 2, MODELS[1], referenced=False),
            Drop(0.0, "3.jsonl", 1),
        ),
        events=Events(),
    ),
    "the polls of a new model took half of the calls: nothing was pulled for 12 seconds": Plan(
        71_000_373,
        latency=40.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 3),),
        acts=(
            Drop(0.3, "1.jsonl", 60, bad=1, referenced=False),
            Drop(0.0, "3.jsonl", 5, MODELS[1], bad=1),
        ),
        events=Events(repeated=0.5),
    ),
    "an id that DynamoDB did not read ended its search": Plan(
        61_000_183,
        Awkward(unprocessed=0.1),
        latency=600.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 2), ("AMBIGUOUS_SUBMIT", "fail")),
        faults=(Fault(kind="accept_then_reset"),),
        acts=(Drop(0.0, "2.jsonl", 5),),
        events=Events(),
    ),
    "an answer was seen by another search while its own POST hung, and nobody polled it again": Plan(
        71_000_254,
        latency=40.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 10),),
        faults=(HANGS, Fault(kind="accept_then_reset", nth=2, times=2)),
        acts=(Drop(0.0, "0.jsonl", 17, MODELS[1]),),
        events=Events(),
    ),
    "the same with clocks that differ": Plan(
        71_000_279,
        Awkward(clock_behind_seconds=25.0),
        latency=3.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 2), ("AMBIGUOUS_SUBMIT", "fail")),
        faults=(HANGS, Fault(kind="accept_then_html")),
        acts=(Drop(0.3, "1.jsonl", 4, MODELS[1]),),
        events=Events(),
    ),
    "one page of the orphans was read": Plan(
        71_000_266,
        Awkward(page_bytes=2000, delivered_twice=0.2, clock_behind_seconds=25.0),
        latency=3.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 3),),
        faults=(Fault(kind="accept_then_reset"), Fault(kind="accept_then_truncate", at=20, nth=2)),
        acts=(Drop(10.0, "2.jsonl", 60, bad=2, referenced=False),),
        events=Events(delay=0.3, foreign=5.0),
    ),
    "an orphan that could not be listed at once was never listed": Plan(
        71_000_229,
        Awkward(
            unprocessed=0.1,
            throttled=0.01,
            delivered_twice=0.2,
            death=0.02,
            clock_behind_seconds=25.0,
        ),
        latency=3.0,
        settings=(("MAX_REQUESTS_PER_BATCH", 3),),
        faults=(Fault(kind="accept_no_request_id"),),
        acts=(Drop(0.0, "0.jsonl", 30, MODELS[1], referenced=False),),
        events=Events(),
    ),
}


@pytest.mark.parametrize("plan", FOUND.values(), ids=FOUND)
def test_what_was_found_once_stays_fixed(plan):
    assert run(plan).violations == ()
