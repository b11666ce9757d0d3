"""Switches of the local API, its codes, and the odd answers that they make."""

import pytest

from local.workers_ai import Behaviour, Fault, SwitchError
from local.workers_ai.__main__ import main
from local.workers_ai.behaviour import switches
from local.workers_ai.codes import KNOWN
from local.workers_ai.faults import KINDS
from local.workers_ai.worker import STATUSES
from shared.workers_ai import error_codes
from tests.support.local_api import TEXTS, LocalApi


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("submit_status=202", "submit_status", 202),
        ("latency=3", "latency", 3.0),
        ("shuffle=false", "shuffle", False),
        ("queued_word=in_progress", "queued_word", "in_progress"),
        ("batch_failure=error", "batch_failure", "error"),
        ("tokens=one,two", "tokens", ("one", "two")),
        ('tokens=["one"]', "tokens", ("one",)),
        ("shapes.*=B", "shapes", {"*": "B"}),
        (
            "shapes.@cf/baai/bge-small-en-v1.5=B",
            "shapes",
            {"@cf/baai/bge-small-en-v1.5": "B"},
        ),
        ('fault_rates={"3040":0.1}', "fault_rates", {"3040": 0.1}),
    ],
)
def test_switches_as_text(text, name, value):
    assert getattr(Behaviour().changed_by_text(text), name) == value


@pytest.mark.parametrize(
    "text",
    [
        *(
            "latency",
            "nothing=1",
            "nothing.at=1",
            "submit_status=201",
            "latency=soon",
            "latency.x=1",
        ),
        *("item_error=loud", "shuffle=1"),
        *(f"fault_rates.{name}=0.5" for name in ("nothing", "submit:nothing", "nowhere:3040")),
    ],
)
def test_switches_that_are_refused(text):
    with pytest.raises(SwitchError):
        Behaviour().changed_by_text(text)


def test_help_lists_every_switch_and_fault(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["workers_ai", "--help"])
    with pytest.raises(SystemExit):
        main()

    shown = capsys.readouterr().out
    for name, default, verdict, about in switches():
        assert f"  {name}={default} ({verdict})\n      {about}\n" in shown
    assert all(f"  {kind} (" in shown for kind in KINDS)


def test_local_api_can_return_every_code_that_functions_know():
    assert error_codes._CODES.keys() <= KNOWN.keys()


def test_worker_restores_status_that_api_has():
    assert len(STATUSES) > 20
    assert {code: KNOWN[code].status for code in STATUSES} == STATUSES


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
