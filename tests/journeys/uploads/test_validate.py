"""An upload under `validate/` is read as one under `inbox/`, and reported on; nothing is sent."""

import json

import pytest

import functions.submit.turn
from dropbatch.core.read import cut
from functions.submit import stream
from local.workers_ai import WorkersAI
from tests.support.journeys.deaths import WRITES, Boundaries, mortal_world
from tests.support.journeys.world import BUCKET

M2M = "@cf/meta/m2m100-1.2b"
LINES = [
    json.dumps({"text": f"hello {n}", "target_lang": "es", "external_reference": f"r{n % 3}"})
    for n in range(7)
]
BODY = "\n".join([*LINES[:4], "nonsense", "", *LINES[4:]])


def drop(world, path, body, **metadata):
    world.s3.put_object(Bucket=BUCKET, Key=f"validate/{path}", Body=body, Metadata=metadata)


def report(world):
    (key,) = [key for key in world.objects("results/_validate/") if key.endswith("/report.json")]
    return json.loads(world.read(key))


@pytest.fixture
def one_batch_a_turn(monkeypatch):
    monkeypatch.setattr(functions.submit.turn, "TURN_SECONDS", -1.0)


def check(world):
    found = report(world)
    assert (found["format"], found["model"], found["error"]) == ("native", M2M, None)
    assert (found["records"], found["batches"], found["bytes"]) == (8, 3, len(BODY))
    assert (found["bad"], found["repeated"]) == (1, 4)
    assert [(one["line"], one["code"]) for one in found["bad_first"]] == [(5, "invalid_json")]
    assert found["longest"] == {"line": 1, "bytes": len(LINES[0])}
    assert found["estimate"]["input_tokens"] > 20
    assert found["options"] == {"model": M2M}
    assert [key for key in world.objects("results/") if "/_validate/" not in key] == []


def test_report_says_what_would_be_sent(start, api, one_batch_a_turn):
    world = start(MAX_REQUESTS_PER_BATCH=3)
    drop(world, "a/b.jsonl", BODY, model=M2M)
    world.settle()

    check(world)
    assert api.accepted == []
    assert world.objects("results/")[0].startswith("results/_validate/a/b.jsonl/")


def test_options_are_those_of_inbox(world):
    world.upload("a/_options.json", json.dumps({"model": M2M, "tags": {"team": "x"}}))
    drop(world, "a/b.jsonl", LINES[0])
    world.settle()

    assert report(world)["options"] == {"model": M2M, "tags": {"team": "x"}}


def test_turns_continue_among_blank_lines(start, monkeypatch, one_batch_a_turn):
    monkeypatch.setattr(cut, "MAX_BLANK_BYTES", 100)
    monkeypatch.setattr(stream, "RANGE_BYTES", 64)
    world = start(MAX_REQUESTS_PER_BATCH=3)
    drop(world, "a.jsonl", LINES[0] + "\n" * 1_000 + LINES[1], model=M2M)
    world.settle(minutes=60)

    assert report(world)["records"] == 2


@pytest.mark.parametrize(
    "share", [0, *(pytest.param(share, marks=pytest.mark.slow) for share in (1, 2))]
)
def test_it_may_die_after_any_write(one_batch_a_turn, share):
    def run(boundaries):
        with mortal_world(WorkersAI(), boundaries, MAX_REQUESTS_PER_BATCH=3) as world:
            drop(world, "a.jsonl", BODY, model=M2M)
            world.settle(minutes=240)
            check(world)

    recorded = Boundaries()
    run(recorded)
    writes = [number for number, call in enumerate(recorded.passed, 1) if call in WRITES]
    for number in writes[share::3]:
        boundaries = Boundaries()
        boundaries.strike(number, "after")
        run(boundaries)
