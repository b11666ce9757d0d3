"""`retry-of` in an upload's metadata: which job it names, and where its options come from."""

import json
from urllib.parse import quote

import pytest

from tests.support.aws.resources import BUCKET, TABLE
from tests.support.translations import M2M

BGE = "@cf/baai/bge-small-en-v1.5"
BODY = '{"text":"(refused)","target_lang":"es"}\n'


@pytest.fixture
def parent(world):
    """The folder of a job that is over, whose one record was refused."""
    world.upload("a.jsonl", BODY, model=M2M, tags='{"of":"parent"}')
    world.settle()
    return world.only_folder()


def options_of(world, folder):
    return json.loads(world.read(f"{folder}/options.json"))


def try_again(world, parent, path="again.jsonl", body=BODY, **metadata):
    """Upload the record again, and return the folder of the new job."""
    known = set(world.manifests())
    world.upload(path, body, **metadata)
    world.settle()
    (folder,) = set(world.manifests()) - known
    return folder


def records(world):
    return [key for key in world.objects() if "/retries/" in key]


def job_key(folder):
    return {"pk": {"S": f"JOB#{folder.rpartition('/')[2]}"}, "sk": {"S": "META"}}


@pytest.mark.parametrize("path", ["again.jsonl", f"{BGE}/again.jsonl", "@cf/nothing/again.jsonl"])
def test_options_are_own_then_those_of_first_job(world, parent, path):
    world.upload("_options.json", '{"modle":"a member that no option has"}')
    again = try_again(
        world, parent, path, **{"retry-of": parent.rpartition("/")[2], "max-cost": "1"}
    )

    assert world.manifest(again)["error"] is None
    assert options_of(world, again) == {
        "model": M2M,
        "format": "native",
        "max_cost": 1,
        "tags": {"of": "parent"},
    }
    assert records(world) == [f"{parent}/retries/{world.manifest(again)['job_id']}.json"]
    assert json.loads(world.read(records(world)[0]))["joined_by"] == "line"


def test_job_is_found_after_its_item_has_expired(world, parent):
    world.dynamodb.delete_item(TableName=TABLE, Key=job_key(parent))
    again = try_again(world, parent, **{"retry-of": parent.rpartition("/")[2]})

    assert options_of(world, again)["tags"] == {"of": "parent"}
    assert records(world) == [f"{parent}/retries/{world.manifest(again)['job_id']}.json"]


def test_retry_needs_options_of_first_job(world, api, parent):
    """Without them it would send other requests than those that failed."""
    world.s3.delete_object(Bucket=BUCKET, Key=f"{parent}/options.json")
    submits = len(api.accepted)
    again = try_again(world, parent, **{"retry-of": parent.rpartition("/")[2]})

    assert world.manifest(again)["error"]["code"] == "options_gone"
    assert len(api.accepted) == submits


@pytest.mark.parametrize("has_expired", [False, True])
def test_retry_of_job_that_failed_for_its_options_has_its_own(world, has_expired):
    world.upload("a.jsonl", BODY, model=M2M, **{"max-cost": "lots"})
    world.settle()
    failed = world.only_folder()
    assert world.manifest(failed)["error"]["code"] == "bad_options"
    if has_expired:
        world.dynamodb.delete_item(TableName=TABLE, Key=job_key(failed))
    again = try_again(
        world, failed, model=M2M, **{"retry-of": failed.rpartition("/")[2], "max-cost": "1"}
    )

    assert world.manifest(again)["error"] is None
    assert options_of(world, again) == {"model": M2M, "max_cost": 1}


@pytest.mark.parametrize(
    "named",
    [
        "20261121T093007Z-00000000",
        "results/nobody/20261121T093007Z-00000000/manifest.json",
        "results/nobody/manifest.json",
        "nobody",
    ],
)
def test_retry_of_no_job_is_ignored(world, parent, named):
    world.upload("_options.json", json.dumps({"model": M2M, "tags": {"of": "folder"}}))
    before = set(world.objects())
    again = try_again(world, parent, **{"retry-of": quote(named, safe="")})

    assert options_of(world, again)["tags"] == {"of": "folder"}
    new = [key for key in world.objects() if key not in before]
    assert all(key.startswith((f"{again}/", "results/_jobs/")) for key in new)


CHAT = {"url": "/v1/embeddings", "body": {"model": BGE, "input": "hello"}}
UNNAMED = json.dumps({"body": CHAT["body"]})
"""A record that an OpenAI batch file may not have, and that by itself looks like a native one."""


@pytest.fixture
def openai_parent(world):
    """The folder of a job that is over, whose first record had no `custom_id`."""
    world.upload(
        "a.jsonl", f"{UNNAMED}\n{json.dumps({'custom_id': 'b', **CHAT})}\n", tags='{"of":"parent"}'
    )
    world.settle()
    return world.only_folder()


def drop_retry(world, parent, path="a.retry.jsonl", **metadata):
    """Upload the unnamed record as a retry of a job."""
    return try_again(
        world, parent, path, f"{UNNAMED}\n", **{"retry-of": parent.rpartition("/")[2]}, **metadata
    )


def test_retry_is_not_recognized_anew(world, api, openai_parent):
    submits = len(api.accepted)
    again = drop_retry(world, openai_parent)

    manifest = world.manifest(again)
    assert (manifest["format"], manifest["model"], manifest["error"]) == ("openai", BGE, None)
    assert manifest["counts"] == {"total": 1, "succeeded": 0, "failed": 1}
    assert json.loads(world.read(f"{again}/errors.jsonl"))["error"]["code"] == "bad_record"
    assert len(api.accepted) == submits
