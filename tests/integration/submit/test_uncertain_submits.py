"""Submits that the API may have accepted although it gave no id.

A lost reply, or an error that proves nothing.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from shared.events.control_item import Subscription
from shared.events.search import REQUEST_ID

from functions.submit.outcomes.unproven import UnprovenSubmit
from shared.aws.queues import PollMessage
from shared.invocation import Invocation
from shared.models import BatchState, DueKind, Looking, Submission
from shared.pacing.breaker import Pause, PauseReason, Permit
from shared.workers_ai.replies import OutcomeUnknown, Pending, Rejected
from tests.support.doubles.ledger_items import JOB, M2M, SUBMITTING, T
from tests.support.doubles.submitting import DUE, UNKNOWN, begun, sent, told

OUTAGE = PauseReason.OUTAGE
PERMIT = Permit(Pause(PauseReason.QUOTA_SPENT, "nonce", T - 60, T, 60.0))
NOT_SENT = Rejected(0, None, "no connection")
EARLIER = (Submission("earlier", 1, T - 900),)
LOOKED_FOR = replace(SUBMITTING, attempt=1, looking=Looking(T - 60, T - 90, T - 60))


@pytest.fixture
def begin(table, monkeypatch):
    """The submit function with a job and a batch to work on.

    A time within bounds is always their middle.
    """
    return partial(begun, table, monkeypatch)


@pytest.mark.parametrize("reply", [OutcomeUnknown("broken off"), Pending("queued")])
@pytest.mark.parametrize(
    ("setting", "before", "changes"),
    [
        ("resubmit", 0, {"due_at": T + 10, "unknowable": 1}),
        ("resubmit", 1, {"ending": UNKNOWN, "work": DueKind.POLL, "due_at": T, "unknowable": 2}),
        ("fail", 0, {"ending": UNKNOWN, "work": DueKind.POLL, "due_at": T, "unknowable": 1}),
    ],
)
def test_unknown_outcome_is_resubmitted_once(begin, reply, setting, before, changes):
    batch = replace(DUE, unknowable=before)
    at = begin(batch, reply)
    at.services.settings.ambiguous_submit, at.permit = setting, PERMIT

    at.run()

    assert at.batch == sent(batch, **changes)
    assert at.budget_calls[1:] == [("pause", OUTAGE, T, "no answer", PERMIT)]
    assert at.counted == ["SubmitCalls", "AmbiguousSubmits"]


def test_outage_names_status_of_doubtful_reply_without_code(begin):
    at = begin(replace(DUE, doubts=2), told(503, None))

    at.run()

    assert at.budget_calls[1:] == [("pause", OUTAGE, T, "503", Permit())]


@pytest.mark.parametrize("status", [408, 500])
@pytest.mark.parametrize(
    ("setting", "before", "changes"),
    [
        ("resubmit", {"doubts": 2}, {"due_at": T + 10, "unknowable": 1}),
        (
            "resubmit",
            {"doubts": 2, "unknowable": 1},
            {"ending": UNKNOWN, "work": DueKind.POLL, "due_at": T, "unknowable": 2},
        ),
        (
            "fail",
            {"doubts": 2},
            {"ending": UNKNOWN, "work": DueKind.POLL, "due_at": T, "unknowable": 1},
        ),
        (
            "fail",
            {"doubts": 1},
            {"due_at": T + 10, "refusals": 1, "calls_fail_since": T, "doubtful": 6, "doubts": 2},
        ),
    ],
)
def test_third_doubtful_outcome_is_unknown(begin, status, setting, before, changes):
    batch = replace(DUE, doubtful=5, **before)
    at = begin(batch, told(status, 10013))
    at.services.settings.ambiguous_submit = setting

    at.run()

    assert at.batch == sent(batch, **changes)
    is_unknown = "unknowable" in changes
    assert at.budget_calls[1:] == ([("pause", OUTAGE, T, "10013", Permit())] if is_unknown else [])
    assert at.counted == ["SubmitCalls", "ApiErrors", *(["AmbiguousSubmits"] if is_unknown else [])]


def test_doubtful_probe_prolongs_outage(begin):
    at = begin(reply=told(503, 7010))
    at.permit = Permit(Pause(OUTAGE, "nonce", T - 60, T, 15.0))

    at.run()

    assert at.budget_calls[1:] == [("pause", OUTAGE, T, "7010", at.permit)]
    assert (at.batch.doubtful, at.batch.doubts, at.batch.unknowable) == (1, 1, 0)


def test_doubtful_probe_of_another_pause_begins_no_outage(begin):
    at = begin(reply=told(503, 7010))
    at.permit = PERMIT

    at.run()

    assert at.budget_calls[1:] == []


def test_pages_never_become_unknown_outcomes(begin):
    batch = replace(DUE, doubtful=600, doubts=2)
    at = begin(batch, Rejected(404, None, ""))

    at.run()

    again = {"due_at": T + 10, "refusals": 1, "calls_fail_since": T}
    assert at.batch == replace(sent(batch, **again), doubtful=601)
    assert at.budget_calls[1:] == []


def test_acceptance_ends_row_of_doubts_and_keeps_count(begin):
    at = begin(replace(DUE, doubtful=2, doubts=2))

    at.run()

    assert (at.batch.doubtful, at.batch.doubts) == (2, 0)


def test_batch_with_id_is_polled_after_last_submit(begin):
    batch = replace(DUE, submissions=EARLIER, ready_at=T - 60, unknowable=1)
    at = begin(batch, OutcomeUnknown("broken off"))

    at.run()

    polled = {"state": BatchState.QUEUED, "work": DueKind.POLL, "due_at": T}
    assert at.batch == sent(batch, **polled, ending_if_unanswered=UNKNOWN, unknowable=2)


# ── submits that are looked for ───────────────────────────────────────────────────────────────────


def test_submit_that_was_found_is_polled_by_message(begin):
    """Like any other acceptance of one of the first batches."""
    at = begin(LOOKED_FOR)
    at.services.store.head = lambda _: SimpleNamespace(metadata={REQUEST_ID: "found"})

    at.run()

    assert at.batch.submissions == (Submission("found", 1, T - 60),)
    assert at.messages == [(PollMessage(((JOB.job_id, at.number),)), 0)]
    assert at.job.seen_accepted


def test_submit_that_another_looks_for_is_left(begin, monkeypatch):
    at = begin(LOOKED_FOR)
    monkeypatch.setattr(at.ledger, "claim_look", lambda *_: None)

    at.run()

    assert at.batch == LOOKED_FOR
    assert at.messages == at.posts == []


@pytest.mark.parametrize("doubts", [1, 0], ids=["like lost", "a page"])
def test_doubtful_submit_that_is_not_found_is_counted_once_more(begin, doubts):
    """An invocation with more time would submit it at once."""
    looking = replace(LOOKED_FOR.looking, doubtful=True, doubts=doubts)
    at = begin(
        replace(
            LOOKED_FOR, looking=looking, refusals=2, doubtful=3, doubts=1, calls_fail_since=T - 90
        )
    )
    at.ends = T + 60

    at.run()

    assert (at.batch.state, at.batch.due_at, at.batch.calls_fail_since) == (
        BatchState.READY,
        T,
        T - 90,
    )
    assert (at.batch.refusals, at.batch.doubtful, at.batch.doubts) == (3, 4, 1 + doubts)


@pytest.mark.parametrize(
    ("markers", "reply", "is_looked_for"),
    [
        (("~db1.",), told(503, 10013), True),
        ((), told(503, 10013), False),
        (("~db1.",), NOT_SENT, False),
    ],
    ids=["a server's error", "without a marker", "it could not be sent"],
)
def test_refused_submit_is_looked_for_if_it_may_be_found(begin, markers, reply, is_looked_for):
    """On a stack that gets the events of the model."""
    at = begin(replace(SUBMITTING, markers=markers))
    at.services.events = events_that_come()

    UnprovenSubmit(Invocation(at.services, at.ends), at.job, at.batch).try_later(reply)

    assert (at.batch.looking is not None) is is_looked_for
    assert at.batch.state is (BatchState.SUBMITTING if is_looked_for else BatchState.READY)


def events_that_come():
    """Events of a stack that is subscribed to the job's model, and whose queue is read."""
    state = SimpleNamespace(
        subscriptions={M2M: Subscription("id")}, will_pull=lambda now: True, pulled_at=T
    )
    item = SimpleNamespace(
        recent=lambda now: state, look_until=lambda at: None, expect_pull=lambda at, now: None
    )
    return SimpleNamespace(
        item=item, coming=SimpleNamespace(may_come=lambda model, pulled_at, now: True)
    )
