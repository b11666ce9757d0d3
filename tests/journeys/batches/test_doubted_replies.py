"""Replies that are not believed at once.

One odd poll costs no second submit, and a page pauses nothing.
"""

import time

import pytest

from local.workers_ai import Fault
from local.workers_ai.replies import page
from tests.support.aws.resources import TOKEN
from tests.support.translations import M2M, all_good, codes, greetings


def checks(api):
    """Free calls, and nothing else: polls and submits are counted apart."""
    return sum(api.calls.get("search", {}).values())


def named(fault):
    return "-".join(str(value) for value in fault.values())


ODD_POLLS = [
    *({"kind": "html", "status": 404}, {"kind": "bare", "status": 403}, {"kind": "redirect"}),
    *({"kind": "5006"}, {"kind": "7000"}, {"kind": "3036"}),
]


# ── on a poll ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ODD_POLLS, ids=named)
def test_odd_polls_cost_nothing(world, api, fault):
    """Pages are never an answer, however many come."""
    api.inject(Fault(on="poll", times=1 if fault["kind"].isdecimal() else 7, **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.pauses() == []


def test_7000_with_refused_token_drops_nothing(world, api):
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    api.switch(tokens=("new-token",))
    api.inject(Fault(kind="7000", on="poll"))

    world.settle(minutes=5, until=lambda: world.pauses() == ["token_refused"])

    api.switch(tokens=(TOKEN,))
    world.settle(minutes=30)
    assert all_good(world, 3)
    assert len(api.accepted) == 1


def test_unknown_id_is_believed_only_from_api_itself(world, api):
    faults = [
        Fault(kind="error", on="poll", code=10404, status=404),
        Fault(kind="html", on="poll", status=404),
    ]
    api.inject(*(fault for _ in range(4) for fault in faults))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


# ── a firewall on the way to a submit ─────────────────────────────────────────────────────────────


def test_firewall_block_costs_one_record(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.inject(Fault(kind="html", on="submit", status=403, contains="hello 5", times=0))
    world.upload_records("a.jsonl", greetings(8), model=M2M)
    for name in ("b", "c"):
        world.upload_records(f"{name}.jsonl", greetings(4, name), model=M2M)
    began, over = time.time(), {}

    def seen():
        for folder in world.manifests():
            over.setdefault(folder.split("/")[-2], time.time() - began)
        assert world.pauses() == []
        return world.all_over()

    world.settle(until=seen)

    (folder,) = [folder for folder in world.manifests() if "/a.jsonl/" in folder]
    assert codes(world, folder) == [None] * 5 + ["rejected"] + [None] * 2
    (line,) = [line for line in world.lines(folder=folder) if not line["success"]]
    assert "blocked by Cloudflare's firewall" in line["error"]["message"]
    assert max(over["b.jsonl"], over["c.jsonl"]) <= 180
    assert checks(api) <= 3


@pytest.mark.parametrize(
    "fault", [{"kind": "html", "status": 403}, {"kind": "bare", "status": 403}], ids=named
)
def test_403_page_with_refused_token_is_the_tokens(world, api, fault):
    api.switch(tokens=("new-token",))
    api.inject(Fault(on="submit", **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    assert world.pauses() == ["token_refused"]

    api.switch(tokens=(TOKEN,))
    world.settle(minutes=30)
    assert all_good(world, 3)


def test_403_page_without_free_call_is_retried_later(world, api, monkeypatch):
    """While the free call gets no answer either, the batch is tried later, without a pause."""
    real = api.handle

    def blocked(method, path, query, headers, body):
        return (
            page(403)
            if path.endswith("/models/search")
            else real(method, path, query, headers, body)
        )

    monkeypatch.setattr(api, "handle", blocked)
    api.inject(Fault(kind="html", on="submit", status=403, times=3))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    assert world.pauses() == []

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
