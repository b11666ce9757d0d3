"""What the reply to a submit leads to, for batch, job and later calls; what a dead one left."""

import math
from dataclasses import replace

import msgspec
import pytest

from shared.errors import StorageError
from shared.models import BatchState, DueKind, ErrorDetail, Submission, Wait
from shared.pacing.breaker import Pause, PauseReason, Permit
from shared.workers_ai.error_codes import FIREWALL
from shared.workers_ai.replies import Accepted, Failed, Rejected
from shared.workers_ai.results import Answer
from tests.support.doubles.ledger_items import M2M, SUBMITTING, T
from tests.support.doubles.submitting import DUE, sent, told

OUTAGE, TOKEN, QUOTA = PauseReason.OUTAGE, PauseReason.TOKEN_REFUSED, PauseReason.QUOTA_SPENT
WAITS = PauseReason.MODEL_WAITS
CREDITS, SPEND = PauseReason.CREDITS_SPENT, PauseReason.SPEND_LIMIT
PERMIT = Permit(Pause(QUOTA, "nonce", T - 60, T, 60.0))
FAILING = replace(DUE, refusals=3, calls_fail_since=T - 9)
DIED = replace(SUBMITTING, attempt=1, fence=T, due_at=T)
REFUSED = "Workers AI refused this request"


# ── accepted ──────────────────────────────────────────────────────────────────────────────────────
def test_accepted_batch_is_polled(begin):
    batch = replace(DUE, refusals=3, calls_fail_since=T - 60)
    at = begin(batch)

    at.run()

    accepted = {"submission": Submission("id", 2, T), "paused": 0.0, "refusals": 0}
    queued = {"state": BatchState.QUEUED, "work": DueKind.POLL, "due_at": T + 30}
    assert at.batch == sent(batch, **queued, **accepted, calls_fail_since=0.0)
    assert at.messages == []
    assert at.counted == ["SubmitCalls", "BatchesAccepted"]


def test_immediate_answer_is_collected_in_same_call(begin):
    at = begin(reply=Answer(b"the answer", [], msgspec.UNSET))

    at.run()

    assert at.objects[at.key("raw-2-0")] == b"the answer"
    assert at.batch.submission == Submission("", 2, T)
    assert at.batch.due_at == T
    assert at.messages == []


@pytest.mark.parametrize("reply", [Accepted("id"), Failed(5006, "")])
def test_answered_probe_lifts_pause(begin, reply):
    """It lifts what it probed and clears a lasting error."""
    at = begin(replace(DUE, calls_fail_since=T - 60), reply, wait=Wait(T + 9, "submits_fail"))
    at.permit = PERMIT

    at.run()

    assert at.budget_calls[1:] == [("lift", PERMIT, M2M)]
    assert at.job.wait is None


@pytest.fixture
def failing(monkeypatch):
    """Makes the table fail at some acceptances."""

    def make(at, times):
        real, left = at.ledger.accept, iter(range(times))

        def accept(*given):
            if next(left, None) is not None:
                raise StorageError("the table does not answer")
            return real(*given)

        monkeypatch.setattr(at.ledger, "accept", accept)

    return make


@pytest.mark.parametrize(
    ("table_fails", "receipt_fails", "puts"),
    [(0, 0, 0), (1, 0, 1), (2, 0, 1), (2, 1, 2), (3, 2, 3)],
)
def test_untaken_acceptance_is_written_to_receipt(begin, failing, table_fails, receipt_fails, puts):
    at = begin()
    failing(at, table_fails)
    at.put_fails = receipt_fails

    at.run()

    assert at.puts == ["receipt-2"] * puts
    assert at.batch.submission == Submission("id", 2, T)
    assert at.messages == []


def test_receipt_remains_if_table_never_recovers(begin, failing, caplog):
    at = begin()
    failing(at, 1_000)

    at.run()

    assert at.batch.state is BatchState.SUBMITTING
    assert msgspec.json.decode(at.objects[at.key("receipt-2")], type=Submission) == Submission(
        "id", 2, T
    )
    assert at.messages == []
    assert "request_id not recorded" in caplog.text


def test_late_acceptance_leaves_only_receipt(begin, monkeypatch):
    at = begin()
    monkeypatch.setattr(at.services.ledger, "accept", lambda *_: None)

    at.run()

    assert at.puts == ["receipt-2"]
    assert at.messages == []
    assert at.counted == ["SubmitCalls"]


# ── rejected ──────────────────────────────────────────────────────────────────────────────────────
LIFTED = {"due_at": T + 2, "paused": 4.0}
FAILED_AGAIN = {"due_at": T + 80, "refusals": 4, "calls_fail_since": T - 9}
FAILED_ONCE = {"due_at": T + 10, "refusals": 1, "calls_fail_since": T}
LIMITED = {"due_at": T + 45, "paused": 47.0}
THROTTLED = ("the model waits", "all wait")
REJECTED = {
    "the model waits": (told(429, 3040), DUE, ("pause", WAITS, T, "3040"), {"due_at": T + 27.5}),
    "all wait": (Rejected(429, None, "", 33.0), DUE, ("limit_rate", T, 33.0), LIMITED),
    "the quota is spent": (told(400, 3036), DUE, ("pause", QUOTA, T, "3036"), LIFTED),
    "the token is refused": (told(401, None), DUE, ("pause", TOKEN, T, "401"), LIFTED),
    "no credits": (told(402, 2021), DUE, ("pause", CREDITS, T, "2021"), LIFTED),
    "a spend limit": (told(429, 2041), DUE, ("pause", SPEND, T, "2041"), LIFTED),
    "an error": (told(404, 424242), DUE, None, FAILED_ONCE),
    "a page": (Rejected(410, None, ""), FAILING, None, FAILED_AGAIN),
    "no connection": (Rejected(0, None, ""), FAILING, None, FAILED_AGAIN),
}


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_batch_waits_as_its_rejection_says(begin, name):
    reply, batch, budget_call, changes = REJECTED[name]
    at = begin(batch, reply)
    called = budget_call and budget_call[0]
    scope = {"limit_rate": ()}.get(called, (at.permit,))
    expected = budget_call and (*budget_call, *((M2M,) if WAITS in budget_call else scope))

    at.run()

    assert at.budget_calls[1:] == ([expected] if expected else [])
    assert at.batch == sent(batch, **changes)
    assert at.messages == []
    otherwise = "ApiRefusals" if called else "ApiErrors"
    assert at.counted[1] == ("ApiThrottles" if name in THROTTLED else otherwise)
    is_lifted = called == "pause" and WAITS not in budget_call
    assert (at.left.earliest() == math.inf) is is_lifted, "who lifts a pause has it looked at"


def test_error_of_15_minutes_is_noted_in_job(begin):
    at = begin(replace(DUE, calls_fail_since=T - 901), told(402, 424242, "its words"))

    at.run()

    wait = at.job.wait
    assert (wait.code, wait.since, wait.until) == ("submits_fail", T - 901, T + 4_500)
    assert "with 424242" in wait.message
    assert "its words" not in wait.message, "they may quote a prompt"


@pytest.mark.parametrize(("status", "code", "named"), [(400, 5007, 5007), (410, None, 410)])
def test_unusable_model_fails_job_and_batch(begin, status, code, named):
    at = begin(reply=told(status, code))
    words = f"Workers AI refuses the model {M2M} (code {named}). "

    at.run()

    assert at.job.error.code == "unknown_model"
    assert at.job.error.message.startswith(words)
    assert at.batch.ending == ErrorDetail("rejected", at.job.error.message)


@pytest.mark.parametrize(
    ("batch", "changes"),
    [
        (DUE, {"isolating": ErrorDetail("rejected", f"{REFUSED} (5006)"), "cause": "5006"}),
        (
            replace(DUE, records=replace(DUE.records, sendable=1)),
            {"ending": ErrorDetail("rejected", f"{REFUSED} (5006)"), "cause": "5006"},
        ),
    ],
    ids=["several records", "one record"],
)
def test_refused_content_is_isolated(begin, batch, changes):
    at = begin(batch, told(400, 5006))

    at.run()

    assert at.batch == sent(batch, work=DueKind.POLL, due_at=T, **changes)


SOURCES = {
    "by status": (told(400, None, "words"), "400", f"{REFUSED} (400)", "words"),
    "a proxy's": (Rejected(413, None, "a proxy's"), "413", f"{REFUSED} (413)", "a proxy's"),
    "a guardrail's": (told(424, 2016, "words"), "2016", f"{REFUSED} (2016)", "words"),
    "by code": (told(403, 5006, "words"), "5006", f"{REFUSED} (5006)", "words"),
    "the firewall's": (Rejected(403, None, "a page"), "403", f"{REFUSED} (403)", FIREWALL),
    "failed": (Failed(None, "words"), "failed", REFUSED, "words"),
    "failed with a code": (Failed(3030, "words"), "3030", f"{REFUSED} (3030)", "words"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_rejection_has_code_and_sources_message(begin, source):
    reply, cause, words, said = SOURCES[source]
    at = begin(reply=reply)

    at.run()

    assert at.batch.isolating == ErrorDetail("rejected", words, at.key("said-2"))
    assert at.batch.cause == cause
    assert at.objects[at.key("said-2")].decode() == said


@pytest.mark.parametrize(
    ("reason", "status", "code", "is_over"),
    [
        (OUTAGE, 400, 5006, True),
        (OUTAGE, 404, 424242, True),
        (OUTAGE, 500, 3007, False),
        (OUTAGE, 408, None, False),
        (OUTAGE, 401, 10000, True),
        (OUTAGE, 0, None, False),
        (TOKEN, 400, 5006, True),
        (TOKEN, 400, 3036, True),
        (TOKEN, 429, 3040, True),
        (TOKEN, 0, None, False),
        (TOKEN, 401, 10000, False),
        (TOKEN, 429, 971, False),
        (TOKEN, 500, 3007, False),
        (QUOTA, 400, 5006, False),
        (QUOTA, 500, 3007, False),
        (CREDITS, 400, 5006, False),
    ],
)
def test_rejected_probe_may_end_pause(begin, reason, status, code, is_over):
    at = begin(reply=told(status, code))
    pause = Pause(reason, "nonce", T - 60, T, 15.0)
    at.permit = Permit(pause)

    at.run()

    lifts = [words for words in at.budget_calls if words[0] == "lift"]
    assert lifts == ([("lift", Permit(pause), M2M)] if is_over else [])


# ── what a dead submit left ───────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(("fence", "is_settled"), [(T - 1, True), (T, True), (T + 1, False)])
def test_submit_counts_as_dead_once_its_lease_is_over(begin, fence, is_settled):
    at = begin(replace(DIED, fence=fence))
    at.objects[at.key("receipt-1")] = msgspec.json.encode(Submission("id", 1, T - 99))

    at.run()

    assert (at.batch.state is BatchState.QUEUED) is is_settled
    assert at.posts == []


@pytest.mark.parametrize(
    ("left", "content", "submission"),
    [
        (
            "receipt-1",
            msgspec.json.encode(Submission("id", 1, T - 99)),
            Submission("id", 1, T - 99),
        ),
        ("raw-1-0", b"the answer", Submission("", 1, T)),
    ],
    ids=["a receipt", "an answer"],
)
def test_dead_submit_with_receipt_is_accepted(begin, left, content, submission):
    batch = DIED
    at = begin(batch)
    at.objects[at.key(left)] = content

    at.run()

    queued = {"state": BatchState.QUEUED, "work": DueKind.POLL, "due_at": T}
    assert at.batch == replace(batch, **queued, submission=submission)
    assert at.messages == []
    assert at.counted == at.posts == []


def test_dead_submit_without_trace_is_unknown_outcome(begin):
    """The outage is taken to have begun when that submit would have ended."""
    at = begin(DIED)

    at.run()

    assert at.budget_calls[:2] == [
        ("pause", OUTAGE, T - 30, "no answer", Permit()),
        ("permit", M2M, T, False),
    ]
    assert (at.at_post.attempt, at.at_post.unknowable) == (2, 1)
    assert at.counted == ["AmbiguousSubmits", "SubmitCalls", "BatchesAccepted"]


def test_dead_submit_settled_by_another_is_left(begin, monkeypatch):
    at = begin(DIED)
    at.objects[at.key("raw-1-0")] = b"the answer"
    monkeypatch.setattr(at.services.store, "head", lambda _: at.settle_elsewhere() or b"")

    at.run()

    assert at.batch.attempt == 9
    assert at.messages == at.posts == []
