"""Small worlds: two or three invocations that meet at one item, by users, messages, the API."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from local.workers_ai import Fault
from simulation.services.errors import refused
from tests.simulation.explore.crowded_worlds import CROWDED_WORLDS
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.explore.slow_writes import SLOW_WORLDS
from tests.simulation.worlds import answer_laws
from tests.simulation.worlds.users import MODELS, Dropped, drop
from tests.support.aws.resources import ACCOUNT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from simulation.services.s3 import Version
    from tests.simulation.worlds.world import World

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
Act = "Callable[[World], list[Dropped]]"


def one(
    world: World, size: int = 2, *, may_fail: bool = True, name: str = "a.jsonl"
) -> list[Dropped]:
    """A file is dropped."""
    return [drop(world, name, size, may_fail=may_fail)]


def notified_twice(world: World) -> list[Dropped]:
    """S3 sends its event twice."""
    dropped = one(world)
    world.notify_again(dropped[0].upload)
    return dropped


def two_jobs(world: World) -> list[Dropped]:
    """Two files are dropped together, for two models."""
    return [drop(world, "a.jsonl", 1), drop(world, "b.jsonl", 1, MODELS[1])]


def commanded(
    world: World, words: Sequence[str], *, after: float = 1.5, size: int = 4, apart: float = 30.0
) -> list[Dropped]:
    """A user commands a job."""
    dropped = one(world, size)
    world.run(after)
    for word in words:
        world.command(dropped[0].upload.job_id, word)
        world.run(apart)
    return dropped


def stack_paused(world: World) -> list[Dropped]:
    """An operator pauses the stack for ten minutes."""
    world.command("stack", "pause")
    world.run(5)
    dropped = one(world, 4)
    world.run(10 * MINUTE)
    world.command("stack", "run")
    return dropped


def recovering(world: World, *, after: float, size: int = 6, jobs: int = 1) -> list[Dropped]:
    """The API's faults end some time after files were dropped."""
    dropped = [drop(world, f"{name}.jsonl", size, may_fail=True) for name in "abcdef"[:jobs]]
    world.run(after)
    world.api.clear_faults()
    return dropped


def token_replaced(world: World) -> list[Dropped]:
    """The token is revoked while batches are outstanding, and replaced half an hour later."""
    dropped = one(world, 4)
    world.run(3)
    world.api.switch(tokens=("second-token",))
    dropped += one(world, name="b.jsonl")
    world.run(HOUR / 2)
    world.token = "second-token"
    return dropped


def with_messages_twice(
    act: Callable[[World], list[Dropped]], apart: float, world: World
) -> list[Dropped]:
    """Every message of a queue comes twice."""
    put = world.sqs.put

    def twice(name: str, body: str, delay: float = 0.0) -> None:
        put(name, body, delay)
        put(name, body, delay + apart)

    world.sqs.put = twice  # type: ignore[method-assign]
    return act(world)


def then_a_wait(world: World, kind: str = "971", after: float = 72.2) -> list[Dropped]:
    """A lost batch is to be submitted again when another job's submit makes submits wait."""
    dropped = one(world)
    world.run(after)
    world.inject(Fault(kind=kind, on="submit", retry_after=20, times=1 if kind == "971" else 3))
    return dropped + one(world, name="b.jsonl")


def then_a_refusal(world: World) -> list[Dropped]:
    """A batch with a lost id is submitted again, and that submit is refused."""
    dropped = one(world)
    world.run(15.0)
    world.inject(Fault(kind="5006", on="submit", times=0))
    world.run(10 * MINUTE)
    world.api.clear_faults()
    return dropped


def then_a_paused_stack(world: World) -> list[Dropped]:
    """A lost batch is to be submitted again while an operator has paused the stack."""
    dropped = one(world)
    world.run(30)
    world.command("stack", "pause")
    world.run(10 * MINUTE)
    world.command("stack", "run")
    return dropped


def dies_after(world: World, word: str) -> None:
    """The process dies that is the first to store an object whose key holds this word."""
    dead: list[str] = []

    def watch(version: Version) -> None:
        if word in version.key and not dead and (life := world.kernel.life()) is not None:
            dead.append(version.key)
            world.kernel.kill(life)

    world.s3.watchers.append(watch)


def table_fails(world: World, name: str, seconds: float) -> None:
    """From the first write that sets this attribute on."""
    real, until = world.dynamodb.update_item, [0.0]

    def failing(**given: Any) -> Any:
        now = world.kernel.now
        if f":to_{name}" in given.get("ExpressionAttributeValues", {}) and not until[0]:
            until[0] = now + seconds
        if (
            now < until[0]
            and (life := world.kernel.life()) is not None
            and life.name.startswith("Submit")
        ):
            world.kernel.wait(1.0)
            raise refused("InternalServerError", "UpdateItem", 500)
        return real(**given)

    world.dynamodb.update_item = failing  # type: ignore[method-assign]


def dies_with_answer(world: World) -> list[Dropped]:
    """The submit function dies when it has stored an answer that came at once."""
    dies_after(world, "/raw-")
    return one(world)


def leaves_receipt(world: World) -> list[Dropped]:
    """The table refuses an acceptance for so long that only a receipt in S3 is left of it."""
    table_fails(world, "submission", 170.0)
    return one(world)


def rarely_ticked(world: World) -> list[Dropped]:
    """A tick every half an hour, for a world of days."""
    world.tick_seconds = HOUR / 2
    return one(world)


def paused_for_a_day(world: World) -> list[Dropped]:
    """A user pauses a job for a day."""
    world.tick_seconds = HOUR / 2
    return commanded(world, ("pause", "run"), after=0.6, apart=DAY + HOUR)


def paused_beyond_its_deadline(world: World) -> list[Dropped]:
    """A user pauses a job, whose deadline ends it two hours later."""
    world.tick_seconds = MINUTE * 10
    dropped = [drop(world, "a.jsonl", 4, may_fail=True, metadata={"deadline-hours": "2"})]
    world.run(0.6)
    world.command(dropped[0].upload.job_id, "pause")
    return dropped


def no_quota_for_two_days(world: World) -> list[Dropped]:
    """The daily allocation is used up, and again after midnight."""
    world.tick_seconds = HOUR / 2
    return recovering(world, after=20 * HOUR, size=2)


LOST = Fault(kind="stuck")
FORGOTTEN = (
    Fault(kind="forgotten", contains="a.jsonl"),
    Fault(kind="stuck", contains="b.jsonl", seconds=90),
)
TWICE, LATE = 0.05, 40.0
ONE, TWO, FOUR = (partial(one, size=size) for size in (1, 2, 4))
BAD = (Fault(kind="5006", on="submit", contains="a.jsonl 1", times=0),)
SLOW = (("MAX_REQUESTS_PER_BATCH", 1), ("API_CALLS_PER_MINUTE", 4))
ONE_CALL = (("MAX_REQUESTS_PER_BATCH", 1), ("API_CALLS_PER_MINUTE", 1))
WHOLE = (("MAX_REQUESTS_PER_BATCH", 20),)
DEADLINE = (("MAX_REQUESTS_PER_BATCH", 2), ("BATCH_DEADLINE_HOURS", 0.02))


def twice(
    act: Callable[[World], list[Dropped]], apart: float = TWICE
) -> Callable[[World], list[Dropped]]:
    """The same with every message twice."""
    return partial(with_messages_twice, act, apart)


_WORLDS = (
    SmallWorld("one batch", partial(one, may_fail=False)),
    SmallWorld("notified twice", notified_twice),
    SmallWorld("two jobs", two_jobs),
    SmallWorld("messages twice", twice(FOUR)),
    SmallWorld("messages late", twice(FOUR, LATE)),
    SmallWorld("refused record", FOUR, BAD, WHOLE),
    SmallWorld("refused record, messages twice", twice(FOUR), BAD, WHOLE),
    SmallWorld("refused records of a large batch", partial(one, size=20), BAD, WHOLE),
    SmallWorld(
        "every record is refused",
        partial(one, size=20),
        (Fault(kind="5006", on="submit", times=0),),
        WHOLE,
    ),
    SmallWorld("lost after acceptance", ONE, (Fault(kind="accept_then_reset"),)),
    SmallWorld(
        "lost after acceptance, messages late", twice(ONE, LATE), (Fault(kind="accept_then_reset"),)
    ),
    SmallWorld("lost twice", TWO, (Fault(kind="accept_then_reset", times=2),)),
    SmallWorld(
        "accepted and answered with an error",
        TWO,
        (Fault(kind="accept_then_error", code=5001, times=2),),
    ),
    SmallWorld("accepted and blamed", twice(TWO), (Fault(kind="accept_then_error", code=3003),)),
    SmallWorld("accepted again and refused", twice(then_a_refusal, 1.0), (LOST,), DEADLINE),
    SmallWorld(
        "failed after acceptance", TWO, (Fault(kind="batch_fails", contains="a.jsonl 1", times=0),)
    ),
    SmallWorld("lost id", twice(two_jobs), FORGOTTEN),
    SmallWorld("overdue", twice(TWO), (Fault(kind="stuck", seconds=150),), DEADLINE),
    SmallWorld("answer at once", twice(TWO), (Fault(kind="sync_answer"),)),
    SmallWorld(
        "death after an answer at once", twice(dies_with_answer, 1.0), (Fault(kind="sync_answer"),)
    ),
    SmallWorld("receipt", twice(leaves_receipt, 1.0)),
    SmallWorld("answers missing", twice(TWO), (Fault(kind="missing", first=1),)),
    SmallWorld(
        "unreadable answers", rarely_ticked, (Fault(kind="truncated_json", at=20, times=0),)
    ),
    SmallWorld(
        "an answer that no reader follows",
        twice(TWO),
        (Fault(kind="deep", marker="a.jsonl 1", times=0),),
        # As schedules patch the code.
        patched=((answer_laws, "LONG_SECONDS", 60.0 + answer_laws.CLOCKS_SECONDS),),
    ),
    SmallWorld("answers never come", TWO, (Fault(kind="missing"),)),
    SmallWorld("failed for capacity", twice(TWO), (Fault(kind="item_fails", first=1),)),
    SmallWorld(
        "a lost batch has failed",
        twice(then_a_wait, 10.0),
        (LOST, Fault(kind="batch_fails")),
        DEADLINE,
    ),
    SmallWorld(
        "lost while a model waits", partial(then_a_wait, kind="3040", after=66.0), (LOST,), DEADLINE
    ),
    SmallWorld(
        "lost while the quota is used up",
        partial(then_a_wait, kind="3036", after=66.0),
        (LOST,),
        DEADLINE,
    ),
    SmallWorld("lost while the stack is paused", then_a_paused_stack, (LOST,), DEADLINE),
    SmallWorld(
        "forty batches", partial(one, size=40, may_fail=False), (), (("MAX_REQUESTS_PER_BATCH", 1),)
    ),
    SmallWorld("no answers", twice(TWO, 1.0), (Fault(kind="no_answers", times=12),)),
    SmallWorld(
        "cancelled, messages a second later",
        twice(partial(commanded, words=("cancel",), after=0.3), 1.0),
    ),
    SmallWorld("cancelled", partial(commanded, words=("cancel",))),
    SmallWorld("cancelled, messages twice", twice(partial(commanded, words=("cancel",)))),
    SmallWorld("cancelled early", partial(commanded, words=("cancel",), after=0.3)),
    SmallWorld("cancelled now", partial(commanded, words=("cancel now",))),
    SmallWorld(
        "cancelled now, messages twice",
        twice(partial(commanded, words=("cancel now",), size=2), 1.0),
    ),
    SmallWorld("paused and resumed", partial(commanded, words=("pause", "run"), after=0.6)),
    SmallWorld(
        "refused, paused and resumed",
        partial(commanded, words=("pause", "run"), apart=3.0),
        (Fault(kind="json_500", on="submit", times=4),),
    ),
    SmallWorld("paused for a day", paused_for_a_day, (), SLOW),
    SmallWorld("paused beyond its deadline", paused_beyond_its_deadline, (), SLOW),
    SmallWorld(
        "paused and cancelled", twice(partial(commanded, words=("pause", "cancel"), after=0.6))
    ),
    SmallWorld("stack paused", stack_paused),
    SmallWorld("unusable model", FOUR, (Fault(kind="5007", times=0),)),
    SmallWorld(
        "no capacity", partial(recovering, after=HOUR), (Fault(kind="3040", on="submit", times=0),)
    ),
    SmallWorld("no quota", FOUR, (Fault(kind="3036", on="submit", times=4),)),
    SmallWorld(
        "no quota for two days", no_quota_for_two_days, (Fault(kind="3036", on="submit", times=0),)
    ),
    SmallWorld(
        "an outage, then no quota",
        partial(recovering, after=HOUR / 2, size=2, jobs=4),
        (Fault(kind="html", on="submit"), Fault(kind="3036", on="submit", times=0)),
    ),
    SmallWorld(
        "long outage",
        partial(recovering, after=HOUR, size=20),
        (Fault(kind="html", on="submit", times=0),),
    ),
    SmallWorld("token replaced", token_replaced),
    SmallWorld(
        "token replaced, a deadline between",
        token_replaced,
        settings=(("MAX_REQUESTS_PER_BATCH", 2), ("BATCH_DEADLINE_HOURS", 0.25)),
        latency=2_400.0,
    ),
    SmallWorld(
        "outage", partial(recovering, after=HOUR / 2), (Fault(kind="html", on="submit", times=0),)
    ),
    SmallWorld(
        "no connection", partial(recovering, after=HOUR / 2), (Fault(kind="refuse", times=0),)
    ),
    SmallWorld("too many calls", FOUR, (Fault(kind="971", times=3, retry_after=30),)),
    SmallWorld("wait for a year", FOUR, (Fault(kind="971", retry_after=31_536_000),)),
    SmallWorld("bare refusal", FOUR, (Fault(kind="bare", status=429),)),
    SmallWorld("four calls a minute", partial(one, size=20, may_fail=False), (), SLOW),
    SmallWorld("refused record at four calls a minute", FOUR, BAD, (("API_CALLS_PER_MINUTE", 4),)),
    SmallWorld(
        "stalled model",
        partial(recovering, after=HOUR, size=10, jobs=2),
        (Fault(kind="stuck", seconds=HOUR / 2, times=0),),
        ONE_CALL,
    ),
)

# ── calls have to wait for tokens, pauses and models in unusual ways ──────────────────────────────


def _dropped_together(
    world: World, names: str, size: int = 1, model: str = MODELS[0]
) -> list[Dropped]:
    return [drop(world, f"{name}.jsonl", size, model, may_fail=True) for name in names]


def firsts_at_once(world: World) -> list[Dropped]:
    """The first batches of some jobs use all tokens, those that polls leave to them too."""
    return _dropped_together(world, "abcdefghijkl")


def other_account(world: World) -> list[Dropped]:
    """The stack has another account for a while, less than an hour."""
    dropped = _dropped_together(world, "a", 8)
    world.run(1.0)
    world.redeploy(CLOUDFLARE_ACCOUNT_ID="f" * 32)
    dropped += _dropped_together(world, "b")
    world.run(HOUR / 2)
    world.redeploy(CLOUDFLARE_ACCOUNT_ID=ACCOUNT)
    return dropped


def held_polls(world: World) -> list[Dropped]:
    """All polls have to wait; then they are due together, and find a full bucket."""
    dropped = _dropped_together(world, "abcdef")
    world.run(3 * MINUTE)
    world.inject(Fault(kind="971", on="poll", retry_after=300))
    return dropped


def quota_without_tokens(world: World) -> list[Dropped]:
    """The allocation is used up while the polls of a stalled model use all tokens."""
    dropped = _dropped_together(world, "a", 8)
    world.run(20 * MINUTE)
    world.inject(Fault(kind="3036", on="submit", times=0))
    dropped += _dropped_together(world, "b", 6, MODELS[1])
    world.run(2 * HOUR)
    world.api.clear_faults()
    return dropped


TWENTY = (("MAX_REQUESTS_PER_BATCH", 1), ("API_CALLS_PER_MINUTE", 20))
STUCK = Fault(kind="stuck", model=MODELS[0], seconds=3 * HOUR, times=0)
REFUSED = Fault(kind="10000", on="submit", status=401, times=0)

WAITING_WORLDS = (
    SmallWorld("first batches at once", firsts_at_once, (), TWENTY),
    SmallWorld("another account", other_account, (), SLOW),
    SmallWorld("polls after a long wait", held_polls, (), SLOW, latency=400.0),
    SmallWorld("no quota and no tokens", quota_without_tokens, (STUCK,), ONE_CALL),
)


def before_the_first_submit(world: World) -> list[Dropped]:
    """An operator has paused the stack when a file comes."""
    world.command("stack", "pause")
    world.run(5.0)
    dropped = [drop(world, "a.jsonl", 2, may_fail=True)]
    world.run(10 * MINUTE)
    world.command("stack", "run")
    return dropped


def before_another_submit(world: World) -> list[Dropped]:
    """An operator pauses the stack while a batch is outstanding."""
    dropped = [drop(world, "a.jsonl", 2, may_fail=True)]
    world.run(1.0)
    world.command("stack", "pause")
    world.run(20 * MINUTE)
    world.command("stack", "run")
    return dropped


def before_a_poll(world: World) -> list[Dropped]:
    """The token is refused as soon as batches are accepted that have waited for ten minutes."""
    dropped = before_the_first_submit(world)
    world.run(MINUTE, lambda: bool(world.api.accepted))
    world.api.switch(tokens=("second-token",))
    world.run(10 * MINUTE)
    world.token = "second-token"
    return dropped


ROUND = Fault(kind="item_fails", first=1)
SINGLE = (("MAX_REQUESTS_PER_BATCH", 1),)

APART = 2.0
"""Seconds between two deliveries of a message while a batch waits."""

PAUSED_WORLDS = (
    SmallWorld("put off twice before the first submit", twice(before_the_first_submit, APART)),
    SmallWorld(
        "put off twice before another submit",
        twice(before_another_submit, APART),
        (ROUND,),
        latency=300.0,
    ),
    SmallWorld("put off twice before a poll", twice(before_a_poll, APART), (), SINGLE),
)

MOST = {
    "one batch": (3, 9, 97),
    "notified twice": (3, 9, 106),
    "two jobs": (7, 7, 202),
    "messages twice": (7, 7, 192),
    "messages late": (6, 9, 140),
    "refused record": (11, 11, 269),
    "refused record, messages twice": (13, 11, 399),
    "refused records of a large batch": (41, 9, 770),
    "every record is refused": (23, 10, 760),
    "lost after acceptance": (5, 80, 216),
    "lost after acceptance, messages late": (5, 80, 221),
    "lost twice": (7, 427, 390),
    "accepted and answered with an error": (7, 427, 390),
    "accepted and blamed": (6, 81, 285),
    "accepted again and refused": (23, 617, 548),
    "failed after acceptance": (14, 80, 435),
    "lost id": (22, 202, 806),
    "overdue": (15, 88, 439),
    "answer at once": (2, 2, 109),
    "death after an answer at once": (2, 207, 206),
    "receipt": (3, 207, 206),
    "answers missing": (5, 24, 248),
    "unreadable answers": (102, 316823, 6949),
    "an answer that no reader follows": (19, 149, 787),
    "answers never come": (6, 211, 333),
    "failed for capacity": (11, 37, 277),
    "a lost batch has failed": (23, 104, 459),
    "lost while a model waits": (19, 345, 747),
    "lost while the quota is used up": (25, 5513, 3651),
    "lost while the stack is paused": (14, 1197, 955),
    "forty batches": (88, 30, 1335),
    "no answers": (16, 135, 415),
    "cancelled, messages a second later": (7, 34, 247),
    "cancelled": (7, 36, 206),
    "cancelled, messages twice": (7, 36, 277),
    "cancelled early": (7, 34, 211),
    "cancelled now": (3, 35, 132),
    "cancelled now, messages twice": (2, 35, 111),
    "paused and resumed": (7, 68, 183),
    "paused for a day": (9, 198001, 2537),
    "paused beyond its deadline": (5, 7931, 662),
    "paused and cancelled": (7, 68, 229),
    "stack paused": (6, 676, 590),
    "unusable model": (3, 2, 123),
    "no capacity": (23, 4126, 2476),
    "no quota": (12, 5949, 3758),
    "no quota for two days": (43, 81197, 3076),
    "an outage, then no quota": (16, 1989, 2004),
    "long outage": (65, 4549, 4426),
    "token replaced": (22, 2037, 2794),
    "outage": (25, 2129, 1669),
    "no connection": (33, 2400, 1722),
    "too many calls": (8, 99, 291),
    "wait for a year": (6, 1313, 798),
    "bare refusal": (6, 129, 285),
    "four calls a minute": (45, 670, 2165),
    "refused record at four calls a minute": (9, 135, 612),
    "stalled model": (99, 6497, 32033),
}
"""Of each world undisturbed, a tenth more than today."""
SMALL_WORLDS = (
    *(replace(one, most=MOST.get(one.name)) for one in _WORLDS),
    *SLOW_WORLDS,
    *WAITING_WORLDS,
    *CROWDED_WORLDS,
    *PAUSED_WORLDS,
)
