"""Everything ends, and when: law 5 on a moved clock.

What was paid for is kept, whatever the end.
"""

import time
from collections import Counter

import pytest

import functions.poll.dispatch
import functions.poll.poll
import functions.poll.tick
import functions.poll.visit
import functions.submit.read
from local.workers_ai import Fault
from shared import observability
from shared.errors import StorageError
from tests.support.aws.wire_items import submissions
from tests.support.journeys.deaths import Boundaries, DiedError, Mortal
from tests.support.translations import M2M, all_good, codes, greetings

pytestmark = pytest.mark.faults  # days pass, hour by hour

HOUR, DAY = 3_600, 86_400


@pytest.fixture(autouse=True)
def days_pass_quickly(monkeypatch):
    """A tick looks once, and a job at which nothing changes is seldom told of."""
    monkeypatch.setattr(functions.poll.tick, "TICK_SECONDS", 0.0)
    monkeypatch.setattr(functions.poll.visit, "MAX_VISIT_SECONDS", 6 * HOUR)


@pytest.fixture
def counted(monkeypatch):
    """The metrics, added up."""
    counter = Counter()
    monkeypatch.setattr(
        observability.metrics,
        "add_metric",
        lambda name, unit, value: counter.update({name: int(value)}),
    )
    return counter


def mortal(world):
    """The same world, but a death in it is the end of one invocation only."""
    made = Mortal(**vars(world))
    made.boundaries, made.delivered = Boundaries(), []
    return made


def hours_to_end(world, *, most):
    """Hours until every job was over; fails beyond `most`."""
    began = time.time()
    world.settle(minutes=60 * most)
    return (time.time() - began) / HOUR


def hours(world, some):
    """Let hours pass."""
    until = time.time() + some * HOUR
    world.settle(minutes=60 * some + 60, until=lambda: time.time() >= until)


def grow_older(world, seconds):
    """As if everything had been tried for so long already."""

    def earlier(moment):
        return {"N": repr(float(moment["N"]) - seconds)} if float(moment["N"]) else moment

    for item in world.items():
        for name in {"created_at", "ready_at"} & set(item):
            item[name] = earlier(item[name])
        for submission in submissions(item):
            submission["at"] = earlier(submission["at"])
        world.dynamodb.put_item(TableName="ledger", Item=item)


@pytest.mark.parametrize("kind", ["html", "reset", "truncated_json", "refuse", "bare"])
def test_unanswered_batch_ends_internal_after_72_hours(world, api, counted, kind):
    api.switch(retention=0)
    api.inject(Fault(kind=kind, on="poll", times=0, status=503))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    assert 72 <= hours_to_end(world, most=90) <= 80

    assert codes(world) == ["internal"] * 3
    assert len(world.lines("retry.jsonl")) == 3
    assert 72 <= counted["StuckItems"] <= 74 + 16, (
        "an alarm an hour, and one at each visit of its job"
    )
    assert sum(api.calls["poll"].values()) <= 92
    assert len(api.accepted) == 1


@pytest.mark.parametrize(
    ("death", "large"), [(DiedError, False), (DiedError, True), (RuntimeError, False)]
)
def test_unwritable_batch_ends_but_answer_is_kept(world, api, monkeypatch, death, large):
    if large:  # Then each try is a message, delivered again and again after a death.
        monkeypatch.setattr(functions.poll.dispatch, "LARGE_RECORDS", 2)
    real = functions.poll.poll.collect

    def broken(services, job, batch, reply):
        if reply is not None:
            raise death
        return real(services, job, batch, reply)

    monkeypatch.setattr(functions.poll.poll, "collect", broken)
    world = mortal(world)
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    assert 72 <= hours_to_end(world, most=90) <= 80

    assert codes(world) == ["internal"] * 3
    (raw,) = [key for key in world.objects("staging/") if "/raw-" in key]
    assert b"hello 2" in world.read(raw)
    assert sum(api.calls["poll"].values()) <= 2


def test_untiled_job_ends_failed_and_keeps_its_answers(start, api, counted):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.deliver("UploadQueue")
    job = world.item("META")
    world.dynamodb.delete_item(
        TableName="ledger", Key={"pk": job["pk"], "sk": {"S": "BATCH#00000001"}}
    )

    assert 72 <= hours_to_end(world, most=90) <= 80

    manifest = world.manifest()
    assert (manifest["state"], manifest["error"]["code"]) == ("failed", "internal")
    assert (manifest["files"], manifest["counts"]["succeeded"]) == ([], 0)
    assert world.status()["state"] == "failed"
    assert any("00000002/part-" in key for key in world.objects("staging/"))
    assert counted["LawsBroken"] >= 92
    assert 72 <= counted["StuckItems"] - counted["LawsBroken"] <= 74  # Both raise one alarm.


def test_unreadable_upload_ends_failed(start, monkeypatch, counted):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    real = functions.submit.read.read_batches

    def breaks_off(*given):
        for piece in real(*given):
            if piece.first_id >= 2:
                raise StorageError("S3 breaks off")
            yield piece

    monkeypatch.setattr(functions.submit.read, "read_batches", breaks_off)
    world.upload_records("a.jsonl", greetings(6), model=M2M)

    assert 72 <= hours_to_end(world, most=90) <= 80

    assert world.manifest()["error"]["code"] == "internal"
    assert [line["id"] for line in world.lines()] == [0, 1]
    assert 72 <= counted["StuckItems"] <= 74


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "3040"},
        {"kind": "402402", "status": 402},
        {"kind": "html", "status": 410},
        {"kind": "refuse"},
    ],
    ids=lambda fault: fault["kind"],
)
def test_unaccepted_batch_expires_after_7_days(world, api, fault):
    api.inject(Fault(on="submit", times=0, **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    began = time.time()
    hours(world, 2)
    grow_older(world, 7 * DAY - 3 * HOUR)
    hours(world, 0.5)
    assert not world.all_over()

    hours_to_end(world, most=2)

    assert 3 * HOUR <= time.time() - began <= 5 * HOUR
    assert codes(world) == ["expired"] * 3
    assert len(world.lines("retry.jsonl")) == 3
    assert len(api.accepted) == 0


def change_token(world, api):
    world.secrets.put_secret_value(
        SecretId=world.secrets.list_secrets()["SecretList"][0]["ARN"], SecretString="new-token"
    )


def test_accepted_batch_outlives_refused_token(world, api):
    """A batch that was accepted before a token was refused for a week is collected."""
    api.switch(retention=0)
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue")
    api.switch(tokens=("new-token",))
    hours(world, 2)
    world.pass_time(9 * DAY)
    hours(world, 1)

    change_token(world, api)

    assert hours_to_end(world, most=2) < 1
    assert all_good(world, 3)
    assert len(api.accepted) == 1
