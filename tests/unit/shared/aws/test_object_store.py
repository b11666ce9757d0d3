"""What the object store makes of the answers of S3: botocore's stub, which expects each call."""

import io
from contextlib import ExitStack

import pytest
from botocore.response import StreamingBody
from botocore.stub import ANY

from shared.aws.object_store import BLOCK_BYTES, ObjectStore
from shared.errors import ObjectNotFoundError, StorageError, WriteConflictError
from tests.support.aws.resources import stubbed

KEY = "results/a/output.jsonl"
PLACE = {"Bucket": "bucket", "Key": KEY}


@pytest.fixture
def s3():
    with stubbed("s3") as stub:
        yield stub


@pytest.fixture
def store(s3):
    return ObjectStore(s3.client, "bucket")


def refuse(s3, operation, code, times=1):
    for _ in range(times):
        s3.add_client_error(operation, code, "", 400)


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "409"])
def test_conflicting_write_is_retried_twice(store, s3, code):
    refuse(s3, "put_object", code, 2)
    s3.add_response("put_object", {})

    assert store.put_if_absent(KEY, b"")

    refuse(s3, "put_object", code, 3)
    with pytest.raises(WriteConflictError):
        store.put_if_absent(KEY, b"")


@pytest.mark.parametrize("code", ["PreconditionFailed", "412"])
def test_what_is_there_already_is_not_written(store, s3, code):
    refuse(s3, "put_object", code)

    assert not store.put_if_absent(KEY, b"")


def test_upload_whose_completion_collided_is_aborted(store, s3):
    refuse(s3, "complete_multipart_upload", "ConditionalRequestConflict")
    s3.add_response("abort_multipart_upload", {}, PLACE | {"UploadId": "u"})

    with pytest.raises(WriteConflictError):
        store.complete_multipart_upload(KEY, "u", [])


def test_upload_of_existing_object_may_be_gone(store, s3):
    refuse(s3, "complete_multipart_upload", "PreconditionFailed")
    refuse(s3, "abort_multipart_upload", "NoSuchUpload")

    assert not store.complete_multipart_upload(KEY, "u", [])


def test_refused_write_is_not_existing_object(store, s3):
    refuse(s3, "put_object", "AccessDenied")

    with pytest.raises(StorageError, match="AccessDenied"):
        store.put_if_absent(KEY, b"")


def test_object_is_replaced_only_as_read(store, s3):
    given = {"Body": b"new", "IfMatch": '"etag"', "Metadata": {"end": "7"}}
    s3.add_response("put_object", {}, PLACE | given | {"ServerSideEncryption": "AES256"})

    store.replace(KEY, b"new", "etag", {"end": "7"})

    refuse(s3, "put_object", "PreconditionFailed")
    with pytest.raises(ObjectNotFoundError):
        store.replace(KEY, b"new", "etag", {})


def test_stacks_own_key_is_named_with_every_write(s3):
    """A write that names a kind of encryption and no key would take an alias of S3's own."""
    key = "arn:aws:kms:eu-west-1:111122223333:key/1a2b"
    named = PLACE | {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": key}
    s3.add_response("put_object", {}, {"Body": b"x", "IfNoneMatch": "*", **named})
    s3.add_response("put_object", {}, {"Body": b"x", **named})
    begun = {"ContentType": "text/csv", **named}
    s3.add_response("create_multipart_upload", {"UploadId": "u"}, begun)
    store = ObjectStore(s3.client, "other", kms_key=key).in_bucket("bucket")

    store.put_if_absent(KEY, b"x")
    store.put(KEY, b"x")
    store.create_multipart_upload(KEY, {}, "text/csv")


@pytest.mark.parametrize(
    ("section", "asked"),
    [
        ((), {}),
        ((5,), {"Range": "bytes=5-"}),
        ((0, 3), {"Range": "bytes=0-2"}),
        ((5, 3), {"Range": "bytes=5-7"}),
    ],
)
def test_of_object_only_what_is_wanted_is_read(store, s3, section, asked):
    answer = {"Body": StreamingBody(io.BytesIO(b"content"), 7)}
    s3.add_response("get_object", answer, PLACE | asked)

    assert store.get(KEY, *section) == b"content"


def test_empty_range_reads_nothing(store):
    assert store.get(KEY, 5, 0) == b""


def test_section_is_read_in_blocks(store, s3, monkeypatch):
    asked = []
    monkeypatch.setattr(store, "get", lambda _, *section: asked.append(section) or b"")

    list(store.blocks(KEY, 5, BLOCK_BYTES + 1))

    assert asked == [(5, BLOCK_BYTES), (5 + BLOCK_BYTES, 1)]


def test_copy_is_made_by_client_that_waits_longer(s3):
    store = ObjectStore(object(), "bucket", copying=lambda: s3.client)
    asked = dict.fromkeys(("Bucket", "Key", "UploadId", "PartNumber", "CopySource"), ANY)
    s3.add_response("upload_part_copy", {}, asked)

    store.upload_part_copy(KEY, "upload", 1, "staging/a")


def test_to_spool_what_is_not_there_fails(store, s3):
    refuse(s3, "head_object", "404", 2)

    with ExitStack() as kept, pytest.raises(ObjectNotFoundError, match=f"{KEY} does not exist"):
        store.spool(KEY, kept)
    with pytest.raises(ObjectNotFoundError, match=f"{KEY} does not exist"):
        store.existing(KEY)


@pytest.mark.parametrize(
    ("version", "asked"), [("v1", {"VersionId": "v1"}), ("null", {}), ("", {})]
)
def test_version_is_requested_if_bucket_has_versions(store, s3, version, asked):
    s3.add_client_error("head_object", "404", expected_params=PLACE | asked)

    assert store.head(KEY, version) is None
