"""The smoke job of `make deploy`, on the whole path."""

import boto3
import pytest

from dropbatch.cli.operate import Finding
from dropbatch.client.stack import Stack
from local.workers_ai import Fault
from tests.support.aws.resources import BUCKET
from tools import smoke_job
from tools.account_stack import DeployError


@pytest.fixture
def stack(world, monkeypatch):
    """The stack, in which time passes whenever the smoke job waits."""
    monkeypatch.setattr(smoke_job, "time", Clock(world))
    monkeypatch.setattr(
        smoke_job, "examine", lambda stack: [Finding("alarms", "bad", "WorkErrors rings.")]
    )
    return Stack("dropbatch", BUCKET, {"BucketName": BUCKET}, boto3.client)


class Clock:
    """The clock of the smoke job; the world works while it waits."""

    def __init__(self, world):
        self.world = world
        self.seconds = 0.0

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += 60.0
        self.world.deliver_all()
        self.world.pass_time(60)
        self.world.tick()


def test_smoke_job_answers_one_and_rejects_one(stack, world, api):
    said = smoke_job.run(stack)

    assert "its good record was answered" in said
    assert len(api.accepted) == 1, "one batch, so that it costs less than $0.001"
    assert world.manifest()["counts"] == {"total": 2, "succeeded": 1, "failed": 1}


def test_failing_smoke_record_is_reported(stack, api):
    api.inject(Fault(kind="5006", times=0))
    with pytest.raises(DeployError, match=r"(?s)rejected.*doctor.*WorkErrors rings"):
        smoke_job.run(stack)


def test_refused_token_is_reported_at_once(stack, api):
    api.switch(tokens=("another",))
    with pytest.raises(DeployError, match=r"The smoke job waits: .*token"):
        smoke_job.run(stack)
    assert smoke_job.time.seconds < smoke_job.PATIENCE_SECONDS


def test_upload_that_nothing_notices_is_reported(stack, monkeypatch):
    monkeypatch.setattr(
        Clock, "sleep", lambda self, seconds: setattr(self, "seconds", self.seconds + 60)
    )
    with pytest.raises(DeployError, match="not noticed by the submit function after 15 minutes"):
        smoke_job.run(stack)
