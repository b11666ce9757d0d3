"""What lies in the stack's source bucket is a source where it lies."""

import pytest

import dropbatch
from tests.support.aws.resources import REGION
from tests.support.journeys.command_line import CommandLine
from tests.support.translations import M2M

GOOD = b'{"text":"x","target_lang":"es"}\n'
SOURCE = "team-exports"


@pytest.fixture
def sourced(start, monkeypatch, capsys):
    """A command line on a stack with a source bucket whose objects were there before."""
    world = start(SOURCE_BUCKET_NAME=SOURCE, SOURCE_PREFIX="exports/")
    world.s3.create_bucket(Bucket=SOURCE, CreateBucketConfiguration={"LocationConstraint": REGION})
    command = CommandLine(world, monkeypatch, capsys)
    outputs = {
        one["OutputKey"]: one["OutputValue"] for one in command.stacks["dropbatch"]["Outputs"]
    }
    command.add_stack(
        "dropbatch", outputs, {"SourceBucketName": SOURCE, "SourcePrefix": "exports/"}
    )

    def put(key, body=GOOD, **metadata):
        world.s3.put_object(Bucket=SOURCE, Key=key, Body=body, Metadata=metadata or {"model": M2M})

    command.put = put
    return command


@pytest.mark.parametrize("versions", [True, False])
def test_object_is_read_where_it_lies(sourced, versions):
    if versions:
        on = {"Status": "Enabled"}
        sourced.world.s3.put_bucket_versioning(Bucket=SOURCE, VersioningConfiguration=on)
    sourced.put("exports/july/a b+%.jsonl", GOOD * 3)

    done = sourced.run("put", f"s3://{SOURCE}/exports/july/a b+%.jsonl", "--wait")

    assert done.code == 0, done.err
    assert f"s3://{SOURCE}/exports/july/a b+%.jsonl  job " in done.out
    assert sourced.world.objects("inbox/") == []
    source = sourced.world.manifest()["source"]
    assert (source["bucket"], source["key"]) == (SOURCE, "exports/july/a b+%.jsonl")
    assert sourced.world.only_folder().startswith("results/july/a b+%.jsonl/")


def test_object_with_a_job_gets_no_other(sourced):
    sourced.put("exports/a.jsonl")
    client = dropbatch.Client("dropbatch")
    first = client.submit(f"s3://{SOURCE}/exports/a.jsonl")
    sourced.settle()

    again = sourced.run("put", f"s3://{SOURCE}/exports/a.jsonl", "--json").json()[0]
    sourced.settle()

    assert (again["job_id"], again["existing"], len(sourced.world.manifests())) == (
        first.id,
        True,
        1,
    )


def test_prefix_goes_on_in_its_folder(sourced, tmp_path):
    for key in ("exports/july/a.jsonl", "exports/july/x/a.jsonl"):
        sourced.put(key)
    put = ("put", f"s3://{SOURCE}/exports/", "--get", tmp_path)

    first, second = sourced.run(*put), sourced.run(*put)

    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert second.out.count("is there already") == 2
    assert (tmp_path / "july/x/a.jsonl/output.jsonl").read_bytes().count(b"\n") == 1
    assert len(sourced.world.manifests()) == 2


@pytest.mark.parametrize(
    "more", [("--model", M2M), ("--name", "mine/a.jsonl"), ("-o", 'tags={"a":"b"}')]
)
def test_what_differs_from_the_object_is_a_copy(sourced, more):
    """An object's metadata cannot be changed where it lies."""
    sourced.put("exports/july/a.jsonl")

    sourced.run("put", f"s3://{SOURCE}/exports/july/a.jsonl", *more)

    assert sourced.world.objects("inbox/") == [
        "inbox/mine/a.jsonl" if "--name" in more else "inbox/july/a.jsonl"
    ]
