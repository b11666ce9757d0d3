"""Pulls Cloudflare's events, and makes the batches due that they name: a reason to poll, no more.

The write that plans the next pull also claims this one. Messages are acknowledged after the writes
that follow from them, so a function that dies in between gets them again, and writes nothing new.
What is no event of a batch of ours is acknowledged too; but an id that nobody has only when its
event came the third time, a minute later: its `request_id` may not be stored yet. Deliveries are
counted, because Cloudflare's clock may be minutes before or behind ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from functions.poll.contain import in_parallel
from shared.errors import StorageError, UnreadableItemError
from shared.events.messages import Event, Message, bare_id, event_in
from shared.events.queues_api import BATCH_SIZE, QueuesApi, QueuesRefusedError
from shared.events.state import OVERDUE, EventsState, Owner
from shared.events.subscribe import NEW_FOR, REFUSED_NEW_PULL, REFUSED_PULL, Events, pull_interval
from shared.ledger import DueEntry
from shared.models import BatchState
from shared.observability import count_broken_law, logger
from shared.services import Services

MAX_PULLS = 10  # Full pulls that follow each other: minutes for 100,000 messages
LAST_PULL = 5.0  # Seconds to the last pull, once nothing is outstanding
FRESH_SECONDS = 60.0  # After the end of a batch, in which its event still shows that they come
UNKNOWN_DELIVERIES = 3  # Of an event of an id that nobody has, `VISIBLE_AGAIN_MS` apart


@dataclass(slots=True)
class Pulled:
    """What a cycle's pulls led to."""

    told: list[DueEntry] = field(default_factory=list)  # batches that are due now
    next_at: float = math.inf  # when to pull next, Unix seconds; infinite for never


def pull_events(services: Services, *, is_outstanding: bool) -> Pulled:
    """Pull if it is time; the batches that are told of are due now.

    Once nothing is outstanding, two more show that events of the last answers come.
    """
    events, now = services.events, services.now()
    if events is None:
        return Pulled()
    try:
        state = events.item.state()
        if not state.pull_at or not state.queue_id:
            return Pulled()
        if state.pull_at > now:
            return Pulled(next_at=state.pull_at)
        if state.pull_at < now - OVERDUE and not is_outstanding:
            return Pulled()
        planned = _following(state, now, is_outstanding=is_outstanding)
        if not events.item.claim_pull(state.pull_at, *planned):
            return Pulled(next_at=now)
        pull = _Pull(services, events, state, now)
        refused_until = pull.run(is_outstanding=is_outstanding)
        return Pulled(pull.told, refused_until or planned[0] or math.inf)
    except StorageError as error:
        logger.warning("events not pulled", reason=str(error))
        return Pulled()


def _following(state: EventsState, now: float, *, is_outstanding: bool) -> tuple[float, float]:
    """When to pull next, and of which age the youngest batch is then; 0 for never, and for none."""
    if is_outstanding:
        return now + pull_interval(now - state.youngest_at), state.youngest_at
    return (now + LAST_PULL if state.youngest_at else 0.0), 0.0


@dataclass(slots=True)
class _Pull:
    """The pulls of one cycle, which began at a time, Unix seconds."""

    services: Services
    events: Events
    state: EventsState
    began: float
    told: list[DueEntry] = field(default_factory=list)

    def run(self, *, is_outstanding: bool) -> float:
        """Pull until a pull is not full; return until when a refusal forbids more, else 0."""
        try:
            self._pull_all(replace(self.events.api, until=self.began + 20.0))
        except QueuesRefusedError as refused:
            logger.warning("events not pulled", reason=str(refused))
            is_new = self.began < self.state.made_at + NEW_FOR
            until = self.services.now() + (REFUSED_NEW_PULL if is_new else REFUSED_PULL)
            later = {"pull_at": until} if is_outstanding else {}
            self.events.item.change({"refusal": str(refused), **later})
            self.events.looked.clear()  # The next submit looks after the queue.
            return until if is_outstanding else 0.0
        if self.state.refusal:
            self.events.item.change({"refusal": ""})
        return 0.0

    def _pull_all(self, api: QueuesApi) -> None:
        for _ in range(MAX_PULLS):
            messages = api.pull(self.state.queue_id)
            api.acknowledge(self.state.queue_id, self._process(messages))
            if len(messages) < BATCH_SIZE:
                return

    def _process(self, messages: Sequence[Message]) -> list[Message]:
        """Do what the messages say; return those that are done with."""
        found = [(one, event_in(one)) for one in messages]
        ids = {event.request_id for _, event in found if event}
        owners = self.events.ids.owners(ids)

        def is_done(pair: tuple[Message, Event | None]) -> bool:
            event = pair[1]
            if event is None:
                return True
            owner = owners.get(event.request_id)
            if owner is None:
                return not 0 < event.deliveries < UNKNOWN_DELIVERIES
            return self._follow(event, owner)

        done = in_parallel(is_done, found)
        return [one for one, is_over in zip(messages, done, strict=True) if is_over]

    def _follow(self, event: Event, owner: Owner) -> bool:
        """Make the batch due that an event says is over; False if it is to be told again."""
        try:
            self._tell(event, owner)
        except UnreadableItemError:
            # Its poll finds it so too, and sets it aside.
            logger.exception("batch not readable", job_id=owner.job_id, number=owner.number)
            count_broken_law()
        except StorageError as error:
            why, number = str(error), owner.number
            logger.warning("event not followed", job_id=owner.job_id, number=number, reason=why)
            return False
        return True

    def _tell(self, event: Event, owner: Owner) -> None:
        ledger, now = self.services.ledger, self.services.now()
        batch = ledger.batch(owner.job_id, owner.number)
        if batch is None:
            return
        request_id = batch.submission.request_id if batch.submission else ""
        is_its = bare_id(request_id) == event.request_id
        is_outstanding = is_its and batch.state is BatchState.QUEUED
        if is_outstanding or (batch.completed_at or 0.0) > now - FRESH_SECONDS:
            self.events.item.note_told(self.state, owner.model, now)
        told = ledger.tell_over(batch, now) if is_outstanding else None
        if told and told.due_at is not None and told.due_at <= now:
            self.told.append(DueEntry(told.job_id, told.number, told.due_at))
