"""One poll: what each reply makes of a batch, and batches that are due."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

import functions.poll.doubts
import functions.poll.poll
from functions.poll import contain
from functions.poll.contain import load
from functions.poll.doubts import LATE
from functions.poll.poll import POLL_FAILED, needs_call
from shared import keys
from shared.errors import StorageError
from shared.ledger import DueEntry, Ledger
from shared.models import (
    CANCEL,
    CANCEL_NOW,
    CANCELLED_ACCEPTED,
    MAX_JOB_SECONDS,
    PAST_DEADLINE,
    TOO_OLD_CODE,
    BatchState,
    ErrorDetail,
    JobControl,
    Submission,
)
from shared.models import Pending as Said
from shared.retry import MAX_CLAIMS
from shared.workers_ai.replies import Accepted, OutcomeUnknown, Pending
from shared.workers_ai.results import parse_answer
from tests.support.doubles.ledger_items import BATCH, JOB, REASON, T
from tests.support.doubles.polled_batch import ACCEPTED, COMPLETE, INCOMPLETE, NEXT_POLL, RUNNING

DAY = 86_400
OTHER = ErrorDetail("expired", "another reason")
AT_ONCE = Submission("", 1, ACCEPTED)
LATEST = Submission("id", 2, ACCEPTED)
AGAIN = {"submission": LATEST, "attempt": 2, "given_up": 1}
"""A batch that was submitted again."""
TOO_OLD = {"created_at": T - MAX_JOB_SECONDS - 1}
CANCELLED_NOW = {"control": JobControl(cancelled=CANCEL_NOW)}

NO_ANSWER = OutcomeUnknown("")
PENDING = Pending("running")


# ── without a call ────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("batch", "job", "needs"),
    [
        ({}, {}, True),
        (AGAIN, {}, True),
        ({}, {"control": JobControl(cancelled=CANCEL)}, True),
        ({}, CANCELLED_NOW, False),
        ({}, TOO_OLD, False),
        ({"ending": REASON}, {}, False),
        ({"isolating": REASON}, {}, False),
        ({"submission": AT_ONCE}, {}, False),
    ],
)
def test_accepted_batch_is_polled(batch, job, needs):
    """By message if it is one of the first, else by a tick."""
    held = replace(BATCH, **{"submission": LATEST} | batch)

    assert needs_call(replace(JOB, **job), held, T) is needs


@pytest.mark.parametrize(
    ("left", "ending", "claims"),
    [(39.9, None, 0), (40, None, 1), (39.9, REASON, 1)],
    ids=["late", "in time", "none"],
)
def test_batch_is_claimed_if_call_has_time(polled, left, ending, claims):
    one = polled(ending=ending)

    assert one.polled(NO_ANSWER, left=left) is bool(ending)
    assert one.now.claims == claims
    assert len(one.doubles.asked) == (1 if claims and not ending else 0)


@pytest.mark.parametrize(
    ("left", "seconds", "claimed"), [(900, 75, 110), (90, 65, 100), (40, 15, 50)]
)
def test_claim_leaves_time_to_store_answer(polled, left, seconds, claimed):
    one = polled()

    with pytest.raises(RuntimeError):
        one.polled(RuntimeError("as if the function had died"), left=left)

    assert one.doubles.asked == [("id", seconds)]
    assert (one.now.due_at, one.now.claims, one.now.polls) == (T + claimed, 1, 1)


@pytest.mark.parametrize(("claims", "wait"), [(0, 2), (3, 16), (19, 60), (20, 3_600)])
def test_claim_of_failed_step_is_released_and_counts(polled, claims, wait):
    one = polled(claims=claims)

    with pytest.raises(StorageError):
        one.polled(StorageError("the table is busy"))

    assert (one.now.due_at, one.now.claims) == (T + wait, claims + 1)


def test_batch_claimed_by_another_is_left_alone(polled):
    one = polled()
    one.services.ledger.claim_poll(one.seen, T + 1)

    assert not one.polled(COMPLETE)
    assert one.doubles.asked == []


@pytest.mark.parametrize("ending", [None, OTHER])
def test_untried_isolation_ends_without_poll(polled, ending):
    one = polled({"error": OTHER}, isolating=REASON, ending=ending, state=BatchState.READY)

    assert one.polled()
    assert one.now.state is BatchState.DONE
    assert one.now.ending.message == (
        ending.message
        if ending
        else f"Not sent alone, because the job was stopped: {REASON.message}"
    )
    assert one.now.polls == 0


def test_batch_to_be_isolated_is_split_without_poll(polled):
    one = polled(isolating=REASON, cause="5006", state=BatchState.READY)

    assert not one.polled()
    assert (one.now.state, one.now.pieces, one.now.polls) == (BatchState.DIVIDED, 2, 0)


@pytest.mark.parametrize(
    ("job", "ending"),
    [(TOO_OLD, TOO_OLD_CODE), (CANCELLED_NOW, CANCELLED_ACCEPTED)],
    ids=["too old", "cancelled at once"],
)
def test_batch_of_finished_job_ends_without_call(polled, job, ending):
    one = polled(job)

    assert one.polled(COMPLETE)
    assert (one.now.state, one.now.ending) == (BatchState.DONE, ending)
    assert one.doubles.asked == []


# ── after claims without progress ─────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("batch", "ending"), [({}, POLL_FAILED), ({"isolating": REASON}, REASON)])
def test_last_claim_ends_batch_with_known_reason(polled, batch, ending):
    one = polled(claims=MAX_CLAIMS, **batch)

    assert one.polled(COMPLETE)
    assert (one.now.state, one.now.ending, one.now.part.failed) == (BatchState.DONE, ending, 2)


def test_last_claim_is_tried(polled):
    one = polled(claims=MAX_CLAIMS - 1)

    one.polled(COMPLETE)

    assert one.now.ending is None
    assert one.doubles.asked == [("id", 75)]


def test_batch_with_unwritable_lines_is_done(polled):
    one = polled(claims=MAX_CLAIMS, ending=REASON)

    assert one.polled()
    assert (one.now.state, one.now.ending, one.now.part) == (BatchState.DONE, REASON, None)


def test_batch_that_could_never_be_split_is_to_end(polled):
    one = polled(claims=MAX_CLAIMS, isolating=REASON, pieces=2, state=BatchState.READY)

    assert not one.polled()
    assert (one.now.pieces, one.now.ending.code, one.now.due_at) == (0, "rejected", T)


# ── answers ───────────────────────────────────────────────────────────────────────────────────────
def test_answer_is_stored_under_ordinal_of_poll(polled):
    one = polled(**AGAIN, polls=2, polls_settled=2)

    assert one.polled(COMPLETE)
    assert one.services.store.get(keys.raw(one.job.job_id, one.seen.number, 2, 3)) == COMPLETE.body
    assert (one.now.state, one.now.part.succeeded) == (BatchState.DONE, 2)


@pytest.mark.parametrize(("reply", "partial"), [(COMPLETE, 0), (RUNNING, 1)], ids=["all", "some"])
def test_answer_to_submit_needs_no_call_whatever_it_says(polled, reply, partial):
    one = polled(submission=AT_ONCE)
    one.store_reply(0, reply=reply)

    assert one.polled(NO_ANSWER) is not bool(partial)
    assert (len(one.now.partial_replies), one.doubles.asked) == (partial, [])


@pytest.mark.parametrize(
    ("polls", "settled", "looked_at"),
    [(0, 0, []), (4, 4, []), (4, 2, ["2-4", "2-3"])],
    ids=["the first poll", "all are settled", "two are not"],
)
def test_stored_answer_is_looked_for_at_each_poll(polled, monkeypatch, polls, settled, looked_at):
    one = polled(**AGAIN, polls=polls, polls_settled=settled)
    real, found = type(one.services.store).head, []

    def head(store, key, version=""):
        found.append(key.partition("/raw-")[2])
        return real(store, key, version)

    monkeypatch.setattr(type(one.services.store), "head", head)

    one.polled(PENDING)

    assert sorted(found, reverse=True) == sorted(looked_at, reverse=True)
    assert [key[-1] for key in found] == [key[-1] for key in looked_at], "the latest poll first"


TOOK = {
    "never pending": ({}, [(0.0, 100.0)]),
    "pending": ({"pending": Said(T - 30, "")}, [(70.0, 100.0)]),
    "pending before it was accepted anew": ({"pending": Said(ACCEPTED - 50, "")}, [(0.0, 100.0)]),
    "asked for again": ({"partial_replies": ("key",)}, []),
    "submitted again": (AGAIN, []),
}


@pytest.mark.parametrize("name", TOOK)
def test_known_duration_is_remembered(polled, name):
    batch, took = TOOK[name]
    one = polled(**batch)
    one.services.store.put_if_absent("key", RUNNING.body)

    one.polled(COMPLETE)

    assert one.doubles.took == took


# ── pending ───────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("reply", "status"), [(PENDING, "running"), (Accepted("id"), "queued")])
def test_pending_reply_resets_counts(polled, reply, status):
    one = polled(claims=3, polls=1, calls_fail_since=T - 50)

    assert not one.polled(reply)
    now = one.now
    assert (now.due_at, now.claims, now.polls_settled) == (T + NEXT_POLL, 0, 2)
    assert (now.calls_fail_since, now.pending) == (0.0, Said(T, status))
    assert one.doubles.ages == [100.0]


@pytest.mark.parametrize(
    ("pending_for", "deadline", "due_in"),
    [
        (100, None, NEXT_POLL),
        (DAY - 99, None, NEXT_POLL),
        (DAY - 98, None, 99),
        (DAY, None, 1),
        (100, 30, 30),
        (100, 101, NEXT_POLL),
    ],
)
def test_pending_batch_is_polled_by_its_deadline(polled, pending_for, deadline, due_in):
    """The next poll is no later than the batch's or its job's deadline."""
    one = polled(
        {"deadline_at": deadline and T + deadline}, submission=Submission("id", 1, T - pending_for)
    )

    assert not one.polled(PENDING)
    assert (one.now.state, one.now.due_at) == (BatchState.QUEUED, T + due_in)


def test_pending_batch_ends_at_its_jobs_deadline(polled):
    one = polled({"deadline_at": T})

    assert one.polled(PENDING)
    assert (one.now.state, one.now.ending) == (BatchState.DONE, PAST_DEADLINE)


def test_how_long_pending_batch_has_waited_is_metric(polled, monkeypatch):
    told = []
    for module in (functions.poll.poll, functions.poll.doubts):
        monkeypatch.setattr(module, "count", lambda *what: told.append(what))

    polled().polled(PENDING)

    assert told == [("PollCalls",), ("OldestPendingAge", 100.0)]


@pytest.mark.parametrize(("since", "due_in"), [(0, 2), (2, 3), (5, 10), (15, 100)])
def test_unconfirmed_event_is_polled_for_soon(polled, since, due_in):
    """After 2, 5 and 15 seconds; then as without it."""
    one = polled(told_at=T - since, number="00000099")

    assert not one.polled(PENDING)
    assert one.now.due_at == T + due_in


def test_event_during_a_poll_makes_batch_due(polled, monkeypatch):
    """It may have come before the API's reply, or after."""
    one = polled(number="00000099")
    ledger, real = one.services.ledger, type(one.services.ledger).schedule_poll

    def told_first(self, batch, due_at, **updates):
        assert ledger.tell_over(batch, T)
        return real(self, batch, due_at, **updates)

    monkeypatch.setattr(type(ledger), "schedule_poll", told_first)

    assert not one.polled(PENDING)
    assert (one.now.due_at, one.now.told_at) == (T, T)


# ── A batch some of whose items are beside `running`: it waits ────────────────────────────────────
PARTIAL = replace(INCOMPLETE, unfinished=True, status="running")
STORED = b'{"status":"running",' + bytes(INCOMPLETE.body)[1:]


@pytest.fixture
def late(polled):
    """A batch that was accepted longer ago than the stack waits."""
    one = polled()
    one.doubles.batch_deadline_hours = 0.01
    return one


def test_part_of_an_answer_leaves_the_batch_pending(polled):
    one = polled()

    assert not one.polled(PARTIAL)

    batch = one.now
    assert (batch.state, batch.pending.status) == (BatchState.QUEUED, "running")
    assert batch.partial_replies == ()


@pytest.mark.parametrize(
    ("item", "is_done"),
    [
        (b'{"id":1}', False),
        (b'{"id":1,"success":true,"result":null}', False),
        (b'{"id":0,"result":1}', False),
        (b"{}", False),
        (b'{"id":1,"result":1}', True),
    ],
)
def test_all_items_beside_running_finish_the_batch(polled, item, is_done):
    body = b'{"status":"running","responses":[{"id":0,"result":1},%b]}' % item

    assert polled().polled(parse_answer(body)) is is_done


def test_at_its_deadline_the_rest_ends(late):
    assert late.polled(PARTIAL)

    batch = late.now
    assert (batch.ending, len(batch.partial_replies)) == (LATE, 1)
    assert (batch.part.succeeded, batch.part.failed) == (1, 1)


def test_reply_of_a_function_that_died_is_used(late):
    key = keys.raw(late.job.job_id, late.seen.number, 1, late.seen.polls + 1)
    late.services.store.put_if_absent(key, STORED)
    died = late.services.ledger.claim_poll(late.seen, late.services.now())
    late.seen = died

    assert late.polled(RuntimeError("polled although the reply is there"))
    assert (late.now.part.succeeded, late.now.partial_replies) == (1, (key,))


def test_function_that_dies_after_it_noted_the_part_is_followed(late, monkeypatch):
    def die(*_):
        raise RuntimeError

    with monkeypatch.context() as broken:
        broken.setattr("functions.poll.poll.end", die)
        with pytest.raises(RuntimeError):
            late.polled(PARTIAL)
    assert (len(late.now.partial_replies), late.now.claims) == (1, 1)
    late.seen = late.now

    assert late.polled(PARTIAL)
    assert late.now.part.succeeded == 1


def test_job_that_is_not_handed_out_delays_no_other(table, monkeypatch):
    ledger = Ledger(table, "table")
    for job_id in ("good", "bad"):
        ledger.create_job(replace(JOB, job_id=job_id))
        ledger.create_batch(replace(BATCH, job_id=job_id))
    real = ledger.job

    def job_or_error(job_id):
        if job_id == "bad":
            raise StorageError("throttled")
        return real(job_id)

    monkeypatch.setattr(ledger, "job", job_or_error)
    monkeypatch.setattr(contain, "count", lambda _: None)
    dues = [DueEntry(job_id, BATCH.number, T) for job_id in ("bad", "good")]

    found = load(SimpleNamespace(ledger=ledger, now=lambda: T), dues)

    assert [one.job.job_id for one in found] == ["good"]
    assert ledger.batch("bad", BATCH.number).claims == 1
    assert ledger.batch("bad", BATCH.number).due_at > T
