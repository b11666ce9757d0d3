"""An execution of Step Functions that waits with a task token is told how its job goes and ends.

Whatever fails.
"""

import json

import pytest

from dropbatch.core.task_token import MAX_TOKEN
from local.workers_ai import Fault
from shared.observability import logger
from tests.support.aws.iam import MACHINE
from tests.support.journeys import waiting_executions
from tests.support.journeys.waiting_executions import TOKEN

M2M = "@cf/meta/m2m100-1.2b"
GREETINGS = [{"text": f"hello {number}", "target_lang": "es"} for number in range(3)]


@pytest.fixture
def executions(monkeypatch):
    """Installed before the world, whose roles judge each call first."""
    return waiting_executions.install(monkeypatch)


@pytest.fixture
def world(executions, start):
    return start(STATE_MACHINE_ARN=MACHINE)


def upload(world, **metadata):
    return world.upload_records(
        "in/a.jsonl", GREETINGS, **{"model": M2M, "task-token": TOKEN, **metadata}
    )


def notes(world):
    return [one["code"] for one in world.status()["notes"]]


def test_completed_job_is_reported_with_its_summary(world, executions, api):
    api.inject(Fault(kind="item_fails", items=(1,), code=5001, message="no"))
    upload(world, tags='{"run": "7"}')

    world.settle()

    operation, output = executions.only_report()
    (event,) = world.notices()
    assert operation == "SendTaskSuccess"
    assert output == event["detail"]
    assert output["counts"] == {"total": 3, "succeeded": 2, "failed": 1}
    assert output["results"]["manifest"] in world.objects()
    assert world.status()["notes"] == []
    assert "task_token" not in world.item()


@pytest.mark.parametrize(("fault", "error"), [("5007", "unknown_model"), ("", "cancelled")])
def test_job_without_success_is_reported_as_failure(world, executions, api, fault, error):
    if fault:
        api.inject(Fault(kind=fault, on="submit", times=0))
    upload(world)
    world.deliver("UploadQueue")
    if not fault:
        world.control(world.job_id(), "cancel")

    world.settle()

    ((operation, told),) = executions.reports
    manifest = world.manifest()
    assert operation == "SendTaskFailure"
    assert told["error"] == error
    cause = json.loads(told["cause"])
    assert (cause["state"], cause["counts"]) == (manifest["state"], manifest["counts"])
    assert (
        cause["message"] == (manifest["error"] or {"message": "The job was cancelled."})["message"]
    )


def test_heartbeats_come_once_a_minute_at_most(world, executions, api):
    """Also while nothing changes: an execution that waits for an hour needs them."""
    api.switch(latency=3_600.0)
    upload(world)

    world.settle(minutes=120)

    waits = [after - at for at, after in zip(executions.beats, executions.beats[1:], strict=False)]
    assert len(waits) > 10
    assert min(waits) >= 60
    assert max(waits) <= 300


def test_execution_that_is_gone_is_noted_once(world, executions, api):
    api.switch(latency=1_200.0)
    executions.waiting.clear()
    upload(world)

    world.settle(minutes=120)

    assert len(executions.beats) == 1
    assert executions.reports == []
    assert world.manifest()["counts"]["succeeded"] == 3
    assert notes(world) == ["execution_gone"]
    assert "TaskTimedOut" in world.status()["notes"][0]["message"]


def test_execution_that_is_gone_at_the_end_is_noted(world, executions):
    """Its task got all heartbeats, and then ran out of time."""
    world.permissions.before = lambda operation, _: (
        operation == "SendTaskSuccess" and executions.waiting.clear()
    )
    upload(world, **{"cancel-with-task": "true"})

    world.settle()

    assert notes(world) == ["execution_gone"]
    assert world.item()["state"] == {"S": "completed"}
    assert "control" not in world.item(), "there is nothing left to cancel"


def test_aborted_execution_cancels_its_job(world, executions, api):
    api.switch(latency=3_600.0)
    upload(world, **{"cancel-with-task": "true"})
    world.settle(until=lambda: world.item()["state"]["S"] == "in_progress")
    executions.waiting.clear()
    # Nothing is accepted any more; a cancellation counts nevertheless.
    world.control(world.job_id(), "pause")

    world.settle(minutes=180)

    assert world.manifest()["state"] == "cancelled"
    assert executions.reports == []
    assert notes(world) == ["execution_gone"]


def test_report_that_fails_is_repeated(world, executions):
    upload(world)
    world.permissions.before = lambda operation, _: (
        operation == "SendTaskSuccess"
        and executions.answers.append("ThrottlingException" if len(executions.reports) < 2 else "")
    )

    world.settle()

    assert len(executions.reports) == 3
    assert TOKEN not in executions.waiting
    assert len(world.notices()) == 1


def test_report_refused_for_good_holds_up_no_job(world, executions, caplog):
    """AWS refuses a token of another state machine so."""
    upload(world)
    world.permissions.before = lambda operation, _: (
        operation.startswith("SendTask") and executions.answers.append("AccessDeniedException")
    )

    world.settle(minutes=12)

    assert world.item()["state"] == {"S": "completed"}
    assert notes(world) == ["execution_refused"]
    assert len(world.notices()) == 1
    assert 3 <= len(executions.reports) <= 15
    assert "execution not told" in caplog.text


def test_note_goes_when_reports_are_taken_again(world, executions, api):
    api.switch(latency=600.0)
    executions.answers.append("AccessDeniedException")
    upload(world)
    world.deliver("UploadQueue")
    assert notes(world) == ["execution_refused"]

    world.settle()

    assert notes(world) == []
    assert executions.only_report()[0] == "SendTaskSuccess"


def test_two_uploads_with_one_token_report_once(world, executions):
    """The first job that is over ends the task; the other one notes it, and is completed."""
    for name in ("a", "b"):
        world.upload_records(f"{name}.jsonl", GREETINGS, model=M2M, **{"task-token": TOKEN})

    world.settle()

    told = [
        json.loads(world.read(f"{folder}/status.json"))["notes"] for folder in world.manifests()
    ]
    assert sorted(len(one) for one in told) == [0, 1]
    assert {one["state"] for one in world.manifests().values()} == {"completed"}
    assert [operation for operation, _ in executions.reports] == ["SendTaskSuccess"] * 2


@pytest.mark.parametrize(
    "metadata",
    [{"task-token": "x" * (MAX_TOKEN + 1)}, {"task-token": TOKEN, "task_token": f"{TOKEN}2"}],
    ids=["too long", "two"],
)
def test_bad_token_is_noted(world, executions, metadata):
    upload(world, **metadata)

    world.settle()

    assert notes(world) == ["bad_task_token"]
    assert world.manifest()["state"] == "completed"
    assert executions.beats == []


def test_retry_does_not_inherit_the_token(world, executions, api):
    api.inject(Fault(kind="item_fails", items=(1,), code=5001, message="no"))
    upload(world)
    world.settle()
    (retry,) = [key for key in world.objects() if key.endswith("retry.jsonl")]

    world.s3.copy_object(
        Bucket="dropbatch-test", Key="inbox/again.jsonl", CopySource=f"dropbatch-test/{retry}"
    )
    world.settle()

    assert len(world.manifests()) == 2
    assert len(executions.reports) == 1


def granted(world):
    return {
        (role, one.action, one.resource)
        for role, grants in world.permissions.granted.items()
        for one in grants
        if one.action.startswith("states:")
    }


def test_roles_may_tell_executions_of_one_machine(world, executions):
    """Each grant is used, by a job that is completed and one that is cancelled."""
    executions.waiting.add(f"{TOKEN}2")
    upload(world)
    world.settle()
    world.upload_records("b.jsonl", GREETINGS, model=M2M, **{"task-token": f"{TOKEN}2"})
    world.deliver("UploadQueue")
    world.pass_time(60)
    for job in world.items():
        if job["sk"]["S"] == "META" and "task_token" in job:
            world.control(job["job_id"]["S"], "cancel")
    world.settle()

    used = {
        (role, one.action, one.resource)
        for role, grants in world.permissions.used.items()
        for one in grants
    }
    assert granted(world) <= used
    assert granted(world) == {
        ("SubmitRole", "states:SendTaskHeartbeat", MACHINE),
        *(("PollRole", f"states:{name}", MACHINE) for name in waiting_executions.REPORTS),
    }


class TestWithoutStateMachine:
    """A stack without `StateMachineArn`."""

    @pytest.fixture
    def world(self, executions, start):
        return start()

    def test_token_is_noted_and_never_used(self, world, executions):
        upload(world)

        world.settle()

        assert notes(world) == ["no_state_machine"]
        assert world.manifest()["state"] == "completed"
        assert executions.beats == executions.reports == []
        assert granted(world) == set()


def test_token_is_in_no_object_log_or_message(world, executions, capfd, caplog):
    """Only the upload's metadata has it, the job's item until it is over.

    And the calls of Step Functions.
    """
    logger.setLevel("DEBUG")
    calls = []
    world.permissions.before = lambda operation, arguments: calls.append(
        (operation, repr(arguments))
    )
    executions.answers += ["ValidationException", "ThrottlingException", "AccessDeniedException"]
    upload(world)
    world.upload_records(
        "gone.jsonl",
        GREETINGS,
        model=M2M,
        **{"task-token": f"{TOKEN}2", "cancel-with-task": "true"},
    )
    world.upload_records("spelled.jsonl", GREETINGS, model=M2M, **{"task-tokens": TOKEN})
    world.settle(minutes=60)
    logger.setLevel("INFO")

    printed = "".join(capfd.readouterr()) + "\n".join(
        str(vars(record)) for record in caplog.records
    )
    assert TOKEN not in printed
    assert not [key for key in world.objects("") if TOKEN.encode() in world.read(key)]
    assert TOKEN not in repr(world.items())
    with_token = {operation for operation, arguments in calls if TOKEN in arguments}
    assert with_token == {"PutItem", "SendTaskHeartbeat", "SendTaskSuccess"}
    ignored = [
        json.loads(world.read(key)).get("ignored")
        for key in world.objects()
        if key.endswith("options.json")
    ]
    assert {"task-tokens": "task_token"} in ignored
