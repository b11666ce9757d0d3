"""What a stack knows of Cloudflare's completion events, in an item of its table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from dropbatch.client.stack import Stack


def variables_of(stack: Stack) -> dict[str, str]:
    """The variables of the stack's functions."""
    name = stack.outputs["SubmitFunctionName"]
    found = stack.client("lambda").get_function_configuration(FunctionName=name)
    return dict(found.get("Environment", {}).get("Variables", {}))


def told(
    variables: Mapping[str, str], item: Mapping[str, Any]
) -> Iterator[tuple[Literal["ok", "note"], str]]:
    """What the functions' variables and their item, as DynamoDB has it, say of events."""
    refusal = item.get("refusal", {}).get("S", "")
    if variables.get("TRANSPORT") == "worker":
        yield "ok", "unavailable: Transport=worker cannot read a queue: batches are polled."
        return
    if variables.get("COMPLETION_EVENTS") != "yes":
        left = f" The next ticks remove the queue. Cloudflare said {refusal}." if refusal else ""
        how = f"by the parameter CompletionEvents (yes: on): batches are polled.{left}"
        yield "ok", f"off: switched off {how}"
        return
    if refusal:
        how = "Give the token Queues - Edit for the account; it is tried again within an hour."
        yield "note", f"refused: Cloudflare said {refusal}. Batches are polled. {how}"
    elif "queue_id" not in item:
        how = "if the token has the permission Queues - Edit"
        yield "ok", f"not set up: the first submit makes the queue at Cloudflare, {how}"
    else:
        queue = variables.get("EVENTS_QUEUE_NAME", "")
        yield "ok", f"on: batches are polled when Cloudflare says that they are over ({queue})"
    for model, one in sorted(item.items()):
        if model.startswith("@") and (problem := one["M"].get("problem", {}).get("S")):
            yield "note", f"{model}: no events: {problem}. Its batches are polled."
