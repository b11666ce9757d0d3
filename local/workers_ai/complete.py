"""The body of a completed batch: items, spoilt by faults, in the shape of the model's queue."""

import random
from collections.abc import Callable
from math import inf
from typing import Any

import msgspec

from local.workers_ai.batches import Batch
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError
from local.workers_ai.faults import Fault
from local.workers_ai.models.answers import Answer, answer_all
from local.workers_ai.models.catalogue import GENERATION, MODELS, Family, Model
from local.workers_ai.models.embed import embedder

Item = dict[str, Any]
Items = list[Item]


def completed(
    batch: Batch,
    requests: list[dict[str, Any]],
    behaviour: Behaviour,
    faults: tuple[Fault, ...] = (),
    earlier: int = 0,
    now: float = inf,
) -> dict[str, Any]:
    """The `result` of a finished batch; before it is finished, of the items that are.

    `faults` are the batch's own and those that strike this poll, `earlier` its complete answers.
    """
    model = MODELS[batch.model]
    good = [index for index in range(len(requests)) if index not in batch.failing]
    made = reported(model, [requests[index] for index in good], behaviour)
    answers_of = dict(zip(good, made, strict=True))
    items = [
        _item(index, request, answers_of.get(index), batch.failing.get(index), behaviour)
        for index, request in enumerate(requests)
    ]
    items = items[: _done(batch, now)]
    for fault in faults:
        if not fault.first or earlier < fault.first:
            items = _spoilt(items, fault, requests, batch.request_id)
    items = [_named(item, faults, behaviour) for item in items]
    if behaviour.shuffle:
        random.Random(f"{behaviour.seed} {batch.request_id}").shuffle(items)
    shape = behaviour.shapes.get(model.name) or behaviour.shapes.get("*") or model.shape
    status = {"status": behaviour.completed_status} if behaviour.completed_status else {}
    if shape == "B":
        return {**status, "results": items}
    told = [answer for index, answer in answers_of.items() if index < _done(batch, now)]
    prompt = sum(one.prompt_tokens for one in told)
    completion = sum(one.completion_tokens for one in told)
    shown = {"responses": [_with_id(item) for item in items]}
    return {**status, **shown, "usage": usage(prompt, completion, behaviour)}


_SUCCESS = {"true": True, "text": "true", "one": 1, "null": None}
_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""Members with which a request limits the tokens of its answer."""
_LLAMA_LIMIT = 256
"""The limit of Llama's answers where a request sets none."""


def reported(model: Model, requests: list[dict[str, Any]], behaviour: Behaviour) -> list[Answer]:
    """The answers; if the switches say so, the tokens of generated texts are drawn."""
    made = answer_all(model, requests, embedder(behaviour.embedder))
    if not behaviour.answer_tokens or model.task != GENERATION:
        return made
    fewest, most = behaviour.answer_tokens
    default = _LLAMA_LIMIT if model.family is Family.LLAMA else most
    found = []
    for answer, request in zip(made, requests, strict=True):
        limit = next((request[name] for name in _LIMITS if request.get(name)), default)
        chance = random.Random(f"{behaviour.seed} {msgspec.json.encode(request).decode()}").random()
        drawn = round(fewest * (most / fewest) ** chance)
        found.append(answer._replace(completion_tokens=min(drawn, limit)))
    return found


def usage(prompt: int, completion: int, behaviour: Behaviour) -> dict[str, Any]:
    """Tokens under the names that the switches choose."""
    counts: dict[str, Any] = {}
    if behaviour.usage_names != "input":
        counts |= {"prompt_tokens": prompt, "completion_tokens": completion}
    if behaviour.usage_names != "prompt":
        counts |= {"input_tokens": prompt, "output_tokens": completion}
    counts["total_tokens"] = prompt + completion
    if behaviour.cached_share:
        name = "input" if behaviour.usage_names == "input" else "prompt"
        counts[f"{name}_tokens_details"] = {"cached_tokens": int(prompt * behaviour.cached_share)}
    return counts


def _with_usage(answer: Answer, behaviour: Behaviour) -> bytes:
    chosen = behaviour.usage_names != "prompt" or behaviour.cached_share or behaviour.answer_tokens
    if not chosen or b'"usage":' not in answer.result:
        return answer.result
    told = usage(answer.prompt_tokens, answer.completion_tokens, behaviour)
    return msgspec.json.encode({**msgspec.json.decode(answer.result), "usage": told})


def answers(
    batch: Batch, requests: list[dict[str, Any]], behaviour: Behaviour, request: object
) -> bool:
    """Whether a batch's next complete answer has an item for each of its requests."""
    result = completed(batch, requests, behaviour, batch.faults, batch.answers)
    places = {index for index, one in enumerate(requests) if one == request}
    items = [
        item for item in result.get("responses") or result.get("results") or [] if _is_settled(item)
    ]
    named = [str(item.get("id", item.get("index", -1))).removesuffix(".0") for item in items]
    found = [int(name) if name.isdigit() else -1 for name in named]
    if request is None:
        return True
    if found.count(-1) == len(items):  # Their references alone say whose they are.
        references = [item.get("external_reference") for item in items]
        return bool(places) and all(
            references.count(requests[at].get("external_reference", items)) for at in places
        )
    return bool(places) and all(found.count(at) == 1 for at in places)


def _is_settled(item: dict[str, Any]) -> bool:
    """Whether an item is an answer or a failure, and no placeholder."""
    return item.get("result") is not None or item.get("success") is False


def _named(item: dict[str, Any], faults: tuple[Fault, ...], behaviour: Behaviour) -> dict[str, Any]:
    """An item with its index as the switches give it."""
    index = item.pop("index")
    if behaviour.item_ids == "absent" or any(fault.kind == "unnumbered" for fault in faults):
        return item
    forms = {"number": index, "text": str(index), "float": float(index)}
    return {"index": forms.get(behaviour.item_ids, f"item-{index:08x}-4000"), **item}


def _with_id(item: dict[str, Any]) -> dict[str, Any]:
    """An item of shape A."""
    return {"id": item.pop("index"), **item} if "index" in item else item


def _done(batch: Batch, now: float) -> int:
    if now >= batch.completes_at:
        return batch.count
    took = min(batch.completes_at - batch.running_at, 60.0)
    share = max(now - batch.running_at, 0.0) / took if took else 0.0
    return min(int(batch.count * share), batch.count - 1)


def _item(
    index: int,
    request: dict[str, Any],
    answer: Answer | None,
    failure: ApiError | None,
    behaviour: Behaviour,
) -> dict[str, Any]:
    item: dict[str, Any] = {"index": index}
    if failure is not None:
        item["success"] = False
        item |= _failure(failure, behaviour)
    elif answer is not None:
        result = msgspec.Raw(_with_usage(answer, behaviour))
        item["result"] = {"result": result} if behaviour.nested_result else result
        if behaviour.item_success != "absent":
            item["success"] = _SUCCESS[behaviour.item_success]
    reference = request.get("external_reference")
    if reference is not None or behaviour.missing_reference == "null":
        item["external_reference"] = reference
    return item


def _failure(failure: ApiError, behaviour: Behaviour) -> dict[str, Any]:
    """The error of a failed item, in each shape that a client has ever expected."""
    shapes: dict[str, dict[str, Any]] = {
        "object": {"error": {"code": failure.code, "message": failure.message}},
        "message": {"error": {"message": failure.message}},
        "string": {"error": f"{failure.code}: {failure.message}"},
        "errors": {"errors": [{"code": failure.code, "message": failure.message}]},
        "text": {"message": failure.message},
        "none": {},
    }
    return shapes[behaviour.item_error]


def _spoilt(items: Items, fault: Fault, requests: Items, salt: str) -> Items:
    spoil = _SPOILERS.get(fault.kind)
    return spoil(items, fault.chosen(requests, salt), fault) if spoil else items


def _missing(items: Items, struck: set[int], _: Fault) -> Items:
    return [item for item in items if item["index"] not in struck]


def _placeholder(items: Items, struck: set[int], fault: Fault) -> Items:
    queued: Item = {"result": None, "status": "queued"}
    beside = {"null": {"success": None}, "queued": queued}.get(fault.message, {})
    return _changed(items, struck, lambda item: {"index": item["index"], **beside})


def _repeated(items: Items, struck: set[int], _: Fault) -> Items:
    return items + [dict(item) for item in items if item["index"] in struck]


def _contradicting(items: Items, struck: set[int], _: Fault) -> Items:
    others = [{**item, "result": {"contradicts": True}} for item in items]
    return items + [item for item in others if item["index"] in struck]


def _foreign(items: Items, struck: set[int], _: Fault) -> Items:
    chosen = [{**item, "external_reference": "foreign"} for item in items]
    chosen = [item for item in chosen if item["index"] in struck]
    return items + [{**item, "index": len(items) + item["index"]} for item in chosen]


def _swapped_reference(items: Items, struck: set[int], _: Fault) -> Items:
    """Rotate the references of the struck items; a single one swaps with its neighbour."""
    chosen = [item for item in items if item["index"] in struck]
    if len(chosen) == 1 and len(items) > 1:
        chosen.append(items[items.index(chosen[0]) - 1])
    references = [item.get("external_reference") for item in chosen]
    for item, reference in zip(chosen, references[1:] + references[:1], strict=True):
        item["external_reference"] = reference
    return items


def _null_reference(items: Items, struck: set[int], _: Fault) -> Items:
    return _changed(items, struck, lambda item: {**item, "external_reference": None})


def _null_vectors(items: Items, struck: set[int], _: Fault) -> Items:
    """What JSON makes of NaN."""

    def nulls(plain: bytes) -> bytes:
        result = msgspec.json.decode(plain)
        inner = result.get("result", result)
        inner["data"] = [[None] * len(vector) for vector in inner.get("data", [])]
        return msgspec.json.encode(result)

    return _rewritten(items, struck, nulls)


def _giant(items: Items, struck: set[int], fault: Fault) -> Items:
    def padded(plain: bytes) -> bytes:
        padding = b"x" * (len(plain) * max(fault.factor - 1, 0))
        return b'%b,"padding":"%b"}' % (plain[:-1], padding)

    return _rewritten(items, struck, padded)


def _deep(items: Items, struck: set[int], _: Fault) -> Items:
    nested = b"[" * 2_000 + b"]" * 2_000
    return _rewritten(items, struck, lambda plain: b'%b,"deep":%b}' % (plain[:-1], nested))


def _changed(items: Items, struck: set[int], change: Callable[[Item], Item]) -> Items:
    return [change(item) if item["index"] in struck else item for item in items]


def _rewritten(items: Items, struck: set[int], rewrite: Callable[[bytes], bytes]) -> Items:
    """The items with other results, as JSON, in place of those that are struck."""

    def change(item: Item) -> Item:
        if item.get("result") is None:
            return item
        return {**item, "result": msgspec.Raw(rewrite(msgspec.json.encode(item["result"])))}

    return _changed(items, struck, change)


_SPOILERS = {
    "missing": _missing,
    "placeholder": _placeholder,
    "repeated": _repeated,
    "contradicting": _contradicting,
    "foreign": _foreign,
    "swapped_reference": _swapped_reference,
    "null_reference": _null_reference,
    "null_vectors": _null_vectors,
    "giant": _giant,
    "deep": _deep,
}
