"""Answers in parts, items without numbers, usage under other names, and replies without end."""

import pytest

from local.workers_ai import Fault
from tests.support.local_api import TEXTS, LocalApi


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
