"""What a batch counts as paused when it is sent to the submit function."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from functions.poll.schedule.dispatch_submits import DISPATCHED_SECONDS, dispatch
from functions.poll.schedule.due_items import DueItem
from shared.ledger import DueEntry
from shared.models import BatchState
from tests.support.doubles.ledger_items import JOB, READY, T


@pytest.mark.parametrize(
    ("batch", "paused"),
    [
        ({"created_at": T - 900, "due_at": T - 20, "paused": 7.0}, 27.0),
        ({"created_at": T - 10, "due_at": T - 20, "paused": 90.0}, 100.0),
        ({"created_at": T - 900, "due_at": T - 20, "paused": 7.0, "state": BatchState.SUBMITTING}, 7.0),
    ],
    ids=["overdue", "by a clock that is behind", "to be settled"],
)
def test_time_overdue_is_paused_but_never_longer_than_batch_waits(batch, paused):
    noted = []
    services = SimpleNamespace(
        now=lambda: T,
        ledger=SimpleNamespace(postpone=lambda _batch, due_at, **changes: noted.append((due_at, changes)) or True),
        queues=SimpleNamespace(send_all=lambda messages: noted.append(len(messages))),
    )

    due = replace(READY, **batch)
    assert dispatch(services, [DueItem(DueEntry(due.job_id, due.number, due.due_at), JOB, due)]) == 1

    assert noted == [(T + DISPATCHED_SECONDS, {"paused": paused}), 1]
