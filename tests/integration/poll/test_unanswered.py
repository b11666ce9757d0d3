"""Batches whose ids bring no answer.

Which are submitted again, which are isolated, and how the others end.
"""

from dataclasses import replace

import pytest

from functions.poll.doubts import (
    LATE,
    MISSING,
    end,
    end_missing,
    is_overdue,
    isolate_or_end,
    may_submit_again,
    next_poll,
    overdue_at,
    submit_again,
)
from shared.aws.queues import SubmitMessage
from shared.models import (
    CANCEL,
    PAST_DEADLINE,
    BatchState,
    DueKind,
    ErrorDetail,
    JobControl,
    PartialReply,
    Submission,
)
from tests.support.doubles.ledger_items import REASON, T
from tests.support.doubles.polled_batch import ACCEPTED, COMPLETE, INCOMPLETE, NEXT_POLL

HOUR = 3_600.0
NOT_KNOWN = ErrorDetail("submit_unknown", "")
CANCELLED = {"control": JobControl(cancelled=CANCEL)}
ID = Submission("id", 1, ACCEPTED)
PARTLY, WHOLLY = PartialReply("staging/partly", 0), PartialReply("staging/wholly", 0)
PARTLY_ANSWERED = {"partial_replies": (PARTLY,), "missing_polls": 2}
COUNTED = {"misses": 7, "missed_at": T - 60}


def ids(*rounds):
    """An acceptance in each of these rounds, the last one at `ACCEPTED`."""
    last = len(rounds)
    return tuple(
        Submission(f"id-{at}", at, ACCEPTED - 100 * (last - at), one)
        for at, one in enumerate(rounds, 1)
    )


@pytest.fixture
def stored(polled):
    """The same batch, and both replies of which it may name one."""

    def make(*given, **batch):
        one = polled(*given, **batch)
        one.services.store.put(PARTLY.key, INCOMPLETE.body)
        one.services.store.put(WHOLLY.key, COMPLETE.body)
        return one

    return make


# ── how long a batch is pending ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("paused", "hours", "at"), [(0, 24, 24 * HOUR), (50, 24, 24 * HOUR + 50), (0, 0.5, HOUR / 2)]
)
def test_batch_is_overdue_after_deadline_less_pauses(polled, paused, hours, at):
    one = polled(paused=paused, submissions=ids(0, 0))
    one.doubles.batch_deadline_hours = hours

    assert overdue_at(one.services, one.seen) == ACCEPTED + at
    assert [is_overdue(one.services, one.seen, ACCEPTED + at + more) for more in (-1, 0, 1)] == [
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("code", "ready_at", "at"),
    [
        ("submit_unknown", ACCEPTED + 25 * HOUR, ACCEPTED + 49 * HOUR),
        ("submit_unknown", ACCEPTED - 1, ACCEPTED + 24 * HOUR),
        ("rejected", ACCEPTED + 25 * HOUR, ACCEPTED + 49 * HOUR),
        # A round that was refused.
        ("inference_failed", ACCEPTED + 25 * HOUR, ACCEPTED + 49 * HOUR),
        ("cancelled", ACCEPTED + 25 * HOUR, ACCEPTED + 24 * HOUR),
    ],
)
def test_ids_are_pending_longer_if_last_submit_is_unknown_or_refused(polled, code, ready_at, at):
    one = polled(ready_at=ready_at, ending_if_unanswered=ErrorDetail(code, ""))

    assert overdue_at(one.services, one.seen) == at


def test_next_poll_follows_age_since_acceptance(polled):
    one = polled(submissions=ids(0, 0))

    assert next_poll(one.services, one.job, one.seen) == NEXT_POLL
    assert one.doubles.ages == [100.0]


# ── submitted again ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "batch",
    [
        {},
        {"submissions": ids(0, 0)},
        {"unknowable": 1},
        {"submissions": ids(0, 0, 0, 1), "round": 1},
    ],
    ids=["once", "twice", "one was unknowable", "others of an earlier round"],
)
def test_batch_is_resubmitted_below_three_submits(polled, batch):
    one = polled(**batch)

    assert not submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    now = one.now
    assert (now.state, now.work, now.due_at, now.misses) == (BatchState.READY, DueKind.SUBMIT, T, 0)
    assert one.doubles.sent == [SubmitMessage(one.job.job_id, one.seen.number)]


@pytest.mark.parametrize(
    ("job", "batch", "ending"),
    [
        ({}, {"submissions": ids(0, 0, 0)}, LATE),
        ({}, {"submissions": ids(0, 0), "unknowable": 1}, LATE),
        ({}, {"ending_if_unanswered": NOT_KNOWN}, NOT_KNOWN),
        (CANCELLED, {}, LATE),
        ({"deadline_at": T}, {}, PAST_DEADLINE),
        ({"deadline_at": T}, {"ending_if_unanswered": REASON}, PAST_DEADLINE),
    ],
    ids=[
        "three",
        "two and an unknowable",
        "last word",
        "cancelled",
        "past its deadline",
        "last word and deadline",
    ],
)
def test_batch_ends_that_may_not_be_submitted_again(polled, job, batch, ending):
    one = polled(job, **batch)

    assert submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    assert (one.now.state, one.now.ending, one.now.part.failed) == (BatchState.DONE, ending, 2)
    assert one.doubles.sent == []


def test_batch_ends_if_stack_submits_none_twice(polled):
    one = polled()
    one.doubles.ambiguous_submit = "fail"

    assert submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    assert one.now.ending == LATE


@pytest.mark.parametrize("why", ["the job is paused", "no call is permitted"])
def test_ids_are_polled_while_nothing_can_be_sent(polled, why):
    one = polled({"control": JobControl(held_since=T - 9)} if why == "the job is paused" else {})
    if why == "no call is permitted":
        one.services.budget.limit_rate(T, 60)

    assert not submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    now = one.now
    assert (now.state, now.due_at, now.misses, now.missed_at) == (
        BatchState.QUEUED,
        T + NEXT_POLL,
        7,
        T - 60,
    )
    assert one.doubles.sent == []


PARTLY_OF_LAST = {"partial_replies": (PartialReply("staging/partly", 2),), "round": 2}
PARTLY_OF_SECOND = {"partial_replies": (PartialReply("staging/partly", 1),), "round": 1}


@pytest.mark.parametrize(
    "batch",
    [
        {},
        PARTLY_ANSWERED,
        PARTLY_ANSWERED | {"submissions": ids(0, 0)},
        {"submissions": ids(0, 0, 0, 1), "round": 1},
        {"submissions": ids(2), "round": 2},
    ],
    ids=[
        "once",
        "partly answered",
        "twice, partly answered",
        "three of an earlier round",
        "last round",
    ],
)
def test_batch_may_be_submitted_again(polled, batch):
    one = polled(**batch)

    assert may_submit_again(one.services, one.job, one.seen)


@pytest.mark.parametrize(
    ("job", "batch"),
    [
        ({}, PARTLY_OF_LAST | {"submissions": ids(2)}),
        ({}, PARTLY_OF_SECOND | {"submissions": ids(0, 0, 1)}),
        ({}, {"submissions": ids(0, 0, 0)}),
        ({}, {"submissions": ids(0, 0), "unknowable": 1}),
        ({}, {"ending_if_unanswered": REASON}),
        (CANCELLED, {}),
        ({"control": JobControl(held_since=T - 9)}, {}),
        ({"max_cost": 10}, {"estimate": 11}),
    ],
    ids=[
        *(
            "last round, partly answered",
            "three of all rounds, partly answered",
            "three",
            "two and an unknowable",
        ),
        *("last word", "cancelled", "paused", "more than the job may cost"),
    ],
)
def test_batch_may_not_be_submitted_again(polled, job, batch):
    one = polled(job, **batch)

    assert not may_submit_again(one.services, one.job, one.seen)


def test_batch_may_not_be_submitted_again_while_no_call_is_permitted(polled):
    one = polled()
    one.services.budget.limit_rate(T, 60)

    assert not may_submit_again(one.services, one.job, one.seen)


def test_changed_batch_gets_no_message(polled):
    one = polled()
    one.services.ledger.resubmit(one.seen, T)

    assert not submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    assert one.doubles.sent == []


def test_only_unanswered_records_are_resubmitted(stored):
    """Of a partly answered batch only the records without an answer are submitted again."""
    one = stored(**PARTLY_ANSWERED)

    assert not submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    assert (one.now.round, one.now.state) == (1, BatchState.READY)


REFUSED = ErrorDetail("rejected", "Workers AI refused this request (5006)")


def test_batch_whose_second_submit_was_refused_is_divided_in_the_end(polled):
    one = polled(ending_if_unanswered=REFUSED)

    assert not submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    now = one.now
    assert (now.state, now.isolating, now.ending_if_unanswered) == (BatchState.READY, REFUSED, None)


@pytest.mark.parametrize(
    ("last_word", "kept"), [(REFUSED, None), (NOT_KNOWN, NOT_KNOWN)], ids=["refused", "unknown"]
)
def test_failed_batch_whose_second_submit_was_refused_is_divided(polled, last_word, kept):
    one = polled(ending_if_unanswered=last_word)

    isolate_or_end(one.services, one.job, one.seen, 3030, "")
    now = one.now
    assert (now.state, now.cause, now.ending_if_unanswered) == (
        BatchState.READY,
        "3030 after acceptance",
        kept,
    )


@pytest.mark.parametrize(
    ("job", "batch"),
    [
        (CANCELLED, {}),
        ({}, {"sendable": 1, "requests": 1}),
        ({}, {"submissions": ids(0, 1), "round": 1}),
    ],
    ids=["cancelled", "alone", "tried again"],
)
def test_refused_batch_ends_that_cannot_be_divided(polled, job, batch):
    one = polled(job, ending_if_unanswered=REFUSED, **batch)

    assert submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    assert one.now.ending == REFUSED


@pytest.mark.parametrize(
    ("code", "cause"), [(3030, "3030"), (0, "failed")], ids=["with a code", "without one"]
)
def test_batch_whose_latest_id_failed_is_divided_in_the_end(polled, code, cause):
    earlier, latest = ids(0, 0)
    one = polled(submissions=(earlier, replace(latest, given_up=True)), failing_code=code)

    assert not submit_again(one.services, one.job, one.seen, LATE, COUNTED)
    assert (one.now.isolating.code, one.now.cause) == ("rejected", f"{cause} after acceptance")


# ── items that are missing ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "batch",
    [{}, {"submissions": ids(0, 0)}, {"unknowable": 1}],
    ids=["once", "twice", "one was unknowable"],
)
def test_unanswered_records_are_tried_alone(stored, batch):
    one = stored(**PARTLY_ANSWERED | batch)

    assert not end_missing(one.services, one.job, one.seen)
    assert (one.now.round, one.now.due_at) == (1, T + 20)


@pytest.mark.parametrize(
    ("job", "batch", "failed", "ending"),
    [
        ({}, {"submissions": ids(0, 0, 0)}, 1, MISSING),
        ({}, {"submissions": ids(0, 0), "unknowable": 1}, 1, MISSING),
        ({}, {"ending_if_unanswered": REASON}, 1, REASON),
        (CANCELLED, {}, 1, MISSING),
        ({}, {"partial_replies": (WHOLLY,)}, 0, MISSING),
    ],
    ids=["three", "two and an unknowable", "last word", "cancelled", "nothing is missing"],
)
def test_unanswered_records_end_if_not_retryable(stored, job, batch, failed, ending):
    one = stored(job, **PARTLY_ANSWERED | batch)

    assert end_missing(one.services, one.job, one.seen)
    now = one.now
    assert (now.state, now.ending, now.round) == (BatchState.DONE, ending, 0)
    assert (now.part.failed, now.part.succeeded) == (failed, 2 - failed)


def test_unanswered_records_end_if_resubmit_is_off(stored):
    one = stored(**PARTLY_ANSWERED)
    one.doubles.ambiguous_submit = "fail"

    assert end_missing(one.services, one.job, one.seen)
    assert one.now.ending == MISSING


# ── ends ──────────────────────────────────────────────────────────────────────────────────────────


def test_all_records_of_batch_end_for_one_reason(polled):
    one = polled()

    assert end(one.services, one.job, one.seen, REASON)
    assert (one.now.state, one.now.ending, one.now.part.failed) == (BatchState.DONE, REASON, 2)


def test_changed_batch_does_not_end(polled):
    one = polled()
    one.differs()

    assert not end(one.services, one.job, one.seen, REASON)
    assert (one.now.state, one.now.ending) == (BatchState.QUEUED, None)


@pytest.mark.parametrize(
    ("code", "cause", "message"),
    [
        (
            5006,
            "5006 after acceptance",
            "Workers AI accepted this request and then failed it (5006)",
        ),
        (None, "failed after acceptance", "Workers AI accepted this request and then failed it"),
    ],
)
def test_failed_batch_of_several_records_is_isolated(polled, code, cause, message):
    one = polled()

    isolate_or_end(one.services, one.job, one.seen, code, "")

    now = one.now
    assert (now.state, now.isolating, now.cause) == (
        BatchState.READY,
        ErrorDetail("rejected", message),
        cause,
    )
    assert (now.ending, now.due_at, now.work) == (None, T, DueKind.POLL)


@pytest.mark.parametrize(
    "batch",
    [{"sendable": 1}, {"round": 1, "submissions": (ID, replace(ID, round=1))}],
    ids=["alone", "tried again"],
)
def test_retried_batch_that_fails_ends(polled, batch):
    one = polled(**batch)

    isolate_or_end(one.services, one.job, one.seen, 5006, "its words")

    now = one.now
    assert (now.ending.code, now.cause, now.isolating, now.due_at) == (
        "rejected",
        "5006 after acceptance",
        None,
        T,
    )
    assert one.services.store.get(now.ending.said) == b"its words"


def test_failed_batch_retries_only_unanswered_records(stored):
    one = stored(**PARTLY_ANSWERED)

    isolate_or_end(one.services, one.job, one.seen, 5006, "")

    assert (one.now.round, one.now.isolating, one.now.ending) == (1, None, None)
