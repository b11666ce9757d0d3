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


def test_records_get_their_answers_in_input_order_and_repeated_events_change_nothing(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=40)
    records = texts(85)
    world.upload_records("reviews/july.jsonl", records, model=BGE)
    for queue in ("UploadQueue", "SubmitQueue"):
        world.deliver(queue, times=3)

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


def test_nothing_is_left_open_and_no_message_is_lost(start, subtests):
    world = start(DEFAULT_MODEL=M2M)
    first, *others = greetings(3)
    lines = [json.dumps(first), "nonsense", *map(json.dumps, others)]
    world.upload("a.jsonl", "\n".join(lines))
    world.deliver("UploadQueue", most=2)
    begun = world.status()

    world.settle()

    assert world.open_items() == []
    assert all("ttl" in item for item in world.items() if item["pk"]["S"].startswith("JOB#"))
    assert world.refused == []
    counts = {"total": 4, "succeeded": 3, "failed": 1}
    with subtests.test("the status is there first, and follows the manifest"):
        assert (begun["state"], begun["counts"]["total"]) == ("in_progress", 4)
        status = world.status()
        assert (status["state"], status["fraction_done"]) == ("completed", 1.0)
        assert (status["waiting_for"], status["counts"]) == (None, counts)
    manifest, folder = world.manifest(), world.only_folder()
    with subtests.test("the manifest agrees with the files"):
        assert (manifest["state"], manifest["model"]) == ("completed", M2M)
        assert manifest["counts"] == counts
        assert manifest["usage"]["total_tokens"] > 0
        assert {file["name"] for file in manifest["files"]} == {"output.jsonl", "errors.jsonl"}
    for file in manifest["files"]:
        with subtests.test(file["name"]):
            content = world.read(f"{folder}/{file['name']}")
            digest = hashlib.sha256(content).hexdigest()
            assert (len(content), digest) == (file["bytes"], file["sha256"])
            assert content.count(b"\n") == file["lines"]


RECORDS = greetings(5)
LINES = "".join(json.dumps(record) + "\n" for record in RECORDS).encode()
ARRAY = json.dumps(RECORDS, indent=2)
UPLOADS = {
    f"{M2M}/with space+100%.jsonl": (LINES, {}),
    "a%2Fb&c=d?e#f.gz": (gzip.compress(LINES[:20]) + gzip.compress(LINES[20:]), {"model": M2M}),
    "müller@example/漢字.zst": (zstd_module().compress(LINES), {"model": M2M}),
    f"{BGE}/document.json": ('{"requests": ' + ARRAY + ', "note": 1}', {"model": M2M}),
    "array.json": (ARRAY, {"model": M2M}),
    "late.json": ('\n {"note": [1], "requests":\n' + ARRAY + "}\n\n", {"model": M2M}),
}
"""By their odd keys: packed, or the API's own documents; the model in metadata or in the path."""


def test_uploads_are_taken_as_they_come(start, subtests):
    world = start(DEFAULT_MODEL=BGE)
    for key, (content, metadata) in UPLOADS.items():
        world.upload(key, content, **metadata)

    world.settle()

    found = folders(world)
    assert set(found) == set(UPLOADS)
    for key, folder in found.items():
        with subtests.test(key):
            assert folder.startswith(f"results/{key}/")
            assert world.manifest(folder)["model"] == M2M
            results = [line["result"] for line in world.lines(folder=folder)]
            assert results == [expected_result(M2M, record) for record in RECORDS]


def test_uploads_without_a_request_end_without_model(world, api, subtests):
    empty = [b"", b"\n\n  \r\n", b"\xef\xbb\xbf", b"[]", gzip.compress(b"", mtime=0)]
    broken = b'{"requests":[' + b",".join([GOOD] * 5) + b" oops"
    for number, body in enumerate(empty):
        world.upload(f"{number}.jsonl", body)
    world.run("broken.json", broken, model=M2M)

    found = folders(world)
    with subtests.test("a broken document is refused whole"):
        manifest = world.manifest(found.pop("broken.json"))
        assert (manifest["state"], manifest["error"]["code"]) == ("failed", "broken_document")
    assert len(found) == len(empty)
    for key, folder in found.items():
        with subtests.test(key):
            manifest = world.manifest(folder)
            assert manifest["counts"] == {"total": 0, "succeeded": 0, "failed": 0}
            assert manifest["state"] == "completed"
            assert world.read(f"{folder}/output.jsonl") == b""
    assert api.accepted == []


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
    world.run("a.jsonl", b"\r\n".join(uploaded), model=M2M)

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
    world = start(MAX_REQUESTS_PER_BATCH=4)
    records = greetings(4)
    records[2] = {"text": "é (refused)", "target_lang": "es", "external_reference": {"a": [1]}}
    world.run(
        "a.jsonl",
        "\r\n".join(json.dumps(record, ensure_ascii=False) for record in records),
        model=M2M,
    )

    lines = world.lines()
    assert [line["success"] for line in lines] == [True] * 2 + [False, True]
    assert lines[2]["error"]["code"] == "rejected"
    assert lines[2]["external_reference"] == {"a": [1]}
    folder = world.only_folder()
    retry = f"{folder}/retry.jsonl"
    assert world.read(retry) == json.dumps(records[2], ensure_ascii=False).encode() + b"\n"
    assert world.s3.head_object(Bucket=BUCKET, Key=retry)["Metadata"]["model"] == M2M
    (error,) = world.lines("errors.jsonl")
    assert (error["line"], error["request"]) == (3, records[2])
    billed = Counter(hash_ for one in api.accepted for hash_ in [one["sha256"]])
    assert max(billed.values()) == 1
