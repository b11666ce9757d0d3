"""Which batch is submitted, and with what; which one waits, and how long; which ends unsent."""

from dataclasses import replace

import pytest

from shared.models import (
    CANCEL,
    CANCELLED,
    PAST_DEADLINE,
    TOO_OLD_CODE,
    BatchState,
    DueKind,
    ErrorDetail,
    JobControl,
    Wait,
)
from shared.pacing.breaker import Pause, PauseReason, Permit
from shared.retry import MAX_CLAIMS, MAX_SECONDS_TO_ACCEPTANCE
from shared.workers_ai.client import TokenState
from tests.support.doubles.ledger_items import M2M, REASON, SPLIT, SUBMITTING, T
from tests.support.doubles.submitting import BODY, DUE, FIRST_ASK

OVER = JobControl("v", cancelled=CANCEL)
PAUSED = JobControl("v", held_since=T - 60)
DAY = 86_400


# ── what is sent ──────────────────────────────────────────────────────────────────────────────────
def test_batch_is_sent_under_outlasting_lease(begin):
    at = begin(replace(DUE, attempt=4, claims=2))

    at.run()

    assert at.posts == [(M2M, BODY, 60.0)]
    assert at.at_post == replace(
        DUE,
        state=BatchState.SUBMITTING,
        attempt=5,
        claims=3,
        fence=T + 230,
        due_at=T + 230,
        work=DueKind.POLL,
    )
    assert at.batch.state is BatchState.QUEUED


def test_two_with_one_deadline_have_leases_of_their_own(begin, monkeypatch):
    """Whose claim's answer was lost undoes the claim of this lease, and must not find another's."""
    fences = []
    for own in (0.25, -0.25):
        at = begin()
        monkeypatch.setattr("random.uniform", lambda *_, own=own: own)
        at.run()
        fences.append(at.at_post.fence)

    assert fences == [T + 230.25, T + 229.75]


@pytest.mark.parametrize(("work", "first"), [(DueKind.FIRST, True), (DueKind.SUBMIT, False)])
def test_first_batch_of_job_takes_reserved_tokens(begin, work, first):
    at = begin(replace(DUE, work=work))

    at.run()

    assert at.budget_calls[0] == ("permit", M2M, T, first)


@pytest.mark.parametrize(("left", "asks"), [(104.9, False), (105.0, False), (105.1, True)])
def test_nothing_begins_without_time_for_outcome(begin, left, asks):
    at = begin()
    at.ends = T + left

    at.run()

    assert bool(at.budget_calls) is asks
    assert (at.batch.state is BatchState.QUEUED) is asks


@pytest.mark.parametrize(("left", "sent"), [(105.0, True), (104.5, False)])
def test_batch_whose_reading_took_too_long_stays_due(begin, left, sent):
    at = begin()
    at.read_takes, at.ends = 16.0, T + 16.0 + left

    at.run()

    assert bool(at.posts) is sent
    assert (at.batch == DUE) is not sent


def test_late_post_ends_in_time_for_outcome(begin, monkeypatch):
    at = begin()
    at.ends = T + 110
    real = at.ledger.begin_submit
    monkeypatch.setattr(
        at.ledger,
        "begin_submit",
        lambda *given, **told: (real(*given, **told), at.pass_time(20))[0],
    )

    at.run()

    assert [seconds for _, _, seconds in at.posts] == [110 - 20 - 45]


def test_batch_taken_by_another_is_not_sent(begin, monkeypatch):
    at = begin()
    monkeypatch.setattr(at.services.times, "first_poll", lambda *_: at.settle_elsewhere())

    at.run()

    assert at.posts == []
    assert at.batch.attempt == 9


@pytest.mark.parametrize(
    ("left", "reading", "wait"),
    [
        (None, 0, FIRST_ASK),
        (FIRST_ASK + 1, 0, FIRST_ASK),
        (20.0, 0, 20.0),
        (20.0, 5, 15.0),
        (3.0, 5, 0.0),
    ],
    ids=["no deadline", "a later one", "an earlier one", "when it is sent", "over when it is sent"],
)
def test_first_poll_is_not_after_deadline(begin, monkeypatch, left, reading, wait):
    at = begin(deadline_at=None if left is None else T + left)
    real = at.ledger.job
    monkeypatch.setattr(at.ledger, "job", lambda job_id: (real(job_id), at.pass_time(reading))[0])

    at.run()

    assert at.batch.due_at == T + reading + wait


@pytest.mark.parametrize("gone", ["job_item", "item"])
def test_message_for_what_is_not_there_is_ignored(begin, gone, caplog):
    at = begin()
    getattr(at, gone).remove()

    at.run()

    assert at.posts == at.messages == at.budget_calls == []
    assert "message for an unknown batch" in caplog.text


@pytest.mark.parametrize(
    "batch",
    [
        replace(DUE, state=BatchState.QUEUED, work=DueKind.POLL),
        replace(SUBMITTING, fence=T + 1),
        SPLIT,
        replace(DUE, ending=REASON, work=DueKind.POLL),
        replace(DUE, ending=REASON, state=BatchState.DONE, work=None, due_at=None),
    ],
    ids=["polled", "being submitted", "being split", "ending", "over"],
)
def test_batch_not_waiting_for_submit_is_left_alone(begin, batch):
    batch = replace(batch, due_at=batch.due_at and T + 5)  # a write would bring it forward
    at = begin(batch, control=OVER)

    at.run()

    assert at.batch == batch
    assert at.posts == []
    assert at.messages == []


STOPPED = "Not sent, because the job was stopped: "
OLD = replace(DUE, created_at=T - MAX_SECONDS_TO_ACCEPTANCE, paused=0.0)
OLDER = replace(OLD, created_at=OLD.created_at - 1)
IN_VAIN = "Dropbatch could not submit this batch; see the submit function's log."
NOT_TAKEN = "Workers AI did not accept this request within 7 days."
TOLD = ErrorDetail("rejected", f"{STOPPED}the reason", "key")
UNSENT = {
    "the job's error": ({"error": replace(REASON, said="key")}, DUE, TOLD),
    "the job is too old": (
        {"error": TOO_OLD_CODE},
        DUE,
        ErrorDetail("expired", STOPPED + TOO_OLD_CODE.message),
    ),
    "its deadline": ({"deadline_at": T}, DUE, PAST_DEADLINE),
    "before its deadline": ({"deadline_at": T + 1}, DUE, None),
    "cancelled": ({"control": OVER}, DUE, CANCELLED),
    "not cancelled": ({"control": replace(OVER, cancelled="")}, DUE, None),
    "claimed too often": (
        {},
        replace(DUE, claims=MAX_CLAIMS + 1),
        ErrorDetail("internal", IN_VAIN),
    ),
    "claimed often": ({}, replace(DUE, claims=MAX_CLAIMS), None),
    "waits a week": ({}, OLD, None),
    "waits longer": ({}, OLDER, ErrorDetail("expired", NOT_TAKEN)),
    "paused meanwhile": ({}, replace(OLDER, paused=1.0), None),
}


@pytest.mark.parametrize("why", UNSENT)
def test_batch_ends_unsent_for_own_or_job_reason(begin, why):
    job, batch, ending = UNSENT[why]
    at = begin(batch, **job)

    at.run()

    assert at.batch.ending == ending
    assert bool(at.posts) is (ending is None)


# ── what waits ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("batch", "deadline", "changes"),
    [
        (DUE, None, {"due_at": T + DAY, "paused": DAY, "held": True}),
        (DUE, T + 60, {"due_at": T + 60, "paused": 60.0, "held": True}),
        (replace(OLD, created_at=0.0), None, {"due_at": T + DAY, "paused": DAY, "held": True}),
    ],
    ids=["a day", "until the deadline", "however long it has waited"],
)
def test_batch_of_paused_job_is_put_off(begin, batch, deadline, changes):
    at = begin(batch, control=PAUSED, deadline_at=deadline)

    at.run()

    assert at.batch == replace(batch, **changes)
    assert at.posts == at.budget_calls == at.messages == []


@pytest.mark.parametrize(
    ("batch", "paused", "changes"),
    [
        (DUE, False, {"due_at": T + 40}),
        (
            replace(DUE, created_at=T - 60, claims=3),
            True,
            {"due_at": T + 40, "paused": 42.0, "claims": 0},
        ),
        (replace(DUE, ready_at=T - 900), True, {"due_at": T + 40, "paused": 42.0}),
    ],
    ids=["for a token", "in a pause", "anew, in a pause"],
)
def test_batch_without_permit_waits(begin, batch, paused, changes):
    at = begin(batch)
    at.permit = Wait(T + 40, "model_busy" if paused else "")

    at.run()

    assert at.batch == replace(batch, **changes)
    assert at.posts == []


def probe(reason, step=15.0):
    """A permit to try whether a pause is over."""
    return Permit(Pause(reason, "nonce", T - 60, T, step))


@pytest.mark.parametrize(("step", "wait"), [(15.0, 30.0), (149.0, 298.0)])
def test_silent_api_gets_no_submits(begin, step, wait):
    """Nothing is sent while even the free call gets no answer; it is tried ever less often."""
    at = begin()
    at.permit, at.token = probe(PauseReason.OUTAGE, step), TokenState.UNKNOWN

    at.run()

    assert at.posts == []
    assert at.budget_calls[1:] == [("pause", PauseReason.OUTAGE, T, "no answer", at.permit)]
    assert T + 2 <= at.batch.due_at <= T + 3  # When the pause is lifted.
    assert at.batch == replace(DUE, due_at=at.batch.due_at, paused=at.batch.due_at - T)
    assert at.left.earliest() == T + wait


@pytest.mark.parametrize(
    ("reason", "token"),
    [
        (PauseReason.OUTAGE, TokenState.GOOD),
        (PauseReason.OUTAGE, TokenState.REFUSED),
        (PauseReason.QUOTA_SPENT, TokenState.UNKNOWN),
        (PauseReason.TOKEN_REFUSED, TokenState.UNKNOWN),
    ],
)
def test_any_other_probe_is_submit(begin, reason, token):
    at = begin()
    at.permit, at.token = probe(reason), token

    at.run()

    assert len(at.posts) == 1
    assert at.budget_calls[1:] == [("lift", at.permit, M2M)]
