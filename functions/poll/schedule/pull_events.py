"""Pulls Cloudflare's events and makes the batches due that they name: a reason to poll now, never more.

The write that plans the next pull also claims this one. Messages are acknowledged after the writes that follow from
them, so a function that dies in between gets them again, and writes nothing new. What is no event of a batch of ours is
acknowledged too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from functions.poll.schedule.due_items import in_parallel
from shared.errors import StorageError
from shared.events.answers import note_late
from shared.events.control_item import ASIDE_SECONDS
from shared.events.pulling import pull_interval
from shared.ledger import DueEntry
from shared.observability import count, logger
from shared.workers_ai.queue_messages import Event, event_in
from shared.workers_ai.queues_api import BATCH_SIZE, QueuesRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.bootstrap import Services
    from shared.events.control_item import EventsState
    from shared.events.ids import Ids
    from shared.events.set_up import Events
    from shared.workers_ai.queue_messages import Message

MAX_PULLS_IN_A_ROW = 10
"""Full pulls that follow each other in one cycle: a backlog of 100,000 messages is read in minutes."""
PULL_SECONDS = 20.0
"""Seconds that the pulls of one cycle take at most."""
MAX_NEW_ORPHANS, MAX_ORPHANS_AN_HOUR, HOUR = 100, 1_000, 3_600.0
"""Events of ids that no batch has that one pull writes down, and all pulls of an hour: others' traffic costs little."""
MADE_ANEW_SECONDS = 3_600.0
"""Seconds before a queue that is gone is made anew, after it was made the last time."""


@dataclass(slots=True)
class Pulled:
    """What a cycle's pulls led to.

    Attributes:
        told: batches that are due now.
        next_at: when to pull next, Unix seconds; infinite for never.
    """

    told: list[DueEntry] = field(default_factory=list)
    next_at: float = math.inf


def pull_events(services: Services, gap: float) -> Pulled:
    """Pull if it is time, while anything is outstanding; the batches that are told of are due now.

    Args:
        services: the process's clients and settings.
        gap: seconds between two pulls at least.
    """
    events, now = services.events, services.now()
    if events is None:
        return Pulled()
    try:
        state = events.item.state()
        if not state.can_pull(now):
            return Pulled()
        if state.pull_at > now:
            return Pulled(next_at=state.pull_at)
        next_at = now + pull_interval(now - state.youngest_at, gap)
        if not events.item.claim_pull(state.pull_at, next_at):
            return Pulled(next_at=next_at)
        return Pulled(_pull(services, events, state), next_at)
    except StorageError as error:
        logger.warning("events not pulled", reason=str(error))
        return Pulled()


def _pull(services: Services, events: Events, state: EventsState) -> list[DueEntry]:
    """Pull until a pull is not full; return the batches that are due now."""
    now = services.now()
    api, told = replace(events.api, until=now + PULL_SECONDS), list[DueEntry]()
    is_new_hour = now - state.orphans_since >= HOUR
    before = room = MAX_ORPHANS_AN_HOUR - (0 if is_new_hour else state.orphans)
    after: dict[str, object] = {}
    try:
        for _ in range(MAX_PULLS_IN_A_ROW):
            if not services.budget.permit_check(services.now()):
                break
            messages = api.pull(state.queue_id).messages
            done, noted = _process(services, events.ids, messages, told, min(room, MAX_NEW_ORPHANS))
            room -= noted
            if done and services.budget.permit_check(services.now()):
                api.acknowledge(state.queue_id, done)
            if len(messages) < BATCH_SIZE:
                after["pulled_at"] = now
                break
        if state.aside_step:
            after["aside_step"] = 0
    except QueuesRefusedError as refused:
        _put_aside(events, state, refused, now)
    if room < before:
        after["orphans_since"] = now if is_new_hour else state.orphans_since
        after["orphans"] = MAX_ORPHANS_AN_HOUR - room
    if after:
        events.item.change(after)
    return told


def _put_aside(events: Events, state: EventsState, refused: QueuesRefusedError, now: float) -> None:
    """Pull nothing for a while; a queue that is gone is made anew by the next submit. No pause of calls follows."""
    logger.warning("events not pulled", reason=str(refused))
    if refused.is_gone and now - state.made_at > MADE_ANEW_SECONDS:
        events.item.change({"queue_id": ""})
        events.looked.clear()
        return
    seconds = ASIDE_SECONDS[min(state.aside_step, len(ASIDE_SECONDS) - 1)]
    said = {"refusal": str(refused), "refused_at": now}
    events.item.change({"aside_until": now + seconds, "aside_step": state.aside_step + 1, **said})


def _process(
    services: Services, ids: Ids, messages: Sequence[Message], told: list[DueEntry], room: int
) -> tuple[list[Message], int]:
    """Do what the messages say; return those that are done with, and how many events of unknown ids were noted.

    Args:
        services: the process's clients and settings.
        ids: whose each id is.
        messages: as pulled.
        told: gets each batch that is due now.
        room: how many events of unknown ids may be noted.
    """
    account = services.settings.cloudflare_account_id
    found = [(one, event_in(one)) for one in messages]
    ours = [(one, event) for one, event in found if event and event.account in {"", account}]
    known = ids.look_up({event.request_id for _, event in ours})
    orphans = [event for _, event in ours if (of := known.get(event.request_id)) and not of.job_id]
    if unknown := sum(not event.is_over for event in orphans):
        count("OrphanBatches", unknown)
    noted = {id(event) for event in orphans[: max(room, 0)]}

    def follow(pair: tuple[Message, Event]) -> tuple[Message, DueEntry | None] | None:
        """A message that is done with, and the batch that it makes due; None for one that is to be delivered again."""
        message, event = pair
        of, now = known.get(event.request_id), services.now()
        if of is None:  # It was not read.
            return None
        try:
            if not of.job_id and id(event) in noted:
                of = ids.note(event, now)
            if not of.job_id or not event.is_over:
                return message, None
            due = services.ledger.tell_over(of.job_id, of.number, of.round, now)
            if due is None:
                batch = services.ledger.batch(of.job_id, of.number)
                note_late(services.events, event.model, event.request_id, batch, message.timestamp_ms / 1000)
        except StorageError as error:
            logger.warning("event not followed", job_id=of.job_id, number=of.number, reason=str(error))
            return None
        is_due = due is not None and due.due_at is not None and due.due_at <= now
        return message, DueEntry(of.job_id, of.number, due.due_at) if due and is_due else None

    followed = [one for one in in_parallel(follow, ours) if one]
    told += [due for _, due in followed if due]
    foreign = [one for one, event in found if not event or event.account not in {"", account}]
    return [*foreign, *(message for message, _ in followed)], len(noted)
