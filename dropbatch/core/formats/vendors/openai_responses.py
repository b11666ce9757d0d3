"""OpenAI's `response` objects, built from Workers AI's answers.

Valid for the types of OpenAI's own SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dropbatch.core.formats.answers import Answer, Tokens, numbers_of, read_answer, text_value
from dropbatch.core.formats.base import NULL, Json, begins, elements_of, members_of, word_of

if TYPE_CHECKING:
    import msgspec

    from dropbatch.core.formats.base import BatchFacts

    Members = dict[str, msgspec.Raw]

_OWN_MEMBERS = frozenset(
    {
        *(
            "id",
            "object",
            "created_at",
            "status",
            "model",
            "output",
            "parallel_tool_calls",
            "tool_choice",
            "tools",
        ),
        *(
            "usage",
            "response",
            "output_text",
            "choices",
            "created",
            "tool_calls",
            "prompt_logprobs",
        ),
    }
)
_STATUSES = frozenset({"completed", "failed", "in_progress", "cancelled", "queued", "incomplete"})
_CHAT_DETAILS = {
    "input_tokens_details": "prompt_tokens_details",
    "output_tokens_details": "completion_tokens_details",
}
_USAGE_DETAILS = {
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def response_object(
    facts: BatchFacts,
    id_: int,
    result: Json,
    *,
    is_base64: bool = False,  # noqa: ARG001
) -> dict[str, Any]:
    """A `response`."""
    answer, name = read_answer(result), f"{facts.job_id}-{id_}"
    members = answer.members
    items = elements_of(members.get("output", NULL)) or []
    output = [_output_item(raw, f"{name}-{at}") for at, raw in enumerate(items)]
    is_cut = answer.finish == "length"
    kept: dict[str, Any] = {
        member: raw for member, raw in members.items() if member not in _OWN_MEMBERS
    }
    if is_cut and word_of(members.get("status", NULL)) not in {"failed", "cancelled"}:
        kept.setdefault("incomplete_details", {"reason": "max_output_tokens"})

    def given(member: str, signs: bytes, otherwise: object) -> object:
        """A member of the API's, if it begins with one of these signs."""
        raw = members.get(member, NULL)
        return raw if bytes(raw)[:1] in signs.split() else otherwise

    status = word_of(members.get("status", NULL))
    return {
        "id": given("id", b'"', f"resp_{name}"),
        "object": "response",
        "created_at": int(facts.accepted_at),
        "status": status if status in _STATUSES else "incomplete" if is_cut else "completed",
        "model": facts.model,
        "output": output or _made_output(answer, result, name),
        "parallel_tool_calls": given("parallel_tool_calls", b"t f", otherwise=True),
        "tool_choice": given("tool_choice", b"{", "auto"),
        "tools": given("tools", b"[", []),
        "usage": _usage(members, answer.tokens),
        **kept,
    }


def _made_output(answer: Answer, result: Json, name: str) -> list[dict[str, Any]]:
    """The items of an answer that a chat model gave: its reasoning, its text, its calls."""
    items: list[dict[str, Any]] = []
    if answer.reasoning is not None:
        thought = {"type": "reasoning_text", "text": answer.reasoning}
        items.append({"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [thought]})
    if answer.text is not None or not (answer.is_known or answer.calls):
        text = text_value(result) if answer.text is None else answer.text
        items.append(
            _message({}, f"msg_{name}", [{"type": "output_text", "annotations": [], "text": text}])
        )
    for index, call in enumerate(answer.calls):
        named = {"name": call.name, "arguments": call.arguments.decode(errors="replace")}
        call_id = call.id or f"call_{name}-{index}"
        items.append({"type": "function_call", "call_id": call_id, **named, "status": "completed"})
    return items


def _output_item(raw: msgspec.Raw, name: str) -> object:
    """An item of `output` with what OpenAI's types require.

    An item of an unknown kind is unchanged.
    """
    item = _without_nulls(members_of(raw) or {})
    kind = word_of(item.get("type", NULL))
    if kind == "reasoning":
        return {"id": f"rs_{name}", "summary": [], **item}
    if kind == "function_call":
        return {**item, "call_id": item.get("call_id") or item.get("id") or f"call_{name}"}
    if kind == "message":
        return _message(
            item, f"msg_{name}", list(map(_part, elements_of(item.get("content", NULL)) or []))
        )
    return raw


def _without_nulls(item: Members) -> Members:
    return {name: raw for name, raw in item.items() if bytes(raw) != b"null"}


def _message(item: Members, id_: str, content: list[Any]) -> dict[str, Any]:
    return {
        "id": id_,
        "status": "completed",
        **item,
        "type": "message",
        "role": "assistant",
        "content": content,
    }


def _part(raw: msgspec.Raw) -> object:
    part = members_of(raw) or {}
    if word_of(part.get("type", NULL)) not in {"output_text", "text"} or not begins(
        part.get("text", NULL), b'"'
    ):
        return raw
    return {"annotations": [], **_without_nulls(part), "type": "output_text"}


def _usage(members: Members, tokens: Tokens) -> dict[str, Any]:
    usage = members_of(members.get("usage", NULL)) or {}
    counts: dict[str, Any] = dict(
        zip(("input_tokens", "output_tokens", "total_tokens"), tokens, strict=True)
    )
    for name, zeros in _USAGE_DETAILS.items():
        counts[name] = zeros | numbers_of(usage.get(name) or usage.get(_CHAT_DETAILS[name]) or NULL)
    return counts
