"""Polls of a tick and of a message.

Who makes them, with how much time, and whose jobs are visited at once.
"""

from dataclasses import replace
from math import inf

import pytest

import functions.poll.schedule.tick
from dropbatch.core.names import JobState
from functions.poll.poll import (
    COLLECT_SECONDS,
    POLL_BEGUN_SECONDS,
    POLL_SECONDS,
    PollOutcome,
)
from functions.poll.schedule.dispatch_submits import DISPATCHED_SECONDS
from functions.poll.schedule.due_jobs import LARGE_RECORDS
from functions.poll.schedule.due_polls import (
    BATCHES_PER_MESSAGE,
    FULL_SECONDS,
    MAX_OWN_POLLS,
    MAX_POLLS_WAITING,
    NO_ROOM_FOR_SECONDS,
    advance_batches,
)
from shared.aws.queues import MAX_AHEAD_SECONDS, PollMessage
from shared.invocation import Invocation
from shared.models import BatchState, DueKind, Submission, Wait
from tests.support.doubles.ledger_items import BATCH, JOB, REASON, T
from tests.support.doubles.tick_parts import ONE_CYCLE

SMALL = replace(JOB, state=JobState.IN_PROGRESS, total=3, due_at=None)
LARGE = replace(SMALL, total=LARGE_RECORDS + 1)
ACCEPTED = replace(BATCH, submissions=(Submission("id", 1, T),))


def polls(count, **more):
    """So many batches of one job, due at the tick's beginning."""
    return [replace(ACCEPTED, number=f"{number:08d}", **more) for number in range(count)]


def asked(parts, numbers):
    """What a message that names batches comes to."""
    return advance_batches(
        Invocation(parts.services, T + 100), [(JOB.job_id, number) for number in numbers]
    )


def numbers_of(messages):
    return [number for message in messages for _, number in message.batches]


# ── who polls ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("seconds", "due_in", "by_tick"),
    [(150, 0, True), (41, 0, True), (40, 0, False), (150, 34, True), (150, 35, False)],
)
def test_tick_polls_small_jobs_while_time_allows(parts, seconds, due_in, by_tick):
    parts.queues.can_wake = False
    parts.ledger.add(SMALL, *polls(1, due_at=T + due_in))

    parts.run(seconds)

    assert list(parts.polled) == (["00000000"] if by_tick else [])
    assert parts.queues.sent == ([] if by_tick else [PollMessage(((JOB.job_id, "00000000"),))])


@pytest.mark.parametrize(
    ("seconds", "has"), [(150, 50), (76, 50), (49, 49), (ONE_CYCLE, ONE_CYCLE)]
)
def test_poll_of_tick_leaves_time_to_store(parts, seconds, has):
    parts.ledger.add(SMALL, *polls(1))

    parts.run(seconds)

    assert parts.polled == {"00000000": has}


@pytest.mark.parametrize(("due_in", "has"), [(0, 50), (25, 50), (26, 49), (34, 41)])
def test_late_poll_of_tick_ends_with_it(parts, due_in, has):
    """A tick is over 58 seconds after it began, and keeps 8 of them for the answers."""
    parts.queues.can_wake = False
    parts.ledger.add(SMALL, *polls(1, due_at=T + due_in))

    parts.run()

    assert parts.polled == {"00000000": has}


def test_silent_api_delays_work_30_s(parts, monkeypatch):
    waited = replace(SMALL, job_id="waited", due_at=T + 1)

    def silent(invocation, job, batch, _permit):
        if invocation.allows(POLL_BEGUN_SECONDS + COLLECT_SECONDS):
            parts.clock.at += min(POLL_SECONDS, invocation.seconds_left - COLLECT_SECONDS)
            parts.ledger.over(batch)
        return PollOutcome(job.job_id, done=False)

    monkeypatch.setattr(functions.poll.schedule.due_polls, "poll_batch", silent)
    parts.ledger.add(SMALL, waited, *polls(MAX_OWN_POLLS))

    parts.run()

    assert [at <= 1 + 30 for at, job_id in parts.visits if job_id == "waited"] == [True]


def test_surplus_small_polls_are_sent(parts):
    parts.ledger.add(SMALL, *polls(MAX_OWN_POLLS + 2))

    parts.run(ONE_CYCLE)

    assert len(parts.polled) == MAX_OWN_POLLS
    assert numbers_of(parts.queues.sent) == [
        f"{number:08d}" for number in (MAX_OWN_POLLS, MAX_OWN_POLLS + 1)
    ]


def test_polls_of_large_jobs_are_sent(parts):
    parts.ledger.add(LARGE, *polls(BATCHES_PER_MESSAGE + 1))

    parts.run(ONE_CYCLE)

    assert parts.polled == {}
    assert [len(message.batches) for message in parts.queues.sent] == [BATCHES_PER_MESSAGE, 1]
    assert {batch.due_at for batch in parts.ledger.batches.values()} == {T + DISPATCHED_SECONDS}


@pytest.mark.parametrize(
    ("due_in", "is_polled"),
    [(DISPATCHED_SECONDS, True), (MAX_AHEAD_SECONDS, True), (MAX_AHEAD_SECONDS + 1, False)],
)
def test_message_that_comes_again_leaves_claimed(parts, due_in, is_polled):
    """A batch that waits an hour was claimed.

    The message was delivered before, to a function that died.
    """
    parts.ledger.add(SMALL, *polls(1, due_at=T + due_in))

    asked(parts, ["00000000"])

    assert bool(parts.polled) is is_polled


def test_claimed_poll_is_not_sent(parts):
    parts.ledger.add(LARGE, *polls(1))
    parts.ledger.is_changed_by_others = True

    parts.run()

    assert parts.queues.sent == []
    assert parts.clock.slept == []


@pytest.mark.parametrize(
    ("waiting", "sent"), [(0, 18), (17, 18), (18, 16), (19, 8), (20, 0), (21, 0), (22, 0)]
)
def test_no_more_messages_wait_than_twenty(parts, waiting, sent):
    parts.queues.waiting_messages["poll"] = waiting
    parts.ledger.add(LARGE, *polls(18))

    parts.run(ONE_CYCLE)

    assert len(numbers_of(parts.queues.sent)) == sent


@pytest.mark.parametrize(
    ("job", "waiting", "count", "looks"),
    [
        (LARGE, 20, 1, [0, 10, 20, 30, 40, 50]),
        (LARGE, 19, BATCHES_PER_MESSAGE, list(range(52))),
        (SMALL, 20, 1, list(range(52))),
    ],
    ids=["the queue is full", "the queue has just enough room", "nothing is to be sent"],
)
def test_full_queue_is_retried_after_10_s(parts, job, waiting, count, looks):
    parts.queues.waiting_messages["poll"] = waiting
    parts.ledger.add(job, *polls(count), replace(SMALL, job_id="keeps-the-tick-busy", due_at=T))
    parts.visits_end_work = False

    parts.run()

    assert [at for at, kind, limit in parts.ledger.asked if kind is DueKind.POLL and limit] == looks


def test_tick_looks_until_there_is_room_in_queue_and_no_longer(parts, monkeypatch):
    monkeypatch.setattr(
        parts.queues, "waiting", lambda _: MAX_POLLS_WAITING if parts.clock.at < FULL_SECONDS else 0
    )
    parts.ledger.add(LARGE, *polls(1))

    parts.run()

    assert parts.queues.sent == [PollMessage(((JOB.job_id, "00000000"),))]
    assert parts.looks_ended == [T + FULL_SECONDS]


@pytest.mark.parametrize(
    ("late_by", "seconds", "by_tick"),
    [
        (NO_ROOM_FOR_SECONDS + 1, ONE_CYCLE, True),
        (NO_ROOM_FOR_SECONDS, ONE_CYCLE, False),
        (NO_ROOM_FOR_SECONDS + 1, COLLECT_SECONDS + POLL_BEGUN_SECONDS, False),
    ],
    ids=["for over 5 minutes", "for 5 minutes", "no time for a poll"],
)
def test_tick_polls_itself_what_had_no_room_in_queue(parts, late_by, seconds, by_tick):
    parts.queues.waiting_messages["poll"] = MAX_POLLS_WAITING
    parts.ledger.add(LARGE, *polls(1, due_at=T - late_by))

    parts.run(seconds)

    assert bool(parts.polled) is by_tick


def test_abandoned_submit_is_recovered_not_polled(parts):
    parts.ledger.add(SMALL, *polls(1, state=BatchState.SUBMITTING))

    parts.run(ONE_CYCLE)

    assert (parts.recovered, parts.polled, parts.queues.sent) == (["00000000"], {}, [])


# ── batches behind others ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("job", "batch", "is_held"),
    [
        ({}, {}, True),
        ({"deadline_at": T + 30}, {}, False),
        ({"deadline_at": T + 31}, {}, True),
        ({}, {"told_at": T}, False),
        ({}, {"misses": 1}, False),
        ({}, {"submissions": (*ACCEPTED.submissions, *ACCEPTED.submissions)}, False),
        ({}, {"ending": REASON}, False),
    ],
    ids=[
        "behind",
        "its deadline comes",
        "a later deadline",
        "an event came",
        "unknown",
        "sent twice",
        "ends",
    ],
)
def test_batch_behind_pending_one_is_held_back(parts, job, batch, is_held):
    parts.behind[ACCEPTED.submissions[-1].at] = 30.0
    parts.ledger.add(replace(SMALL, **job), *polls(1, **batch))

    parts.run(ONE_CYCLE)

    assert bool(parts.polled) is not is_held
    assert (parts.ledger.batches[JOB.job_id, "00000000"].due_at == T + 30) is is_held


@pytest.mark.parametrize(
    ("behind", "event_in", "held_for"), [(0, 20, 20), (30, 20, 30), (20, 30, 30)]
)
def test_batch_is_held_back_for_pending_one_or_its_event_if_longer(
    parts, monkeypatch, behind, event_in, held_for
):
    monkeypatch.setattr(functions.poll.schedule.due_polls, "waits_for_event", lambda *_: event_in)
    parts.behind[ACCEPTED.submissions[-1].at] = behind
    parts.ledger.add(SMALL, *polls(1))

    parts.run(ONE_CYCLE)

    assert parts.polled == {}
    assert parts.ledger.batches[JOB.job_id, "00000000"].due_at == T + held_for


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("granted", "polled"), [(0, 0), (1, 1), (2, 2), (3, 3), (9, 3)])
def test_batches_are_polled_up_to_tokens(parts, granted, polled):
    parts.budget.granted = granted
    parts.ledger.add(SMALL, *polls(3))

    assert asked(parts, ["00000000", "00000001", "00000002"]) == polled

    assert sorted(parts.polled) == [f"{number:08d}" for number in range(polled)]
    assert [batch.due_at for batch in parts.ledger.batches.values()] == [None] * polled + [T] * (
        3 - polled
    )


def test_batch_to_write_needs_no_token(parts):
    parts.budget.permit = Wait(T + 9)
    parts.ledger.add(SMALL, *polls(1), replace(ACCEPTED, number="00000001", submissions=()))

    assert asked(parts, ["00000000", "00000001"]) == 1

    assert list(parts.polled) == ["00000001"]


@pytest.mark.parametrize(
    ("due_in", "paused", "counted", "claims"),
    [(0, True, 16.0, 0), (-3, True, 19.0, 0), (5, True, 16.0, 0), (0, False, 7.0, 3)],
)
def test_refused_poll_waits(parts, due_in, paused, counted, claims):
    """A pause counts from the time at which the batch was due, or is asked for if that is sooner.

    Steps that failed earlier do not count: in a pause of weeks they would end the batch.
    """
    parts.budget.permit = Wait(T + 9, "outage" if paused else "")
    accepted = replace(ACCEPTED.submissions[-1], at=T - 60)
    parts.ledger.add(
        SMALL,
        *polls(
            1, created_at=T - 60, paused=7.0, claims=3, due_at=T + due_in, submissions=(accepted,)
        ),
    )

    asked(parts, ["00000000"])

    (batch,) = parts.ledger.batches.values()
    assert (batch.due_at, batch.paused, batch.claims) == (T + 9, counted, claims)


@pytest.mark.parametrize(
    ("deadline_at", "since", "pending_at", "polled"),
    [
        (T, T - 900, 0.0, 1),
        (T + 1, T - 900, 0.0, 0),
        (T, T - 899, 0.0, 0),
        (T, T - 900, T - 900, 1),
        (T, T - 900, T - 899, 0),
        (T, inf, 0.0, 0),
    ],
)
def test_batch_past_deadline_is_ended_without_permit_once_all_polls_were_refused_for_long(
    parts, deadline_at, since, pending_at, polled
):
    parts.budget.permit = Wait(T + 9, "token_refused", since=since)
    parts.ledger.add(replace(SMALL, deadline_at=deadline_at), *polls(1, pending_at=pending_at))

    assert asked(parts, ["00000000"]) == polled
    assert len(parts.polled) == polled


# ── the job of a batch that is done ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("done", "held", "visited_at"),
    [(False, 0, []), (True, 0, [0]), (True, 1, [0, 1])],
    ids=[
        "the batch is still pending",
        "it is done",
        "it is done while another invocation holds the job",
    ],
)
def test_job_is_visited_after_its_batch(parts, done, held, visited_at):
    parts.polls_end_batches, parts.leased_visits = done, held
    parts.ledger.add(SMALL, *polls(1))

    asked(parts, ["00000000"])

    assert parts.visits == [(at, JOB.job_id) for at in visited_at]
