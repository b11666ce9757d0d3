"""Switches of the local Workers AI."""

import pytest

from local.workers_ai import Behaviour, SwitchError
from local.workers_ai.__main__ import main
from local.workers_ai.behaviour import switches
from local.workers_ai.faults import KINDS


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
