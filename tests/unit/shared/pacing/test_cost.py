"""What a visit finds that a job with a limit has spent, and which batches it gives room."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from dropbatch.core.models import find_model
from shared.job_status import counted
from shared.models import BatchState, CostLimit, ErrorDetail, JobTotals, Part, Submission
from shared.pacing.cost import MOST_UNKNOWN, first_limit, measure, priced, with_room
from shared.workers_ai.usage import Usage
from tests.support.doubles.ledger_items import BATCH, JOB, T

PRICE = 342
"""Billionths of a dollar for a token of the job's model, read or written."""
EACH = 1_000_000
"""Estimate of a batch of ten records."""
SENT = replace(
    BATCH, records=replace(BATCH.records, body_size=4_000, requests=10, sendable=10, estimate=EACH)
)
ONCE = {"submission": Submission("a", 1, T)}
TWICE = {"submission": Submission("b", 2, T), "given_up": 1}
LATE = ErrorDetail("expired", "late")
ANSWERED = replace(
    SENT,
    state=BatchState.DONE,
    **ONCE,
    part=Part("key", 1, 0, 0, 0, 10, 0, Usage(prompt_tokens=500, completion_tokens=500)),
)
"""Costs 342,000 billionths."""
COST = 1_000 * PRICE


def after(batch, estimate):
    """A batch behind others of this estimate."""
    return replace(batch, records=replace(batch.records, estimated_before=estimate))


WAITING = after(replace(SENT, state=BatchState.READY, number="00000009"), EACH)


ESTIMATED = {"estimated": 1_000 * EACH, "answered": 1_000 * EACH}
MANY = JobTotals(succeeded=10_000, usage=Usage(500_000, 500_000), **ESTIMATED)
"""A thousand such batches."""


def found(*batches, limit=10_000_000, sums=None, overdue=()):
    """What a visit of a job with these batches stores of its limit."""
    ledger = SimpleNamespace(batches=lambda *_, **__: iter(batches))
    job = replace(JOB, cost=first_limit(limit), sums=sums or JobTotals())
    return measure(ledger, job, job.cost, lambda batch: batch.number in overdue)[0]


def outstanding(*batches, **given):
    """The estimate of the batches that may be outstanding at the same time."""
    return found(*batches, **given).room - EACH


def rooms(*batches):
    """The room that is left by many batches and some more."""
    return found(*batches, sums=MANY, limit=1_010 * COST).room


def test_half_of_limit_is_room_before_anything_is_known():
    assert first_limit(1_000) == CostLimit(1_000, 500)
    assert found(replace(SENT, **ONCE), limit=1_000).room == 500


@pytest.mark.parametrize(("limit", "is_reached"), [(EACH, False), (EACH - 1, True)])
def test_one_batch_may_use_all_of_the_limit_while_nothing_is_known(limit, is_reached):
    first = after(WAITING, 0)

    assert found(first, limit=limit).is_reached == is_reached


def test_room_is_what_is_left_at_the_measured_ratio():
    """Less the errors of few answers: after ten, all may be as long as they may be."""
    left = 100 * EACH
    assert EACH <= outstanding(ANSWERED, limit=COST + EACH) < 1.2 * EACH
    room = found(limit=1_000 * COST + left, sums=MANY).room - 1_000 * EACH
    assert left * EACH / COST * 0.9 < room < left * EACH / COST


def test_unknown_records_are_few_times_those_that_are_known():
    assert outstanding(ANSWERED, limit=10_000 * EACH) == 5_000 * EACH - COST // 2
    many = JobTotals(succeeded=10, usage=Usage(1, 1), estimated=EACH, answered=EACH)
    assert found(limit=15 * EACH, sums=many).room == (1 + MOST_UNKNOWN) * EACH


def test_records_that_cannot_be_sent_tell_nothing_of_cost():
    """Nine of ten records have no estimate, so what was answered is all that was estimated."""
    part = replace(ANSWERED.part, failed=90)

    records = replace(ANSWERED.records, requests=100)
    assert found(replace(ANSWERED, records=records, part=part)) == found(ANSWERED)


@pytest.mark.parametrize(
    "again", [replace(SENT, **TWICE), replace(SENT, state=BatchState.READY, unknowable=2)]
)
def test_batch_that_is_sent_again_counts_once_more(again):
    once = replace(again, **ONCE, given_up=0, unknowable=0)

    assert rooms(again) < rooms(once)


def test_limit_is_reached_only_when_no_answer_is_outstanding():
    """The first batch waits again; the other's answer may give it room."""
    sent = replace(SENT, number="00000001", **ONCE)
    ended = replace(WAITING, ending=LATE)

    assert found(WAITING, limit=900_000).is_reached
    assert not found(WAITING, sent, limit=900_000).is_reached
    assert not found(WAITING, ended, limit=900_000).is_reached
    assert found(WAITING, sent, limit=900_000, overdue={"00000001"}).is_reached


def test_batches_are_due_that_have_room_only_now():
    batches = [after(replace(WAITING, number=str(n)), n * EACH) for n in range(5)]
    ended = replace(batches[2], ending=LATE)
    less, more = (replace(JOB, cost=CostLimit(9, room)) for room in (2 * EACH, 4 * EACH))

    assert with_room(less, more, [*batches, ended]) == batches[2:4]
    assert with_room(more, less, batches) == []
    assert with_room(JOB, JOB, batches) == []


def part(**usage):
    return Part("key", 1, 1, 1, 1, 0, 10, Usage(**usage))


@pytest.mark.parametrize(
    ("changes", "usage", "added"),
    [
        ({}, {"prompt_tokens": 5}, (0, 0, 0)),
        ({}, {}, (4_000, 10, 0)),
        ({"submission": None}, {}, (0, 0, 0)),
        ({"ending": LATE}, {}, (4_000, 10, 1)),
        ({"ending": LATE, **TWICE}, {}, (8_000, 20, 2)),
        (TWICE, {"prompt_tokens": 5}, (4_000, 10, 1)),
        (TWICE, {}, (8_000, 20, 1)),
        ({"ending": LATE, "cause": "3030"}, {}, (4_000, 10, 0)),
        ({"ending": LATE}, {"prompt_tokens": 5}, (4_000, 10, 1)),
    ],
)
def test_accepted_work_without_tokens_is_counted(changes, usage, added):
    batch = replace(SENT, **{**ONCE, "part": part(**usage), **changes})

    sums = counted(JobTotals(), batch)
    assert (sums.unmetered_size, sums.unmetered_records, sums.uncollected) == added


def test_submits_of_a_divided_batch_are_counted():
    """The first was not collected, and the second failed as a whole."""
    divided = replace(SENT, state=BatchState.DIVIDED, **TWICE, cause="3030")

    unmetered = {"unmetered_size": 8_000, "unmetered_records": 20}
    assert counted(JobTotals(), divided) == JobTotals(**unmetered, uncollected=1, given_up=1)


CHAT = find_model("@cf/meta/llama-3.3-70b-instruct-fp8-fast")
EMBEDDINGS = find_model("@cf/baai/bge-small-en-v1.5")


@pytest.mark.parametrize(
    ("model", "usage", "is_counted"),
    [
        (CHAT, Usage(5, 6, 11), True),
        (CHAT, Usage(5, None, 5), False),
        (CHAT, Usage(None, 6), False),
        (CHAT, Usage(), False),
        (EMBEDDINGS, Usage(5, None, 5), True),
    ],
)
def test_usage_counts_only_with_all_tokens_that_model_bills(model, usage, is_counted):
    assert priced(model, usage).is_reported == is_counted


def test_nothing_has_room_when_limit_is_spent_and_what_is_sent_again_ends_no_job():
    assert outstanding(ANSWERED, limit=COST) == 0
    assert found(ANSWERED, WAITING, limit=COST).is_reached
    assert found(replace(SENT, **TWICE), limit=900_000) == CostLimit(900_000, 0)


def test_batch_that_was_accepted_and_divided_is_spent():
    ended = {"state": BatchState.DIVIDED, "cause": "3030", "isolating": LATE, "pieces": 2}
    divided = replace(SENT, **ONCE, **ended)

    assert rooms(divided) < rooms()


def test_half_of_an_estimate_is_answered_if_half_of_its_records_are():
    half = replace(ANSWERED, part=replace(ANSWERED.part, succeeded=5, failed=5))
    sums = counted(JobTotals(), half)

    assert (sums.estimated, sums.answered) == (EACH, EACH // 2)
