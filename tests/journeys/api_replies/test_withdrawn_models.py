"""A model that Cloudflare has withdrawn ends its job; one that refuses references does not."""

import json

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, greetings, referenced, submits


@pytest.mark.parametrize("status", [400, 403, 404, 410])
def test_withdrawn_model_ends_its_job_after_a_second_reply(way, start, api, status):
    world = start(MAX_REQUESTS_PER_BATCH=2, **way)
    api.inject(Fault(kind="error", code=5028, status=status, on="submit", times=0))
    world.upload_records("a.jsonl", greetings(6), model=M2M)

    world.settle(minutes=10)

    error = world.manifest()["error"]
    assert error["code"] == "unknown_model"
    assert "Cloudflare has withdrawn this model" in error["message"]
    assert 2 <= submits(api) <= 4
    assert api.accepted == []


def test_one_such_reply_ends_no_job(world, api):
    api.inject(Fault(kind="error", code=5028, status=400, on="submit", times=1))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(minutes=10)

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.manifest()["unknowable_submits"] == 0


REFUSAL = (
    "AiError: Bad input: Error: Additional or unevaluated properties '/external_reference' at "
    "'/requests/0' not allowed"
)


def test_refused_references_are_left_out_and_in_the_output(start, api):
    """Before anything is divided; later batches do without at once."""
    world = start(MAX_REQUESTS_PER_BATCH=100)
    api.inject(
        Fault(
            kind="error",
            code=5006,
            status=400,
            on="submit",
            contains="external_reference",
            times=0,
            message=REFUSAL,
        )
    )
    world.upload_records("a.jsonl", referenced(300), model=M2M)

    world.settle(minutes=60)

    manifest = world.manifest()
    assert manifest["counts"] == {"total": 300, "succeeded": 300, "failed": 0}
    assert submits(api) <= 3 + 3
    lines = world.lines()
    assert [line["external_reference"] for line in lines] == [
        record["external_reference"] for record in referenced(300)
    ]
    assert all(json.dumps(record["text"]) for record in referenced(300))
