"""Options of a job: where they come from, that they are pinned, and what each does."""

import json

import pytest

from tests.support.translations import M2M, codes

BGE = "@cf/baai/bge-small-en-v1.5"
LLAMA = "@cf/meta/llama-3.3-70b-instruct-fp8-fast"


def records(count, **more):
    return [{"text": f"hello {number}", "target_lang": "es", **more} for number in range(count)]


def put_options(world, folder, **options):
    world.upload(f"{folder}_options.json", json.dumps(options))


def test_options_are_layered_and_pinned(start, api):
    world = start(DEFAULT_MODEL=BGE)
    put_options(world, "", model=LLAMA, tags={"of": "root"})
    put_options(world, "a/", tags={"of": "a"}, defaults={"target_lang": "es"})
    world.upload("a/b/c.jsonl", json.dumps({"text": "hello"}), model=M2M)
    world.deliver("UploadQueue")
    put_options(world, "a/", tags={"of": "later"})
    world.settle()

    assert json.loads(world.read(f"{world.only_folder()}/options.json")) == {
        "model": M2M,
        "defaults": {"target_lang": "es"},
        "tags": {"of": "a"},
    }
    assert (world.manifest()["model"], world.manifest()["tags"], world.status()["tags"]) == (
        M2M,
        {"of": "a"},
        {"of": "a"},
    )
    assert codes(world) == [None]
    assert world.notices()[0]["detail"]["tags"] == {"of": "a"}


@pytest.mark.parametrize("body", ["", json.dumps({"text": "hello"})])
@pytest.mark.parametrize(
    ("metadata", "options", "words"),
    [
        ({"max-failed-fraction": "2"}, None, "from 0 to 1"),
        ({"format": "csw"}, None, "Did you mean csv"),
        ({}, {"modle": BGE}, "Did you mean model"),
        ({"max_cost": "1", "max-cost": "2"}, None, "Write it once"),
        ({}, {"max_cost": 1, "max-cost": 2}, "Write it once"),
        ({"max-cost": "1", "model": "@cf/somebody/something"}, None, "max_cost"),
    ],
)
def test_wrong_option_fails_upload_immediately(world, body, metadata, options, words):
    if options is not None:
        put_options(world, "", **options)
    world.upload("a/b.jsonl", body, **metadata)
    world.settle()

    error = world.manifest()["error"]
    assert (error["code"], words in error["message"]) == ("bad_options", True)
    assert world.read(f"results/_jobs/{world.manifest()['job_id']}.json")


@pytest.mark.parametrize("written", ["max-cost", "max_cost", "Max_Cost"])
def test_batch_beyond_highest_cost_is_not_submitted(start, api, written):
    world = start()
    api.switch(answer_tokens=(1_000, 1_000))
    prompts = [{"prompt": f"hello {n}", "max_tokens": 1_000} for n in range(6)]
    world.upload_records("a.jsonl", prompts, model=LLAMA, **{written: "0.01"})
    world.settle()

    assert codes(world) == [None, None, None, None, "cost_limit", "cost_limit"]
    assert len(api.accepted) == 4
    assert len(world.lines("retry.jsonl")) == 2
    cost = world.manifest()["cost"]
    assert (cost["currency"], float(cost["amount"]) > 0, cost["priced_at"] != "") == (
        "USD",
        True,
        True,
    )


LARGE = "@cf/baai/bge-large-en-v1.5"
OPENAI = {"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {"input": "hello"}}


@pytest.mark.parametrize(
    ("records", "metadata", "model"),
    [
        ([{"text": "hello"}], {}, BGE),
        ([{"text": "hello", "target_lang": "es"}], {"model": M2M}, M2M),
        ([OPENAI], {}, BGE),
        ([{**OPENAI, "body": {"input": "hello", "model": LARGE}}], {}, LARGE),
        ([{**OPENAI, "body": {"input": "hello", "model": LARGE}}], {"model": BGE}, BGE),
    ],
    ids=[
        "the default",
        "its own",
        "the default in another format",
        "the file's",
        "its own before the file's",
    ],
)
def test_options_of_job_hold_its_model(start, records, metadata, model):
    world = start(DEFAULT_MODEL=BGE)
    world.upload_records("a.jsonl", records, **metadata)
    world.settle()

    assert world.manifest()["model"] == model
    assert json.loads(world.read(f"{world.only_folder()}/options.json"))["model"] == model
