"""What lies in S3 already is a source."""

import hashlib
import io

import pytest
from botocore.exceptions import ClientError

import dropbatch
from dropbatch.client import upload as uploads
from tests.support.aws.resources import BUCKET, REGION
from tests.support.journeys.command_line import CommandLine
from tests.support.translations import M2M

GOOD = b'{"text":"x","target_lang":"es"}\n'
LAKE = "lake"
REPLACED = f'"{hashlib.md5(GOOD * 2).hexdigest()}"'


@pytest.fixture
def lake(command):
    command.world.s3.create_bucket(
        Bucket=LAKE, CreateBucketConfiguration={"LocationConstraint": REGION}
    )

    def put(key, body=GOOD, **metadata):
        command.world.s3.put_object(Bucket=LAKE, Key=key, Body=body, Metadata=metadata)

    return put


def test_object_is_submitted_by_its_name(command, lake):
    lake("exports/july.jsonl", GOOD * 3, model=M2M)

    job = dropbatch.Client("dropbatch").submit("s3://lake/exports/july.jsonl", tags={"team": "x"})

    assert (job.path, job.wait(check=True), job.manifest()["counts"]["total"]) == (
        "july.jsonl",
        "completed",
        3,
    )
    assert job.manifest()["tags"] == {"team": "x"}


def test_prefix_is_a_folder(command, lake, tmp_path):
    for key in (
        "exports/july/a.jsonl",
        "exports/july/x/b.jsonl",
        "exports/july/_SUCCESS",
        "exports/july/x/",
        "exports/c.jsonl",
    ):
        lake(key)

    done = command.run(
        "put", "s3://lake/exports/july/", "--name", "mine/", "--model", M2M, "--get", tmp_path
    )

    assert done.code == 0, done.err
    assert command.world.objects("inbox/") == [
        "inbox/mine/july/a.jsonl",
        "inbox/mine/july/x/b.jsonl",
    ]
    assert (tmp_path / "mine/july/x/b.jsonl/output.jsonl").exists()
    assert "left out: s3://lake/exports/july/_SUCCESS" in done.err


def test_same_objects_are_not_copied_twice(command, lake):
    lake("a/1.jsonl")
    lake("a/2.jsonl")
    put = ("put", "s3://lake/a/", "--model", M2M, "--skip-existing")
    command.run(*put)
    command.world.pass_time(60)
    lake("a/2.jsonl", GOOD.replace(b'"x"', b'"y"'))

    done = command.run(*put)

    assert done.out.count("is there already") == 1
    found = command.world.s3.list_object_versions(Bucket=BUCKET, Prefix="inbox/a/")["Versions"]
    assert [one["Key"] for one in found] == [
        "inbox/a/1.jsonl",
        "inbox/a/2.jsonl",
        "inbox/a/2.jsonl",
    ]


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("s3://lake/none.jsonl", 5, "There is no s3://lake/none.jsonl."),
        ("s3://lake", 2, "s3://lake names no object. Write s3://bucket/key."),
        ("s3://lake/empty/", 2, "s3://lake/empty/ has no files to upload."),
        ("s3://lake/photo.jsonl", 1, "s3://lake/photo.jsonl: unknown_format"),
    ],
)
def test_what_is_no_source_sends_nothing(command, lake, url, code, says):
    lake("photo.jsonl", b"\x89PNG\r\n\x1a\n" + bytes(100))

    done = command.run("put", url, "--model", M2M)

    assert (done.code, says in done.err, command.world.objects("inbox/")) == (code, True, [])


def test_version_that_was_checked_is_copied(command, lake, monkeypatch):
    """Also if another is written between the check and the copy."""
    command.world.s3.put_bucket_versioning(
        Bucket=LAKE, VersioningConfiguration={"Status": "Enabled"}
    )
    lake("a.jsonl", GOOD * 3)
    real = uploads.copy_parts

    def later(*arguments, **more):
        lake("a.jsonl", b"other")
        return real(*arguments, **more)

    monkeypatch.setattr(uploads, "copy_parts", later)
    command.run("put", "s3://lake/a.jsonl", "--model", M2M)

    assert command.world.read("inbox/a.jsonl") == GOOD * 3


def test_object_without_versions_that_is_replaced_is_not_copied(command, lake, before_calls):
    """A part of each would be a file that nobody wrote."""
    lake("a.jsonl", GOOD * 3)

    def replace(operation, arguments):
        if operation == "UploadPartCopy":  # S3 judges its condition; moto does not.
            lake("a.jsonl", GOOD * 2)
            if arguments.get("CopySourceIfMatch", REPLACED) != REPLACED:
                raise ClientError(
                    {"Error": {"Code": "PreconditionFailed", "Message": "At least one"}}, operation
                )

    before_calls(replace)
    done = command.run("put", "s3://lake/a.jsonl", "--model", M2M)

    assert (done.code, command.world.objects("inbox/")) == (5, [])
    assert "s3://lake/a.jsonl was replaced while it was copied." in done.err


@pytest.mark.parametrize("size", [5 << 40, (256 << 20) + 1])
def test_five_terabytes_have_at_most_10_000_parts(size):
    sent = []

    class S3:
        exceptions = type("E", (), {"NoSuchUpload": KeyError})

        def create_multipart_upload(self, **_):
            return {"UploadId": "u"}

        def upload_part_copy(self, CopySourceRange, PartNumber, **_):  # noqa: N803 - boto3's names
            first, end = map(int, CopySourceRange.removeprefix("bytes=").split("-"))
            sent.append((PartNumber, first, end))
            return {"CopyPartResult": {"ETag": "e"}}

        def complete_multipart_upload(self, **_):
            return {}

    uploads.copy_parts(
        S3(), {"Bucket": LAKE, "Key": "k"}, size, {"Bucket": BUCKET, "Key": "inbox/k"}, {}
    )

    sent.sort()
    assert len(sent) <= 10_000
    assert [first for _, first, _ in sent[1:]] == [end + 1 for _, _, end in sent[:-1]]
    assert (sent[0][1], sent[-1][2] + 1) == (0, size)
    assert max(end + 1 - first for _, first, end in sent) <= 5 << 30


@pytest.fixture
def parquet():
    """A Parquet file of 50 texts, in two row groups."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = io.BytesIO()
    parquet.write_table(
        pa.table({"text": [f"text {number}" for number in range(50)]}), file, row_group_size=30
    )
    return file.getvalue()


@pytest.mark.parametrize("suffix", ["parquet", "PQ"])
def test_table_is_read_and_sent_as_one(command, lake, parquet, suffix):
    lake(f"exports/july/a.{suffix}", parquet, model="@cf/baai/bge-small-en-v1.5", owner="x")

    done = command.run(
        "put", f"s3://lake/exports/july/a.{suffix}", "--template", "{text}", "--wait"
    )

    assert done.code == 0, done.err
    assert command.world.objects("inbox/") == ["inbox/a.csv"]
    assert command.world.read("inbox/a.csv").splitlines()[::50] == [b'"text"', b'"text 49"']
    assert command.world.manifest()["counts"]["succeeded"] == 50


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
