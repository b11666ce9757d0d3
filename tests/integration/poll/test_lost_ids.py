"""Ids that the API says it does not know.

Which are lost, and which are polled on because perhaps no id is found.
"""

from dataclasses import replace

import pytest
from shared.pacing.id_probes import IdProbes

from functions.poll.doubts import LATE, LOST, LOST_SECONDS, PROBED_SECONDS
from shared import keys
from shared.errors import StorageError
from shared.models import CANCEL, BatchState, JobControl, LastingError, PartialReply, Submission
from shared.pacing.breaker import control_key
from shared.workers_ai.replies import Accepted, NoAnswers, Pending, Rejected
from tests.support.aws.resources import client
from tests.support.doubles.ledger_items import T
from tests.support.doubles.polled_batch import ACCEPTED, COMPLETE, INCOMPLETE, Doubles

DAY = 86_400
UNKNOWN = Rejected(404, 8001, "its words", enveloped=True)
EARLIER, LATEST = Submission("earlier", 1, T - 9_000), Submission("id", 2, T - 2_000)
AGAIN = {"attempt": 2, "submissions": (EARLIER, LATEST), "polls_settled": 1}
"""A batch that was submitted again; an even number of polls means its earlier id."""
FOR_LONG = {"misses": 4, "missed_at": T - LOST_SECONDS, "failing_code": 404}


@pytest.fixture(autouse=True)
def no_probe():
    """No model was probed before."""
    client("dynamodb").delete_item(TableName="table", Key=PROBE)


PROBE = control_key("LOST##@cf/meta/m2m100-1.2b")


def probed(**at):
    """Store when the last probe was tried, and known."""
    values = {name: {"N": repr(moment)} for name, moment in at.items()}
    client("dynamodb").put_item(TableName="table", Item=PROBE | values)


def noted(name):
    """One of these times."""
    return float(client("dynamodb").get_item(TableName="table", Key=PROBE)["Item"][name]["N"])


def is_submitted_again(one):
    assert one.now.state is (BatchState.READY if one.doubles.sent else BatchState.QUEUED)
    return bool(one.doubles.sent)


@pytest.mark.parametrize(("misses", "since"), [(0, T), (1, T - 500)])
def test_unknown_id_is_counted(polled, misses, since):
    one = polled(claims=1, misses=misses, missed_at=T - 500, failing_code=404, failures=3)

    assert not one.polled(UNKNOWN)
    now = one.now
    assert (now.state, now.due_at, now.claims) == (BatchState.QUEUED, T + 15, 0)
    assert (now.misses, now.missed_at, now.failures, now.calls_fail_since) == (
        misses + 1,
        since,
        0,
        T,
    )


@pytest.mark.parametrize(
    ("misses", "since", "again"), [(4, 900, True), (3, 900, False), (4, 899.5, False)]
)
def test_first_batch_of_model_is_submitted_again(polled, misses, since, again):
    """It shows whether the API knows its new id."""
    one = polled(misses=misses, missed_at=T - since, failing_code=404)

    assert not one.polled(UNKNOWN)
    assert is_submitted_again(one) is again


@pytest.mark.parametrize(
    ("probe", "again"),
    [
        ({"tried_at": T - 1}, False),
        ({"tried_at": T - PROBED_SECONDS}, True),
        ({"tried_at": T - 1_000, "known_at": T - 950}, True),
        ({"tried_at": T - 1, "known_at": T - 1_000}, False),
        ({"tried_at": T - 1, "known_at": T - 800}, True),
    ],
    ids=[
        "one is tried",
        "long ago",
        "the last was known",
        "that before was",
        "one was known since",
    ],
)
def test_only_one_batch_is_tried_unless_it_is_known(polled, probe, again):
    probed(**probe)
    one = polled(**FOR_LONG)

    assert not one.polled(UNKNOWN)
    assert is_submitted_again(one) is again


ANSWERED = {"state": BatchState.DONE, "completed_at": T - 560, "due_at": None, "work": None}
"""Its poll began at most five minutes before."""


@pytest.mark.parametrize(
    ("other", "again"),
    [
        ({"pending_at": T - 800}, True),
        ({"pending_at": T - 869}, True),
        ({"pending_at": T - 870}, False),
        (ANSWERED, True),
        ({**ANSWERED, "completed_at": T - 580}, False),
        ({**ANSWERED, "ending": LATE}, False),
        ({**ANSWERED, "submissions": (Submission("", 1, T - 900),)}, False),
    ],
    ids=[
        *("pending", "a little after", "pending before, if clocks differ"),
        *("answered", "answered before, perhaps", "ended", "answered at its submit"),
    ],
)
def test_ids_of_same_job_show_that_others_are_known(polled, other, again):
    probed(tried_at=T - 1)
    one = polled(**FOR_LONG)
    one.services.ledger.create_batch(replace(one.seen, number="00000077", **other))

    one.polled(UNKNOWN)

    assert is_submitted_again(one) is again


def test_id_that_is_known_only_while_this_one_is_polled_proves_nothing(polled, monkeypatch):
    """The route works again from the middle of a tick on.

    It did not when this poll was answered.
    """
    probed(tried_at=T - 1)
    one = polled(**FOR_LONG)
    poll = Doubles.poll

    def healed_meanwhile(self, *words):
        one.services.ledger.create_batch(replace(one.seen, number="00000077", pending_at=T))
        return poll(self, *words)

    monkeypatch.setattr(Doubles, "poll", healed_meanwhile)
    one.polled(UNKNOWN)

    assert not is_submitted_again(one)


def test_probe_that_is_not_known_is_not_repeated(polled):
    probed(tried_at=T - PROBED_SECONDS - 1)
    one = polled(**AGAIN, **FOR_LONG)

    one.polled(UNKNOWN)

    assert not is_submitted_again(one)
    assert noted("tried_at") == T


@pytest.mark.parametrize("reply", [Pending("queued"), Accepted("id"), INCOMPLETE])
def test_probe_that_is_known_is_noted(polled, reply):
    one = polled(**AGAIN)

    one.polled(reply)

    assert noted("known_at") == T


def test_answer_is_stored_before_probe_is_noted(polled, monkeypatch):
    """The API may never give it again."""
    one = polled(**AGAIN)

    def fails(_self, operation, **arguments):
        raise StorageError(f"{operation} of {arguments['Key']}")

    monkeypatch.setattr(IdProbes, "call", fails)
    with pytest.raises(StorageError, match="LOST#"):
        one.polled(COMPLETE)

    key = keys.raw(one.job.job_id, one.seen.number, LATEST.attempt, one.now.polls)
    assert one.services.store.get(key) == COMPLETE.body


@pytest.mark.parametrize(
    "batch",
    [{}, {**AGAIN, "polls": 1}, {**AGAIN, "pending_at": T - 1_000}],
    ids=["once", "earlier id", "noted"],
)
def test_other_known_ids_cost_no_write(polled, batch):
    one = polled(**batch)

    one.polled(Pending("queued"))

    assert "Item" not in client("dynamodb").get_item(TableName="table", Key=PROBE)


@pytest.mark.parametrize(
    ("job", "batch"),
    [
        ({"control": JobControl(cancelled=CANCEL)}, {}),
        ({}, {"submissions": (EARLIER, EARLIER, LATEST), "pending_at": T - 1_500}),
        ({}, {"ending_if_unanswered": LATE}),
        ({}, {"partial_replies": (PartialReply("staging/x", 0),), "unknowable": 2}),
    ],
    ids=["cancelled", "three submits", "last word", "partly answered"],
)
def test_unproven_loss_ends_no_batch(polled, job, batch):
    one = polled(job, **{**FOR_LONG, **batch})

    assert not one.polled(UNKNOWN)
    assert not is_submitted_again(one)
    assert one.now.ending is None


def test_proven_loss_ends_batch_that_may_not_be_submitted(polled):
    probed(known_at=T - 1)
    one = polled(**FOR_LONG)
    one.doubles.ambiguous_submit = "fail"

    assert one.polled(UNKNOWN)
    assert one.now.ending == LOST


def test_batch_that_cannot_be_sent_is_no_probe(polled):
    one = polled(**FOR_LONG)
    one.services.budget.limit_rate(T, 60)

    assert not one.polled(UNKNOWN)
    assert (one.now.state, one.now.misses, one.now.missed_at) == (
        BatchState.QUEUED,
        5,
        T - LOST_SECONDS,
    )
    assert "Item" not in client("dynamodb").get_item(TableName="table", Key=PROBE)


@pytest.mark.parametrize(
    ("reply", "code", "counted"),
    [(UNKNOWN, 404, 5), (UNKNOWN, 200, 1), (NoAnswers(), 200, 5), (NoAnswers(), 404, 1)],
    ids=["unknown", "unknown after no answers", "no answers", "no answers after unknown"],
)
def test_unknown_ids_and_missing_answers_are_counted_apart(polled, reply, code, counted):
    """A completed batch is known; an unknown one may have answers."""
    since = T - LOST_SECONDS / 2
    one = polled(misses=4, missed_at=since, failing_code=code)

    assert not one.polled(reply)
    assert (one.now.misses, one.now.missed_at) == (counted, since if counted == 5 else T)


def test_overdue_batch_is_submitted_again(polled):
    one = polled(submissions=(Submission("id", 1, T - DAY - 1),))

    assert not one.polled(UNKNOWN)
    assert is_submitted_again(one)


def test_unknown_ids_are_shown(polled):
    since = T - LOST_SECONDS - 1
    one = polled(misses=1, missed_at=since, calls_fail_since=since)

    one.polled(UNKNOWN)

    noted = LastingError(8001, since, T, polling=True, refused=True, message="its words")
    assert one.services.ledger.job(one.job.job_id).lasting_error == noted


@pytest.mark.parametrize(
    ("misses", "since", "pending_at", "given_up"),
    [
        (4, 900, T - 1, True),
        (4, 900, T - 900, False),
        (9, 900, T - 901, False),
        (3, 900, T - 1, False),
        (4, 899, T - 1, False),
    ],
)
def test_earlier_id_is_given_up_if_latest_is_known(polled, misses, since, pending_at, given_up):
    earlier = replace(EARLIER, misses=misses, missed_at=T - since)
    one = polled(**AGAIN | {"submissions": (earlier, LATEST), "polls": 1, "pending_at": pending_at})

    assert not one.polled(UNKNOWN)
    counted = replace(earlier, misses=misses + 1, given_up=given_up)
    assert one.now.submissions == (counted, LATEST)
    assert (one.now.state, one.now.due_at) == (BatchState.QUEUED, T + 15)


def test_polls_are_rarer_after_a_minute(polled):
    one = polled(misses=9, missed_at=ACCEPTED, failing_code=404)

    one.polled(UNKNOWN)

    assert T + 45 <= one.now.due_at <= T + 55
