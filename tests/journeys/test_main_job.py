"""The main job from drop to manifest: what users see in S3, as it was fixed at the beginning.

Every call goes over HTTP to moto as it comes; other journeys have quicker services.
"""

import gzip
import hashlib
import json
from collections import Counter

import pytest

from dropbatch.core.read.unpack import zstd_module
from local.workers_ai import expected_result
from tests.support.aws import quick_moto
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M, greetings

BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.fixture
def way(way):
    """With completion events, as stacks have them whose token may edit queues."""
    return {**way, "COMPLETION_EVENTS": "yes"}


@pytest.fixture(autouse=True)
def _moto_alone(monkeypatch):
    monkeypatch.setattr(quick_moto, "DIRECT", {})


def texts(count, **more):
    return [
        {"text": f"text {number}", "external_reference": f"row-{number}", **more}
        for number in range(count)
    ]


def folders(world):
    """The folder of each job that is over, by its upload's key below `inbox/`."""
    found = world.manifests().items()
    return {manifest["source"]["key"].removeprefix("inbox/"): folder for folder, manifest in found}


def test_records_get_their_answers_in_input_order(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=40)
    records = texts(85)
    world.upload_records("reviews/july.jsonl", records, model=BGE)

    world.settle()

    lines = world.lines()
    assert [line["id"] for line in lines] == list(range(85))
    assert [line["external_reference"] for line in lines] == [
        record["external_reference"] for record in records
    ]
    assert all(
        line["result"] == expected_result(BGE, record)
        for line, record in zip(lines, records, strict=True)
    )
    listed = world.manifest()["batches"]
    assert [entry["request_id"] for entry in listed] == [one["request_id"] for one in api.accepted]
    assert [entry["requests"] for entry in listed] == [40] * 2 + [5]


def test_manifest_agrees_with_files(world):
    world.upload(
        "a.jsonl",
        '{"text":"x","target_lang":"es"}\nnonsense\n{"text":"y","target_lang":"es"}\n',
        model=M2M,
    )

    world.settle()

    manifest, folder = world.manifest(), world.only_folder()
    assert manifest["state"] == "completed"
    assert manifest["counts"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert manifest["usage"]["total_tokens"] > 0
    assert {file["name"] for file in manifest["files"]} == {"output.jsonl", "errors.jsonl"}
    for file in manifest["files"]:
        content = world.read(f"{folder}/{file['name']}")
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            file["bytes"],
            file["sha256"],
        )
        assert content.count(b"\n") == file["lines"]


def test_status_is_there_first_and_follows_manifest(world):
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver("UploadQueue", most=2)

    assert (world.status()["state"], world.status()["counts"]["total"]) == ("in_progress", 3)

    world.settle()
    status = world.status()
    assert (status["state"], status["fraction_done"], status["waiting_for"]) == (
        "completed",
        1.0,
        None,
    )
    assert status["counts"] == {"total": 3, "succeeded": 3, "failed": 0}


@pytest.mark.parametrize(
    ("default", "uploads"),
    [
        ("", [("a.jsonl", {"model": M2M}), (f"{M2M}/reviews/a.jsonl", {})]),
        (BGE, [(f"{M2M}/a.jsonl", {}), (f"{BGE}/a.jsonl", {"model": M2M})]),
        (M2M, [("a.jsonl", {})]),
    ],
)
def test_model_is_from_metadata_path_or_default(start, default, uploads):
    world = start(DEFAULT_MODEL=default)
    for path, metadata in uploads:
        world.upload_records(path, greetings(1), **metadata)

    world.settle()

    assert set(folders(world)) == {path for path, _ in uploads}
    assert {manifest["model"] for manifest in world.manifests().values()} == {M2M}


ODD_KEYS = {
    "with space+100%.jsonl",
    "a%2Fb&c=d?e#f.jsonl",
    "müller@example/漢字.jsonl",
}


def test_odd_keys_are_taken_as_they_are(world):
    for key in ODD_KEYS:
        world.upload_records(key, greetings(2), model=M2M)

    world.settle()

    assert set(folders(world)) == ODD_KEYS
    for key, folder in folders(world).items():
        assert folder.startswith(f"results/{key}/")
        assert len(world.lines(folder=folder)) == 2


def test_repeated_event_is_one_job(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(5), model=M2M)
    for queue in ("UploadQueue", "SubmitQueue"):
        world.deliver(queue, times=3)

    world.settle()

    assert len(world.manifests()) == 1
    assert len(api.accepted) == 3


def test_packed_uploads_are_unpacked(world):
    body = "".join(json.dumps(record) + "\n" for record in greetings(5)).encode()
    world.upload("a.jsonl.gz", gzip.compress(body), model=M2M)
    world.upload("a.jsonl.zst", zstd_module().compress(body), model=M2M)
    world.upload("two members.gz", gzip.compress(body[:20]) + gzip.compress(body[20:]), model=M2M)

    world.settle()

    assert {key: len(world.lines(folder=folder)) for key, folder in folders(world).items()} == {
        "a.jsonl.gz": 5,
        "a.jsonl.zst": 5,
        "two members.gz": 5,
    }


def test_apis_own_document_is_taken(world):
    forms = ['{"requests": %s, "note": 1}', "%s", '\n {"note": [1], "requests":\n%s}\n\n']
    for number, form in enumerate(forms):
        world.upload(f"{number}.json", form % json.dumps(greetings(5), indent=2), model=M2M)

    world.settle()

    wanted = [expected_result(M2M, record) for record in greetings(5)]
    assert set(folders(world)) == {"0.json", "1.json", "2.json"}
    for folder in folders(world).values():
        assert [line["result"] for line in world.lines(folder=folder)] == wanted


def test_empty_upload_is_completed_without_model(world):
    bodies = [b"", b"\n\n  \r\n", b"\xef\xbb\xbf", b"[]", gzip.compress(b"", mtime=0)]
    for number, body in enumerate(bodies):
        world.upload(f"{number}.jsonl", body)

    world.settle()

    assert len(world.manifests()) == len(bodies)
    for folder, manifest in world.manifests().items():
        assert manifest["counts"] == {"total": 0, "succeeded": 0, "failed": 0}
        assert manifest["state"] == "completed"
        assert world.read(f"{folder}/output.jsonl") == b""


GOOD = b'{"text":"good","target_lang":"es"}'
BAD = [
    (b'{"text":', "invalid_json"),
    (b"[1,2]", "not_an_object"),
    (b'"text"', "not_an_object"),
    (b"17", "not_an_object"),
    (b'{"text":"\xff","target_lang":"es"}', "invalid_utf8"),
    (b'{"text":1e400,"target_lang":"es"}', "bad_record"),
    (b'{"text":"good","external_reference":1e400}', "invalid_json"),
    (b'{"text":"\\ud800","target_lang":"es"}', "bad_record"),
    (b'{"text":"\\ud800' + b"x" * 1_000_000 + b'"}', "bad_record"),
    (b'{ "text": 7 }', "bad_record"),
    (b'{"text":' + b"9" * 5000 + b"}", "bad_record"),
    (b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid_json"),
    (b'{"text":NaN}', "invalid_json"),
    (b'{"text":"\x00"}', "invalid_json"),
    (b'{"text":"' + b"x" * 10_000_000 + b'"}', "too_large"),
]


def test_bad_record_fails_alone_with_its_line(world):
    uploaded = [GOOD]
    for bad, _ in BAD:
        uploaded += [bad, b"", GOOD]
    world.upload("a.jsonl", b"\r\n".join(uploaded), model=M2M)

    world.settle()

    lines = world.lines()
    assert [line["id"] for line in lines] == list(range(2 * len(BAD) + 1))
    assert [line["error"]["code"] for line in lines if not line["success"]] == [
        code for _, code in BAD
    ]
    assert all(line["success"] for line in lines[::2])
    errors = world.lines("errors.jsonl")
    assert [error["line"] for error in errors] == [2 + 3 * number for number in range(len(BAD))]
    retried = [bad for bad, code in BAD if code == "bad_record" and bad != b'{ "text": 7 }']
    assert world.read(f"{world.only_folder()}/retry.jsonl") == b"\n".join(retried) + b"\n"


def test_refused_request_fails_alone(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=8)
    records = greetings(8)
    records[5] = {"text": "é (refused)", "target_lang": "es", "external_reference": {"a": [1]}}
    world.upload(
        "a.jsonl",
        "\r\n".join(json.dumps(record, ensure_ascii=False) for record in records),
        model=M2M,
    )

    world.settle()

    lines = world.lines()
    assert [line["success"] for line in lines] == [True] * 5 + [False] + [True] * 2
    assert lines[5]["error"]["code"] == "rejected"
    assert lines[5]["external_reference"] == {"a": [1]}
    folder = world.only_folder()
    retry = f"{folder}/retry.jsonl"
    assert world.read(retry) == json.dumps(records[5], ensure_ascii=False).encode() + b"\n"
    assert world.s3.head_object(Bucket=BUCKET, Key=retry)["Metadata"]["model"] == M2M
    (error,) = world.lines("errors.jsonl")
    assert (error["line"], error["request"]) == (6, records[5])
    billed = Counter(hash_ for one in api.accepted for hash_ in [one["sha256"]])
    assert max(billed.values()) == 1


def test_broken_document_is_refused_whole(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload("a.json", b'{"requests":[' + b",".join([GOOD] * 5) + b" oops", model=M2M)

    world.settle()

    assert world.manifest()["state"] == "failed"
    assert world.manifest()["error"]["code"] == "broken_document"
    assert api.accepted == []


def test_nothing_is_left_open_and_no_message_is_lost(world):
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert world.open_items() == []
    assert all("ttl" in item for item in world.items() if item["pk"]["S"].startswith("JOB#"))
    assert world.refused == []
