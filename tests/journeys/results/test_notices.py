"""What is told of a job's end: events, mails, digests; and results that users delete."""

import hashlib
import json
import re
from functools import reduce

import pytest
from botocore.exceptions import ClientError

from functions.poll import end
from functions.poll import files as result_files
from functions.poll import files as segments
from local.template import properties
from local.workers_ai import Fault
from shared import retry as patience
from shared.errors import StorageError
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M, greetings


@pytest.fixture
def event_bus(before_calls):
    """EventBridge, which may refuse: a list of answers that come before the real ones."""
    answers = []

    def refuse(operation, _arguments):
        answer = answers.pop(0) if operation == "PutEvents" and answers else None
        if isinstance(answer, Exception):
            raise answer
        return answer

    before_calls(refuse)
    return answers


def down():
    return ClientError({"Error": {"Code": "InternalException", "Message": "down"}}, "PutEvents")


def refused():
    entry = {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
    return {"FailedEntryCount": 1, "Entries": [entry]}


def test_event_of_job_has_counts_and_files(world, api):
    api.inject(Fault(kind="item_fails", items=(1,), code=5001, message="no"))
    version = world.upload_records("in/a.jsonl", greetings(3), model=M2M)
    world.settle()

    (event,) = world.notices()

    folder, manifest = world.only_folder(), world.manifest()
    assert (event["source"], event["detail-type"]) == ("dropbatch", "Batch Job State Change")
    assert event["detail"] == {
        "job_id": manifest["job_id"],
        "state": "completed",
        "error": None,
        "model": M2M,
        "format": "native",
        "tags": {},
        "source": manifest["source"],
        "counts": {"total": 3, "succeeded": 2, "failed": 1},
        "usage": manifest["usage"],
        "cost": manifest["cost"],
        "results": {
            "bucket": "dropbatch-test",
            "manifest": f"{folder}/manifest.json",
            "output": f"{folder}/output.jsonl",
            "errors": f"{folder}/errors.jsonl",
            "retry": f"{folder}/retry.jsonl",
        },
    }
    assert event["detail"]["source"]["version"] == version


@pytest.mark.parametrize("answer", [down, refused])
def test_untaken_notice_is_repeated(world, event_bus, answer):
    event_bus += [answer(), answer(), answer()]
    world.run("a.jsonl", greetings(3), model=M2M)

    assert event_bus == []
    (event,) = world.notices()
    assert event["detail"]["job_id"] == world.manifest()["job_id"]


def test_job_stays_due_until_event_is_taken(world, event_bus, monkeypatch):
    """Users have their results although nobody takes the event."""
    monkeypatch.setattr(patience, "CLAIMS_BEFORE_ALARM", 3)
    event_bus += [down() for _ in range(10)]
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(until=lambda: len(event_bus) < 7)

    assert world.manifest()["counts"]["succeeded"] == 3
    assert world.status()["state"] == "completed"
    job = world.item()
    assert job["state"] == {"S": "finalizing"}
    waits = float(job["due_at"]["N"]) - world.now()
    assert 3_000 < waits <= 3_600, "after some visits it waits hourly"
    event_bus.clear()
    world.settle(minutes=90)
    assert len(world.notices()) == 1


@pytest.mark.parametrize("refusal", ["error", "entry"])
def test_event_refused_for_good_holds_up_no_job(world, before_calls, caplog, refusal):
    """Its results are there; who listens reads them without the event."""
    tries = []
    code, said = "AccessDeniedException", "not authorized to perform: events:PutEvents"

    def refuse(operation, _arguments):
        if operation != "PutEvents":
            return None
        tries.append(world.now())
        if refusal == "entry":
            return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": code, "ErrorMessage": said}]}
        raise ClientError({"Error": {"Code": code, "Message": said}}, operation)

    before_calls(refuse)
    world.run("a.jsonl", greetings(3), model=M2M, minutes=12)

    assert world.item()["state"] == {"S": "completed"}
    assert 3 <= len(tries) <= 15
    assert 290 <= tries[-1] - tries[0] <= 420
    assert "event not published" in caplog.text


def at(event, path):
    """A value in an event by its JSON path, of member names alone."""
    return reduce(lambda value, name: value[name], path.removeprefix("$.").split("."), event)


def delivered(target, event):
    """The text that EventBridge delivers to a target.

    It must be JSON, else EventBridge drops the event.

    A part of the event is delivered as it is. Values in a transformer's template are inserted
    without escaping.
    """
    if path := target.get("InputPath"):
        return json.dumps(at(event, path))
    transformer = target["InputTransformer"]
    values = {name: at(event, path) for name, path in transformer["InputPathsMap"].items()}
    return re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), transformer["InputTemplate"])


@pytest.mark.parametrize(
    "name", ["plain", 'a "quoted" name', "back\\slash", 'both \\" <code>', "ende\n", "日本"]
)
def test_mail_survives_any_key_and_message(world, name):
    model = f'x{name}y"\\' if name.isascii() and name.isprintable() else 'x"\\'
    world.run(f"{name}.jsonl", '{"text":"y"}\n', model=model)
    (event,) = world.notices()
    (target,) = properties("FailedJobRule")["Targets"]

    mail = json.loads(delivered(target, event))

    assert mail["source"] == {
        **world.manifest()["source"],
        "bucket": BUCKET,
        "key": f"inbox/{name}.jsonl",
    }
    assert mail["job_id"] == world.manifest()["job_id"]
    assert mail["error"] == world.manifest()["error"]
    assert mail["error"]["code"] == "bad_model"
    assert '"' in mail["error"]["message"]


@pytest.fixture
def small_steps(monkeypatch):
    """Each batch is a step of its own."""
    monkeypatch.setattr(segments, "MIN_STEP_BATCHES", 1)
    monkeypatch.setattr(segments, "MAX_STEP_BATCHES", 1)


def run(start):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.run("a.jsonl", [*greetings(8), {}], model=M2M)
    return world


def assert_digests(world):
    files = world.manifest()["files"]
    assert {file["name"] for file in files} >= {"output.jsonl", "errors.jsonl"}
    for file in files:
        content = world.read(f"{world.only_folder()}/{file['name']}")
        assert (file["sha256"], file["bytes"]) == (
            hashlib.sha256(content).hexdigest(),
            len(content),
        )


def test_without_library_files_are_read_once_more(start, small_steps, monkeypatch):
    monkeypatch.setattr(segments, "is_possible", lambda: False)

    assert_digests(run(start))


@pytest.mark.slow
def test_file_too_large_to_reread_has_no_digest(start, small_steps, monkeypatch):
    monkeypatch.setattr(segments, "is_possible", lambda: False)
    monkeypatch.setattr(end, "MAX_DIGEST_READ_BYTES", 300)

    world = run(start)

    manifest = world.manifest()
    assert manifest["state"] == "completed"
    assert {file["name"]: file["sha256"] is None for file in manifest["files"]}["output.jsonl"]


DAY = 1_440


def days_to_the_end(world, at_most=6):
    """Days until the job is over, with a tick each hour."""
    began = world.now()
    world.settle(minutes=at_most * DAY, until=lambda: bool(world.manifests()))
    return (world.now() - began) / 86_400


def delete(world, prefix, part):
    """Delete the objects whose key begins so and has a part."""
    found = [key for key in world.objects(prefix) if part in key]
    assert found
    for key in found:
        world.s3.delete_object(Bucket=BUCKET, Key=key)


@pytest.mark.slow
@pytest.mark.parametrize("records", [3, 110], ids=["3 records", "bytes that a digest ends at"])
def test_output_that_is_deleted_before_the_manifest_is_written_is_not_replaced_by_an_empty_one(
    world, monkeypatch, records
):
    """The manifest told of 10,560 bytes."""

    def fail(*_args, **_named):
        raise StorageError("S3 put_object: 503")

    with monkeypatch.context() as patched:
        patched.setattr(end, "_close", fail)
        world.upload_records("a.jsonl", greetings(records), model=M2M)
        world.settle(minutes=20, until=lambda: "output.jsonl" in str(world.objects()))
    delete(world, "results/", "output.jsonl")

    assert days_to_the_end(world) < 1
    assert world.manifest()["state"] == "completed"
    assert not any(key.endswith("output.jsonl") for key in world.objects())


@pytest.mark.slow
def test_job_whose_lines_were_deleted_from_staging_ends(start, api, monkeypatch):
    monkeypatch.setattr(result_files, "MIN_STEP_BATCHES", 2)
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.inject(Fault(kind="stuck", contains="hello 11", seconds=3_600))
    world.upload_records("a.jsonl", greetings(12), model=M2M)
    world.settle(
        minutes=20, until=lambda: any("segments/" in key for key in world.objects("staging/"))
    )
    delete(world, "staging/", "segments/")

    assert days_to_the_end(world) < 5
    assert world.manifest()["state"] == "failed"
