"""Pulls Cloudflare's events and makes the batches due that they name.

A reason to poll now, never more.

The write that plans the next pull also claims this one. Messages are acknowledged after the writes
that follow from them, so a function that dies in between gets them again, and writes nothing new.
What is no event of a batch of ours is acknowledged too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from functions.poll.schedule.due_items import in_parallel
from functions.poll.schedule.due_polls import (
    ANSWERS_RESERVE_SECONDS,
    OWN_POLLS_SECONDS,
    PollAllowance,
    poll_due_batches,
)
from shared.aws.queues import PollMessage
from shared.errors import StorageError
from shared.events.answers import note_late
from shared.events.control_item import ASIDE_SECONDS
from shared.events.pulling import MIN_PULL_SECONDS, pull_interval
from shared.ledger import DueEntry
from shared.models import DueKind
from shared.observability import logger
from shared.workers_ai.queue_messages import Event, event_in
from shared.workers_ai.queues_api import BATCH_SIZE, QueuesRefusedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shared.bootstrap import Services
    from shared.events.control_item import EventsState
    from shared.events.ids import KnownId
    from shared.events.set_up import Events
    from shared.invocation import Invocation
    from shared.pacing.room import Free
    from shared.workers_ai.queue_messages import Message
    from shared.workers_ai.transports import Credentials

MAX_PULLS_IN_A_ROW = 10
"""Full pulls that follow each other in one cycle.

A backlog of 100,000 messages is read in minutes.
"""
PULL_SECONDS = 20.0
"""Seconds that the pulls of one cycle take at most."""
MAX_NOTED = 100
"""Events of ids that no batch has yet that the pulls of one cycle write down.

Others' traffic costs little.
"""
PULLS_AHEAD, MAX_PULL_HOPS = 4, 7
"""Pulls that one invocation sends messages for.

And the length of a chain from which on it sends none: a tick begins
another one.
"""
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


def pull_events(services: Services, free: Free, *, by_message: bool = False) -> Pulled:
    """Pull if it is time, while anything is outstanding; the batches that are told of are due now.

    Args:
        services: the process's clients and settings.
        free: calls that would get a token now.
        by_message: whether a message says that it is time.
    """
    events, now = services.events, services.now()
    if events is None:
        return Pulled()
    try:
        state = events.item.state()
        if not state.can_pull(now):
            return Pulled()
        interval = pull_interval(now - state.youngest_at)
        # Messages for pulls were sent before it was known when the one before would be made.
        if state.pull_at > now + (interval / 2 if by_message else 0.0):
            return Pulled(next_at=math.inf if _is_sent(state, state.pull_at) else state.pull_at)
        if wait := services.budget.pull_wait(free, now - state.pulled_at):
            next_at = now + max(wait, MIN_PULL_SECONDS)
            events.item.put_off_pull(state.pull_at, next_at)
            return Pulled(next_at=next_at)
        next_at = max(now + interval, state.quiet_until)
        times = _times_ahead(services, state, next_at)
        if not events.item.claim_pull(state, next_at, max([state.pulls_until, *times])):
            return Pulled(next_at=next_at)
        _send_messages(services, [at - now for at in times])
        pull = _Pull(services, events, state, now)
        pull.run()
        return Pulled(pull.told, math.inf if times or _is_sent(state, next_at) else next_at)
    except StorageError as error:
        logger.warning("events not pulled", reason=str(error))
        return Pulled()


def begin_chain(services: Services) -> None:
    """Have the next pull of this tick begin a chain of messages for pulls.

    The one before may soon be too long.
    """
    if services.events is None:
        return
    try:
        services.events.item.change({"pulls_until": 0.0})
    except StorageError as error:
        logger.warning("pulls not planned", reason=str(error))


def _is_sent(state: EventsState, at: float) -> bool:
    """Whether a message for a pull at about a time, Unix seconds, is on its way.

    Then nobody waits for it.
    """
    return state.pulls_until >= at - pull_interval(at - state.youngest_at) / 2


def _times_ahead(services: Services, state: EventsState, next_at: float) -> list[float]:
    """When to pull next, Unix seconds, if no messages are on their way.

    One invocation sends those of several pulls.

    So a chain of invocations, whose length is bounded, pulls long enough, and none waits for the
    next pull.
    """
    is_last = services.queues.hops >= MAX_PULL_HOPS or next_at <= state.quiet_until
    if is_last or _is_sent(state, next_at):
        return []
    interval = pull_interval(next_at - state.youngest_at)
    return [next_at + place * interval for place in range(PULLS_AHEAD)]


def _send_messages(services: Services, delays: list[float]) -> None:
    """Send a message for each of some later pulls; if that fails, the next tick pulls."""
    try:
        services.queues.send_all([PollMessage(())] * len(delays), delays)
    except StorageError as error:
        logger.warning("later pulls not sent", reason=str(error))


def pull_by_message(invocation: Invocation) -> None:
    """Pull, and poll what was told of, because a message says that it is time.

    Nothing if nothing is outstanding.

    Raises:
        StorageError: DynamoDB failed.
    """
    services = invocation.services
    now = services.now()
    due, next_at = services.ledger.due(DueKind.POLL, now, 1)
    if not due and next_at is None:
        return
    pulled = pull_events(services, services.budget.free(now), by_message=True)
    if pulled.next_at < math.inf:
        services.left.look(pulled.next_at)
    if pulled.told:
        allowance = PollAllowance(len(pulled.told))
        poll_due_batches(
            invocation, pulled.told, allowance, now + OWN_POLLS_SECONDS + ANSWERS_RESERVE_SECONDS
        )


@dataclass(slots=True)
class _Pull:
    """The pulls of one cycle.

    Attributes:
        began: Unix seconds.
        told: batches that are due now.
        noted: events of unknown ids that were noted.
        seen_at: by model, when the youngest of our batches was accepted of which any event has
            come, Unix seconds.
        left: whether messages were left behind, or may have been, which nobody reads until their
            lease is over.
    """

    services: Services
    events: Events
    state: EventsState
    began: float
    told: list[DueEntry] = field(default_factory=list)
    noted: int = 0
    seen_at: dict[str, float] = field(default_factory=dict)
    left: bool = False

    def run(self) -> None:
        """Pull until a pull is not full, and note what the control item has to know."""
        after: dict[str, object] = {}
        try:
            if self._is_emptied() and not self.left:
                after["pulled_at"] = self.began
            if self.state.aside_step:
                after["aside_step"] = 0
        except QueuesRefusedError as refused:
            self.left = True
            self._put_aside(refused)
        if after:
            self.events.item.change(after)
        for model, accepted in self.seen_at.items():
            self.events.coming.note_seen(model, accepted)

    def _is_emptied(self) -> bool:
        """Pull until a pull is not full; whether one was."""
        queue_id = self.state.queue_id
        until = self.began + PULL_SECONDS
        api = replace(self.events.api, now=self.services.now, until=until, pass_on=self._pass_on)
        for _ in range(MAX_PULLS_IN_A_ROW):
            if not self._permit():
                break
            messages = api.pull(queue_id)
            done = self._process(messages)
            self.left = self.left or len(done) < len(messages)
            if done and self._permit():
                api.acknowledge(queue_id, done)
            if len(messages) < BATCH_SIZE:
                return True
        return False

    def _pass_on(self, refused: Credentials) -> bool:
        """Whether another token makes a call that was refused, which is one call more."""
        return self.events.api.pass_on(refused) and self._permit()

    def _permit(self) -> bool:
        return self.services.budget.permit_check(self.services.now())

    def _put_aside(self, refused: QueuesRefusedError) -> None:
        """Pull nothing for a while; a queue that is gone is made anew by the next submit.

        No pause of calls follows.
        """
        events, state, now = self.events, self.state, self.began
        logger.warning("events not pulled", reason=str(refused))
        if refused.is_gone and now - state.made_at > MADE_ANEW_SECONDS:
            events.item.change({"queue_id": ""})
            events.looked.clear()
            return
        seconds = ASIDE_SECONDS[min(state.aside_step, len(ASIDE_SECONDS) - 1)]
        said = {"refusal": str(refused), "refused_at": now}
        events.item.change(
            {"aside_until": now + seconds, "aside_step": state.aside_step + 1, **said}
        )

    def _process(self, messages: Sequence[Message]) -> list[Message]:
        """Do what the messages say; return those that are done with."""
        account = self.services.settings.cloudflare_account_id
        found = [(one, event_in(one)) for one in messages]
        ours = [(one, event) for one, event in found if event and event.account in {"", account}]
        known = self.events.ids.look_up(list(dict.fromkeys(event.request_id for _, event in ours)))
        # The event may be quicker than the function that submits: it finds then what the event
        # said.
        early = [
            event
            for _, event in ours
            if (of := known.get(event.request_id)) and not of.job_id and event.is_over
        ]
        to_note = {id(event) for event in early[: max(MAX_NOTED - self.noted, 0)]}
        self.noted += len(to_note)

        def follow(pair: tuple[Message, Event]) -> tuple[Message, DueEntry | None] | None:
            """A message that is done with, and the batch that is due.

            None for one that is to be delivered again.
            """
            message, event = pair
            of = known.get(event.request_id)
            if of is None:  # It was not read.
                return None
            try:
                if not of.job_id and id(event) in to_note:
                    of = self.events.ids.note(event, self.services.now())
                return message, self._follow(message, event, of)
            except StorageError as error:
                logger.warning(
                    "event not followed", job_id=of.job_id, number=of.number, reason=str(error)
                )
                return None

        followed = [one for one in in_parallel(follow, ours) if one]
        self.told += [due for _, due in followed if due]
        of_ours = {id(message) for message, _ in ours}
        return [one for one in messages if id(one) not in of_ours] + [
            message for message, _ in followed
        ]

    def _follow(self, message: Message, event: Event, of: KnownId) -> DueEntry | None:
        """Make the batch due that an event says is over; None if it makes none due."""
        ledger, now = self.services.ledger, self.services.now()
        if not of.job_id:
            return None
        if event.model:
            self.seen_at[event.model] = max(self.seen_at.get(event.model, 0.0), of.at)
        if not event.is_over:
            return None
        told = ledger.tell_over(of.job_id, of.number, of.attempt, now)
        if told is None:
            batch = ledger.batch(of.job_id, of.number)
            note_late(self.events, event.model, event.request_id, batch, message.sent_at)
            return None
        is_due = told.due_at is not None and told.due_at <= now
        return DueEntry(of.job_id, of.number, told.due_at) if is_due else None
