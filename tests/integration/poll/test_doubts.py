"""A reply that may be wrong: how often and how long until it is believed, and what follows."""

from dataclasses import replace

import pytest

from functions.poll import doubts
from functions.poll.doubts import LONG_DOUBT_SECONDS, LOST, NO_CAPACITY, Kind
from shared.models import PAST_DEADLINE, BatchState, Doubt, ErrorDetail
from shared.workers_ai.replies import (
    Accepted,
    Failed,
    NoAnswers,
    OutcomeUnknown,
    Pending,
    Rejected,
    Unreadable,
)
from tests.support.doubles.ledger_items import T
from tests.support.doubles.polled_batch import COMPLETE, NEXT_POLL

MINUTE = 60.0
OTHER_ID = "another id"


def rejected(status, code=None, *, enveloped=True):
    return Rejected(status, code, "its words", enveloped=enveloped)


UNKNOWN = rejected(404, 7404)
FAILS = rejected(500, 3030)
WITHDRAWN = rejected(400, 5028)

TABLE = {
    "no answers": (NoAnswers(), "no answers", 5, 15 * MINUTE, "missing_response"),
    "unreadable": (Unreadable(), "unreadable", 5, 15 * MINUTE, "divided"),
    "failed by its status": (Failed(None, "said"), "failed", 5, MINUTE, "divided"),
    "failed with a code": (FAILS, "failed 3030", 5, MINUTE, "divided"),
    "failed with a client's status": (rejected(400, 3030), "failed 3030", 5, MINUTE, "divided"),
    "the event's code": (rejected(200, 5001), "failed 5001", 5, MINUTE, "divided"),
    "refused": (rejected(400, 5006), "refused 5006", 5, MINUTE, "divided"),
    "refused by a server": (
        *(rejected(500, 5006), "refused by a server 5006"),
        *(5, 15 * MINUTE, "divided"),
    ),
    "no capacity": (rejected(429, 3040), "no capacity 3040", 5, 15 * MINUTE, "submitted"),
    "failed for capacity": (Failed(3040, ""), "failed 3040", 5, MINUTE, "submitted"),
    "failed for the model's capacity": (Failed(3050, ""), "failed 3050", 5, MINUTE, "submitted"),
    "withdrawn": (WITHDRAWN, "withdrawn 5028", 2, 2.0, "rejected"),
}


def outcome(batch):
    if batch.isolating:
        return "divided"
    if batch.ending:
        return batch.ending.code
    return "submitted" if batch.state is BatchState.READY else "polled"


@pytest.mark.parametrize("name", TABLE)
@pytest.mark.parametrize(
    ("fewer", "sooner", "believed"),
    [(0, 0.0, True), (1, 0.0, False), (0, 1.0, False)],
    ids=["in time", "too few", "too soon"],
)
def test_reply_is_believed_after_so_many_polls(polled, name, fewer, sooner, believed):
    reply, kind, times, seconds, follows = TABLE[name]
    before = Doubt(kind, T - seconds + sooner, times - 1 - fewer)
    one = polled(doubt=before if before.times else None)

    one.polled(reply)

    assert outcome(one.now) == (follows if believed else "polled")
    if not believed and before.times:
        assert one.now.doubt == replace(before, times=before.times + 1)
        assert T < one.now.due_at <= T + 2 * MINUTE


@pytest.mark.parametrize("name", TABLE)
def test_another_kind_of_doubt_begins_anew(polled, name):
    reply, kind, *_ = TABLE[name]
    one = polled(doubt=Doubt("something else", T - 3_600, 20))

    one.polled(reply)

    assert one.now.doubt == Doubt(kind, T)


@pytest.mark.parametrize("reply", [Pending("running"), Accepted("id"), COMPLETE])
def test_known_reply_ends_doubt(polled, reply):
    one = polled(doubt=Doubt("failed 3030", T - 3_600, 20))

    one.polled(reply)

    assert one.now.doubt is None or one.now.part
    assert one.services.known.answered_at() == T


@pytest.mark.parametrize(
    "reply",
    [OutcomeUnknown(""), rejected(502), rejected(404, enveloped=False), rejected(400, 2005)],
)
def test_no_answer_is_never_believed(polled, reply):
    doubt = Doubt("failed 3030", T - 30, 2)
    one = polled(doubt=doubt, calls_fail_since=T - 86_400)

    one.polled(reply)

    assert (outcome(one.now), one.now.doubt) == ("polled", doubt)
    assert one.now.calls_fail_since == T - 86_400


LONG_UNKNOWN = Doubt(Kind.UNKNOWN_ID, T - LONG_DOUBT_SECONDS, 4)


@pytest.mark.parametrize(
    ("answered", "setting", "follows"),
    [
        (None, "resubmit", "polled"),
        (LONG_UNKNOWN.since - 1, "resubmit", "polled"),
        (T - MINUTE, "resubmit", "submitted"),
        (T - MINUTE, "fail", "expired"),
    ],
    ids=["alone", "before", "meanwhile", "meanwhile, not sent again"],
)
def test_unknown_id_is_lost_if_another_was_answered_meanwhile(polled, answered, setting, follows):
    one = polled(doubt=LONG_UNKNOWN)
    one.doubles.ambiguous_submit = setting
    if answered is not None:
        one.services.known.note(answered, pending=True)

    one.polled(UNKNOWN)

    batch = one.now
    assert outcome(batch) == follows
    if follows == "submitted":
        assert batch.due_at == T
        assert (batch.given_up, batch.submission) == (0, one.seen.submission)
    if follows == "expired":
        assert batch.ending == LOST


def test_answer_that_comes_after_the_poll_proves_nothing(polled):
    """The route begins to work again between the two."""
    one = polled(doubt=LONG_UNKNOWN)
    real = one.doubles.poll

    def answers_meanwhile(*asked):
        one.services.known.note(T, pending=True)
        return real(*asked)

    one.doubles.poll = answers_meanwhile
    one.polled(UNKNOWN)

    assert outcome(one.now) == "polled"


# ── a failure of several ──────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("at", "kind", "shared"),
    [(T - 10, "failed 3030", True), (T - 90, "failed 3030", False), (T - 10, "failed 5001", False)],
    ids=["the same", "before", "another"],
)
def test_same_failure_of_another_id_speaks_for_an_outage(polled, at, kind, shared):
    one = polled(doubt=Doubt("failed 3030", T - MINUTE, 4))
    one.services.known.note_failed(kind, OTHER_ID, at)

    one.polled(FAILS)

    assert outcome(one.now) == ("polled" if shared else "divided")
    if shared:
        assert one.now.doubt.is_shared


@pytest.mark.parametrize(
    ("kind", "reply", "follows"),
    [("failed 3030", FAILS, "divided"), ("no capacity 3040", rejected(429, 3040), "polled")],
)
def test_outage_is_believed_after_a_quarter_of_an_hour_unless_of_capacity(
    polled, kind, reply, follows
):
    one = polled(doubt=Doubt(kind, T - LONG_DOUBT_SECONDS, 9, is_shared=True))

    one.polled(reply)

    assert outcome(one.now) == follows


@pytest.mark.parametrize(
    ("suspected", "believed"), [("3030", True), ("5001", False), ("", False)], ids=str
)
def test_piece_that_fails_as_the_whole_did_is_judged_at_once(polled, suspected, believed):
    one = polled(doubt=Doubt("failed 3030", T - 5, 1), suspected=suspected)
    one.services.known.note_failed("failed 3030", OTHER_ID, T)

    one.polled(FAILS)

    assert outcome(one.now) == ("divided" if believed else "polled")


def test_single_record_that_fails_ends(polled):
    one = polled(doubt=Doubt("failed 3030", T - MINUTE, 4), sendable=1, requests=1)

    one.polled(FAILS)

    assert (one.now.ending.code, one.now.cause) == ("rejected", "3030")


# ── how often it is submitted ─────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("given_up", "unknowable"), [(2, 0), (1, 1), (0, 2)])
def test_third_submit_is_the_last(polled, given_up, unknowable):
    one = polled(
        doubt=Doubt("failed 3040", T - MINUTE, 4), given_up=given_up, unknowable=unknowable
    )

    one.polled(Failed(3040, ""))

    assert one.now.ending == NO_CAPACITY


@pytest.mark.parametrize("is_full", [False, True])
@pytest.mark.parametrize("reply", [Pending(""), UNKNOWN, rejected(500, 3007)], ids=str)
def test_overdue_batch_is_submitted_again(polled, reply, is_full):
    """Of a full model too: it gives up its own place, and a model full of such stays full."""
    one = polled()
    one.doubles.batch_deadline_hours = 0.01
    one.services.budget.note_outstanding(9, [one.job.plan.model] if is_full else [])

    assert not one.polled(reply)

    assert (outcome(one.now), one.now.due_at) == ("submitted", T)


@pytest.mark.parametrize(
    ("job", "batch", "ending"),
    [
        ({"deadline_at": T}, {}, PAST_DEADLINE),
        ({}, {"given_up": 2}, doubts.LATE),
        ({}, {"partial_replies": ("key",)}, doubts.LATE),
        ({"error": ErrorDetail("a", "b")}, {}, doubts.LATE),
    ],
    ids=["the job's deadline", "three submits", "has items", "a job that ends"],
)
def test_overdue_batch_ends(polled, monkeypatch, job, batch, ending):
    monkeypatch.setattr(doubts, "collect", lambda *_: False)
    one = polled(job, **batch)
    one.doubles.batch_deadline_hours = 0.01

    one.polled(Pending(""))

    assert one.now.ending == ending


@pytest.mark.parametrize("held", [True, False])
def test_batch_that_cannot_be_sent_now_is_polled_on(polled, monkeypatch, held):
    one = polled()
    one.doubles.batch_deadline_hours = 0.01
    monkeypatch.setattr(doubts, "_can_send", lambda *_: not held)

    one.polled(Pending(""))

    assert outcome(one.now) == ("polled" if held else "submitted")
    assert not held or one.now.due_at == T + NEXT_POLL


def test_withdrawn_model_ends_the_job(polled):
    one = polled(doubt=Doubt("withdrawn 5028", T - 3, 1))

    one.polled(WITHDRAWN)

    job = one.services.ledger.job(one.job.job_id)
    assert job.error.code == "unknown_model"
    assert one.now.ending == ErrorDetail("rejected", job.error.message)
