"""The cycles of a tick: how long it goes on and waits, and what each cycle reads and sends."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from functions.poll.schedule.dispatch_submits import MAX_EXAMINED, MAX_EXAMINED_IN_A_PAUSE
from functions.poll.schedule.tick import MAX_JOBS, TICK_SECONDS, wake
from shared.aws.queues import WakeMessage
from shared.invocation import Invocation
from shared.models import DueKind
from shared.pacing.budget import Free
from tests.support.doubles.ledger_items import M2M, READY, T
from tests.support.doubles.tick_parts import ONE_CYCLE, SMALL


def turn(number, kind=DueKind.SUBMIT, at=0.0):
    """A batch that waits to be submitted, due so many seconds after the tick's beginning."""
    return replace(READY, number=f"{number:08d}", work=kind, due_at=T + at)


# ── how long a tick goes on ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("seconds", "last"), [(150, 51), (92, 51), (91, 50), (70, 29), (ONE_CYCLE, 0), (40, 0), (20, 0)]
)
def test_busy_tick_has_round_each_second(parts, seconds, last):
    parts.ledger.add(SMALL)
    parts.visits_end_work = False

    parts.run(seconds)

    assert [at for at, _ in parts.visits] == list(range(last + 1))


def test_idle_tick_ends_immediately(parts):
    parts.run()

    assert parts.clock.slept == []
    assert parts.counted == ["BatchesWaiting", "BatchesOutstanding", "Ticks"]


@pytest.mark.parametrize(
    ("due_in", "slept"), [(0.5, [1]), (1, [1]), (2, [2]), (2.5, []), (5, []), (25, []), (51, [])]
)
def test_tick_waits_two_seconds_at_most(parts, due_in, slept):
    parts.ledger.add(replace(SMALL, due_at=T + due_in))

    parts.run()

    assert parts.clock.slept == slept
    assert [at for at, _ in parts.woken] == [due_in] * (not slept)


@pytest.mark.parametrize(
    ("due_in", "slept", "visited_at"),
    [(5, [5], 5), (10, [10], 10), (25, [10, 10, 5], 25), (51, [10, 10, 10, 10, 10, 1], 51)],
)
def test_end_of_chain_waits_for_due(parts, due_in, slept, visited_at):
    """No wake-up can follow: it looks every 10 s."""
    parts.queues.can_wake = False
    parts.ledger.add(replace(SMALL, due_at=T + due_in))

    parts.run()

    assert parts.clock.slept == slept
    assert parts.visits == [(visited_at, SMALL.job_id)]


def test_tick_ignores_what_is_due_after_its_end(parts):
    parts.ledger.add(replace(SMALL, due_at=T + 52))

    parts.run()

    assert parts.visits == []


@pytest.mark.parametrize("kind", [DueKind.FIRST, DueKind.SUBMIT])
@pytest.mark.parametrize(("paused", "woken_at"), [(False, [5]), (True, [])])
def test_nobody_is_woken_for_submit_that_pause_forbids(parts, kind, paused, woken_at):
    parts.budget.available = Free(first=1, submits=1, polls=1, paused=paused, look_at=T + 90)
    parts.ledger.add(turn(0, kind, at=5))

    parts.run()

    assert [at for at, _ in parts.woken] == woken_at


@pytest.mark.parametrize(("at", "woken_at"), [(-1, [7]), (5, [7]), (9, [9])])
def test_wake_up_comes_for_probe_of_what_is_due(parts, at, woken_at):
    parts.budget.available = Free(polls=1, paused=True, look_at=T + 7)
    parts.ledger.add(turn(0, DueKind.SUBMIT, at=at))

    parts.run()

    assert [at for at, _ in parts.woken] == woken_at


def test_wake_up_comes_for_jobs_during_pause(parts):
    parts.budget.available = Free(paused=True, look_at=T + 9)
    parts.ledger.add(replace(SMALL, due_at=T + 5))

    parts.run()

    assert [at for at, _ in parts.woken] == [5]


# ── who looks after it ────────────────────────────────────────────────────────────────────────────


def test_wake_up_takes_place_of_tick(parts):
    parts.ledger.add(SMALL, turn(0, DueKind.POLL, 25))

    parts.run()

    assert (parts.woken, parts.looks_ended) == ([(25, 0)], [])


@pytest.mark.parametrize(("later", "woken_at"), [(3, [25, 3]), (25, [25]), (40, [25])])
@pytest.mark.parametrize(
    "is_watched", [False, True], ids=["a wake-up was planned", "somebody looks anyway"]
)
def test_what_was_left_meanwhile_is_looked_at_earlier(parts, is_watched, later, woken_at):
    """Who left something due just before the wake-up was planned has woken nobody."""
    parts.is_watched = is_watched
    parts.ledger.add(turn(0, DueKind.POLL, 25))
    left = replace(SMALL, due_at=T + later)
    wake_up = parts.services.wake
    parts.services.wake = lambda *given, **named: parts.ledger.add(left) or wake_up(*given, **named)

    parts.run()

    assert [at for at, _ in parts.woken] == woken_at


def test_nobody_is_woken_twice_where_somebody_looks(parts):
    parts.is_watched = True
    parts.ledger.add(turn(0, DueKind.POLL, 25))

    parts.run()

    assert parts.woken == [(25, 0)]


def test_own_writes_are_looked_at_before_index_shows_them(parts):
    parts.ledger.add(SMALL, turn(0, DueKind.POLL, 500))
    parts.visits_end_work = False
    parts.seconds_between_visits = 30.0

    parts.run()

    assert parts.visits == [(0, SMALL.job_id)]
    assert parts.woken == [(30, 0)]


def test_tick_that_is_busy_to_its_end_leaves_the_rest_to_the_next_one(parts):
    """It plans no wake-up for its last second, and does not write that it looks no longer.

    That is known.
    """
    parts.ledger.add(turn(0, DueKind.FIRST), turn(1, DueKind.FIRST))
    parts.submit_outcomes = [(1, 1), (0, 0)] * int(TICK_SECONDS)

    parts.run()

    assert parts.clock.at == TICK_SECONDS - 1
    assert (parts.woken, parts.looks_ended) == ([], [])


@pytest.mark.parametrize(("sent", "slept"), [(0, []), (1, [1]), (2, [])])
def test_tick_stays_while_due_work_is_left(parts, sent, slept):
    """Two are due: there is room for none, for one or for both. In the index nothing follows."""
    parts.ledger.add(turn(0, DueKind.FIRST), turn(1, DueKind.FIRST))
    parts.submit_outcomes = [(sent, sent)]

    parts.run()

    assert parts.clock.slept == slept


@pytest.mark.parametrize(("next_token", "woken_at"), [(20, [20]), (60, [])])
def test_due_poll_without_token_is_looked_at_when_there_is_one(parts, next_token, woken_at):
    parts.budget.available = Free(next_token=T + next_token)
    parts.ledger.add(turn(0, DueKind.POLL, -5))

    parts.run()

    assert parts.clock.slept == []
    assert [at for at, _ in parts.woken] == woken_at


def test_nobody_is_woken_to_show_how_far_job_is(parts):
    parts.ledger.add(replace(SMALL, due_at=T + 5), turn(0, DueKind.POLL, 25))
    parts.ledger.idle.add(SMALL.job_id)

    parts.run()

    assert [at for at, _ in parts.woken] == [25]


# ── who need not be woken ─────────────────────────────────────────────────────────────────────────


def test_idle_tick_writes_nothing(parts):
    parts.run()

    assert (parts.budget.looks_until, parts.looks_ended) == (T, [])


def test_tick_says_until_when_it_looks(parts):
    parts.ledger.add(SMALL, turn(0, DueKind.POLL, 500))

    parts.run()

    assert (parts.budget.looks_until, parts.looks_ended) == (T + TICK_SECONDS, [T])


def test_tick_looks_once_more_before_end(parts):
    """Who left something due just before that has not woken anybody."""
    parts.ledger.add(turn(0, DueKind.POLL, 500))
    late = replace(SMALL, due_at=T + 1)
    parts.services.wakes.end = lambda *_: parts.ledger.add(late)

    parts.run()

    assert parts.visits == [(1, late.job_id)]


def woken(parts, ends_in):
    """Run a wake-up that looks for so many seconds; None: another invocation looks."""
    parts.services.wakes.begin = lambda _at, now: ends_in and now + ends_in
    wake(Invocation(parts.services, T + 150), WakeMessage(at=int(T)))


@pytest.mark.parametrize(
    ("ends_in", "visited"), [(None, []), (20, [(0, SMALL.job_id)])], ids=["another", "it"]
)
def test_only_one_invocation_works_when_woken(parts, ends_in, visited):
    parts.ledger.add(SMALL)

    woken(parts, ends_in)

    assert parts.visits == visited


@pytest.mark.parametrize(("due_in", "woken_at"), [(14, [14]), (15, []), (19, [])])
def test_last_seconds_before_tick_are_left_to_it(parts, due_in, woken_at):
    parts.ledger.add(replace(SMALL, due_at=T + due_in))

    woken(parts, 20)

    assert [at for at, _ in parts.woken] == woken_at
    assert len(parts.looks_ended) == 1 - len(woken_at)


@pytest.mark.parametrize(
    ("look_at", "woken_at", "examined"), [(7, [7], 0), (0, [], MAX_EXAMINED_IN_A_PAUSE)]
)
def test_wake_up_in_pause_reads_only_for_probe(parts, look_at, woken_at, examined):
    """The tick has looked at what needs no call."""
    probes = int(look_at == 0)
    parts.budget.available = Free(probes, probes, polls=1, paused=True, look_at=T + (look_at or 90))
    parts.ledger.add(turn(0, DueKind.FIRST))

    woken(parts, 20)

    assert parts.ledger.limits(DueKind.FIRST)[0] == examined
    assert [at for at, _ in parts.woken] == woken_at


# ── what it counts first ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kinds", "waits"),
    [
        ([], (False, False)),
        ([DueKind.FIRST], (True, False)),
        ([DueKind.SUBMIT], (True, False)),
        ([DueKind.POLL], (False, True)),
    ],
)
def test_pause_is_judged_by_what_waits(parts, kinds, waits):
    parts.ledger.add(*(turn(number, kind, at=900) for number, kind in enumerate(kinds)))

    parts.run()

    assert parts.watched == dict(zip(("submits_wait", "polls_wait"), waits, strict=True))


@pytest.mark.parametrize(
    ("outstanding", "full"), [(2, []), (3, [f"{M2M}: 3 of 3"]), (4, [f"{M2M}: 4 of 4"])]
)
def test_models_are_counted_only_from_limit_on(parts, outstanding, full):
    parts.budget.most_outstanding = 3
    parts.ledger.add(
        replace(SMALL, due_at=None),
        *(turn(each, DueKind.POLL, at=900) for each in range(outstanding)),
    )

    parts.run()

    assert parts.budget.noted == (outstanding, full)


@pytest.mark.parametrize(("was_full", "full"), [({M2M}, [f"{M2M}: 3 of 3"]), ({}, [])])
def test_model_that_cannot_be_counted_stays_full(parts, was_full, full):
    parts.budget.most_outstanding, parts.budget.was_full = 3, frozenset(was_full)
    parts.ledger.add(
        replace(SMALL, due_at=None), *(turn(each, DueKind.POLL, at=900) for each in range(3))
    )
    parts.ledger.unread.add(SMALL.job_id)

    parts.run()

    assert parts.budget.noted == (3, full)


# ── what a cycle reads ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("free", "firsts", "submits"),
    [
        (Free(), 0, 0),
        (Free(first=1), MAX_EXAMINED, 0),
        (Free(first=1, submits=1), MAX_EXAMINED, MAX_EXAMINED),
        (Free(submits=1), 0, MAX_EXAMINED),
        (Free(paused=True), MAX_EXAMINED_IN_A_PAUSE, MAX_EXAMINED_IN_A_PAUSE),
        (Free(first=1, submits=1, paused=True), MAX_EXAMINED_IN_A_PAUSE, MAX_EXAMINED_IN_A_PAUSE),
    ],
)
def test_batches_are_read_only_if_submittable(parts, free, firsts, submits):
    parts.budget.available = free
    parts.ledger.add(turn(0, DueKind.FIRST, at=900), turn(1, at=900))

    parts.run(ONE_CYCLE)

    assert (parts.ledger.limits(DueKind.FIRST), parts.ledger.limits(DueKind.SUBMIT)) == (
        [firsts],
        [submits],
    )


@pytest.mark.parametrize(("free", "calls", "read"), [(3, 5, 3), (5, 3, 3), (0, 5, 0)])
def test_polls_are_read_up_to_their_tokens(parts, free, calls, read):
    parts.budget.available, parts.budget.calls = Free(polls=free), calls
    parts.ledger.add(turn(0, DueKind.POLL, at=900))

    parts.run(ONE_CYCLE)

    assert parts.ledger.limits(DueKind.POLL) == [read]


@pytest.mark.parametrize(("waits", "used", "polled"), [(False, 2, 3), (True, 2, 1), (True, 4, 0)])
def test_polls_leave_tokens_to_first_batches_that_are_sent(parts, waits, used, polled):
    parts.budget.available, parts.budget.polls_wait = Free(first=2, polls=3), waits
    parts.ledger.add(replace(SMALL, due_at=None))
    parts.submit_outcomes = [(3, used)]  # One that was sent needs no call.
    parts.ledger.add(*(turn(number, DueKind.POLL) for number in range(5, 9)))

    parts.run(ONE_CYCLE)

    assert len(parts.polled) == polled


def test_earlier_rounds_reduce_poll_allowance(parts):
    parts.budget.calls = 5
    parts.ledger.add(replace(SMALL, due_at=None))
    parts.ledger.add(*(turn(number, DueKind.POLL, at) for number, at in enumerate((0, 0.5, 2))))

    parts.run()

    assert parts.ledger.limits(DueKind.POLL) == [5, 4, 3, 2]


def test_jobs_are_read_without_tokens(parts):
    parts.budget.available = Free()

    parts.run(ONE_CYCLE)

    assert parts.ledger.limits(DueKind.JOB) == parts.ledger.limits(DueKind.STATUS) == [MAX_JOBS]


def test_idle_tick_reads_only_uncounted(parts):
    parts.run()

    assert {kind for _, kind, _ in parts.ledger.asked} == {
        DueKind.JOB,
        DueKind.STATUS,
        DueKind.CLEANUP,
    }


def test_idle_tick_does_not_ask_how_many_calls_there_are(parts):
    """The budget would read the secret for that, because each API token has calls of its own."""
    answered = "note_outstanding", "polls_wait_for_first"
    parts.services.budget = SimpleNamespace(
        **{name: getattr(parts.budget, name) for name in answered}
    )

    parts.run()

    assert parts.counted[-1] == "Ticks"


def outstanding(batches):
    """So many batches of a job, none of which is polled soon."""
    return [turn(10 + number, DueKind.POLL, at=900) for number in range(batches)]


# ── submits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("free", "left", "outcome", "calls"),
    [
        ((3, 5), 9, (0, 0), [3, 5]),
        ((9, 5), 4, (0, 0), [9, 4]),
        ((3, 5), 9, (2, 2), [3, 3]),
        ((3, 5), 9, (2, 0), [3, 5]),
        ((3, 9), 4, (3, 3), [3, 1]),
        ((3, 9), 4, (3, 1), [3, 1]),
        ((3, 3), 9, (3, 3), [3]),
        ((3, 2), 9, (3, 3), [3]),
        ((3, 9), 3, (3, 3), [3]),
    ],
)
def test_first_batches_go_first(parts, free, left, outcome, calls):
    """`outcome`: of the first batches so many were sent, and used so many calls; some need none."""
    parts.budget.available = Free(*free)
    parts.budget.calls = 2 * left + 1
    parts.ledger.add(turn(0, DueKind.FIRST), turn(1), *outstanding(left + 1))
    parts.submit_outcomes = [outcome]

    parts.run(ONE_CYCLE)

    found = [([one.number for one in dues], calls) for dues, calls, _ in parts.submits]
    assert found == list(zip([["00000000"], ["00000001"]], calls, strict=False))


@pytest.mark.parametrize(
    ("free", "outcome", "calls"),
    [((1, 1), (0, 0), [1, 1]), ((1, 1), (1, 1), [1, 0]), ((1, 0), (1, 1), [1, 0])],
)
def test_pause_shares_probe_among_both_kinds(parts, free, outcome, calls):
    parts.budget.available = Free(*free, paused=True, look_at=T + 9)
    parts.ledger.add(turn(0, DueKind.FIRST, at=99))
    parts.submit_outcomes = [outcome]

    parts.run(ONE_CYCLE)

    assert [(calls, pause) for _, calls, pause in parts.submits] == [
        (each, T + 9) for each in calls
    ]


def test_no_pause_is_named_without_one(parts):
    parts.budget.available = Free(1, 2, look_at=T + 9)
    parts.ledger.add(turn(0, DueKind.FIRST, at=99))

    parts.run(ONE_CYCLE)

    assert [pause for _, _, pause in parts.submits] == [None, None]


@pytest.mark.parametrize(
    ("batches", "calls"),
    [(0, [9, 8, 6, 6]), (3, [9, 5, 6, 3]), (5, [9, 3, 6, 1]), (20, [9, 3, 6, 1])],
)
def test_submits_leave_a_call_for_each_batch_outstanding(parts, batches, calls):
    """First batches get all calls until the next tick, others at least half of them."""
    parts.budget.calls = 9
    parts.ledger.add(turn(0, DueKind.FIRST), turn(1), turn(2), *outstanding(batches))
    parts.submit_outcomes = [(1, 1), (2, 2)]

    parts.run()

    assert [calls for _, calls, _ in parts.submits] == calls
