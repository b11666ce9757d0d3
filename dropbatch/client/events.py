"""What a stack knows of Cloudflare's completion events.

And the operator's command to switch them on and off.

The functions keep it in one item of the table for each account; this module only reads it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from dropbatch.client import aws
from dropbatch.core.names import EVENTS_CONTROL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dropbatch.client.stack import Stack

State = Literal["on", "off", "not set up", "refused", "put aside", "unavailable"]

MIN_CALLS_FOR_EVENTS = 14
"""Calls a minute that a stack with events may make at least."""
OFF_SECONDS = 30.0
"""How long `wait_until_removed` waits."""
PERMISSION = "Give the token Queues - Edit for the account, then run `dropbatch events on`."


@dataclass(frozen=True)
class Events:
    """Completion events of a stack's account.

    Attributes:
        state: `on`: they are used; `off`: by the parameter or an operator; `not set up`: no submit
            needed them yet;
            `refused`: Cloudflare refused to make the queue; `put aside`: it refused to be read, for
                a while;
            `unavailable`: the transport cannot read a queue, or the stack may make too few calls.
        message: the state in a sentence, with what to do.
        queue: the queue's name at Cloudflare; empty if there is none.
        queue_id: its id there.
        models: by model, why its events do not come; empty if they do.
        subscriptions: Cloudflare's ids of what the queue is subscribed to.
    """

    state: State
    message: str
    queue: str = ""
    queue_id: str = ""
    models: dict[str, str] = field(default_factory=dict)
    subscriptions: tuple[str, ...] = ()

    @property
    def left_over(self) -> bool:
        """Whether there is a queue although events are not used."""
        return bool(self.queue_id) and self.state in {"off", "unavailable"}


def look(stack: Stack) -> Events:
    """Read what the functions know of events."""
    with aws.explained():
        found = stack.client("lambda").get_function_configuration(
            FunctionName=stack.outputs["SubmitFunctionName"]
        )
        variables: dict[str, str] = found.get("Environment", {}).get("Variables", {})
        item = _item(stack, variables.get("CLOUDFLARE_ACCOUNT_ID", ""))
    return read(variables, item, time.time())


def _item(stack: Stack, account: str) -> dict[str, Any]:
    key = {"pk": {"S": "CONTROL"}, "sk": {"S": f"EVENTS#{account}"}}
    got = stack.client("dynamodb").get_item(
        TableName=stack.outputs["TableName"], Key=key, ConsistentRead=True
    )
    return aws.python_values(got.get("Item", {}))


def read(variables: Mapping[str, str], item: Mapping[str, Any], now: float) -> Events:
    """What the functions' variables and the item of an account say.

    Args:
        variables: of the functions.
        item: as stored, with Python's values; empty if there is none.
        now: Unix seconds.
    """
    state, message = _state(variables, item, now)
    by_model = {name: one for name, one in sorted(item.items()) if name.startswith("@")}
    return Events(
        state,
        message,
        item.get("queue_name", ""),
        item.get("queue_id", ""),
        {name: one.get("problem", "") for name, one in by_model.items()},
        tuple(one["id"] for one in by_model.values() if one.get("id")),
    )


def _state(variables: Mapping[str, str], item: Mapping[str, Any], now: float) -> tuple[State, str]:
    refusal = item.get("refusal", "")
    if variables.get("TRANSPORT") == "worker":
        return "unavailable", "Transport=worker cannot read a queue: batches are polled."
    if variables.get("COMPLETION_EVENTS") != "yes":
        left = (
            f" The queue {item.get('queue_name', '')} is still there: `dropbatch events off`."
            if item.get("queue_id")
            else ""
        )
        return "off", (
            f"switched off by the parameter CompletionEvents (yes: on): batches are polled.{left}"
        )
    calls = int(variables.get("API_CALLS_PER_MINUTE", MIN_CALLS_FOR_EVENTS))
    if calls < MIN_CALLS_FOR_EVENTS:
        return "unavailable", (
            f"ApiCallsPerMinute is {calls}, and events take {MIN_CALLS_FOR_EVENTS} at "
            "least: batches are polled."
        )
    if item.get("is_off"):
        said = (
            f" Cloudflare refused to delete the queue: {refusal}"
            if item.get("queue_id") and refusal
            else ""
        )
        return "off", (
            "switched off by an operator: batches are polled. `dropbatch events on` "
            f"uses them again.{said}"
        )
    if item.get("refused_until", 0) > now:
        until = _utc(item["refused_until"])
        return "refused", (
            f"Cloudflare said {refusal or 'no'}; tried again at {until}. Batches "
            f"are polled. {PERMISSION}"
        )
    if item.get("aside_until", 0) > now:
        until = _utc(item["aside_until"])
        return "put aside", (
            f"Cloudflare refused to let the queue be read: {refusal}; tried again at {until}"
        )
    if not item.get("queue_id"):
        return (
            "not set up",
            (
                "the first submit makes the queue at Cloudflare, if the token has the "
                "permission Queues - Edit"
            ),
        )
    return "on", (
        "batches are polled when Cloudflare says that they are finished (queue "
        f"{item.get('queue_name', '')})"
    )


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(float(at), UTC):%Y-%m-%dT%H:%M:%SZ}"


def switch(stack: Stack, word: Literal["on", "off"]) -> None:
    """Have the functions use events, or remove what they made at Cloudflare.

    Only operators may do this.
    """
    with aws.explained():
        stack.s3.put_object(Bucket=stack.bucket, Key=EVENTS_CONTROL, Body=word.encode())


def wait_until_removed(
    stack: Stack, sleep: Callable[[float], None] = time.sleep, seconds: float = OFF_SECONDS
) -> Events:
    """Wait until the queue is gone, at most so long; return what is left."""
    deadline = time.monotonic() + seconds
    found = look(stack)
    while found.queue_id and time.monotonic() < deadline:
        sleep(1.0)
        found = look(stack)
    return found


def wrangler(events: Events) -> list[str]:
    """Commands that remove what was left behind; none if there is nothing."""
    if not events.queue_id:
        return []
    name = events.queue or events.queue_id
    subscriptions = [
        f"npx wrangler queues subscription delete {name} --id {one}" for one in events.subscriptions
    ]
    return [*subscriptions, f"npx wrangler queues delete {name}"]
