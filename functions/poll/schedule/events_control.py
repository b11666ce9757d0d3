"""Operators' command for Cloudflare's events: `control/events` holds `on` or `off`.

It is read as commands are in `functions.poll.schedule.control`. `off` is carried out before it is
noted: a function that dies in between, or that Cloudflare does not answer, leaves a command that
ticks carry out again. What is gone already counts as removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core import names
from shared.errors import StorageError
from shared.events.set_up import events_of, remove
from shared.job_control import COMMAND_TRIES, read_command
from shared.observability import count, logger
from shared.pacing.wakes import TICK_EVERY_SECONDS
from shared.workers_ai.queues_api import QueuesRefusedError

if TYPE_CHECKING:
    from shared.bootstrap import Services

ON, OFF = "on", "off"
IDLE_SECONDS = 900.0
"""Seconds after which an idle stack looks for a command again."""
TRIED_AGAIN = {
    "queue_id": "",
    "refusal": "",
    "refused_until": 0.0,
    "aside_until": 0.0,
    "aside_step": 0,
}
"""What `on` forgets, so that the next submit sets everything up.

Also a queue that somebody removed.
"""


def follow_events_control(services: Services) -> None:
    """Carry out the command for events.

    Also with the parameter `CompletionEvents` `no`, for what was made before.

    Raises:
        StorageError: S3 or DynamoDB failed, or the object kept changing.
    """
    events = events_of(services)
    if events is None:
        return
    for _ in range(COMMAND_TRIES):
        state = events.item.state()
        command = read_command(services, names.EVENTS_CONTROL, state.version)
        if command is None:
            return
        changes: dict[str, object] = {}
        if command.word == ON:
            changes = {
                **TRIED_AGAIN,
                "is_off": False,
                **{model: {} for model in state.subscriptions},
            }
            for model in state.subscriptions:
                events.coming.forget_aside(model)
        elif command.word == OFF:
            events.item.change({"is_off": True})  # From now on no submit sets anything up.
            try:
                remove(services, events)
                changes = {"queue_id": "", "refusal": ""}
            except QueuesRefusedError as refused:
                logger.warning("events not removed", reason=str(refused))
                changes = {"refusal": str(refused), "refused_at": services.now()}
                # No message fails because Cloudflare does: a tick tries again.
                if not refused.lasting:
                    events.item.change(changes)
                    return
        else:
            logger.warning("unknown command for events", command=command.word[:20])
        events.item.change({**changes, "version": command.version})
        events.looked.clear()
        logger.info("events controlled", command=command.word[:20])
    raise StorageError(f"{names.EVENTS_CONTROL} changed {COMMAND_TRIES} times while it was read")


def watch_events_control(services: Services, *, is_idle: bool) -> None:
    """Carry out the command in a tick, if events are used: its own event may be late or lost.

    No work waits for it.

    Args:
        services: the process's clients and settings.
        is_idle: whether the stack has no work: then it is read in a few ticks only.
    """
    if services.events is None or (is_idle and services.now() % IDLE_SECONDS >= TICK_EVERY_SECONDS):
        return
    try:
        follow_events_control(services)
    except StorageError:
        logger.exception("command for events not carried out")
        count("Errors")
