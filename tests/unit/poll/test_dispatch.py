"""Batches that a tick sends to the submit function.

What each counts as paused, and a queue that AWS denies.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from functions.poll import due
from functions.poll.dispatch import (
    DISPATCHED_SECONDS,
    SubmitCalls,
    dispatch,
    send_submits,
)
from functions.poll.due import DueItem
from shared.errors import RefusedError, UnreadableItemError
from shared.ledger import DueEntry
from shared.models import BatchState
from shared.pacing import waits
from tests.support.doubles.ledger_items import JOB, READY, T


@pytest.mark.parametrize(
    ("batch", "paused"),
    [
        ({"created_at": T - 900, "due_at": T - 20, "paused": 7.0}, 27.0),
        ({"created_at": T - 10, "due_at": T - 20, "paused": 90.0}, 100.0),
        (
            {
                "created_at": T - 900,
                "due_at": T - 20,
                "paused": 7.0,
                "state": BatchState.SUBMITTING,
            },
            7.0,
        ),
    ],
    ids=["overdue", "by a clock that is behind", "to be settled"],
)
def test_time_overdue_is_paused_but_never_longer_than_batch_waits(batch, paused):
    noted = []
    services = SimpleNamespace(
        now=lambda: T,
        ledger=SimpleNamespace(
            postpone=lambda _batch, due_at, **changes: noted.append((due_at, changes)) or True
        ),
        queues=SimpleNamespace(send_all=lambda messages: noted.append(len(messages))),
    )

    due = replace(READY, **batch)
    assert (
        dispatch(services, [DueItem(DueEntry(due.job_id, due.number, due.due_at), JOB, due)]) == 1
    )

    assert noted == [(T + DISPATCHED_SECONDS, {"paused": paused}), 1]


@pytest.mark.parametrize("denied", ["waiting", "send_all"])
def test_denied_queue_is_shown_and_ends_no_tick(monkeypatch, denied):
    refusal, shown = RefusedError(f"SQS {denied}", "AccessDenied", "no"), []

    def refuse(*_):
        raise refusal

    monkeypatch.setattr(
        waits, "show_denied", lambda _, job, error: shown.append((job.job_id, error))
    )
    queues = SimpleNamespace(submit_url="submit", waiting=lambda _: 0, send_all=lambda _: None)
    setattr(queues, denied, refuse)
    ledger = SimpleNamespace(
        job=lambda _: JOB, batch=lambda *_: READY, postpone=lambda *_, **__: READY
    )
    budget = SimpleNamespace(model_room=lambda *_: (None, None))
    settings = SimpleNamespace(cloudflare_account_id=JOB.plan.account)
    services = SimpleNamespace(
        ledger=ledger, queues=queues, budget=budget, settings=settings, now=lambda: T
    )

    send_submits([DueEntry(READY.job_id, READY.number, T)], SubmitCalls(services, 9, None))

    assert shown == [(JOB.job_id, refusal)]


def test_denied_queue_is_shown_though_a_job_cannot_be_read(monkeypatch):
    """Its batch ends in time; other jobs are shown, and the tick goes on to polls."""
    shown, aside = [], []

    def refuse(*_):
        raise RefusedError("SQS get_queue_attributes", "AccessDenied", "no")

    def job(job_id):
        if job_id == "broken":
            raise UnreadableItemError
        return JOB

    monkeypatch.setattr(waits, "show_denied", lambda _, job, error: shown.append(job.job_id))
    monkeypatch.setattr(due, "set_aside", lambda _, due: aside.append(due.job_id))
    ledger = SimpleNamespace(job=job, batch=lambda *_: READY)
    services = SimpleNamespace(
        ledger=ledger, queues=SimpleNamespace(submit_url="", waiting=refuse), now=lambda: T
    )
    dues = [DueEntry("broken", READY.number, T), DueEntry(READY.job_id, READY.number, T)]

    assert send_submits(dues, SubmitCalls(services, 9, None)) == 0
    assert (shown, aside) == ([JOB.job_id], ["broken"])
