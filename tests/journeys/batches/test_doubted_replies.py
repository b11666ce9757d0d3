"""Replies that are not believed at once: one odd poll costs no second submit, and a page pauses nothing."""

import time

import pytest

from local.workers_ai import Fault
from local.workers_ai.replies import page
from tests.support.aws.resources import TOKEN
from tests.support.translations import M2M, all_good, codes, greetings

BGE = "@cf/baai/bge-small-en-v1.5"


def checks(api):
    """Free calls, and nothing else: polls and submits are counted apart."""
    return sum(api.calls.get("search", {}).values())


def named(fault):
    return "-".join(str(value) for value in fault.values())


def cases(everyday, more):
    """Faults as parameters; those of the second list run with the slow tests."""
    slow = [pytest.param(fault, marks=pytest.mark.slow, id=named(fault)) for fault in more]
    return [pytest.param(fault, id=named(fault)) for fault in everyday] + slow


PAGES = {"html", "bare", "redirect"}
ODD_POLLS = cases(
    [{"kind": "html", "status": 404}, {"kind": "bare", "status": 403}, {"kind": "5006"}, {"kind": "7000"}],
    [
        *({"kind": "html", "status": status} for status in (400, 402, 403, 405, 410, 413, 422, 502)),
        *({"kind": "bare", "status": status} for status in (401, 404, 410)),
        {"kind": "redirect"},
        *({"kind": "5035"}, {"kind": "error", "code": 5099, "status": 400}),
        *({"kind": code, "status": 400} for code in ("5004", "3003", "3006", "8007")),
        *({"kind": code, "status": 400} for code in ("5007", "3042", "5016", "5018", "3041", "5005")),
        *({"kind": code} for code in ("3040", "3021", "3036", "4006", "3007", "3008")),
        {"kind": "error", "code": 5099, "status": 402},
        {"kind": "error", "code": 5099, "status": 403},
        {"kind": "error", "code": 8007, "status": 400, "message": "This model DOES NOT SUPPORT request queuing"},
    ],
)


# ── on a poll ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fault", ODD_POLLS)
def test_odd_polls_cost_nothing(world, api, fault):
    """Pages are never an answer, however many come; a code for submits is not believed at its first poll."""
    api.inject(Fault(on="poll", times=7 if fault["kind"] in PAGES else 1, **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.pauses() == []


@pytest.mark.parametrize("fault", cases([{"kind": "5006"}], [{"kind": "error", "code": 5099, "status": 400}]))
@pytest.mark.parametrize("polls", [4, 7])
def test_submit_code_on_polls_is_confirmed_after_five(world, api, fault, polls):
    """After five polls over a minute, and not before."""
    api.inject(Fault(on="poll", times=polls, **fault))
    world.upload_records("a.jsonl", greetings(1), model=M2M)

    world.settle()

    assert codes(world) == (["rejected"] if polls == 7 else [None])
    assert len(api.accepted) == 1


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


def test_7000_with_good_token_is_models_after_five(world, api):
    api.inject(Fault(kind="7000", on="poll", times=7))
    world.upload_records("a.jsonl", greetings(1), model=M2M)

    world.settle()

    assert world.manifest()["error"]["code"] == "unknown_model"
    assert world.pauses() == []


def test_unknown_id_is_believed_only_from_api_itself(world, api):
    faults = [Fault(kind="error", on="poll", code=10404, status=404), Fault(kind="html", on="poll", status=404)]
    api.inject(*(fault for _ in range(4) for fault in faults))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


@pytest.mark.slow
def test_capacity_code_is_resubmitted_past_deadline(start, api):
    world = start(BATCH_DEADLINE_HOURS=2)
    api.inject(Fault(kind="3040", on="poll", times=0))
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    began = time.time()

    world.settle(minutes=240, until=lambda: len(api.accepted) == 2)

    assert 7_200 < time.time() - began < 4 * 3_600
    assert world.pauses() == []


def test_403_page_on_polls_with_refused_token_pauses(world, api):
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    api.switch(tokens=("new-token",))
    api.inject(Fault(kind="html", status=403, on="poll", times=1))

    world.settle(minutes=5, until=lambda: world.pauses() == ["token_refused"])

    assert checks(api) == 1


# ── a firewall on the way to a submit ────────────────────────────────────────────────────────────────────────────────


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


@pytest.mark.parametrize("fault", [{"kind": "html", "status": 403}, {"kind": "bare", "status": 403}], ids=named)
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
        return page(403) if path.endswith("/models/search") else real(method, path, query, headers, body)

    monkeypatch.setattr(api, "handle", blocked)
    api.inject(Fault(kind="html", on="submit", status=403, times=3))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    assert world.pauses() == []

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


def test_401_page_with_good_token_is_retried_later(world, api):
    api.inject(Fault(kind="bare", on="submit", status=401, times=3))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(until=lambda: world.pauses() != [] or world.all_over())

    assert all_good(world, 3)
    assert world.pauses() == []


@pytest.mark.slow
def test_free_call_takes_token_of_rate_budget(start, api):
    world = start(API_CALLS_PER_MINUTE=20, MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="html", on="poll", status=403, times=0))
    world.upload_records("a.jsonl", greetings(30), model=M2M)
    begun = time.time()
    while time.time() < begun + 150:
        world.deliver_all()
        world.tick()
        world.pass_time(8)

    calls = sum(sum(ends.values()) for ends in api.calls.values())
    assert checks(api) > 5
    assert calls <= 10 + 20 * (time.time() - begun) / 60 + 1
