"""When the search for a lost submit is in vain: what proves that no event of it can still come."""

from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest

from functions.poll.schedule.pull_events import pull_events
from shared.events.pulling import expect_events
from shared.events.search import Look, look
from shared.models import BatchState, Looking, Submission
from shared.pacing.budget import Free
from tests.integration.poll.events.conftest import M3
from tests.support.doubles.api_client import ACCOUNT
from tests.support.doubles.ledger_items import JOB, T

OTHER = "@cf/baai/bge-small-en-v1.5"
MINE = replace(JOB, plan=replace(JOB.plan, account=ACCOUNT, model=M3))


@pytest.fixture
def lost(told, table):
    """A stack in which a batch is looked for that was sent at `T`; a batch `id` was accepted later."""
    told.services.settings.batch_deadline_hours = 24
    told.services.store = SimpleNamespace(head=lambda _: None)
    table.delete_item(TableName="table", Key={"pk": {"S": "CONTROL"}, "sk": {"S": f"EVENTS#{ACCOUNT}#{M3}"}})
    told.services.events.ids.assign("id", told.batch.job_id, told.batch.number, 0, T + 5)
    looking = Looking(T + 1, T, T + 1)
    told.begin(state=BatchState.SUBMITTING, submissions=(), looking=looking, attempt=1, markers=("~db1.",))
    return told


def pulled(lost):
    lost.services.events.item.change({"pull_at": 0.0})
    pull_events(lost.services, Free(polls=90))


def ends_at(lost, seconds):
    """Whether the search is over so long after it began."""
    lost.clock = T + 1 + seconds
    pulled(lost)
    return look(SimpleNamespace(services=lost.services), MINE, lost.batch)[0] is Look.OVER


@pytest.mark.parametrize(
    ("model", "kind", "is_over"), [(M3, "queued", True), (OTHER, "queued", False), (M3, "succeeded", False)]
)
def test_only_later_event_of_its_model_proves_that_none_comes(lost, model, kind, is_over):
    lost.cloudflare.send(kind, "id", model)
    pulled(lost)
    assert ends_at(lost, 100) is is_over
    assert ends_at(lost, 900)


def test_event_of_a_submit_that_was_found_late_proves_nothing(lost):
    """It was accepted before, and its event came once more."""
    found = Submission("found", 1, T - 30)
    lost.services.times = SimpleNamespace(percentile=lambda model, share, now: 0.0)
    lost.services.left = SimpleNamespace(look=lambda at: None)
    lost.clock = T + 50
    expect_events(lost.services, MINE, "00000099", found)
    lost.cloudflare.send("queued", "found")
    pulled(lost)
    assert not ends_at(lost, 100)


def test_queue_that_nobody_reads_proves_nothing(lost):
    """Until it keeps no event of that time."""
    lost.cloudflare.send("queued", "id")
    pulled(lost)
    lost.budget.permit_check = lambda now, calls=1: False
    assert not ends_at(lost, 100)
    assert not ends_at(lost, 900)
    assert not ends_at(lost, 3_599)
    assert ends_at(lost, 3_600)


def test_queue_that_is_read_again_proves_that_none_came(lost):
    lost.cloudflare.refuses = lambda method, path: httpx.Response(502) if "pull" in path else None
    assert not ends_at(lost, 900)
    lost.cloudflare.refuses = lambda method, path: None
    assert not ends_at(lost, 960), "what the pull before had taken may be hidden"
    assert ends_at(lost, 1_021)


def test_without_events_none_comes(lost):
    """Nothing reads a queue that an operator switched off."""
    lost.services.events.item.change({"is_off": True})
    assert ends_at(lost, 900)


def test_stack_that_no_longer_uses_events_looks_once(lost):
    lost.services.events = None
    assert look(SimpleNamespace(services=lost.services), MINE, lost.batch)[0] is Look.OVER
