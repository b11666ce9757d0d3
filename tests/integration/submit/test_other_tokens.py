"""Submits of a stack with several API tokens.

When another one gets the batch, and when none is left for it.
"""

from dataclasses import replace

import pytest

from shared.aws.queues import SubmitMessage, VisitMessage
from shared.models import FIRST, BatchState, ErrorDetail, Sender, Submission
from shared.pacing.controls import Denied
from tests.support.doubles.ledger_items import JOB, T
from tests.support.doubles.submitting import DUE, begun, sent, told

OTHER = "f" * 32


@pytest.fixture
def begin(table, monkeypatch):
    """The submit function with a job and a batch to work on, on a stack with these tokens."""

    def make(*senders, **given):
        at = begun(table, monkeypatch, **given)
        at.services.budget.senders = lambda account: senders
        return at

    return make


@pytest.mark.parametrize(
    "reply",
    [told(401, 10000), told(400, 3036), told(429, 971)],
    ids=["the token is refused", "its quota is spent", "it waits"],
)
def test_batch_of_token_that_has_to_wait_goes_to_another_at_once(begin, reply):
    at = begin(FIRST, Sender(2), reply=reply)

    at.run()

    assert at.batch == sent(DUE, due_at=T)
    assert at.messages == [(SubmitMessage(JOB.job_id, at.number), 0)]


def test_batch_with_id_is_polled_while_its_token_waits(begin):
    """Its answer may come before another token is tried."""
    has_id = replace(DUE, submissions=(Submission("earlier", 1, T - 900),))
    at = begin(FIRST, Sender(2), batch=has_id, reply=told(401, 10000))

    at.run()

    assert at.batch.state is BatchState.QUEUED
    assert at.batch.due_at > T
    assert at.messages == []


def test_batch_whose_model_every_account_has_refused_is_not_sent(begin):
    """Whoever noted the last refusal died before it ended the job."""
    at = begin(FIRST, Sender(2, OTHER))
    at.services.budget.get = lambda key: {"at": {"N": str(T)}, "code": {"N": "5007"}}

    at.run()

    assert at.job.error.code == "unknown_model"
    assert at.batch.ending == ErrorDetail("rejected", at.job.error.message)
    assert at.posts == at.budget_calls == []
    assert (VisitMessage(JOB.job_id), 0) in at.messages


@pytest.mark.parametrize("paused", [True, False])
def test_secret_is_read_again_only_if_all_tokens_are_paused(begin, monkeypatch, paused):
    """One may have been added.

    While they have merely no calls left, each reading would cost for nothing.
    """
    at, read_at = begin(FIRST), []
    monkeypatch.setattr(at.services.tokens, "is_changed", read_at.append)
    at.permit = Denied(T + 40, paused)

    at.run()

    assert read_at == [T] * paused
