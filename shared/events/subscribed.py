"""What is known of the events of a job's model: whether it is subscribed.

Nothing is set up here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shared.errors import StorageError
from shared.observability import logger
from shared.workers_ai.other_account import other_account

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.events.control_item import EventsState, Subscription
    from shared.events.set_up import Events
    from shared.models import Job


class Subscribed(NamedTuple):
    """A model whose events the stack gets."""

    events: Events
    state: EventsState
    subscription: Subscription


def subscribed(services: Services, job: Job) -> Subscribed | None:
    """What is known of the events of a job's model.

    None without a subscription, and for another account.

    Raises:
        StorageError: DynamoDB failed.
    """
    events = services.events
    if events is None or other_account(services, job):
        return None
    state = events.item.recent(services.now())
    subscription = state.subscriptions.get(job.plan.model)
    return (
        Subscribed(events, state, subscription)
        if subscription is not None and subscription.id
        else None
    )


def subscribed_if_known(services: Services, job: Job) -> Subscribed | None:
    """The same; None also if DynamoDB failed: then the batch does without events."""
    try:
        return subscribed(services, job)
    except StorageError as error:
        logger.warning("events of a model not judged", reason=str(error))
        return None
