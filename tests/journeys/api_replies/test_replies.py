"""Replies to submits and polls: codes, refused records, withdrawn models."""

import json
import time

import pytest

from local.workers_ai import Fault
from tests.support.translations import (
    M2M,
    all_good,
    codes,
    greetings,
    only_slowly,
    referenced,
    submits,
)

BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.mark.parametrize("kind", ["3040", pytest.param("3021", marks=pytest.mark.slow)])
def test_one_batch_of_full_model_tries(start, api, kind):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind=kind, on="submit", model=M2M, times=4))
    world.upload_records("a.jsonl", referenced(6), model=M2M)
    world.run("b.jsonl", [{"text": "other"}], model=BGE, minutes=120)

    assert {one["counts"]["failed"] for one in world.manifests().values()} == {0}
    assert len(api.accepted) == 7
    assert submits(api) <= 7 + 4 + 4


def test_429_waits_as_long_as_retry_after_says(world, api):
    api.inject(Fault(kind="971", on="submit", retry_after=120))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    world.deliver_all()
    told = time.time()
    world.upload_records("b.jsonl", referenced(3), model=M2M)
    while time.time() < told + 110:
        world.deliver_all()
        world.tick()
        world.pass_time(10)

    assert submits(api) == 1

    world.settle()
    assert len(api.accepted) == 2


def test_used_up_quota_pauses_submits_and_is_reported(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.pass_time(86_400 - time.time() % 86_400 + 22 * 3600)  # 22:00 UTC
    api.inject(Fault(kind="3036", on="submit", nth=2, times=0))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    world.deliver_all()
    evening = submits(api)

    world.settle(minutes=10 * 60, until=lambda: time.time() % 86_400 > 23 * 3600)

    waiting = world.status()["waiting_for"]
    assert waiting["code"] == "quota_spent"
    assert waiting["until"].endswith("T00:00:00Z")
    assert submits(api) - evening <= 2 + 1
    assert world.status()["counts"]["succeeded"] == 1

    api.clear_faults()
    world.settle(minutes=10 * 60)
    assert all_good(world, 3)


def test_refused_token_pauses_all_until_secret_is_changed(world, api):
    api.switch(tokens=("new-token",))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    began = time.time()
    world.settle(minutes=180, until=lambda: time.time() > began + 40 * 60)

    assert world.status()["waiting_for"]["code"] == "token_refused"
    assert submits(api) <= 10 + 30 / 5 + 5

    secret = world.secrets.list_secrets()["SecretList"][0]["ARN"]
    world.secrets.put_secret_value(SecretId=secret, SecretString="new-token")
    world.settle(minutes=30)
    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.refused == []


@pytest.mark.parametrize(
    "kind",
    [
        *("html", "truncated_body", "json_500"),
        *only_slowly("reset", "hang", "truncated_json", "slow_body", "refuse"),
    ],
)
def test_unanswered_poll_is_repeated_and_billed_once(world, api, kind):
    api.inject(Fault(kind=kind, on="poll", times=2))
    world.run("a.jsonl", referenced(3), model=M2M)

    assert all_good(world, 3)
    assert len(api.accepted) == 1


def test_batch_without_answers_ends_after_a_quarter_of_an_hour(world, api):
    api.inject(Fault(kind="no_answers", times=0))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    began = world.now()

    world.settle()

    assert codes(world) == ["missing_response"] * 3
    assert len(api.accepted) == 1
    assert 15 * 60 < world.now() - began < 20 * 60
    assert len(world.lines("retry.jsonl")) == 3


@pytest.mark.parametrize(
    "switch", [{"request_id_form": "integer"}, {"result_list": True}], ids=["integer", "list"]
)
def test_unusual_but_clear_reply_is_billed_once(world, api, switch):
    api.switch(**switch)
    world.run("a.jsonl", referenced(3), model=M2M)

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert [batch["unknowable_submits"] for batch in world.manifest()["batches"]] == [0]


@pytest.mark.parametrize(
    "fault",
    [
        *({"kind": code, "status": 400} for code in ("5007", "7000")),
        *only_slowly(
            *(
                {"kind": code, "status": 400}
                for code in ("3042", "5016", "5018", "3041", "5035", "5005")
            )
        ),
        {
            "kind": "error",
            "code": 8007,
            "status": 400,
            "message": "Model does not support request queuing",
        },
        {"kind": "error", "code": 424242, "status": 410},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('code', '')}",
)
def test_unavailable_model_fails_its_whole_job_and_no_other(start, api, fault):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(on="submit", model=M2M, times=0, **fault))
    world.upload_records("a.jsonl", referenced(6), model=M2M)
    world.run("b.jsonl", [{"text": "other"}], model=BGE)

    told = {
        one["model"]: (one["state"], (one["error"] or {}).get("code"))
        for one in world.manifests().values()
    }
    assert told == {M2M: ("failed", "unknown_model"), BGE: ("completed", None)}
    assert submits(api) == 2


def test_bad_records_are_isolated_and_only_they_fail(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=64)
    records = referenced(100)
    for bad in (3, 40, 99):
        records[bad]["text"] += " (refused)"
    world.run("a.jsonl", records, model=M2M, minutes=120)

    assert [number for number, code in enumerate(codes(world)) if code] == [3, 40, 99]
    assert set(codes(world)) == {None, "rejected"}
    assert submits(api) <= 2 + 3 * 16 + 2 * 4, "64 records in 4 pieces, 36 in 3; then 16"


@pytest.mark.faults
def test_records_failing_only_together_are_answered(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=128)
    api.inject(Fault(kind="batch_fails", contains="},{", times=0, code=3030))
    world.run("a.jsonl", referenced(128), model=M2M, minutes=6 * 60)

    assert len(api.accepted) == 1 + 8 + 128, "128 records in 8 pieces, each of 16 in 16"
    assert all_good(world, 128)


@pytest.mark.parametrize("status", [400, 403, 404, 410])
def test_withdrawn_model_ends_its_job_after_a_second_reply(way, start, api, status):
    world = start(MAX_REQUESTS_PER_BATCH=2, **way)
    api.inject(Fault(kind="error", code=5028, status=status, on="submit", times=0))
    world.run("a.jsonl", greetings(6), model=M2M, minutes=10)

    error = world.manifest()["error"]
    assert error["code"] == "unknown_model"
    assert "Cloudflare has withdrawn this model" in error["message"]
    assert 2 <= submits(api) <= 4
    assert api.accepted == []


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
    world.run("a.jsonl", referenced(300), model=M2M, minutes=60)

    manifest = world.manifest()
    assert manifest["counts"] == {"total": 300, "succeeded": 300, "failed": 0}
    assert submits(api) <= 3 + 3
    lines = world.lines()
    assert [line["external_reference"] for line in lines] == [
        record["external_reference"] for record in referenced(300)
    ]
    assert all(json.dumps(record["text"]) for record in referenced(300))
