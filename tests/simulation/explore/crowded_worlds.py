"""Small worlds in which models are full, tokens are short, pauses end, and items are strange."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from dropbatch.core.names import CONTROL_PK
from functions.poll import sweep, tick
from local.workers_ai import Fault
from local.workers_ai.replies import Cut, Reply
from shared.pacing import budget
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.explore.slow_writes import Slow
from tests.simulation.worlds import share_laws
from tests.simulation.worlds.users import MODELS, Dropped, drop

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World

MINUTE, HOUR = 60.0, 3_600.0
MIDNIGHT = 52_193.0
"""Seconds from a world's beginning to 00:00 UTC."""
CLAIM = "#fence = :to_fence"
"""The write before a submit."""


def _files(world: World, names: str, size: int = 1, model: str = MODELS[0]) -> list[Dropped]:
    return [drop(world, f"{name}.jsonl", size, model, may_fail=True) for name in names]


def _more(world: World, dropped: list[Dropped], names: str) -> None:
    dropped += _files(world, names)


def _cancelled(world: World, name: str, after: float) -> list[Dropped]:
    """A job whose batch is refused, and which is cancelled then."""
    dropped = _files(world, name)
    world.run(after)
    world.command(dropped[0].upload.job_id, "cancel")
    return dropped


def _until_midnight(world: World, before: float) -> None:
    """Ticks are rare until half an hour before midnight."""
    world.tick_seconds = HOUR / 2
    world.run(world.began + MIDNIGHT - HOUR - world.kernel.now)
    world.tick_seconds = MINUTE
    world.run(world.began + MIDNIGHT - before - world.kernel.now)


# ── models ────────────────────────────────────────────────────────────────────────────────────────


def full_model(world: World) -> list[Dropped]:
    """A model that does not answer has as many batches outstanding as it may."""
    return _full(world) + _files(world, "c", 4, MODELS[1])


def _full(world: World) -> list[Dropped]:
    dropped = _files(world, "a", 15)
    world.run(2 * HOUR)
    return dropped + _files(world, "b", 3)


def counted(world: World) -> list[Dropped]:
    """A model is full, and a read of the index returns one item at a time."""
    world.calls.awkward = replace(world.calls.awkward, page_bytes=1)
    return _full(world)


def beside_many(world: World) -> list[Dropped]:
    """Within seconds a model gets more batches outstanding than it may."""
    dropped = _files(world, "acdefghijk")
    world.run(MINUTE)
    return dropped + _files(world, "b", 1, MODELS[1])


def lost_while_full(world: World) -> list[Dropped]:
    """A batch is lost whose model has as many outstanding as it may."""
    dropped = _files(world, "a", 8)
    world.run(2 * HOUR)
    world.inject(Fault(kind="no_answers", contains="a.jsonl 0", times=6))
    return dropped


def late_refusal(world: World, seconds: float) -> list[Dropped]:
    """A slow submit is refused for capacity when the wait after another refusal is long over."""
    Slow(world, "BATCH#00000000", CLAIM, seconds=seconds)
    dropped = _files(world, "ab")
    world.run(5.0)
    world.command(dropped[0].upload.job_id, "cancel")
    return dropped


def no_capacity(world: World) -> list[Dropped]:
    """A model has no capacity for an hour."""
    dropped = _files(world, "a", 2)
    world.run(HOUR)
    world.api.clear_faults()
    return dropped


def probe_of_the_past(world: World) -> list[Dropped]:
    """A slow probe of a model is refused when another one has ended the wait."""
    dropped = _cancelled(world, "a", 5.0)
    world.run(15.0)
    Slow(world, "BATCH#00000000", CLAIM, seconds=56.0)
    world.inject(Fault(kind="3040", on="submit", contains="b.jsonl"))
    real = world.api.handle

    def slowly(*given: Any) -> Reply:
        reply = real(*given)
        return replace(
            reply, delay=40.0 if reply.status == HTTPStatus.TOO_MANY_REQUESTS else reply.delay
        )

    world.api.handle = slowly  # type: ignore[assignment, method-assign]
    dropped += _files(world, "b")
    world.run(91.0)
    return dropped + _files(world, "c")


def probes_together(world: World) -> list[Dropped]:
    """Two batches see at once that a model's wait has been over for long."""
    dropped = _cancelled(world, "a", 5.0)
    world.run(10 * MINUTE)
    Slow(world, "put_item PAUSE#", seconds=1.0)
    return dropped + _files(world, "b", 2)


def probes_of_a_pause(world: World) -> list[Dropped]:
    """Two batches see at once that a probe of a pause is due."""
    dropped = _cancelled(world, "a", 5.0)
    world.run(HOUR - 10.0)
    Slow(world, "put_item PAUSE", seconds=1.0)
    return dropped + _files(world, "b", 2)


# ── pauses ────────────────────────────────────────────────────────────────────────────────────────


def lost_after_midnight(world: World) -> list[Dropped]:
    """A batch is lost soon after the end of a pause that nothing has probed."""
    _until_midnight(world, 12 * MINUTE)
    dropped = _files(world, "a")
    world.run(2 * MINUTE)
    world.inject(Fault(kind="3036", on="submit"))
    dropped += _files(world, "b")
    world.run(11 * MINUTE)
    world.inject(Fault(kind="no_answers", contains="b.jsonl", times=6))
    return dropped


def lost_when_a_probe_is_due(world: World, kind: str) -> list[Dropped]:
    """A batch is lost when a pause, or its model's wait, could be probed."""
    dropped = _files(world, "a")
    world.run(MINUTE)
    world.inject(Fault(kind=kind, on="submit"))
    dropped += _cancelled(world, "b", 5.0)
    world.run(40 * MINUTE)
    world.inject(Fault(kind="no_answers", times=6))
    return dropped


def lost_when_calls_wait(world: World) -> list[Dropped]:
    """While a lost batch is polled, another submit makes all calls wait."""

    def refuse() -> None:
        world.inject(Fault(kind="971", on="submit", retry_after=20))
        dropped.extend(_files(world, "b"))

    Slow(world, "BATCH#00000000", "#polls = :to_polls", nth=5, seconds=5.0, then=refuse)
    dropped = _files(world, "a")
    world.run(5 * MINUTE)
    return dropped


def outage_without_connection(world: World) -> list[Dropped]:
    """Nobody knows what came of a submit, and then the API cannot be reached for an hour."""
    dropped = _files(world, "a", 6)
    world.run(5.0)
    with patch.object(world.api, "handle", lambda *_: Reply(status=0, cut=Cut.REFUSE)):
        world.run(HOUR)
    return dropped


def waits_apart(world: World) -> list[Dropped]:
    """All calls have to wait, and again an hour later."""
    dropped = _files(world, "a")
    world.run(HOUR)
    world.inject(Fault(kind="971", on="submit", retry_after=30))
    return dropped + _files(world, "b")


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────


def outage_without_tokens(world: World) -> list[Dropped]:
    """Polls of a model that does not answer use all tokens.

    While submits for another one have no answer.

    Some messages come when a probe of the outage is due, but there is no token for it.
    """
    dropped = _files(world, "a", 40)
    world.run(15 * MINUTE)
    world.inject(Fault(kind="html", on="submit", times=0))
    dropped += _files(world, "b", 6, MODELS[1])
    for number in range(6):
        world.run(HOUR / 2, lambda: _has_no_token(world) and _probe_is_due(world))
        _again(world, dropped[1], number)
    world.api.clear_faults()
    return dropped


def _has_no_token(world: World) -> bool:
    filled = float(
        world.dynamodb.items.get((CONTROL_PK, "RATE"), {}).get("filled_at", {}).get("N", "0")
    )
    return filled / 1_000 > world.kernel.now + MINUTE / world.calls_per_minute * (
        world.calls_per_minute // 2 - 0.5
    )


def _probe_is_due(world: World) -> bool:
    pause = world.dynamodb.items.get((CONTROL_PK, "PAUSE"))
    return pause is not None and float(pause["next_probe"]["N"]) < world.kernel.now


def _again(world: World, dropped: Dropped, number: int) -> None:
    """The message comes again that asks to submit a batch."""
    world.sqs.put(
        "SubmitQueue",
        f'{{"do":"submit","job_id":"{dropped.upload.job_id}","number":"{number:08}","due_at":0.0}}',
    )


def firsts_and_polls(world: World) -> list[Dropped]:
    """Some batches are to be polled while the first ones of many jobs wait."""
    dropped = _files(world, "abcd")
    world.run(50.0)
    return dropped + _files(world, "efghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP", 1, MODELS[1])


def fewer_tokens(world: World) -> list[Dropped]:
    """Some polls are due together, but a submit takes one of their tokens first."""
    dropped = _files(world, "abcdef")
    world.run(3 * MINUTE)
    world.inject(Fault(kind="971", on="poll", retry_after=300))
    real, late = world.dynamodb.get_item, list[Dropped]()

    def slowly(**given: Any) -> Any:
        is_poll = world.kernel.life() is not None and given["Key"]["sk"]["S"].startswith("BATCH")
        if is_poll and -HOUR < _calls_wait(world) < 0 and not late:
            late.append(dropped[0])
            dropped.extend(_files(world, "g"))
            world.kernel.wait(2.0)
        return real(**given)

    world.dynamodb.get_item = slowly  # type: ignore[method-assign]
    return dropped


def late_message(world: World) -> list[Dropped]:
    """A message to poll comes while all calls have to wait."""
    dropped = _files(world, "ab")
    world.run(MINUTE)
    world.inject(
        Fault(kind="10000", on="poll", status=401), Fault(kind="971", on="poll", retry_after=600)
    )
    world.run(HOUR, lambda: _calls_wait(world) > 0)
    world.run(_calls_wait(world) - 2 * MINUTE)
    key = (f"JOB#{dropped[0].upload.job_id}", "BATCH#00000000")
    due_at = world.dynamodb.items[key]["due_at"]["N"]
    world.sqs.put(
        "PollQueue",
        f'{{"do":"poll","batches":[["{dropped[0].upload.job_id}","00000000",{due_at}]]}}',
    )
    return dropped


def _calls_wait(world: World) -> float:
    until = world.dynamodb.items.get((CONTROL_PK, "RATE"), {}).get("hold_until", {}).get("N", "0")
    return float(until) - world.kernel.now


def polled_slowly(world: World) -> list[Dropped]:
    """While a poll takes its token, submits take those that there are."""
    dropped = _files(world, "a")
    world.run(2 * MINUTE)
    more = partial(_more, world, dropped, "bc")
    Slow(world, "update_item RATE SET filled_at", seconds=2.0, then=more)
    world.run(5 * MINUTE)
    return dropped


# ── items ─────────────────────────────────────────────────────────────────────────────────────────


def without_a_job(world: World) -> list[Dropped]:
    """The table has a batch whose job is missing."""
    dropped = _files(world, "a")
    key = f"JOB#{dropped[0].upload.job_id}", "BATCH#00000000"
    world.run(HOUR, lambda: key in world.dynamodb.items)
    item = world.dynamodb.items[key]
    stray = {
        "state": {"S": "ready"},
        "work": {"S": "v2#submit"},
        "due_at": {"N": str(int(world.kernel.now))},
    }
    world.dynamodb.put_item(
        TableName=world.dynamodb.table,
        Item={
            **{
                name: wire
                for name, wire in item.items()
                if name not in {"part", "ttl", "completed_at"}
            },
            **stray,
        }
        | {"pk": {"S": "JOB#missing"}, "submissions": {"L": []}},
    )
    world.run(20 * MINUTE)
    return dropped


def swept(world: World) -> list[Dropped]:
    """A job is cancelled whose batches are swept some at a time."""
    dropped = _files(world, "a", 7)
    world.run(0.2)
    world.command("stack", "pause")
    world.run(MINUTE)
    world.command(dropped[0].upload.job_id, "cancel")
    world.run(10 * MINUTE)
    world.command("stack", "run")
    return dropped


def looks_too_long(world: World) -> list[Dropped]:
    """The next tick comes before one has noted that it looks no longer."""
    Slow(world, "update_item RATE#OUTSTANDING SET watched_until", seconds=20.0, nth=0)
    return _files(world, "a")


ONE, TWO, FOUR, TWENTY = (
    (("MAX_REQUESTS_PER_BATCH", 1), ("API_CALLS_PER_MINUTE", calls)) for calls in (1, 2, 4, 20)
)
FEW = ((budget, "OUTSTANDING_MINUTES", 0.4), (share_laws, "MINUTES", 0.4))
"""Each model may have 4 batches outstanding at 20 calls a minute, less half of the others'."""
SINGLE = (("MAX_REQUESTS_PER_BATCH", 1),)
STUCK = Fault(kind="stuck", model=MODELS[0], seconds=3 * HOUR, times=0)
SPENT_ONCE = Fault(kind="3036", on="submit")
FULL = Fault(kind="3040", on="submit")
BAD = Fault(kind="5006", on="submit", times=0)
LONG = 2 * HOUR

CROWDED_WORLDS = (
    SmallWorld("full model", full_model, (), TWO, latency=LONG),
    SmallWorld(
        "counted one by one", counted, (), TWO, latency=LONG, patched=((tick, "MAX_COUNTED", 15),)
    ),
    SmallWorld(
        "another model beside many batches", beside_many, (), TWENTY, latency=LONG, patched=FEW
    ),
    SmallWorld("lost while its model is full", lost_while_full, (STUCK,), ONE),
    SmallWorld(
        "late refusal",
        partial(late_refusal, seconds=45.0),
        (Fault(kind="3040", on="submit", times=2),),
        SINGLE,
    ),
    SmallWorld("probe of the past", probe_of_the_past, (FULL,), SINGLE),
    SmallWorld("two probes together", probes_together, (FULL,), SINGLE),
    SmallWorld(
        "two probes together, the shortest waits", probes_together, (FULL,), SINGLE, share=0.0
    ),
    SmallWorld("two probes of a pause", probes_of_a_pause, (SPENT_ONCE,), SINGLE, share=0.0),
    SmallWorld("late message in a wait", late_message, (), FOUR, latency=400.0),
    SmallWorld("a poll takes its token slowly", polled_slowly, (), FOUR, latency=400.0),
    SmallWorld(
        "swept page by page", swept, (), SINGLE, latency=LONG, patched=((sweep, "PAGE_BATCHES", 2),)
    ),
    SmallWorld("lost after midnight", lost_after_midnight, (), SINGLE, latency=LONG),
    SmallWorld(
        "lost when a pause may be probed",
        partial(lost_when_a_probe_is_due, kind="3036"),
        (),
        SINGLE,
        latency=LONG,
    ),
    SmallWorld(
        "lost when a model may be probed",
        partial(lost_when_a_probe_is_due, kind="3040"),
        (),
        SINGLE,
        latency=LONG,
    ),
    SmallWorld(
        "lost when calls wait", lost_when_calls_wait, (Fault(kind="no_answers", times=9),), SINGLE
    ),
    SmallWorld(
        "outage without a connection", outage_without_connection, (Fault(kind="html", on="submit"),)
    ),
    SmallWorld(
        "waits an hour apart",
        waits_apart,
        (Fault(kind="971", on="submit", retry_after=30),),
        SINGLE,
    ),
    SmallWorld("outage without tokens", outage_without_tokens, (STUCK,), FOUR),
    SmallWorld("first batches and polls", firsts_and_polls, (), FOUR),
    SmallWorld("fewer tokens than polls", fewer_tokens, (), FOUR, latency=400.0),
    SmallWorld("a batch without a job", without_a_job),
    SmallWorld("a tick looks too long", looks_too_long, (), SINGLE, latency=300.0),
    SmallWorld(
        "no capacity, the longest waits",
        no_capacity,
        (Fault(kind="3040", on="submit", times=0),),
        share=1.0,
    ),
)
