"""Answers in parts, items without numbers, usage under other names, and replies without end."""

import pytest

from local.workers_ai import Fault
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.complete import usage
from tests.support.local_api import TEXTS, LocalApi

KIMI = "@cf/moonshotai/kimi-k2.6"
CHATS = [{"messages": [{"role": "user", "content": "Why?"}], "external_reference": "a"}]


@pytest.mark.parametrize("fault", [None, Fault(kind="partial")], ids=["switch", "fault"])
def test_running_batch_shows_more_and_more_items(fault):
    local = LocalApi(partial_items=fault is None, latency=120)
    if fault:
        local.api.inject(fault)
    request_id, seen = local.submit(), []

    for _ in range(5):
        result = local.poll(request_id).json()["result"]
        seen.append((result.get("status"), len(result["responses"])))
        local.now += 40

    assert seen == [("queued", 0), ("queued", 0), ("running", 6), (None, 20), (None, 20)]


def test_usage_beside_some_items_is_that_of_these():
    local = LocalApi(partial_items=True, latency=120)
    request_id = local.submit()

    local.now += 115
    some = local.poll(request_id).json()["result"]["usage"]["total_tokens"]

    assert 0 < some < local.finished(request_id)["usage"]["total_tokens"]


@pytest.mark.parametrize(
    ("changes", "number"),
    [({}, 0), ({"item_ids": "text"}, "0"), ({"item_ids": "absent"}, None)],
    ids=str,
)
@pytest.mark.parametrize(("shape", "name"), [("A", "id"), ("B", "index")])
def test_items_may_lack_their_number(changes, number, shape, name):
    local = LocalApi(shuffle=False, shapes={"*": shape}, **changes)

    result = local.finished(local.submit())

    first = (result.get("responses") or result.get("results"))[0]
    assert (first.get(name), first["external_reference"]) == (number, "row-0")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}),
        ({"usage_names": "input"}, {"input_tokens": 4, "output_tokens": 2, "total_tokens": 6}),
        (
            {"cached_share": 0.5},
            {
                "prompt_tokens": 4,
                "completion_tokens": 2,
                "total_tokens": 6,
                "prompt_tokens_details": {"cached_tokens": 2},
            },
        ),
    ],
)
def test_usage_has_the_names_that_are_chosen(changes, told):
    assert usage(4, 2, Behaviour().changed(changes)) == told


def test_usage_of_an_item_has_the_same_names():
    local = LocalApi(usage_names="both", cached_share=0.5)

    (item,) = local.finished(local.submit(KIMI, CHATS), KIMI)["results"]

    told = item["result"]["usage"]
    assert (
        told["input_tokens"]
        == told["prompt_tokens"]
        > told["prompt_tokens_details"]["cached_tokens"]
        > 0
    )


@pytest.mark.parametrize("what", ["items", "errors", "unknown", "wide", "deep", "page"])
def test_flood_has_its_size(what):
    local = LocalApi()
    local.api.inject(Fault(kind="flood", message=what, factor=1))

    body = local.poll(local.submit()).content

    assert 990_000 < len(body) < 1_010_000


def test_api_knows_what_it_would_answer():
    local = LocalApi()
    local.api.inject(Fault(kind="missing", items=(1,), first=1), Fault(kind="missing", items=(2,)))
    request_id = local.submit()

    def answered():
        return [local.api.would_answer(request_id, text) for text in TEXTS[:3]]

    assert answered() == [False] * 3, "it still runs"
    assert len(local.finished(request_id)["responses"]) == 18
    assert answered() == [True, True, False]
    assert local.api.would_answer("unknown", TEXTS[0]) is False
    assert local.api.calls["poll"] == {"200": 1}
