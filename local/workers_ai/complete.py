"""The body of a completed batch: answers as items, spoilt by faults, in the shape of the model's queue.

How long a batch takes, and whether it fails as a whole, is decided earlier.
"""

import random
from typing import Any

import msgspec

from local.workers_ai.batches import Batch
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError
from local.workers_ai.faults import Fault
from local.workers_ai.models.answers import Answer, answer_all
from local.workers_ai.models.catalogue import MODELS
from local.workers_ai.models.embed import embedder


def completed(
    batch: Batch,
    requests: list[dict[str, Any]],
    behaviour: Behaviour,
    faults: tuple[Fault, ...] = (),
    earlier: int = 0,
) -> tuple[dict[str, Any], str]:
    """The `result` of a finished batch, and what made the answers.

    Args:
        batch: The batch.
        requests: What was sent.
        behaviour: The switches.
        faults: The batch's own and those that strike this poll.
        earlier: Complete answers given before this one.
    """
    model = MODELS[batch.model]
    embed = embedder(behaviour.embedder)
    good = [index for index in range(len(requests)) if index not in batch.failing]
    answers = dict(
        zip(
            good,
            answer_all(model, [requests[index] for index in good], embed),
            strict=True,
        )
    )
    items = [
        _item(index, request, answers.get(index), batch.failing.get(index), behaviour)
        for index, request in enumerate(requests)
    ]
    for fault in faults:
        if not fault.first or earlier < fault.first:
            items = _spoilt(items, fault, requests, batch.request_id)
    if behaviour.shuffle:
        random.Random(f"{behaviour.seed} {batch.request_id}").shuffle(items)
    shape = behaviour.shapes.get(model.name) or behaviour.shapes.get("*") or model.shape
    result: dict[str, Any] = {}
    if behaviour.completed_status:
        result["status"] = behaviour.completed_status
    if shape == "B":
        result["results"] = items
    else:
        result["responses"] = [{"id": item.pop("index"), **item} for item in items]
    if shape == "A" or behaviour.shape_b_usage:
        prompt = sum(answer.prompt_tokens for answer in answers.values())
        completion = sum(answer.completion_tokens for answer in answers.values())
        result["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
        }
    vectors = bool(model.dimension) or model.family == "reranker"
    answered_by = embed.name if vectors else "deterministic-echo"
    if behaviour.answered_by:
        result["answered_by"] = answered_by
    return result, answered_by


def _item(
    index: int, request: dict[str, Any], answer: Answer | None, failure: ApiError | None, behaviour: Behaviour
) -> dict[str, Any]:
    item: dict[str, Any] = {"index": index}
    if failure is not None:
        item["success"] = False
        item |= _failure(failure, behaviour)
    elif answer is not None:
        result = msgspec.Raw(answer.result)
        item["result"] = {"result": result} if behaviour.nested_result else result
        item["success"] = True
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


def _spoilt(
    items: list[dict[str, Any]], fault: Fault, requests: list[dict[str, Any]], salt: str
) -> list[dict[str, Any]]:
    """The items after one fault."""
    if fault.kind not in _SPOILERS:
        return items
    return _SPOILERS[fault.kind](items, fault.chosen(requests, salt), fault)


def _missing(items: list[dict[str, Any]], struck: set[int], _: Fault) -> list[dict[str, Any]]:
    return [item for item in items if item["index"] not in struck]


def _repeated(items: list[dict[str, Any]], struck: set[int], _: Fault) -> list[dict[str, Any]]:
    return items + [dict(item) for item in items if item["index"] in struck]


def _contradicting(items: list[dict[str, Any]], struck: set[int], _: Fault) -> list[dict[str, Any]]:
    return items + [{**item, "result": {"contradicts": True}} for item in items if item["index"] in struck]


def _foreign(items: list[dict[str, Any]], struck: set[int], _: Fault) -> list[dict[str, Any]]:
    beyond = len(items)
    return items + [
        {**item, "index": beyond + item["index"], "external_reference": "foreign"}
        for item in items
        if item["index"] in struck
    ]


def _swapped_reference(items: list[dict[str, Any]], struck: set[int], _: Fault) -> list[dict[str, Any]]:
    """Rotate the references of the struck items; a single one swaps with its neighbour."""
    chosen = [item for item in items if item["index"] in struck]
    if len(chosen) == 1 and len(items) > 1:
        chosen.append(items[items.index(chosen[0]) - 1])
    references = [item.get("external_reference") for item in chosen]
    for item, reference in zip(chosen, references[1:] + references[:1], strict=True):
        item["external_reference"] = reference
    return items


def _null_vectors(items: list[dict[str, Any]], struck: set[int], _: Fault) -> list[dict[str, Any]]:
    return [_with_nulls(item) if item["index"] in struck and "result" in item else item for item in items]


def _with_nulls(item: dict[str, Any]) -> dict[str, Any]:
    """An item whose vectors are what JSON makes of NaN."""
    result = msgspec.json.decode(msgspec.json.encode(item["result"]))
    inner = result.get("result", result)
    inner["data"] = [[None] * len(vector) for vector in inner.get("data", [])]
    return {**item, "result": result}


def _null_reference(items: list[dict[str, Any]], struck: set[int], _: Fault) -> list[dict[str, Any]]:
    for item in items:
        if item["index"] in struck:
            item["external_reference"] = None
    return items


def _giant(items: list[dict[str, Any]], struck: set[int], fault: Fault) -> list[dict[str, Any]]:
    for item in items:
        if item["index"] in struck and "result" in item:
            plain = msgspec.json.encode(item["result"])
            padding = b"x" * (len(plain) * max(fault.factor - 1, 0))
            item["result"] = msgspec.Raw(b'%b,"padding":"%b"}' % (plain[:-1], padding))
    return items


_SPOILERS = {
    "missing": _missing,
    "repeated": _repeated,
    "contradicting": _contradicting,
    "foreign": _foreign,
    "swapped_reference": _swapped_reference,
    "null_reference": _null_reference,
    "null_vectors": _null_vectors,
    "giant": _giant,
}
