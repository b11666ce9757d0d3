"""What a stack knows of Cloudflare's completion events.

The functions keep it in one item of the table for each account; this module only reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dropbatch.client import aws
from dropbatch.client.stack import Stack
from dropbatch.core import names

State = Literal["on", "off", "not set up", "refused", "unavailable"]

PERMISSION = "Give the token Queues - Edit for the account; it is tried again within an hour."


@dataclass(frozen=True)
class Events:
    """Completion events of a stack's account.

    Attributes:
        state: `on`: they are used; `off`: by the parameter; `not set up`: no submit needed them
            yet; `refused`: Cloudflare refused to make the queue, or to let it be read;
            `unavailable`: the transport cannot read a queue.
        message: the state in a sentence, with what to do.
        queue: the queue's name at Cloudflare.
        models: by model, why its events do not come; empty if they do.
    """

    state: State
    message: str
    queue: str = ""
    models: dict[str, str] = field(default_factory=dict)


def look(stack: Stack) -> Events:
    """Read what the functions know of events."""
    with aws.explained():
        variables = variables_of(stack)
        account = variables.get("CLOUDFLARE_ACCOUNT_ID", "")
        got = stack.client("dynamodb").get_item(
            TableName=stack.outputs["TableName"],
            Key={"pk": {"S": names.CONTROL_PK}, "sk": {"S": f"EVENTS#{account}"}},
            ConsistentRead=True,
        )
    return read(variables, aws.python_values(got.get("Item", {})))


def variables_of(stack: Stack) -> dict[str, str]:
    """The variables of the stack's functions."""
    found = stack.client("lambda").get_function_configuration(
        FunctionName=stack.outputs["SubmitFunctionName"]
    )
    variables: dict[str, str] = found.get("Environment", {}).get("Variables", {})
    return variables


def read(variables: Mapping[str, str], item: Mapping[str, Any]) -> Events:
    """What the functions' variables and the item of an account say.

    Args:
        variables: of the functions.
        item: as stored, with Python's values; empty if there is none.
    """
    state, message = _state(variables, item)
    by_model = {name: one for name, one in sorted(item.items()) if name.startswith("@")}
    problems = {name: one.get("problem", "") for name, one in by_model.items()}
    return Events(state, message, variables.get("EVENTS_QUEUE_NAME", ""), problems)


def _state(variables: Mapping[str, str], item: Mapping[str, Any]) -> tuple[State, str]:
    refusal = item.get("refusal", "")
    if variables.get("TRANSPORT") == "worker":
        return "unavailable", "Transport=worker cannot read a queue: batches are polled."
    if variables.get("COMPLETION_EVENTS") != "yes":
        left = f" The next ticks remove the queue. Cloudflare said {refusal}." if refusal else ""
        return "off", (
            f"switched off by the parameter CompletionEvents (yes: on): batches are polled.{left}"
        )
    if refusal:
        return "refused", f"Cloudflare said {refusal}. Batches are polled. {PERMISSION}"
    if not item.get("queue_id"):
        return "not set up", (
            "the first submit makes the queue at Cloudflare, if the token has the permission "
            "Queues - Edit"
        )
    queue = variables.get("EVENTS_QUEUE_NAME", "")
    return "on", f"batches are polled when Cloudflare says that they are finished (queue {queue})"
