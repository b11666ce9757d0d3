"""The stack's own list of models.

Jobs are planned with it, and keep what they were planned with.
"""

import json
from decimal import Decimal

import pytest
from botocore.exceptions import ClientError

from dropbatch.core import names
from dropbatch.core.formats.catalog_reader import MAX_STORED_BYTES
from dropbatch.core.models import find_model
from tests.support.aws.resources import BUCKET
from tests.support.listed import priced, rows, stored, with_properties
from tests.support.translations import M2M, all_good, greetings

BGE = "@cf/baai/bge-small-en-v1.5"
TEXTS = [{"text": "hello " * 200} for _ in range(3)]


def put_list(world, content):
    world.s3.put_object(Bucket=BUCKET, Key=names.CATALOG, Body=content)


def planned(world):
    """What is pinned of the model in each job."""
    return [json.loads(item["plan"]["M"]["facts"]["S"]) for item in world.items() if "plan" in item]


@pytest.fixture
def reads(world):
    """The conditions of all reads of the list."""
    made = []

    def before(called, arguments):
        if called == "GetObject" and arguments["Key"] == names.CATALOG:
            made.append(arguments.get("IfNoneMatch"))

    world.permissions.before = before
    return made


def test_job_keeps_price_with_which_it_was_planned(world):
    put_list(world, stored(with_properties(BGE, async_queue="true", price=priced(1000))))
    world.upload_records("a.jsonl", TEXTS, model=BGE)
    world.deliver("UploadQueue")
    put_list(world, stored(with_properties(BGE, async_queue="true", price=priced(1))))
    world.settle()

    manifest = world.manifest()
    assert manifest["cost"]["priced_at"] == "2026-12-24"
    assert Decimal(manifest["cost"]["amount"]) == manifest["usage"]["prompt_tokens"] * Decimal(
        "0.001"
    )


def test_new_model_has_price_and_limit_of_efforts(world):
    efforts = {"supported_efforts": ["deep"], "normalizes_to": {}}
    new = with_properties(
        "@cf/moonshotai/kimi-k9", async_queue="true", price=priced(2), reasoning_effort=efforts
    )
    put_list(world, stored(new))
    chat = {"messages": [{"role": "user", "content": "a"}]}
    records = [chat | {"reasoning_effort": effort} for effort in ("deep", "low")]
    world.upload_records("a.jsonl", records, model="@cf/moonshotai/kimi-k9", **{"max-cost": "1"})
    world.deliver("UploadQueue")

    (facts,) = planned(world)
    assert (facts["input_price"], facts["efforts"]["values"], facts["schema"]) == (
        "2",
        ["deep"],
        "chat",
    )
    (job,) = [item for item in world.items() if "plan" in item]
    assert "error" not in job


def test_list_is_read_again_after_fifteen_minutes(world, reads):
    put_list(world, stored(rows()))
    for number in range(3):
        world.upload_records(f"{number}.jsonl", TEXTS, model=BGE)
        world.deliver("UploadQueue")
    assert reads == [None]

    world.pass_time(901)
    world.upload_records("again.jsonl", TEXTS, model=BGE)
    world.deliver("UploadQueue")
    assert reads == [None, world.s3.head_object(Bucket=BUCKET, Key=names.CATALOG)["ETag"]]


UNUSED = {
    "empty": b"",
    "no models": stored([]),
    "half": stored(rows())[:-9],
    "half of the models": stored(rows()[:6]),
    "another shape": b'{"read_on":"2026-12-24","result":{"kimi":1}}',
    "no day": json.dumps({"result": rows()}).encode(),
    "huge": stored(rows()) + b" " * MAX_STORED_BYTES,
    "negative price": stored(with_properties(BGE, async_queue="true", price=priced(-1))),
}


@pytest.mark.parametrize("content", UNUSED.values(), ids=UNUSED)
def test_bad_list_changes_nothing_and_is_told(world, content, caplog):
    put_list(world, content)
    world.upload_records("a.jsonl", TEXTS, model=BGE)
    world.settle()

    assert world.manifest()["counts"]["succeeded"] == 3
    assert world.manifest()["cost"]["priced_at"] == find_model(BGE).priced_at
    assert "list of models not used" in caplog.text


@pytest.mark.parametrize("code", ["AccessDenied", "InternalError", "InvalidObjectState"])
def test_list_that_cannot_be_read_stops_no_job(world, code, caplog):
    def before(called, arguments):
        if called == "GetObject" and arguments["Key"] == names.CATALOG:
            raise ClientError({"Error": {"Code": code, "Message": "no"}}, called)

    world.permissions.before = before
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.settle()

    assert all_good(world, 3)
    assert "list of models not read" in caplog.text


def test_last_good_list_is_used_while_it_cannot_be_read(world):
    put_list(world, stored(with_properties(BGE, async_queue="true", price=priced(7))))
    world.upload_records("a.jsonl", TEXTS, model=BGE)
    world.deliver("UploadQueue")

    def before(called, arguments):
        if called == "GetObject" and arguments["Key"] == names.CATALOG:
            raise ClientError({"Error": {"Code": "InternalError", "Message": "no"}}, called)

    world.permissions.before = before
    world.pass_time(1_000)
    world.upload_records("b.jsonl", TEXTS, model=BGE)
    world.deliver("UploadQueue")

    assert [facts["input_price"] for facts in planned(world)] == ["7", "7"]


def test_model_that_loses_batches_ends_its_jobs_as_before(world, api):
    world.upload_records("a.jsonl", TEXTS, model=BGE)
    world.deliver("UploadQueue")
    put_list(world, stored(rows(BGE)))
    world.settle()
    assert world.manifest()["counts"]["succeeded"] == 3

    api.switch(no_batch_models=(BGE,))
    world.upload_records("b.jsonl", TEXTS, model=BGE)
    world.settle()
    (later,) = [one for one in world.manifests().values() if one["error"]]
    assert later["error"]["code"] == "unknown_model"
