"""Small worlds in which models are full, tokens are short, pauses end, and items are strange."""

from __future__ import annotations

from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from msgspec import structs

from dropbatch.core.names import CONTROL_PK
from functions.poll import sweep, tick
from local.workers_ai import Fault
from shared.pacing import budget
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.explore.stories import Act, Step, clear, files, slow, story, unreachable
from tests.simulation.worlds import share_laws
from tests.simulation.worlds.users import MODELS, Dropped, drop

if TYPE_CHECKING:
    from local.workers_ai.replies import Reply
    from tests.simulation.worlds.world import World

MINUTE, HOUR = 60.0, 3_600.0
MIDNIGHT = 52_193.0
"""Seconds from a world's beginning to 00:00 UTC."""
BATCH, CLAIM = "BATCH#00000000", "#fence = :to_fence"
"""A batch, and the write before its submit."""
NO_ANSWERS = Fault(kind="no_answers", times=6)
FULL_MODEL: tuple[Step, ...] = (files("a", 15), 2 * HOUR, files("b", 3))
"""A model that does not answer has as many batches outstanding as it may."""
CANCELLED: tuple[Step, ...] = (files("a"), 5.0, "a cancel")
"""A batch is refused, and its job cancelled then."""


def half_before_midnight(world: World, _: list[Dropped]) -> None:
    """Ticks are rare until an hour before midnight; then it is 12 minutes before."""
    world.tick_seconds = HOUR / 2
    world.run(world.began + MIDNIGHT - HOUR - world.kernel.now)
    world.tick_seconds = MINUTE
    world.run(world.began + MIDNIGHT - 12 * MINUTE - world.kernel.now)


def one_item_a_page(world: World, _: list[Dropped]) -> None:
    """A read of the index returns one item at a time."""
    world.calls.awkward = replace(world.calls.awkward, page_bytes=1)


def refuse_slowly(world: World, _: list[Dropped]) -> None:
    """A refusal for too many calls takes 40 s."""
    real = world.api.handle

    def slowly(*given: Any) -> Reply:
        reply = real(*given)
        is_refused = reply.status == HTTPStatus.TOO_MANY_REQUESTS
        return replace(reply, delay=40.0 if is_refused else reply.delay)

    world.api.handle = slowly  # type: ignore[assignment, method-assign]


def lost_when_a_probe_is_due(kind: str) -> Act:
    """A batch is lost when a pause, or its model's wait, could be probed."""
    refused = (Fault(kind=kind, on="submit"), files("b"), 5.0, "b cancel")
    return story(files("a"), MINUTE, *refused, 40 * MINUTE, NO_ANSWERS)


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────


def again_without_tokens(world: World, dropped: list[Dropped]) -> None:
    """Messages come again when a probe of an outage is due, but there is no token for it."""
    for number in range(6):
        world.run(HOUR / 2, lambda: _has_no_token(world) and _probe_is_due(world))
        body = f'{{"do":"submit","job_id":"{dropped[1].upload.job_id}","number":"{number:08}",'
        world.sqs.put("SubmitQueue", body + '"due_at":0.0}')


def _control(world: World, kind: str, name: str) -> float:
    """A number of a control item; 0 if it is not there."""
    item = world.dynamodb.items.get((CONTROL_PK, kind), {})
    return float(item.get(name, {}).get("N", "0"))


def _has_no_token(world: World) -> bool:
    calls = world.calls_per_minute
    ahead = _control(world, "RATE", "filled_at") / 1_000 - world.kernel.now
    return ahead > MINUTE / calls * (calls // 2 - 0.5)


def _probe_is_due(world: World) -> bool:
    return 0 < _control(world, "PAUSE", "next_probe") < world.kernel.now


def _calls_wait(world: World) -> float:
    return _control(world, "RATE", "hold_until") - world.kernel.now


def taken_by_a_submit(world: World, dropped: list[Dropped]) -> None:
    """Polls are due together after a wait, but a submit takes one of their tokens first."""
    real, seen = world.dynamodb.get_item, list[float]()

    def slowly(**given: Any) -> Any:
        is_poll = world.kernel.life() is not None and given["Key"]["sk"]["S"].startswith("BATCH")
        if is_poll and -HOUR < _calls_wait(world) < 0 and not seen:
            seen.append(world.kernel.now)
            dropped.append(drop(world, "g.jsonl", 1, may_fail=True))
            world.kernel.wait(2.0)
        return real(**given)

    world.dynamodb.get_item = slowly  # type: ignore[method-assign]


def late_message(world: World, dropped: list[Dropped]) -> None:
    """A message to poll comes while all calls have to wait."""
    world.run(HOUR, lambda: _calls_wait(world) > 0)
    world.run(_calls_wait(world) - 2 * MINUTE)
    job_id = dropped[0].upload.job_id
    due_at = world.dynamodb.items[f"JOB#{job_id}", BATCH]["due_at"]["N"]
    body = f'{{"do":"poll","batches":[["{job_id}","00000000",{due_at}]]}}'
    world.sqs.put("PollQueue", body)


# ── items ─────────────────────────────────────────────────────────────────────────────────────────


def without_a_job(world: World, dropped: list[Dropped]) -> None:
    """The table has a batch whose job is missing."""
    key = f"JOB#{dropped[0].upload.job_id}", BATCH
    world.run(HOUR, lambda: key in world.dynamodb.items)
    item = {**world.dynamodb.items[key], "pk": {"S": "JOB#missing"}, "submissions": {"L": []}}
    item |= {"state": {"S": "ready"}, "work": {"S": "v2#submit"}}
    item |= {"due_at": {"N": str(int(world.kernel.now))}}
    for name in ("part", "ttl", "completed_at"):
        item.pop(name, None)
    world.dynamodb.put_item(TableName=world.dynamodb.table, Item=item)


SINGLE = (("MAX_REQUESTS_PER_BATCH", 1),)
ONE, TWO, FOUR, TWENTY = ((*SINGLE, ("API_CALLS_PER_MINUTE", calls)) for calls in (1, 2, 4, 20))
FEW = ((budget, "OUTSTANDING_MINUTES", 0.4), (share_laws, "MINUTES", 0.4))
"""Each model may have 4 batches outstanding at 20 calls a minute, less half of the others'."""
STUCK = Fault(kind="stuck", model=MODELS[0], seconds=3 * HOUR, times=0)
SPENT_ONCE = Fault(kind="3036", on="submit")
FULL = Fault(kind="3040", on="submit")
WAIT = Fault(kind="971", on="submit", retry_after=30)
LONG = 2 * HOUR
TOGETHER = story(*CANCELLED, 10 * MINUTE, slow("put_item PAUSE#", seconds=1.0), files("b", 2))
"""Two batches see at once that a model's wait has been over for long."""
MANY = "efghijklmnopqrstuvwxyzABCDEFGHIJKLMNOP"

CROWDED_WORLDS = (
    SmallWorld("full model", story(*FULL_MODEL, files("c", 4, MODELS[1])), (), TWO, latency=LONG),
    SmallWorld(
        "counted one by one",
        story(one_item_a_page, *FULL_MODEL),
        (),
        TWO,
        latency=LONG,
        patched=((tick, "MAX_COUNTED", 15),),
    ),
    # Within seconds a model gets more batches outstanding than it may.
    SmallWorld(
        "another model beside many batches",
        story(files("acdefghijk"), MINUTE, files("b", 1, MODELS[1])),
        (),
        TWENTY,
        latency=LONG,
        patched=FEW,
    ),
    SmallWorld(
        "lost while its model is full",
        story(files("a", 8), 2 * HOUR, structs.replace(NO_ANSWERS, contains="a.jsonl 0")),
        (STUCK,),
        ONE,
    ),
    # A slow submit is refused for capacity when the wait after another refusal is long over.
    SmallWorld(
        "late refusal",
        story(slow(BATCH, CLAIM, seconds=45.0), files("ab"), 5.0, "a cancel"),
        (structs.replace(FULL, times=2),),
        SINGLE,
    ),
    # A slow probe of a model is refused when another one has ended the wait.
    SmallWorld(
        "probe of the past",
        story(
            *CANCELLED,
            15.0,
            slow(BATCH, CLAIM, seconds=56.0),
            structs.replace(FULL, contains="b.jsonl"),
            refuse_slowly,
            files("b"),
            91.0,
            files("c"),
        ),
        (FULL,),
        SINGLE,
    ),
    SmallWorld("two probes together", TOGETHER, (FULL,), SINGLE),
    SmallWorld("two probes together, the shortest waits", TOGETHER, (FULL,), SINGLE, share=0.0),
    SmallWorld(
        "two probes of a pause",
        story(*CANCELLED, HOUR - 10.0, slow("put_item PAUSE", seconds=1.0), files("b", 2)),
        (SPENT_ONCE,),
        SINGLE,
        share=0.0,
    ),
    SmallWorld(
        "late message in a wait",
        story(
            files("ab"),
            MINUTE,
            Fault(kind="10000", on="poll", status=401),
            Fault(kind="971", on="poll", retry_after=600),
            late_message,
        ),
        (),
        FOUR,
        latency=400.0,
    ),
    # Submits take the tokens that there are meanwhile.
    SmallWorld(
        "a poll takes its token slowly",
        story(
            files("a"),
            2 * MINUTE,
            slow("update_item RATE SET filled_at", seconds=2.0, then=(files("bc"),)),
            5 * MINUTE,
        ),
        (),
        FOUR,
        latency=400.0,
    ),
    SmallWorld(
        "swept page by page",
        story(
            *(files("a", 7), 0.2, "stack pause", MINUTE),
            *("a cancel", 10 * MINUTE, "stack run"),
        ),
        (),
        SINGLE,
        latency=LONG,
        patched=((sweep, "PAGE_BATCHES", 2),),
    ),
    # Soon after the end of a pause that nothing has probed.
    SmallWorld(
        "lost after midnight",
        story(
            *(half_before_midnight, files("a"), 2 * MINUTE, SPENT_ONCE),
            *(files("b"), 11 * MINUTE, structs.replace(NO_ANSWERS, contains="b.jsonl")),
        ),
        (),
        SINGLE,
        latency=LONG,
    ),
    SmallWorld(
        "lost when a pause may be probed",
        lost_when_a_probe_is_due("3036"),
        (),
        SINGLE,
        latency=LONG,
    ),
    SmallWorld(
        "lost when a model may be probed",
        lost_when_a_probe_is_due("3040"),
        (),
        SINGLE,
        latency=LONG,
    ),
    # While it is polled, another submit makes all calls wait.
    SmallWorld(
        "lost when calls wait",
        story(
            slow(
                BATCH,
                "#polls = :to_polls",
                nth=5,
                seconds=5.0,
                then=(structs.replace(WAIT, retry_after=20), files("b")),
            ),
            files("a"),
            5 * MINUTE,
        ),
        (structs.replace(NO_ANSWERS, times=9),),
        SINGLE,
    ),
    SmallWorld(
        "outage without a connection",
        story(files("a", 6), 5.0, unreachable(HOUR)),
        (Fault(kind="html", on="submit"),),
    ),
    SmallWorld("waits an hour apart", story(files("a"), HOUR, WAIT, files("b")), (WAIT,), SINGLE),
    # Polls of a model that does not answer use all of them while another's submits have no answer.
    SmallWorld(
        "outage without tokens",
        story(
            *(files("a", 40), 15 * MINUTE, Fault(kind="html", on="submit", times=0)),
            *(files("b", 6, MODELS[1]), again_without_tokens, clear),
        ),
        (STUCK,),
        FOUR,
    ),
    SmallWorld(
        "first batches and polls",
        story(files("abcd"), 50.0, files(MANY, 1, MODELS[1])),
        (),
        FOUR,
    ),
    SmallWorld(
        "fewer tokens than polls",
        story(
            files("abcdef"),
            3 * MINUTE,
            Fault(kind="971", on="poll", retry_after=300),
            taken_by_a_submit,
        ),
        (),
        FOUR,
        latency=400.0,
    ),
    SmallWorld("a batch without a job", story(files("a"), without_a_job, 20 * MINUTE)),
    # The next tick comes before one has noted that it looks no longer.
    SmallWorld(
        "a tick looks too long",
        story(
            slow("update_item RATE#OUTSTANDING SET watched_until", seconds=20.0, nth=0), files("a")
        ),
        (),
        SINGLE,
        latency=300.0,
    ),
    SmallWorld(
        "no capacity, the longest waits",
        story(files("a", 2), HOUR, clear),
        (structs.replace(FULL, times=0),),
        share=1.0,
    ),
)
