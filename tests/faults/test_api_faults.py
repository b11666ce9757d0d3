"""Every fault of the API, each on a job of its own, on a moved clock.

The job is complete, and billed as it says.

tests/journeys/api_replies shows what each fault leads to, with a few records. Here each kind
strikes many times while several batches are pending, and the results are counted.
"""

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from local.workers_ai import Fault, expected_result
from tests.support.fault_table import note

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

M2M = "@cf/meta/m2m100-1.2b"
RECORDS = [
    {"text": f"hello {number}.", "target_lang": "es", "external_reference": f"r{number}"}
    for number in range(120)
]
WITHOUT_CAPACITY = Fault(kind="item_fails", share=0.1, code=3040, first=1, times=0)
BATCH = 20
BATCHES = len(RECORDS) // BATCH
DAY = 86_400


@dataclass
class Case:
    """One kind of fault, and its allowed effects.

    Attributes:
        faults: scripted faults.
        rates: chances by call and kind.
        switches: of the local Workers AI.
        settings: of Dropbatch.
        begin_at: the hour of the day, UTC; 0: any.
        until_fixed: seconds after which faults and bad switches are removed; 0: never.
        fixed: the switches then.
        failing: numbers of the records that may fail.
        codes: the codes of their errors.
        unknowable: whether submits may be unknowable, and batches be paid once more for it.
        observed: what is observed, for the table.
    """

    faults: tuple[Fault, ...] = ()
    rates: dict[str, float] = field(default_factory=dict)
    switches: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    begin_at: int = 0
    until_fixed: float = 0
    fixed: dict[str, Any] = field(default_factory=dict)
    failing: frozenset[int] = frozenset()
    codes: frozenset[str] = frozenset()
    extra: int = 0
    observed: str = "retried, complete"


def ambiguous(kind: str, *, accepted: bool) -> Case:
    """Three submits, each of another batch, whose acceptance is unknown."""
    return Case(
        faults=tuple(
            Fault(kind=kind, on="submit", contains=f"hello {number}.") for number in (3, 43, 83)
        ),
        extra=3 if accepted else 0,
        observed="ambiguous: submitted once more, counted in the manifest",
    )


def one_in_three(kind: str) -> Case:
    return Case(rates={f"poll:{kind}": 0.33}, observed="no answer: polled again later, billed once")


CASES = {
    "3040 out of capacity, every second submit": Case(
        rates={"submit:3040": 0.5}, observed="the model waits, one batch tries"
    ),
    "3040 out of capacity, 10 submits running": Case(
        faults=(Fault(kind="3040", on="submit", times=10),),
        observed="the model waits, one batch tries",
    ),
    "3021 model's minute limit, every third submit": Case(
        rates={"submit:3021": 0.33}, observed="the model waits"
    ),
    "3021 with retry-after": Case(
        faults=(Fault(kind="3021", on="submit", times=8, retry_after=30),),
        observed="the model waits",
    ),
    "971 with retry-after": Case(
        faults=(Fault(kind="971", on="any", times=8, retry_after=120),), observed="every call waits"
    ),
    "971 without retry-after": Case(
        faults=(Fault(kind="error", code=971, status=429, on="any", times=8),),
        observed="every call waits",
    ),
    "bare 429": Case(
        rates={"submit:bare": 0.2, "poll:bare": 0.2}, observed="every call waits a minute"
    ),
    "3036 quota spent, until midnight": Case(
        faults=(Fault(kind="3036", on="submit", nth=5, times=0),),
        begin_at=22,
        until_fixed=2 * 3600,
        observed="submits pause until 00:00 UTC",
    ),
    "4006 quota spent, until midnight": Case(
        faults=(Fault(kind="4006", on="submit", nth=5, times=0),),
        begin_at=22,
        until_fixed=2 * 3600,
        observed="submits pause until 00:00 UTC",
    ),
    "401 token refused, fixed after an hour": Case(
        switches={"tokens": ("another",)},
        until_fixed=3600,
        fixed={"tokens": ("local-token",)},
        observed="everything pauses, one call tries",
    ),
    "403 no access to the account, fixed after an hour": Case(
        switches={"tokens": (), "foreign_tokens": ("local-token",)},
        until_fixed=3600,
        fixed={"tokens": ("local-token",), "foreign_tokens": ()},
        observed="everything pauses, one call tries",
    ),
    "HTML 502 to every third poll": one_in_three("html"),
    "reset of every third poll": one_in_three("reset"),
    "no reply to every third poll": one_in_three("hang"),
    "JSON cut off in every third poll": one_in_three("truncated_json"),
    "body cut off in every third poll": one_in_three("truncated_body"),
    "slow body to every third poll": one_in_three("slow_body"),
    "JSON 500 to every fifth poll": Case(
        rates={"poll:json_500": 0.2}, observed="polled again, billed once"
    ),
    "connection refused, every third call": Case(
        rates={"refuse": 0.33}, observed="certainly not accepted: retried, billed once"
    ),
    "JSON 500 to every third submit": Case(
        rates={"submit:json_500": 0.33},
        observed="ambiguous: submitted again, counted in the manifest",
    ),
    "an error with a code to 6 accepted submits": Case(
        faults=tuple(
            Fault(kind="accept_then_error", code=10013, contains=f"hello {number}.", times=2)
            for number in (3, 43, 83)
        ),
        extra=6,
        observed="ambiguous: submitted again, counted in the manifest",
    ),
    "410 page to 12 submits": Case(
        faults=(Fault(kind="html", status=410, on="submit", times=12),),
        observed="no verdict on the model: retried",
    ),
    "2021 no credits, on submits, for an hour": Case(
        faults=(Fault(kind="2021", on="submit", nth=3, times=0),),
        until_fixed=3600,
        observed="submits pause, one tries every five minutes",
    ),
    "2021 no credits, on polls, for two hours": Case(
        faults=(Fault(kind="2021", on="poll", nth=3, times=0),),
        until_fixed=7200,
        observed="polled on, shown, billed once",
    ),
    "unknown code to 60 polls": Case(
        faults=(Fault(kind="424242", status=409, on="poll", times=60),),
        observed="polled on, shown, billed once",
    ),
    "HTML 502 to 3 submits, not accepted": ambiguous("html", accepted=False),
    "reset of 3 submits before acceptance": ambiguous("reset", accepted=False),
    "no reply to 3 submits, not accepted": ambiguous("hang", accepted=False),
    "reset of 3 submits after acceptance": ambiguous("accept_then_reset", accepted=True),
    "connection closed after 3 acceptances": ambiguous("accept_then_close", accepted=True),
    "no reply to 3 accepted submits": ambiguous("accept_then_hang", accepted=True),
    "answer cut off in 3 acceptances": ambiguous("accept_then_truncate", accepted=True),
    "HTML 502 to 3 accepted submits": ambiguous("accept_then_html", accepted=True),
    "3 acceptances without a request_id": ambiguous("accept_no_request_id", accepted=True),
    "answers in the reply to the submit": Case(
        rates={"sync_answer": 0.33}, observed="used, never polled"
    ),
    "3030 after acceptance, for 2 records": Case(
        faults=tuple(
            Fault(kind="batch_fails", contains=f"hello {bad}.", times=0, code=3030)
            for bad in (7, 50)
        ),
        failing=frozenset({7, 50}),
        codes=frozenset({"rejected"}),
        extra=2 * 18,
        observed="divided until the bad record is alone; only it fails",
    ),
    "2016 guardrail blocks 2 records": Case(
        faults=tuple(
            Fault(kind="2016", on="submit", contains=f"hello {bad}.", times=0) for bad in (7, 50)
        ),
        failing=frozenset({7, 50}),
        codes=frozenset({"rejected"}),
        extra=2 * 18,
        observed="divided until the bad record is alone; only it fails",
    ),
    "5006 for 2 records": Case(
        faults=tuple(
            Fault(kind="5006", on="submit", contains=f"hello {bad}.", times=0) for bad in (7, 50)
        ),
        failing=frozenset({7, 50}),
        codes=frozenset({"rejected"}),
        extra=2 * 18,
        observed="divided until the bad record is alone; only it fails",
    ),
    "unknown id, in every third poll": Case(
        rates={"poll:10404": 0.33},
        observed="polled again, billed once",
    ),
    "id lost, 2 batches": Case(
        faults=tuple(Fault(kind="forgotten", contains=f"hello {number}.") for number in (3, 43)),
        extra=2,
        observed="submitted again after 15 minutes in which no poll found it",
    ),
    "pending for ever, 2 batches": Case(
        faults=tuple(Fault(kind="stuck", contains=f"hello {number}.") for number in (3, 43)),
        settings={"BATCH_DEADLINE_HOURS": 1},
        extra=2,
        observed="submitted again after its deadline",
    ),
    "items missing from the first reply": Case(
        faults=(Fault(kind="missing", share=0.1, first=1, times=0),), observed="polled again"
    ),
    "items never sent": Case(
        faults=(Fault(kind="missing", marker="hello 33.", times=0),),
        failing=frozenset({33}),
        codes=frozenset({"missing_response"}),
        observed="polled twice more, then only they fail",
    ),
    "items beside running": Case(
        faults=(Fault(kind="partial", times=0),),
        switches={"latency": 900.0},
        observed="pending until all are there",
    ),
    "items beside running for ever, 2 batches": Case(
        faults=tuple(
            Fault(kind=kind, contains=f"hello {number}.")
            for number in (3, 43)
            for kind in ("stuck", "partial")
        ),
        settings={"BATCH_DEADLINE_HOURS": 1},
        failing=frozenset({19, 59}),
        codes=frozenset({"expired"}),
        observed="used at the deadline, the others ended",
    ),
    "items without id and index": Case(
        switches={"item_ids": "absent"}, observed="joined by external_reference"
    ),
    "megabytes of items and errors": Case(
        faults=tuple(
            Fault(kind="flood", message=what, factor=4, times=2)
            for what in ("items", "errors", "unknown")
        ),
        observed="no answer, polled again",
    ),
    "items that contradict each other": Case(
        faults=(Fault(kind="contradicting", marker="hello 33.", times=0),),
        failing=frozenset({33}),
        codes=frozenset({"missing_response"}),
        observed="only they fail",
    ),
    "items repeated": Case(faults=(Fault(kind="repeated", times=0),), observed="one line each"),
    "foreign items": Case(faults=(Fault(kind="foreign", times=0),), observed="ignored"),
    "items without external_reference": Case(
        faults=(Fault(kind="null_reference", share=0.3, times=0),), observed="joined by id"
    ),
    "items failed for lack of capacity, at first": Case(
        faults=(WITHOUT_CAPACITY,),
        failing=frozenset(WITHOUT_CAPACITY.chosen(RECORDS, "")),
        codes=frozenset({"inference_failed"}),
        observed="failed alone, in the retry file",
    ),
    "replies in shape B": Case(switches={"shapes": {"*": "B"}}, observed="read like shape A"),
    "results 200 times as long": Case(
        faults=(Fault(kind="giant", factor=200, times=0),), observed="spooled to disk"
    ),
    "2 answers that no JSON reader follows": Case(
        faults=tuple(Fault(kind="deep", marker=f"hello {bad}.", times=0) for bad in (7, 50)),
        failing=frozenset({7, 50}),
        codes=frozenset({"rejected"}),
        extra=2 * 18,
        observed="divided until the bad record is alone; only it fails",
    ),
    "a mixture": Case(
        rates={
            "submit:3040": 0.05,
            "submit:3021": 0.05,
            "bare": 0.05,
            "refuse": 0.05,
            "poll:html": 0.05,
            "poll:reset": 0.05,
            "poll:truncated_json": 0.05,
            "poll:truncated_body": 0.05,
            "submit:json_500": 0.05,
        },
        faults=(
            Fault(kind="missing", share=0.02, first=1, times=0),
            Fault(kind="accept_then_reset"),
        ),
        extra=1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_job_is_complete_and_billed_as_reported(start, api, name):
    case = CASES[name]
    world = start(MAX_REQUESTS_PER_BATCH=BATCH, **case.settings)
    if case.begin_at:
        world.pass_time(DAY - time.time() % DAY + 3600 * case.begin_at)
    api.switch(fault_rates=case.rates, **case.switches)
    api.inject(*case.faults)
    world.upload_records("a.jsonl", RECORDS, model=M2M)
    began = time.time()
    if case.until_fixed:
        world.settle(minutes=2 * DAY // 60, until=lambda: time.time() > began + case.until_fixed)
        api.clear_faults()
        api.switch(fault_rates={}, **case.fixed)

    world.settle(minutes=2 * DAY // 60)

    lines, manifest = world.lines(), world.manifest()
    ids = Counter(line["id"] for line in lines)
    lost = len(RECORDS) - len(ids)
    twice = len(lines) - len(ids)
    assert (lost, twice) == (0, 0)
    assert [line["id"] for line in lines] == list(range(len(RECORDS)))
    for number, (line, record) in enumerate(zip(lines, RECORDS, strict=True)):
        assert line["external_reference"] == record["external_reference"]
        if number in case.failing:
            assert line["error"]["code"] in case.codes
        else:
            assert line["success"], line
            assert name.startswith("results") or line["result"] == expected_result(M2M, record)
    assert manifest["state"] == "completed"
    assert manifest["counts"]["failed"] == len(case.failing)
    extra = len(api.accepted) - BATCHES
    told = sum(batch["attempts"] - 1 for batch in manifest["batches"]) + 2 * (
        len(manifest["batches"]) - BATCHES
    )
    assert 0 <= extra <= case.extra
    assert extra <= told
    assert world.refused == []
    injected = sum(api.struck.values()) or sum(api.calls["submit"].values()) - len(api.accepted)
    note(name, "moto", injected, case.observed, lost=lost, twice=twice)
