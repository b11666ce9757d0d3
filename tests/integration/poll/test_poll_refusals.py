"""Polls that bring neither an answer nor "pending".

Which replies are believed at once, and what the others count.
"""

from dataclasses import replace

import pytest

from functions.poll.doubts import LATE
from shared.models import (
    PAST_DEADLINE,
    BatchState,
    ErrorDetail,
    Isolation,
    LastingError,
    Submission,
)
from shared.pacing.breaker import PauseReason, Permit
from shared.workers_ai import lasting_errors
from shared.workers_ai.replies import (
    Failed,
    NoAnswers,
    OutcomeUnknown,
    Pending,
    Rejected,
    Unreadable,
)
from tests.support.doubles.ledger_items import T
from tests.support.doubles.polled_batch import ACCEPTED, COMPLETE

DAY = 86_400
LATEST = Submission("id", 2, ACCEPTED)
EARLIER = Submission("earlier", 1, T - 9_000)
EARLIER_IS_POLLED = {"attempt": 2, "polls": 1, "polls_settled": 1}
LATE_SINCE = Submission("id", 1, T - DAY - 1)

REFUSED = Rejected(400, 5006, "", enveloped=True)
REFUSED_WITHOUT_CODE = Rejected(400, None, "", enveloped=True)
FAILED_EXECUTION = Rejected(500, 5001, "", enveloped=True)
GUARDRAIL = Rejected(424, 2017, "", enveloped=True)
NO_SUCH_MODEL = Rejected(400, 5007, "", enveloped=True)
SERVER_ERROR = Rejected(500, 10013, "", enveloped=True)
NO_CREDITS = Rejected(402, 2021, "no credits", enveloped=True)
UNKNOWN_CODE = Rejected(409, 424242, "odd", enveloped=True)
SERVER_ERROR_WITHOUT_CODE = Rejected(500, None, "", enveloped=True)
TIMED_OUT = Rejected(499, 3008, "", enveloped=True)
PROXY = Rejected(503, None, "")
UNKNOWN_ID = Rejected(404, 8001, "", enveloped=True)
BAD_TOKEN = Rejected(401, 10000, "", enveloped=True)
BAD_TOKEN_WITHOUT_CODE = Rejected(401, None, "", enveloped=True)
SLOW_DOWN = Rejected(429, 971, "", 100.0, enveloped=True)
FAILED_AS_REJECTED = Rejected(500, 3030, "", enveloped=True)
FAILED_WITH_ERROR = Rejected(400, 3030, "", enveloped=True)
REFUSED_BY_SERVER = Rejected(502, 5006, "", enveloped=True)
FAILED = Failed(3030, "")
PERHAPS_FAILED = Failed(3030, "", enveloped=False)
PERHAPS_FAILED_WITHOUT_CODE = Failed(None, "", enveloped=False)
NO_ANSWER = OutcomeUnknown("")

each_doubted_reply = pytest.mark.parametrize(
    ("reply", "code"),
    [
        (REFUSED, 5006),
        (GUARDRAIL, 2017),
        (PERHAPS_FAILED, 3030),
        (PERHAPS_FAILED_WITHOUT_CODE, 0),
    ],
)


# ── replies that are believed when several say the same ───────────────────────────────────────────


@each_doubted_reply
def test_doubted_reply_is_counted_by_its_code(polled, reply, code):
    one = polled(claims=1, misses=3)

    assert not one.polled(reply)
    now = one.now
    assert (now.state, now.due_at, now.claims) == (BatchState.QUEUED, T + 15, 2)
    assert (now.failures, now.failing_code, now.failing_at, now.misses) == (1, code, T, 0)


@pytest.mark.parametrize(
    ("before", "failures", "since"),
    [
        ({"failures": 2, "failing_code": 5006}, 3, T - 500),
        ({"failures": 2, "failing_code": 5004}, 1, T),
        ({"failures": 0, "failing_code": 5006}, 1, T),
    ],
    ids=["the same", "another code", "none since"],
)
def test_only_equal_consecutive_replies_add_up(polled, before, failures, since):
    one = polled(failing_at=T - 500, **before)

    one.polled(REFUSED)

    assert (one.now.failures, one.now.failing_at) == (failures, since)


@each_doubted_reply
@pytest.mark.parametrize(
    ("before", "sooner", "believed"), [(4, 0, True), (3, 0, False), (4, 0.5, False)]
)
def test_doubted_reply_is_confirmed_the_fifth_time(polled, reply, code, before, sooner, believed):
    one = polled(failures=before, failing_code=code, failing_at=T - 60 + sooner)

    one.polled(reply)

    assert one.now.failures == before + (not believed)
    assert (one.now.state is BatchState.QUEUED) is not believed


@pytest.mark.parametrize("reply", [REFUSED, GUARDRAIL, PERHAPS_FAILED])
def test_confirmed_failure_is_isolated(polled, reply):
    one = polled(failures=4, failing_code=reply.code, failing_at=T - 60)

    assert not one.polled(reply)
    assert (one.now.state, one.now.cause, one.now.due_at) == (
        BatchState.READY,
        f"{reply.code} after acceptance",
        T,
    )
    assert one.now.isolating.message == (
        f"Workers AI accepted this request and then failed it ({reply.code})"
    )


def test_no_cause_is_believed_for_having_been_seen_before(polled):
    """What refuses another batch of the job, or even fails it.

    Proves nothing of one that is paid for.
    """
    one = polled({"isolation": Isolation(causes={"5006": "all", "5006 after acceptance": "all"})})

    one.polled(REFUSED)

    assert (one.now.failures, one.now.isolating) == (1, None)


@pytest.mark.parametrize(("before", "reply"), [(-5006, REFUSED), (5006, REFUSED_BY_SERVER)])
def test_failures_with_status_of_a_server_are_counted_apart(polled, before, reply):
    """An outage's replies are no proof that one of another kind is right."""
    one = polled(failures=4, failing_code=before, failing_at=T - 240)

    one.polled(reply)

    assert (one.now.failures, one.now.failing_code, one.now.isolating) == (1, -before, None)


each_server_failure = pytest.mark.parametrize(
    "reply", [FAILED_EXECUTION, FAILED_AS_REJECTED, REFUSED_BY_SERVER]
)


@each_server_failure
@pytest.mark.parametrize(
    ("before", "since", "believed"), [(4, 900, True), (3, 900, False), (4, 899.5, False)]
)
def test_failure_with_status_of_a_server_is_believed_after_fifteen_minutes(
    polled, reply, before, since, believed
):
    """Until then the API itself may be what fails, for every batch."""
    one = polled(failures=before, failing_code=-reply.code, failing_at=T - since)

    assert not one.polled(reply)
    assert (one.now.isolating is not None) is believed


@each_server_failure
@pytest.mark.parametrize(
    ("since", "pending_at", "believed"),
    [(60, T - 29, True), (60, T - 30, False), (59.5, T - 29, False)],
)
def test_failure_is_believed_sooner_if_another_id_is_answered_meanwhile(
    polled, reply, since, pending_at, believed
):
    one = polled(failures=4, failing_code=-reply.code, failing_at=T - since)
    one.services.ledger.create_batch(replace(one.seen, number="00000077", pending_at=pending_at))

    assert not one.polled(reply)
    assert (one.now.isolating is not None) is believed


@each_server_failure
def test_known_cause_is_no_proof_with_status_of_a_server(polled, reply):
    one = polled({"isolation": Isolation(causes={f"{reply.code} after acceptance": ""})}, claims=1)

    assert not one.polled(reply)
    now = one.now
    assert (now.isolating, now.failures, now.failing_code, now.due_at) == (
        None,
        1,
        -reply.code,
        T + 15,
    )
    assert now.claims == 0, "not a claim: it is believed, or ends with its deadline"


def test_unreadable_answer_is_not_believed_sooner_for_another_id(polled):
    """The next poll may get it whole, and it is paid for."""
    one = polled(failures=4, failing_code=200, failing_at=T - 60)
    one.services.ledger.create_batch(replace(one.seen, number="00000077", pending_at=T - 29))

    assert not one.polled(Unreadable())
    assert (one.now.isolating, one.now.failures) == (None, 5)


@pytest.mark.parametrize("reply", [FAILED_EXECUTION, NoAnswers()])
def test_overdue_batch_is_submitted_again_while_its_failure_is_doubted(polled, reply):
    one = polled(submissions=(LATE_SINCE,))

    assert not one.polled(reply)
    assert (one.now.state, one.now.isolating, len(one.doubles.sent)) == (BatchState.READY, None, 1)


@pytest.mark.parametrize("reply", [FAILED_EXECUTION, NoAnswers(), UNKNOWN_ID])
def test_deadline_of_job_ends_batch_while_its_failure_is_doubted(polled, reply):
    one = polled({"deadline_at": T})

    assert one.polled(reply)
    assert one.now.ending == PAST_DEADLINE


@pytest.mark.parametrize("reply", [FAILED, FAILED_WITH_ERROR])
def test_failed_batch_is_believed_immediately(polled, reply):
    one = polled()

    assert not one.polled(reply)
    assert (one.now.state, one.now.cause) == (BatchState.READY, "3030 after acceptance")


# ── no answer ─────────────────────────────────────────────────────────────────────────────────────


REFUSALS = [
    *(TIMED_OUT, SERVER_ERROR, SERVER_ERROR_WITHOUT_CODE, REFUSED_WITHOUT_CODE),
    *(NO_SUCH_MODEL, NO_CREDITS, UNKNOWN_CODE),
]


@pytest.mark.parametrize("reply", REFUSALS, ids=lambda one: f"{one.status}-{one.code}")
@pytest.mark.parametrize(("age", "wait"), [(100, 50), (4, 5), (4_000, 900)])
def test_code_that_says_nothing_of_batch_ends_nothing(polled, reply, age, wait):
    """However often it comes: five times are as good as one."""
    before = {
        "failures": 4,
        "failing_code": reply.code or reply.status,
        "failing_at": T - 900,
        "claims": 19,
    }
    one = polled(submissions=(Submission("id", 1, T - age),), **before)

    assert not one.polled(reply)
    now = one.now
    assert (now.state, now.due_at, now.calls_fail_since) == (BatchState.QUEUED, T + wait, T)
    assert (now.claims, now.isolating, now.failures) == (0, None, 4), (
        "not a claim: it ends with its deadline"
    )
    assert one.services.ledger.job(one.job.job_id).error is None


@pytest.mark.parametrize("reply", [NO_ANSWER, PROXY])
@pytest.mark.parametrize(("age", "wait"), [(100, 50), (4, 5), (1_000, 180)])
def test_no_answer_halves_wait_and_counts_claim(polled, reply, age, wait):
    one = polled(claims=1, submissions=(Submission("id", 1, T - age),))

    assert not one.polled(reply)
    now = one.now
    assert (now.state, now.due_at, now.claims, now.calls_fail_since) == (
        BatchState.QUEUED,
        T + wait,
        2,
        T,
    )
    assert (now.failures, now.misses) == (0, 0)


def test_unanswered_earlier_id_is_polled_soon(polled):
    one = polled(submissions=(EARLIER, LATEST), **EARLIER_IS_POLLED)

    one.polled(NO_ANSWER)

    assert (one.now.due_at, one.now.submissions) == (T + 15, (EARLIER, LATEST))


@pytest.mark.parametrize(
    ("reply", "noted"),
    [
        (NO_ANSWER, {"code": 0}),
        (PROXY, {"code": 503}),
        (TIMED_OUT, {"code": 3008, "refused": True}),
        (NO_CREDITS, {"code": 2021, "refused": True, "message": "no credits"}),
    ],
)
def test_long_unanswered_calls_are_noted_in_job(polled, reply, noted):
    since = T - lasting_errors.NOTED_AFTER_SECONDS - 1
    one = polled(calls_fail_since=since)

    one.polled(reply)

    assert one.services.ledger.job(one.job.job_id).lasting_error == LastingError(
        since=since, at=T, polling=True, **noted
    )


@pytest.mark.parametrize("reply", [NO_ANSWER, PROXY])
@pytest.mark.parametrize(
    ("deadline", "since", "ends"),
    [(T, 900, True), (T + 1, 900, False), (T, 899, False)],
    ids=["long", "not yet past", "not for long"],
)
def test_deadline_of_job_ends_batch_whose_polls_fail_for_long(polled, reply, deadline, since, ends):
    one = polled({"deadline_at": deadline}, calls_fail_since=T - since)

    assert one.polled(reply) is ends
    assert (one.now.ending, one.doubles.sent) == (PAST_DEADLINE if ends else None, [])


@pytest.mark.parametrize(
    ("reply", "accepted", "again"),
    [
        (TIMED_OUT, LATE_SINCE, True),
        (SERVER_ERROR_WITHOUT_CODE, LATE_SINCE, True),
        (UNKNOWN_CODE, LATE_SINCE, True),
        (NO_SUCH_MODEL, LATE_SINCE, True),
        (TIMED_OUT, replace(LATE_SINCE, at=T - DAY), False),
        (PROXY, LATE_SINCE, False),
        (NO_ANSWER, LATE_SINCE, False),
    ],
    ids=[
        "a timeout",
        "an error without a code",
        "an unknown code",
        "a model",
        "not overdue",
        "not the API's",
        "no reply",
    ],
)
def test_overdue_batch_is_resubmitted_without_answer(polled, reply, accepted, again):
    one = polled(submissions=(accepted,))

    assert not one.polled(reply)
    assert len(one.doubles.sent) == again
    assert one.now.state is (BatchState.READY if again else BatchState.QUEUED)


def test_overdue_batch_not_resubmitted_ends_late(polled):
    one = polled(submissions=(LATE_SINCE,))
    one.doubles.ambiguous_submit = "fail"

    assert one.polled(TIMED_OUT)
    assert (one.now.state, one.now.ending) == (BatchState.DONE, LATE)


@pytest.mark.parametrize(("since", "ends"), [(T - 9, False), (T - DAY - 9, True)])
@pytest.mark.parametrize(
    "reply", [Pending("running"), SERVER_ERROR, UNKNOWN_CODE], ids=lambda one: type(one).__name__
)
def test_overdue_id_is_polled_on_after_unknown_submits(polled, reply, since, ends):
    """Its second submits may have failed because of an outage, and its answer still comes."""
    unknown = ErrorDetail("submit_unknown", "")
    one = polled(
        submissions=(replace(LATE_SINCE, at=T - 3 * DAY),),
        ready_at=since,
        unknowable=2,
        ending_if_unanswered=unknown,
    )

    assert one.polled(reply) is ends
    assert one.now.ending == (unknown if ends else None)


# ── earlier ids ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "reply", [REFUSED, PERHAPS_FAILED, FAILED_EXECUTION, FAILED_AS_REJECTED, NoAnswers()]
)
@pytest.mark.parametrize(
    ("misses", "early", "given_up"), [(4, 0, True), (3, 0, False), (4, 0.5, False), (0, 0, False)]
)
def test_earlier_id_is_given_up_by_its_own_count(polled, reply, misses, early, given_up):
    """The latest id's count stays: it alone decides what becomes of the batch.

    The misses may be errors of a server.
    """
    since = 900 - early
    earlier = replace(EARLIER, misses=misses, missed_at=T - since)
    latest = {
        "failures": 4,
        "failing_code": 3030,
        "failing_at": T - 60,
        "misses": 4,
        "missed_at": T - 60,
    }
    one = polled(submissions=(earlier, LATEST), **EARLIER_IS_POLLED, **latest)

    assert not one.polled(reply)
    now = one.now
    counted = replace(
        earlier, misses=misses + 1, missed_at=T - since if misses else T, given_up=given_up
    )
    assert now.submissions == (counted, LATEST)
    assert (now.state, now.due_at, now.claims) == (BatchState.QUEUED, T + 15, 1)
    assert (now.failures, now.misses) == (4, 4)


def test_one_refusal_after_errors_of_a_server_gives_up_no_earlier_id(polled):
    earlier = replace(EARLIER, misses=4, missed_at=T - 60)
    one = polled(submissions=(earlier, LATEST), **EARLIER_IS_POLLED)

    assert not one.polled(REFUSED)
    assert one.now.pollable == one.now.submissions


def test_earlier_id_with_unknown_code_is_kept(polled):
    one = polled(
        submissions=(replace(EARLIER, misses=4, missed_at=T - 60), LATEST), **EARLIER_IS_POLLED
    )

    assert not one.polled(UNKNOWN_CODE)
    assert (one.now.due_at, len(one.now.pollable)) == (T + 15, 2)


def test_refused_polls_end_with_deadline_of_job(polled):
    one = polled({"deadline_at": T - 1})

    assert one.polled(UNKNOWN_CODE)
    assert one.now.ending == ErrorDetail("expired", "The job's deadline_hours were over.")


def test_failed_earlier_id_is_given_up(polled):
    one = polled(submissions=(EARLIER, LATEST), **EARLIER_IS_POLLED)

    assert not one.polled(FAILED)
    assert one.now.submissions == (replace(EARLIER, misses=1, missed_at=T, given_up=True), LATEST)
    assert one.now.state is BatchState.QUEUED


def test_earlier_id_is_polled_on_when_the_latest_fails(polled):
    one = polled(submissions=(EARLIER, LATEST), attempt=2)

    assert not one.polled(FAILED)
    now = one.now
    assert (now.state, now.isolating, now.failing_code) == (BatchState.QUEUED, None, 3030)
    assert (now.pollable, now.due_at) == ((EARLIER,), T + 15)


@pytest.mark.parametrize(
    ("deadline_at", "latest"),
    [(None, LATE_SINCE), (T, LATEST)],
    ids=["overdue", "past the job's deadline"],
)
def test_earlier_id_holds_up_no_failure_when_the_time_is_over(polled, deadline_at, latest):
    one = polled({"deadline_at": deadline_at}, submissions=(EARLIER, latest), attempt=2)

    assert not one.polled(FAILED)
    assert one.now.isolating is not None


def test_earlier_id_that_was_given_up_holds_up_no_failure(polled):
    one = polled(submissions=(replace(EARLIER, given_up=True), LATEST), attempt=2)

    assert not one.polled(FAILED)
    assert one.now.isolating is not None


def test_unknown_earlier_id_is_given_up_if_the_latest_failed(polled):
    earlier = replace(EARLIER, misses=4, missed_at=T - 900)
    one = polled(submissions=(earlier, replace(LATEST, given_up=True)), attempt=2)

    assert not one.polled(UNKNOWN_ID)
    assert [each.given_up for each in one.now.submissions] == [True, True]
    assert one.now.pollable == one.now.submissions[-1:]


@pytest.mark.parametrize(
    "reply", [UNKNOWN_ID, NoAnswers(), FAILED_AS_REJECTED, NO_ANSWER, UNKNOWN_CODE]
)
def test_earlier_id_that_alone_is_polled_uses_up_no_claims_by_frequent_polls(polled, reply):
    """Twenty claims within minutes would raise an alarm.

    And then each poll would wait for an hour.
    """
    earlier = replace(EARLIER, misses=5, missed_at=T - 75)
    one = polled(submissions=(earlier, replace(LATEST, given_up=True)), attempt=2, claims=6)

    assert not one.polled(reply)
    assert one.now.due_at >= T + 180


# ── pauses ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("reply", "code"), [(BAD_TOKEN, "10000"), (BAD_TOKEN_WITHOUT_CODE, "401")])
def test_refused_token_pauses_calls_and_clock(polled, reply, code):
    one = polled(paused=5.0)

    assert not one.polled(reply)
    pause = one.services.budget.controls().pause
    assert (pause.reason, pause.since, pause.code) == (PauseReason.TOKEN_REFUSED, T, code)
    assert (one.now.due_at, one.now.paused, one.now.claims) == (T + 60, 65.0, 0)


def test_too_many_calls_hold_calls_and_clock(polled):
    one = polled(paused=5.0)

    assert not one.polled(SLOW_DOWN)
    assert one.services.budget.controls().rate.hold_until == T + 100
    assert (one.now.due_at, one.now.paused, one.now.claims) == (T + 105, 110.0, 0)


@pytest.mark.parametrize(
    ("deadline_at", "since", "pending", "ends"),
    [(T, 900, 900, True), (T + 1, 900, 900, False), (T, 899, 900, False), (T, 900, 899, False)],
)
@pytest.mark.parametrize("reply", [BAD_TOKEN, SLOW_DOWN])
def test_deadline_comes_while_every_call_is_refused_for_long(
    polled, reply, deadline_at, since, pending, ends
):
    """Not if the batch was found pending since: then polls succeed between refusals."""
    one = polled({"deadline_at": deadline_at}, pending_at=T - pending)
    one.services.budget.pause(PauseReason.TOKEN_REFUSED, T - since, "10000", Permit())
    pause = one.services.budget.controls().pause
    one.services.budget.limit_rate(T - since, 700)

    assert one.polled(reply, Permit(pause)) is ends
    assert one.now.ending == (PAST_DEADLINE if ends else None)


def test_batch_whose_calls_are_refused_for_long_ends_without_one(polled):
    one = polled({"deadline_at": T})

    assert one.polled(permit=None)
    assert (one.now.ending, one.doubles.asked) == (PAST_DEADLINE, [])


@pytest.mark.parametrize(
    ("reply", "is_over"),
    [
        (COMPLETE, True),
        (Pending("queued"), True),
        (FAILED, True),
        (UNKNOWN_ID, True),
        (REFUSED, True),
        (NO_ANSWER, False),
        (PROXY, False),
        (BAD_TOKEN, False),
        (SLOW_DOWN, False),
    ],
)
def test_probe_reply_ends_pause(polled, reply, is_over):
    one = polled()
    one.services.budget.pause(PauseReason.TOKEN_REFUSED, T - 100, "10000", Permit())
    pause = one.services.budget.controls().pause

    one.polled(reply, Permit(pause))

    assert one.services.budget.controls().pause == (None if is_over else pause)


def test_reply_without_probe_ends_no_pause(polled):
    one = polled()
    one.services.budget.pause(PauseReason.OUTAGE, T - 100, "", Permit())

    one.polled(COMPLETE)

    assert one.services.budget.controls().pause.reason is PauseReason.OUTAGE
