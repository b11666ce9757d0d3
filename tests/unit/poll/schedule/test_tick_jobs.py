"""Jobs of a tick: which it visits itself, for which it sends a message.

In which order and how many.
"""

from collections import Counter
from dataclasses import replace

import pytest

from functions.poll.schedule.dispatch_submits import DISPATCHED_SECONDS
from functions.poll.schedule.due_jobs import (
    IDLE_VISIT_SECONDS,
    LARGE_RECORDS,
    LARGE_UPLOAD_BYTES,
    MAX_TURNS_WAITING,
    MAX_VISITS_WAITING,
    NO_ROOM_SECONDS,
    is_large,
)
from functions.poll.schedule.tick import MAX_IDLE_VISITS, MAX_JOBS
from shared.aws.queues import SplitMessage, VisitMessage
from shared.errors import RefusedError
from shared.models import JobControl, Submission, Sweep, SweepGoal, Upload
from shared.pacing import waits
from tests.support.doubles.ledger_items import BATCH, JOB, T
from tests.support.doubles.tick_parts import ONE_CYCLE, SMALL

LARGE = replace(SMALL, total=LARGE_RECORDS + 1)
SWEPT = {"control": JobControl("v", held_since=T)}
IS_SWEPT = Sweep(SweepGoal.HOLD, T, passes=0)


def upload_of(size):
    return Upload("bucket", "inbox/a.jsonl", "v", "e", size)


@pytest.mark.parametrize(
    ("job", "large"),
    [
        (SMALL, False),
        (replace(SMALL, total=None), True),
        (replace(SMALL, total=LARGE_RECORDS), False),
        (replace(SMALL, total=LARGE_RECORDS + 1), True),
        (replace(SMALL, upload=upload_of(LARGE_UPLOAD_BYTES)), False),
        (replace(SMALL, upload=upload_of(LARGE_UPLOAD_BYTES + 1)), True),
        (replace(SMALL, **SWEPT), True),
        (replace(SMALL, sweep=IS_SWEPT, **SWEPT), False),
    ],
)
def test_job_is_large_by_records_bytes_or_sweep(job, large):
    assert is_large(job, T) is large


@pytest.mark.parametrize(
    ("job", "idle", "message"),
    [
        (SMALL, False, None),
        (SMALL, True, None),
        (LARGE, False, VisitMessage(JOB.job_id)),
        (LARGE, True, None),
        (JOB, False, SplitMessage(JOB.job_id)),
        (replace(JOB, total=3), False, SplitMessage(JOB.job_id)),
        (JOB, True, SplitMessage(JOB.job_id)),
    ],
    ids=[
        "small",
        "small and idle",
        "large",
        "large and idle",
        "its upload is being read",
        "its small upload is being read",
        "idle, but its upload is being read",
    ],
)
def test_tick_visits_small_jobs_and_sends_large(parts, job, idle, message):
    parts.ledger.add(job)
    parts.ledger.idle |= {job.job_id} if idle else set()

    parts.run(ONE_CYCLE)

    assert parts.visits == ([] if message else [(0, job.job_id)])
    assert parts.queues.sent == ([message] if message else [])
    assert parts.ledger.job(job.job_id).due_at == (T + DISPATCHED_SECONDS if message else None)


def test_queue_that_may_not_be_asked_is_shown_and_holds_up_nothing_else(parts, monkeypatch):
    """A policy denies it.

    What needs a message is shown and waits, small jobs are visited and batches polled.
    """
    refusal, shown = RefusedError("SQS get_queue_attributes", "AccessDenied", "no"), []

    def refuse(_url):
        raise refusal

    monkeypatch.setattr(parts.queues, "waiting", refuse)
    monkeypatch.setattr(
        waits, "show_denied", lambda _, job, error: shown.append((job.job_id, error))
    )
    large = replace(LARGE, job_id="large")
    queued = replace(BATCH, submissions=(Submission("id", 1, T),))
    parts.ledger.add(SMALL, large, queued, replace(queued, job_id="large"))

    parts.run(ONE_CYCLE)

    assert parts.order == [SMALL.job_id, BATCH.number]
    assert shown == [("large", refusal)] * 2, "its visit and its batch"
    assert parts.ledger.job("large").due_at > T


@pytest.mark.parametrize(
    ("job", "idle", "seconds"),
    [(SMALL, True, 100), (LARGE, True, IDLE_VISIT_SECONDS), (SMALL, False, 100)],
    ids=["small and idle", "large and idle", "small"],
)
def test_tick_visits_idle_large_job_only_for_moment(parts, job, idle, seconds):
    parts.ledger.add(job)
    parts.ledger.idle |= {job.job_id} if idle else set()

    parts.run(100)

    assert parts.visit_seconds == [seconds]


def test_moving_jobs_precede_polls_idle_jobs_follow(parts):
    idle = replace(SMALL, job_id="idle")
    parts.ledger.add(SMALL, idle, replace(BATCH, submissions=(Submission("id", 1, T),)))
    parts.ledger.idle.add("idle")

    parts.run(ONE_CYCLE)

    assert parts.order == [SMALL.job_id, BATCH.number, "idle"]


def test_tick_visits_few_idle_and_all_moving_jobs(parts):
    others = [
        replace(SMALL, job_id=f"work {number}") for number in range(MAX_IDLE_VISITS + MAX_JOBS)
    ]
    idle = [replace(SMALL, job_id=f"idle {number}") for number in range(MAX_IDLE_VISITS + MAX_JOBS)]
    parts.ledger.add(*others, *idle)
    parts.ledger.idle |= {job.job_id for job in idle}

    parts.run()

    visited = Counter(name.split()[0] for _, name in parts.visits)
    assert visited == {"work": len(others), "idle": MAX_IDLE_VISITS}
    assert parts.clock.at < 2 * len(others) / MAX_JOBS  # It does not wait for those that it left.


def test_tick_ends_with_last_of_its_idle_visits(parts):
    idle = [replace(SMALL, job_id=f"idle {number}") for number in range(MAX_IDLE_VISITS + MAX_JOBS)]
    parts.ledger.add(*idle)
    parts.ledger.idle |= {job.job_id for job in idle}

    parts.run()

    assert [at for at, _ in parts.visits] == [
        at for at in range(MAX_IDLE_VISITS // MAX_JOBS) for _ in range(MAX_JOBS)
    ]
    assert parts.clock.at == parts.visits[-1][0]


@pytest.mark.parametrize(
    "job", [LARGE, JOB, SMALL], ids=["large", "its upload is being read", "small"]
)
def test_ten_thousand_jobs_delay_work_30_s(parts, job):
    """A cycle of 25 visits takes 0.9 s on the share of a processor that Lambda gives 512 MB."""
    idle = [
        replace(SMALL, job_id=f"idle {number}", due_at=T - 600 + number / 20)
        for number in range(10_000)
    ]
    parts.ledger.add(*idle, replace(job, job_id="work", due_at=T + 5))
    parts.ledger.idle |= {one.job_id for one in idle}
    parts.seconds_per_visit = 0.9 / 25

    parts.run()

    begun = [at for at, name in (*parts.visits, *parts.ledger.postponed) if name == "work"]
    assert 5 <= begun[0] <= 5 + 30


@pytest.mark.parametrize(("waiting", "sent"), [(0, 20), (1, 19), (19, 1), (20, 0), (30, 0)])
@pytest.mark.parametrize(("job", "queue", "most"), [(JOB, "split", 20), (LARGE, "visit", 20)])
def test_each_kind_of_message_has_own_room(parts, job, queue, most, waiting, sent):
    jobs = [replace(job, job_id=f"job {number:02}") for number in range(24)]
    parts.queues.waiting_messages = Counter(
        {"split": 99, "submit": 99, "poll": 99, "visit": 99, queue: waiting}
    )
    parts.ledger.add(*jobs)

    parts.run(ONE_CYCLE)

    assert most == {"split": MAX_TURNS_WAITING, "visit": MAX_VISITS_WAITING}[queue]
    assert [message.job_id for message in parts.queues.sent] == [one.job_id for one in jobs[:sent]]
    due = [parts.ledger.job(one.job_id).due_at - T for one in jobs]
    assert due[:sent] == [DISPATCHED_SECONDS] * sent
    assert all(NO_ROOM_SECONDS <= wait <= NO_ROOM_SECONDS + 10 for wait in due[sent:])


def test_jobs_without_room_hide_no_other(parts):
    parts.queues.waiting_messages["visit"] = MAX_VISITS_WAITING
    large = [
        replace(LARGE, job_id=f"large {number}", due_at=T - 9) for number in range(2 * MAX_JOBS)
    ]
    parts.ledger.add(*large, JOB, replace(SMALL, job_id="small"))

    parts.run()

    assert parts.queues.sent == [SplitMessage(JOB.job_id)]
    assert parts.visits == [(2, "small")]


@pytest.mark.parametrize("job", [LARGE, JOB], ids=["large", "its upload is being read"])
@pytest.mark.parametrize(("due_at", "sent"), [(T - 1, 1), (T, 1), (T + 1, 0), (None, 0)])
def test_message_is_sent_only_if_job_itself_is_due(parts, monkeypatch, job, due_at, sent):
    """The index may be behind."""
    parts.ledger.add(replace(job, due_at=T))
    real = parts.ledger.job
    monkeypatch.setattr(parts.ledger, "job", lambda job_id: replace(real(job_id), due_at=due_at))

    parts.run(ONE_CYCLE)

    assert len(parts.queues.sent) == sent
    assert parts.ledger.set_aside_ids == []


def test_changed_job_gets_no_message(parts):
    parts.ledger.add(LARGE)
    parts.ledger.is_changed_by_others = True

    parts.run(ONE_CYCLE)

    assert (parts.queues.sent, parts.ledger.set_aside_ids) == ([], [])


def test_missing_job_is_neither_work_nor_error(parts):
    parts.ledger.jobs[JOB.job_id] = None

    parts.run()

    assert (parts.visits, parts.queues.sent, parts.ledger.set_aside_ids) == ([], [], [])
    assert parts.clock.slept == []
