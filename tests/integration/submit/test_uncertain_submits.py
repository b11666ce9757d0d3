"""Submits that the API may have accepted although it gave no id: a lost reply, or an error that proves nothing."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest

from shared.aws.queues import PollMessage
from shared.events.search import REQUEST_ID
from shared.models import BatchState, DueKind, Looking, Submission
from shared.pacing.controls import Pause, PauseReason, Permit
from shared.workers_ai.replies import OutcomeUnknown, Pending, Rejected
from tests.support.doubles.ledger_items import JOB, SUBMITTING, T
from tests.support.doubles.submitting import DUE, UNKNOWN, begun, sent, told

OUTAGE = PauseReason.OUTAGE
PERMIT = Permit(Pause(PauseReason.QUOTA_SPENT, "nonce", T - 60, T, 60.0))
EARLIER = (Submission("earlier", 1, T - 900),)
LOOKED_FOR = replace(SUBMITTING, attempt=1, looking=Looking(T - 60, T - 90, T - 60))


@pytest.fixture
def begin(table, monkeypatch):
    """The submit function with a job and a batch to work on; a time within bounds is always their middle."""
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
        ("fail", {"doubts": 2}, {"ending": UNKNOWN, "work": DueKind.POLL, "due_at": T, "unknowable": 1}),
        ("fail", {"doubts": 1}, {"due_at": T + 10, "refusals": 1, "calls_fail_since": T, "doubtful": 6, "doubts": 2}),
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


# ── submits that are looked for ──────────────────────────────────────────────────────────────────────────────────────


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
