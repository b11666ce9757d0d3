"""A batch some of whose items are beside `running`: it waits.

At its deadline they count, whenever a function dies.
"""

from dataclasses import replace

import pytest

from functions.poll.doubts import LATE
from shared import keys
from shared.models import BatchState
from shared.workers_ai.results import parse_answer
from tests.support.doubles.polled_batch import COMPLETE, INCOMPLETE

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
    "items", [b'{"id":1}', b'{"id":1,"success":true,"result":null}', b'{"id":0,"result":1}', b"{}"]
)
def test_items_that_answer_nothing_are_no_answers(polled, items):
    body = b'{"status":"running","responses":[{"id":0,"result":1},%b]}' % items

    one = polled()

    assert not one.polled(parse_answer(body))
    assert one.now.state is BatchState.QUEUED


def test_all_items_beside_running_finish_the_batch(polled):
    assert polled().polled(replace(COMPLETE, unfinished=True, status="running"))


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
