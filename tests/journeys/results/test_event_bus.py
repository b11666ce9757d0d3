"""Who listens on EventBridge hears of each job's end, at least once, whatever fails."""

import botocore.client
import pytest
from botocore.exceptions import ClientError

from local.workers_ai import Fault
from shared import retry as patience

M2M = "@cf/meta/m2m100-1.2b"
GREETINGS = [{"text": f"hello {number}", "target_lang": "es"} for number in range(3)]


@pytest.fixture
def event_bus(monkeypatch):
    """EventBridge, which may refuse: a list of answers that come before the real ones."""
    answers = []
    real = botocore.client.BaseClient._make_api_call

    def call(client, operation, arguments):
        if operation != "PutEvents" or not answers:
            return real(client, operation, arguments)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    return answers


def down():
    return ClientError({"Error": {"Code": "InternalException", "Message": "down"}}, "PutEvents")


def refused():
    entry = {"ErrorCode": "ThrottlingException", "ErrorMessage": "slow down"}
    return {"FailedEntryCount": 1, "Entries": [entry]}


def test_event_of_job_has_counts_and_files(world, api):
    api.inject(Fault(kind="item_fails", items=(1,), code=5001, message="no"))
    version = world.upload_records("in/a.jsonl", GREETINGS, model=M2M)
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


def test_failed_jobs_event_says_what_to_do(world):
    world.upload_records("a.jsonl", GREETINGS)
    world.settle()

    (event,) = world.notices()

    assert event["detail"]["state"] == "failed"
    assert event["detail"]["error"]["code"] == "no_model"
    assert "the option model" in event["detail"]["error"]["message"]
    assert set(event["detail"]["results"]) == {"bucket", "manifest"}


@pytest.mark.parametrize("answer", [down, refused])
def test_untaken_notice_is_repeated(world, event_bus, answer):
    event_bus += [answer(), answer(), answer()]
    world.upload_records("a.jsonl", GREETINGS, model=M2M)

    world.settle()

    assert event_bus == []
    (event,) = world.notices()
    assert event["detail"]["job_id"] == world.manifest()["job_id"]


def test_job_stays_due_until_event_is_taken(world, event_bus, monkeypatch):
    """Users have their results although nobody takes the event."""
    monkeypatch.setattr(patience, "CLAIMS_BEFORE_ALARM", 3)
    event_bus += [down() for _ in range(10)]
    world.upload_records("a.jsonl", GREETINGS, model=M2M)

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
def test_event_refused_for_good_holds_up_no_job(world, monkeypatch, caplog, refusal):
    """Its results are there; who listens reads them without the event."""
    real, tries = botocore.client.BaseClient._make_api_call, []
    code, said = "AccessDeniedException", "not authorized to perform: events:PutEvents"

    def call(client, operation, arguments):
        if operation != "PutEvents":
            return real(client, operation, arguments)
        tries.append(world.now())
        if refusal == "entry":
            return {"FailedEntryCount": 1, "Entries": [{"ErrorCode": code, "ErrorMessage": said}]}
        raise ClientError({"Error": {"Code": code, "Message": said}}, operation)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)
    world.upload_records("a.jsonl", GREETINGS, model=M2M)

    world.settle(minutes=12)

    assert world.item()["state"] == {"S": "completed"}
    assert 3 <= len(tries) <= 15
    assert 290 <= tries[-1] - tries[0] <= 420
    assert "event not published" in caplog.text
