"""The stack's events on moto's table, with Cloudflare's queues in memory.

At a time that a test moves.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from shared.events.coming import Coming
from shared.events.control_item import EventsItem, EventsState
from shared.events.ids import Ids
from shared.events.set_up import Events
from shared.ledger import Ledger
from shared.pacing.budget import Free
from shared.workers_ai.queues_api import QueuesApi
from tests.support.doubles.api_client import ACCOUNT, client
from tests.support.doubles.cloudflare_queues import CloudflareQueues
from tests.support.doubles.ledger_items import T

NAME = "dropbatch-q"


class Stack:
    """A stack with events: its services, Cloudflare's queues, and the clock."""

    def __init__(self, table: Any) -> None:
        self.cloudflare = CloudflareQueues()
        self.sent: list[float] = []
        """Seconds until each message comes that was sent."""
        self.clock = T
        self.api = client(self.cloudflare)
        self.budget = SimpleNamespace(
            permit_check=lambda now, calls=1: True,
            free=lambda now, senders=(): Free(),
            pull_wait=lambda free, since: 0.0,
        )
        item = EventsItem(table, "table", ACCOUNT)
        item.call("delete_item", Key=item.key)
        self.services: Any = SimpleNamespace(
            api=self.api,
            ledger=Ledger(table, "table"),
            budget=self.budget,
            settings=SimpleNamespace(
                cloudflare_account_id=ACCOUNT, table_name="table", events_queue_name=NAME
            ),
            now=lambda: self.clock,
            events=None,
            queues=SimpleNamespace(
                hops=0, send_all=lambda messages, delays: self.sent.extend(delays)
            ),
            sleep=self.pass_time,
        )
        self.restart()

    def pass_time(self, seconds: float) -> None:
        """Move the clock."""
        self.clock += seconds

    def restart(self) -> None:
        """As in another process: nothing is kept in memory."""
        ledger = self.services.ledger
        item, ids = EventsItem(ledger.client, "table", ACCOUNT), Ids(ledger.client, "table")
        coming = Coming(ledger.client, "table", ACCOUNT)
        self.services.events = Events(
            item, ids, coming, QueuesApi(self.api, lambda: self.clock), NAME
        )

    @property
    def state(self) -> EventsState:
        """What the control item holds."""
        return self.services.events.item.state()


@pytest.fixture
def stack(table: Any) -> Stack:
    return Stack(table)
