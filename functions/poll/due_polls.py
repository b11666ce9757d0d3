"""Batches to poll: a tick polls those of small jobs, and sends others to more invocations."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from functions.poll.contain import DueItem, contained, each_contained, load, postponed
from functions.poll.dispatch import DISPATCHED_SECONDS, dispatch, is_large
from functions.poll.poll import COLLECT_SECONDS, POLL_BEGUN_SECONDS, needs_call, poll_batch
from functions.poll.visit import visit_job
from shared.aws.queues import PollMessage
from shared.events.subscribe import waits_for_event
from shared.ledger import DueEntry
from shared.models import Batch, BatchState, DueKind, Wait
from shared.observability import logger
from shared.pacing.breaker import Permit
from shared.pacing.waits import is_lasting, is_of_account, shown_if_denied, wait_for_account
from shared.services import Invocation, Services

MAX_OWN_POLLS = 16  # Batches that one cycle polls itself, of small jobs only
BATCHES_PER_MESSAGE = 8  # Batches in one message of the poll queue
MAX_POLLS_WAITING = 20  # Messages that wait in the poll queue, up to which more are sent
NO_ROOM_FOR_SECONDS = 300.0  # After which a batch without room in the queue is polled
REPEAT_SECONDS = 1.0  # To the next visit of a job that another invocation had leased


@dataclass
class PollAllowance:
    """Polls that a tick may still make or send."""

    calls: int  # no more than can call the API before the next tick
    look_at: float = 0.0  # when due batches are read again; later if the queue was full


def poll_due_batches(
    invocation: Invocation, dues: list[DueEntry], allowance: PollAllowance, end_by: float
) -> int:
    """Poll as many as one cycle can, by `end_by`, and queue others; return how many were either."""
    services = invocation.services
    found = [one for one in load(services, dues) if one.batch.work is DueKind.POLL]
    begun = [one for one in found if one.batch.state is BatchState.SUBMITTING]
    polls = [one for one in found if one.batch.state is not BatchState.SUBMITTING]
    in_hand: list[DueItem] = []
    own_ends = end_by - 8.0  # To store and join small answers.
    time = min(own_ends - services.now(), invocation.seconds_left - COLLECT_SECONDS)
    if time > POLL_BEGUN_SECONDS:
        in_hand = [one for one in polls if not is_large(one.job, services.now())][:MAX_OWN_POLLS]
    own = {one.due for one in in_hand}
    # The submit function recovers the submits of an invocation that died.
    recovered = dispatch(services, begun)
    others, room = [one for one in polls if one.due not in own], 0
    if others:
        with shown_if_denied(services, [one.job for one in others]):
            waiting = services.queues.waiting(PollMessage)
            room = max(MAX_POLLS_WAITING - waiting, 0) * BATCHES_PER_MESSAGE
    handed = _send_polls(services, others[:room])
    if left_over := others[room:]:
        allowance.look_at = services.now() + 10.0
        if time > POLL_BEGUN_SECONDS:
            in_hand += _overdue(left_over, services.now())[: MAX_OWN_POLLS - len(in_hand)]
    until = min(own_ends, services.now() + 25.0)  # Then other work begins.
    polled = _poll(invocation, in_hand, until + COLLECT_SECONDS)
    allowance.calls -= handed + polled
    return recovered + handed + polled


def _overdue(found: list[DueItem], now: float) -> list[DueItem]:
    """Those so long overdue that nobody may be reading the poll queue: they block others."""
    since = now - NO_ROOM_FOR_SECONDS
    late = [one for one in found if one.batch.due_at is not None and one.batch.due_at < since]
    if late:
        logger.warning(
            "poll queue full; the tick polls itself", job_id=late[0].batch.job_id, batches=len(late)
        )
    return late


def advance_batches(invocation: Invocation, batches: Iterable[tuple[str, str, float]]) -> int:
    """Poll or collect the batches that a message names, in parallel; return how many."""
    found = load(invocation.services, (DueEntry(*one) for one in batches))
    return _poll(invocation, [one for one in found if one.batch.work is DueKind.POLL])


def _poll(invocation: Invocation, found: list[DueItem], until: float = math.inf) -> int:
    """Poll batches, not beyond a time, and visit their jobs; return how many batches."""
    services, polling = invocation.services, invocation.until(until)
    found = [one for one in found if one.batch.state in {BatchState.QUEUED, BatchState.READY}]
    now = services.now()
    behind = [(one, wait) for one in found if (wait := _seconds_behind(services, one, now))]
    postponed(
        services,
        [(one.due, (one, wait)) for one, wait in behind],
        lambda it: services.ledger.postpone(it[0].batch, now + it[1]),
    )
    held = {one.due for one, _ in behind}
    found = [one for one in found if one.due not in held]
    chosen = _permitted(services, found, now)

    def step(chosen: tuple[DueItem, Permit | None]) -> str | None:
        """Poll one batch; return its job's id if it got a part, and the job is to be visited."""
        one, permit = chosen
        is_done, job_id = poll_batch(polling, one.job, one.batch, permit), one.job.job_id
        # Now, not when all polls of this cycle are over: some take a minute.
        return job_id if is_done and not visit_job(invocation, job_id) else None

    again = each_contained(services, [(one[0].due, one) for one in chosen], step)
    if wanted := {job_id for job_id in again if job_id}:
        services.sleep(REPEAT_SECONDS)
        named = [(DueEntry(job_id, "", None), job_id) for job_id in sorted(wanted)]
        each_contained(services, named, partial(visit_job, invocation))
    return len(chosen) + len(held)


def _permitted(
    services: Services, found: list[DueItem], now: float
) -> list[tuple[DueItem, Permit | None]]:
    """The batches that may be processed now, each with its permit; the others are due later.

    `Permit()` stands for one that needs no call, None for one that ends unpolled.
    """
    asked = {one.due for one in found if needs_call(one.job, one.batch, now)}
    here = {one.due for one in found if one.due in asked and is_of_account(services, one.job)}
    granted, permit = services.budget.permit_polls(len(here), now) if here else (0, Permit())
    chosen: list[tuple[DueItem, Permit | None]] = []
    for one in found:
        answer = permit if one.due in here else wait_for_account(one.job, now)
        if one.due not in asked:
            chosen.append((one, Permit()))
        elif isinstance(answer, Wait) and _is_given_up(one, answer, now):
            chosen.append((one, None))
        elif isinstance(answer, Wait):
            _postpone(services, one, answer, now)
        elif granted > 0:
            granted -= 1
            chosen.append((one, answer))
        elif (one.batch.due_at or now) > now:  # The message that was sent for it is used up.
            _postpone(services, one, Wait(now + REPEAT_SECONDS), now)
    return chosen


def _is_given_up(found: DueItem, refusal: Wait, now: float) -> bool:
    """Whether a batch past its deadline ends unpolled: all are refused for a quarter of an hour."""
    since = max(refusal.since, found.batch.pending_at)
    return refusal.since > 0 and found.job.is_past_deadline(now) and is_lasting(since, now)


def _seconds_behind(services: Services, found: DueItem, now: float) -> float:
    """Seconds for which a batch is not polled, because its event will tell of it."""
    job, batch = found.job, found.batch
    if batch.told_at or batch.doubt or not needs_call(job, batch, now):
        return 0.0
    wait = waits_for_event(services, job, batch, now)
    return wait if job.deadline_at is None or now + wait < job.deadline_at else 0.0


def _postpone(services: Services, found: DueItem, refusal: Wait, now: float) -> None:
    """Postpone a poll for which there is no token, or that a pause forbids."""
    ledger, batch, until = services.ledger, found.batch, refusal.until

    def postpone() -> Batch | None:
        if refusal.code:
            return ledger.wait(batch, until, until - min(batch.due_at or now, now))
        return ledger.postpone(batch, until)

    contained(services, found.due, postpone)


def _send_polls(services: Services, chosen: list[DueItem]) -> int:
    """Send batches to more invocations of this function; return how many."""
    due_at = services.now() + DISPATCHED_SECONDS
    items = [(one.due, one.batch) for one in chosen]
    sent = postponed(services, items, lambda batch: services.ledger.postpone(batch, due_at))
    pairs = [(batch.job_id, batch.number, due_at) for batch in sent]
    starts = range(0, len(pairs), BATCHES_PER_MESSAGE)
    messages = [PollMessage(tuple(pairs[at : at + BATCHES_PER_MESSAGE])) for at in starts]
    with shown_if_denied(services, [one.job for one in chosen]):
        services.queues.send_all(messages)
    return len(pairs)
