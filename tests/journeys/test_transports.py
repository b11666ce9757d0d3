"""A job over each transport, and of another Cloudflare account than the stack's."""

import dataclasses
import json
import time

import pytest
from moto import mock_aws

import functions.poll.handler
import functions.submit.handler
from local.workers_ai import Fault
from shared.workers_ai.client import WorkersAI
from shared.workers_ai.transports import transport_of
from tests.support.aws.resources import ACCOUNT, GATEWAY_TOKEN, TOKEN, WAYS, client
from tests.support.translations import M2M, all_good, greetings, polls, submits


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_job_is_answered_whichever_way_its_batches_go(start, api, name):
    world = start(**WAYS[name], MAX_REQUESTS_PER_BATCH=4)
    records = greetings(6)
    records[5] = {"text": "(refused)", "target_lang": "es"}
    world.run("a.jsonl", records, model=M2M)

    assert world.manifest()["counts"] == {"total": 6, "succeeded": 5, "failed": 1}
    assert world.lines()[5]["error"]["code"] == "rejected"
    grants = {
        grant.sid for role in ("SubmitRole", "PollRole") for grant in world.permissions.used[role]
    }
    assert {
        sid for sid in grants if sid.startswith("Read") and sid.endswith(("Token", "Secret"))
    } == {
        "gateway": {"ReadToken", "ReadGatewayToken"},
        "worker": {"ReadWorkerSecret"},
    }[name]


def judge_wait_for_secret(world, api, secret, value, words=""):
    """A job waits, and says so, until the secret has this value."""
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.pass_time(10)
    world.tick()
    waiting = world.status()["waiting_for"]
    assert (waiting["code"], words in waiting["message"]) == ("token_refused", True)
    assert api.accepted == []

    world.secrets.put_secret_value(SecretId=secret, SecretString=value)
    world.settle(minutes=10)

    assert all_good(world, 3)
    assert len(api.accepted) == 1


SEVERAL = "One API token a stack since 0.9"


@pytest.mark.parametrize(
    ("way", "secret", "wrong", "right", "words"),
    [
        (WAYS["gateway"], "gateway-token", "old", GATEWAY_TOKEN, ""),
        (WAYS["worker"], "token", "old", TOKEN, ""),
        (WAYS["rest"], "token", f"{TOKEN}\nother-token", TOKEN, SEVERAL),
    ],
    ids=["gateway", "worker", "several lines"],
)
def test_refused_secret_pauses_everything(start, api, secret, wrong, right, words):
    api.switch(gateway_token=right if secret == "gateway-token" else "")
    world = start()
    world.secrets.put_secret_value(SecretId=secret, SecretString=wrong)

    judge_wait_for_secret(world, api, secret, right, words)


def test_empty_secret_is_waited_for(start, api, monkeypatch):
    """The stack creates its secret empty; the token is put in it later."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        empty = client("secretsmanager").create_secret(Name="empty")["ARN"]
        world = start(CLOUDFLARE_API_TOKEN_SECRET_ARN=empty)

    judge_wait_for_secret(world, api, empty, TOKEN)


SECOND = "f" * 32
HOUR = 3_600.0


def redeploy(world, account):
    """New processes of both functions, with another account id."""
    old = functions.poll.handler.services()
    settings = dataclasses.replace(old.settings, cloudflare_account_id=account)
    new = dataclasses.replace(
        old,
        settings=settings,
        api=WorkersAI(old.api.http, transport_of(settings), old.api.credentials),
    )
    for module in (functions.poll.handler, functions.submit.handler):
        module.services = lambda: new


@pytest.fixture(autouse=True)
def _own_services(monkeypatch):
    for module in (functions.poll.handler, functions.submit.handler):
        monkeypatch.setattr(module, "services", module.services)


def accounts(api):
    """The account of each billed batch, in order."""
    return [batch["account"] for batch in api.accepted]


def statuses(world):
    """Every job's status by the name of its upload."""
    found = [key for key in world.objects() if key.endswith("/status.json")]
    return {key.split("/")[1]: json.loads(world.read(key)) for key in found}


def run_for(world, hours):
    ends = time.time() + hours * HOUR
    world.settle(minutes=int(hours * 60) + 60, until=lambda: time.time() >= ends)


def begin(world, api, records=8):
    """A job of which two batches are accepted and two wait, when the account changes."""
    api.switch(latency=60.0, retention=0.0)
    world.upload_records("a.jsonl", greetings(records), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=2)
    redeploy(world, SECOND)


@pytest.mark.parametrize("way", [WAYS["rest"], WAYS["worker"]], ids=["rest", "worker"])
def test_jobs_of_another_account_wait_and_go_on_if_it_is_set_back(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2, BATCH_DEADLINE_HOURS=1)
    begin(world, api)
    called = submits(api) + polls(api)
    run_for(world, 0.8)

    assert submits(api) + polls(api) == called, "no call is made"
    waiting = statuses(world)["a.jsonl"]["waiting_for"]
    assert waiting["code"] == "account_changed"
    assert all(said in waiting["message"] for said in (ACCOUNT, SECOND, "CloudflareAccountId"))

    redeploy(world, ACCOUNT)
    world.settle(minutes=60)
    manifest = world.manifest()
    assert manifest["counts"] == {"total": 8, "succeeded": 8, "failed": 0}
    assert [batch["attempts"] for batch in manifest["batches"]] == [1] * 4
    assert len(api.accepted) == 4


def test_jobs_of_the_new_account_go_on(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    begin(world, api)
    began = time.time()
    world.upload_records("b.jsonl", greetings(2), model=M2M)
    world.settle(until=lambda: "b.jsonl" in str(world.manifests()))

    assert time.time() - began < 180
    assert accounts(api)[-1] == SECOND


def test_job_ends_after_an_hour_with_the_answers_that_it_has(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.inject(Fault(kind="stuck", on="submit", contains="hello 3", times=0))
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.deliver("UploadQueue")
    api.inject(Fault(kind="3040", on="submit", contains="hello 5", times=0))
    run_for(world, 0.1)
    redeploy(world, SECOND)
    world.settle(minutes=90)

    manifest = world.manifest()
    assert manifest["state"] == "failed"
    assert manifest["error"]["code"] == "account_changed"
    assert manifest["counts"] == {"total": 6, "succeeded": 2, "failed": 4}
    assert set(accounts(api)) == {ACCOUNT}
    failed = [line["error"]["code"] for line in world.lines("errors.jsonl")]
    assert failed == ["account_changed"] * 4
    assert len(world.lines("retry.jsonl")) == 4
