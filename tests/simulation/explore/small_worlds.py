"""Small worlds: two or three invocations that meet at one item, by users, messages, the API."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec import structs

from local.workers_ai import Fault
from tests.simulation.explore.crowded_worlds import CROWDED_WORLDS
from tests.simulation.explore.schedules import SmallWorld
from tests.simulation.explore.stories import (
    Act,
    Step,
    account,
    clear,
    commanded,
    dies_after,
    files,
    notified_again,
    replace_token,
    revoke,
    slow,
    story,
    table_fails,
    ticks,
    twice,
    unreadable,
)
from tests.simulation.worlds import answer_laws
from tests.simulation.worlds.users import MODELS
from tests.support.aws.resources import ACCOUNT

if TYPE_CHECKING:
    from tests.simulation.worlds.users import Dropped
    from tests.simulation.worlds.world import World

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
BATCH, CLAIM = "BATCH#00000000", "#fence = :to_fence"
SOON, LATE = 0.05, 40.0
"""Seconds after which messages come again."""
LOST = Fault(kind="stuck")
RESET = Fault(kind="accept_then_reset")
FORGOTTEN = (
    Fault(kind="forgotten", contains="a.jsonl"),
    Fault(kind="stuck", contains="b.jsonl", seconds=90),
)
BAD = (Fault(kind="5006", on="submit", contains="a.jsonl 1", times=0),)
SINGLE = (("MAX_REQUESTS_PER_BATCH", 1),)
TEN, WHOLE = ((("MAX_REQUESTS_PER_BATCH", size),) for size in (10, 20))
SLOW = (*SINGLE, ("API_CALLS_PER_MINUTE", 4))
ONE_CALL = (*SINGLE, ("API_CALLS_PER_MINUTE", 1))
DEADLINE = (("MAX_REQUESTS_PER_BATCH", 2), ("BATCH_DEADLINE_HOURS", 0.02))
ONE, TWO, FOUR, TWENTY = (files("a", size) for size in (1, 2, 4, 20))
TWO_JOBS = (files("a", may_fail=False), files("b", 1, MODELS[1], may_fail=False))
TOKEN_REPLACED = story(FOUR, 3.0, revoke, files("b", 2), HOUR / 2, replace_token)
PAUSED = ("stack pause", 10 * MINUTE, "stack run")


def recovering(after: float, names: str = "a", size: int = 6) -> Act:
    """The API's faults end some time after files were dropped."""
    return story(files(names, size), after, clear)


def then_a_wait(kind: str = "971", after: float = 72.2) -> tuple[Step, ...]:
    """A lost batch is to be submitted again when another job's submit makes submits wait."""
    times = 1 if kind == "971" else 3
    return (TWO, after, Fault(kind=kind, on="submit", retry_after=20, times=times), files("b", 2))


def submitted_again(seconds: float) -> Act:
    """A lost batch is submitted again, slowly, while another submit is refused."""
    refused = (Fault(kind="971", on="submit", retry_after=10), files("b", 2))
    again = slow(BATCH, CLAIM, seconds=seconds, nth=2, then=refused)
    return story(twice(2.0, "SubmitQueue"), again, TWO, 200.0)


def _until_over(world: World, dropped: list[Dropped]) -> None:
    """Until all is over; under some schedules a job is paused first, and would wait for a month."""
    world.run(600.0, world.all_over)
    if not world.all_over():
        world.command(dropped[0].upload.job_id, "run")


_WORLDS = (
    SmallWorld("one batch", story(files("a", 2, may_fail=False))),
    SmallWorld("notified twice", story(TWO, notified_again)),
    SmallWorld("two jobs", story(*TWO_JOBS)),
    SmallWorld("messages twice", story(twice(SOON), FOUR)),
    SmallWorld("messages late", story(twice(LATE), FOUR)),
    SmallWorld("refused record", story(FOUR), BAD, WHOLE),
    SmallWorld("refused record, messages twice", story(twice(SOON), FOUR), BAD, WHOLE),
    SmallWorld("refused records of a large batch", story(TWENTY), BAD, WHOLE),
    SmallWorld(
        "every record is refused", story(TWENTY), (Fault(kind="5006", on="submit", times=0),), WHOLE
    ),
    SmallWorld("lost after acceptance", story(ONE), (RESET,)),
    SmallWorld("lost after acceptance, messages late", story(twice(LATE), ONE), (RESET,)),
    SmallWorld("lost twice", story(TWO), (structs.replace(RESET, times=2),)),
    SmallWorld(
        "accepted and answered with an error",
        story(TWO),
        (Fault(kind="accept_then_error", code=5001, times=2),),
    ),
    SmallWorld(
        "accepted and blamed",
        story(twice(SOON), TWO),
        (Fault(kind="accept_then_error", code=3003),),
    ),
    SmallWorld(
        "accepted again and refused",
        story(twice(1.0), TWO, 15.0, Fault(kind="5006", on="submit", times=0), 10 * MINUTE, clear),
        (LOST,),
        DEADLINE,
    ),
    SmallWorld(
        "failed after acceptance",
        story(TWO),
        (Fault(kind="batch_fails", contains="a.jsonl 1", times=0),),
    ),
    SmallWorld("lost id", story(twice(SOON), *TWO_JOBS), FORGOTTEN),
    SmallWorld("overdue", story(twice(SOON), TWO), (structs.replace(LOST, seconds=150),), DEADLINE),
    SmallWorld("answer at once", story(twice(SOON), TWO), (Fault(kind="sync_answer"),)),
    SmallWorld(
        "death after an answer at once",
        story(twice(1.0), dies_after("/raw-"), TWO),
        (Fault(kind="sync_answer"),),
    ),
    SmallWorld("receipt", story(twice(1.0), table_fails("submission", 170.0), TWO)),
    SmallWorld("answers missing", story(twice(SOON), TWO), (Fault(kind="missing", first=1),)),
    SmallWorld(
        "unreadable answers",
        story(ticks(HOUR / 2), TWO),
        (Fault(kind="truncated_json", at=20, times=0),),
    ),
    SmallWorld(
        "an answer that no reader follows",
        story(twice(SOON), TWO),
        (Fault(kind="deep", marker="a.jsonl 1", times=0),),
        # As schedules patch the code.
        patched=((answer_laws, "LONG_SECONDS", 60.0 + answer_laws.CLOCKS_SECONDS),),
    ),
    SmallWorld("answers never come", story(TWO), (Fault(kind="missing"),)),
    SmallWorld(
        "failed for capacity", story(twice(SOON), TWO), (Fault(kind="item_fails", first=1),)
    ),
    SmallWorld(
        "a lost batch has failed",
        story(twice(10.0), *then_a_wait()),
        (LOST, Fault(kind="batch_fails")),
        DEADLINE,
    ),
    SmallWorld("lost while a model waits", story(*then_a_wait("3040", 66.0)), (LOST,), DEADLINE),
    SmallWorld(
        "lost while the quota is used up", story(*then_a_wait("3036", 66.0)), (LOST,), DEADLINE
    ),
    SmallWorld("lost while the stack is paused", story(TWO, 30.0, *PAUSED), (LOST,), DEADLINE),
    SmallWorld("forty batches", story(files("a", 40, may_fail=False)), (), SINGLE),
    SmallWorld("no answers", story(twice(1.0), TWO), (Fault(kind="no_answers", times=12),)),
    SmallWorld(
        "cancelled, messages a second later", story(twice(1.0), *commanded("cancel", after=0.3))
    ),
    SmallWorld("cancelled", story(*commanded("cancel"))),
    SmallWorld("cancelled, messages twice", story(twice(SOON), *commanded("cancel"))),
    SmallWorld("cancelled early", story(*commanded("cancel", after=0.3))),
    SmallWorld("cancelled now", story(*commanded("cancel now"))),
    SmallWorld(
        "cancelled now, messages twice", story(twice(1.0), *commanded("cancel now", size=2))
    ),
    SmallWorld("paused and resumed", story(*commanded("pause", "run", after=0.6))),
    SmallWorld(
        "refused, paused and resumed",
        story(*commanded("pause", "run", apart=3.0)),
        (Fault(kind="json_500", on="submit", times=4),),
    ),
    SmallWorld(
        "paused for a day",
        story(ticks(HOUR / 2), *commanded("pause", "run", after=0.6, apart=DAY + HOUR)),
        (),
        SLOW,
    ),
    SmallWorld(
        "paused beyond its deadline",
        story(ticks(10 * MINUTE), files("a", 4, metadata={"deadline-hours": "2"}), 0.6, "a pause"),
        (),
        SLOW,
    ),
    SmallWorld(
        "paused and cancelled", story(twice(SOON), *commanded("pause", "cancel", after=0.6))
    ),
    SmallWorld("stack paused", story("stack pause", 5.0, FOUR, 10 * MINUTE, "stack run")),
    SmallWorld("unusable model", story(FOUR), (Fault(kind="5007", times=0),)),
    SmallWorld("no capacity", recovering(HOUR), (Fault(kind="3040", on="submit", times=0),)),
    SmallWorld("no quota", story(FOUR), (Fault(kind="3036", on="submit", times=4),)),
    SmallWorld(
        "no quota for two days",
        story(ticks(HOUR / 2), TWO, 20 * HOUR, clear),
        (Fault(kind="3036", on="submit", times=0),),
    ),
    SmallWorld(
        "an outage, then no quota",
        recovering(HOUR / 2, "abcd", 2),
        (Fault(kind="html", on="submit"), Fault(kind="3036", on="submit", times=0)),
    ),
    SmallWorld(
        "long outage", recovering(HOUR, size=20), (Fault(kind="html", on="submit", times=0),)
    ),
    SmallWorld("token replaced", TOKEN_REPLACED),
    SmallWorld(
        "token replaced, a deadline between",
        TOKEN_REPLACED,
        settings=(("MAX_REQUESTS_PER_BATCH", 2), ("BATCH_DEADLINE_HOURS", 0.25)),
        latency=2_400.0,
    ),
    SmallWorld("outage", recovering(HOUR / 2), (Fault(kind="html", on="submit", times=0),)),
    SmallWorld("no connection", recovering(HOUR / 2), (Fault(kind="refuse", times=0),)),
    SmallWorld("too many calls", story(FOUR), (Fault(kind="971", times=3, retry_after=30),)),
    SmallWorld("wait for a year", story(FOUR), (Fault(kind="971", retry_after=31_536_000),)),
    SmallWorld("bare refusal", story(FOUR), (Fault(kind="bare", status=429),)),
    SmallWorld("four calls a minute", story(files("a", 20, may_fail=False)), (), SLOW),
    SmallWorld(
        "refused record at four calls a minute", story(FOUR), BAD, (("API_CALLS_PER_MINUTE", 4),)
    ),
    SmallWorld(
        "stalled model",
        recovering(HOUR, "ab", 10),
        (Fault(kind="stuck", seconds=HOUR / 2, times=0),),
        ONE_CALL,
    ),
)

SLOW_WORLDS = (
    SmallWorld("two faults", story(FOUR), (Fault(kind="5007"), Fault(kind="5016"))),
    SmallWorld(
        "two batches are split", story(slow(BATCH, "#pieces", seconds=1.5), TWENTY), BAD, TEN
    ),
    SmallWorld("a slow submit, then a wait", submitted_again(20.0), (LOST,), DEADLINE),
    SmallWorld(
        "a slow submit, then a failure",
        submitted_again(60.0),
        (LOST, Fault(kind="batch_fails")),
        DEADLINE,
    ),
    SmallWorld(
        "lost and refused",
        story(
            slow(BATCH, CLAIM, nth=2, then=(Fault(kind="971", on="submit", retry_after=20),)), TWO
        ),
        (LOST,),
        DEADLINE,
    ),
    # Another invocation ends the batch first.
    SmallWorld(
        "cancelled while it is split",
        story(slow(BATCH, "#pieces = :to_pieces", seconds=125.0), files("a", 10), 3.0, "a cancel"),
        BAD,
        TEN,
    ),
    # The command comes while a visit ends the job, and takes long to be noted.
    SmallWorld(
        "commanded at its end",
        story(
            TWO,
            slow("META", "#state = :to_state", seconds=5.0, nth=2, then=("a pause",)),
            slow("META", "#control", seconds=10.0),
            _until_over,
        ),
    ),
    SmallWorld(
        "polls fail, and then do not",
        story(slow("META", "#wait", seconds=130.0, then=(clear,)), TWO),
        (Fault(kind="html", on="poll", times=0),),
    ),
    SmallWorld(
        "body that cannot be read",
        story(unreadable("/00000000", 20.0), TWO),
        most=(99, 47.0, 9_999),
        calls_fail=True,
    ),
    SmallWorld(
        "failure noted late",
        story(
            unreadable("/00000000", 0.5),
            twice(1.0, "SubmitQueue"),
            slow(BATCH, "SET due_at = :due_at", seconds=5.0),
            TWO,
        ),
        calls_fail=True,
    ),
    SmallWorld(
        "claim without an answer",
        story(slow(BATCH, CLAIM, unanswered=True), TWO),
        most=(99, 10.0, 9_999),
        calls_fail=True,
    ),
    SmallWorld(
        "two refusals",
        story(slow("put_item PAUSE", seconds=1.0), FOUR),
        (Fault(kind="3036", times=2),),
    ),
    SmallWorld(
        "refused while a pause ends",
        story(
            slow(
                "delete_item PAUSE",
                seconds=10.0,
                then=(Fault(kind="10000", on="poll", status=401),),
            ),
            TWO,
        ),
        (Fault(kind="html", on="submit"),),
    ),
    SmallWorld(
        "two waits", story(FOUR), tuple(Fault(kind="971", retry_after=s) for s in (600, 20))
    ),
    SmallWorld(
        "token taken slowly",
        story(slow("update_item RATE SET filled_at", seconds=1.0), files("ab")),
        (Fault(kind="971", retry_after=30),),
        (("API_CALLS_PER_MINUTE", 4),),
    ),
)

BEFORE_FIRST_SUBMIT = ("stack pause", 5.0, TWO, 10 * MINUTE, "stack run")


def _until_accepted(world: World, _: list[Dropped]) -> None:
    world.run(MINUTE, lambda: bool(world.api.accepted))


WAITING_WORLDS = (
    SmallWorld(
        "first batches at once",
        story(files("abcdefghijkl")),
        (),
        (*SINGLE, ("API_CALLS_PER_MINUTE", 20)),
    ),
    SmallWorld(
        "another account",
        story(files("a", 8), 1.0, account("f" * 32), files("b"), HOUR / 2, account(ACCOUNT)),
        (),
        SLOW,
    ),
    # Polls are due together after it, and find a full bucket.
    SmallWorld(
        "polls after a long wait",
        story(files("abcdef"), 3 * MINUTE, Fault(kind="971", on="poll", retry_after=300)),
        (),
        SLOW,
        latency=400.0,
    ),
    # Polls of a stalled model use all tokens.
    SmallWorld(
        "no quota and no tokens",
        story(
            files("a", 8),
            20 * MINUTE,
            Fault(kind="3036", on="submit", times=0),
            files("b", 6, MODELS[1]),
            2 * HOUR,
            clear,
        ),
        (Fault(kind="stuck", model=MODELS[0], seconds=3 * HOUR, times=0),),
        ONE_CALL,
    ),
    # Messages come twice while a batch waits.
    SmallWorld("put off twice before the first submit", story(twice(2.0), *BEFORE_FIRST_SUBMIT)),
    SmallWorld(
        "put off twice before another submit",
        story(twice(2.0), TWO, 1.0, "stack pause", 20 * MINUTE, "stack run"),
        (Fault(kind="item_fails", first=1),),
        latency=300.0,
    ),
    SmallWorld(
        "put off twice before a poll",
        story(
            twice(2.0),
            *BEFORE_FIRST_SUBMIT,
            _until_accepted,
            revoke,
            10 * MINUTE,
            replace_token,
        ),
        (),
        SINGLE,
    ),
)

MOST = {
    "one batch": (3, 9, 97),
    "notified twice": (3, 9, 106),
    "two jobs": (7, 7, 202),
    "messages twice": (7, 7, 224),
    "messages late": (6, 9, 140),
    "refused record": (11, 11, 269),
    "refused record, messages twice": (13, 11, 399),
    "refused records of a large batch": (41, 9, 770),
    "every record is refused": (23, 10, 760),
    "lost after acceptance": (5, 80, 216),
    "lost after acceptance, messages late": (5, 80, 221),
    "lost twice": (7, 427, 431),
    "accepted and answered with an error": (7, 427, 431),
    "accepted and blamed": (6, 81, 285),
    "accepted again and refused": (11, 617, 548),
    "failed after acceptance": (14, 80, 435),
    "lost id": (22, 202, 980),
    "overdue": (15, 88, 504),
    "answer at once": (2, 2, 83),
    "death after an answer at once": (2, 207, 206),
    "receipt": (3, 207, 206),
    "answers missing": (5, 24, 248),
    "unreadable answers": (102, 316823, 6949),
    "an answer that no reader follows": (19, 149, 882),
    "answers never come": (6, 211, 333),
    "failed for capacity": (4, 6, 138),
    "a lost batch has failed": (15, 104, 459),
    "lost while a model waits": (19, 345, 747),
    "lost while the quota is used up": (25, 5513, 3651),
    "lost while the stack is paused": (14, 1197, 955),
    "forty batches": (88, 30, 1335),
    "no answers": (7, 70, 415),
    "cancelled, messages a second later": (7, 34, 307),
    "cancelled": (7, 36, 240),
    "cancelled, messages twice": (7, 36, 334),
    "cancelled early": (7, 34, 240),
    "cancelled now": (3, 35, 132),
    "cancelled now, messages twice": (2, 35, 111),
    "paused and resumed": (7, 68, 183),
    "paused for a day": (9, 198001, 2537),
    "paused beyond its deadline": (5, 7931, 662),
    "paused and cancelled": (7, 68, 270),
    "stack paused": (6, 676, 590),
    "unusable model": (3, 2, 123),
    "no capacity": (23, 4126, 2754),
    "no quota": (12, 5949, 3758),
    "no quota for two days": (43, 81197, 3076),
    "an outage, then no quota": (16, 1989, 2004),
    "long outage": (65, 4549, 4426),
    "token replaced": (22, 2037, 3119),
    "outage": (25, 2129, 1669),
    "no connection": (33, 2400, 1722),
    "too many calls": (10, 99, 350),
    "wait for a year": (6, 1313, 798),
    "bare refusal": (6, 129, 285),
    "four calls a minute": (45, 670, 2398),
    "refused record at four calls a minute": (9, 135, 612),
    "stalled model": (99, 6497, 8300),
}
"""Of each world undisturbed, a tenth more than today."""
SMALL_WORLDS = (
    *(replace(one, most=MOST.get(one.name)) for one in _WORLDS),
    *SLOW_WORLDS,
    *WAITING_WORLDS,
    *CROWDED_WORLDS,
)
