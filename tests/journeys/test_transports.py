"""A job over each transport, and what only one of them can do."""

import pytest
from moto import mock_aws

from tests.support.aws.resources import TOKEN, WAYS, client
from tests.support.translations import M2M, all_good, greetings


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_job_is_answered_whichever_way_its_batches_go(start, api, name):
    world = start(**WAYS[name], MAX_REQUESTS_PER_BATCH=4)
    records = greetings(6)
    records[5] = {"text": "(refused)", "target_lang": "es"}
    world.upload_records("a.jsonl", records, model=M2M)

    world.settle()

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


@pytest.mark.parametrize("name", ["gateway", "worker"])
def test_refused_secret_pauses_everything(start, api, name):
    api.switch(**({"gateway_token": "new"} if name == "gateway" else {"tokens": ("new",)}))
    world = start(**WAYS[name])
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.pass_time(10)
    world.tick()
    assert world.status()["waiting_for"]["code"] == "token_refused"

    world.secrets.put_secret_value(
        SecretId="gateway-token" if name == "gateway" else "token", SecretString="new"
    )
    world.settle(minutes=10)

    assert all_good(world, 3)
    assert len(api.accepted) == 1


def test_empty_secret_is_waited_for(start, api, monkeypatch):
    """The stack creates its secret empty; the token is put in it later."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    with mock_aws():
        empty = client("secretsmanager").create_secret(Name="empty")["ARN"]
        world = start(CLOUDFLARE_API_TOKEN_SECRET_ARN=empty)
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.pass_time(10)
    world.tick()
    assert world.status()["waiting_for"]["code"] == "token_refused"
    assert api.accepted == []

    world.secrets.put_secret_value(SecretId=empty, SecretString=TOKEN)
    world.settle(minutes=10)

    assert all_good(world, 3)


def test_secret_of_several_lines_is_refused_by_name(start, api):
    world = start()
    world.secrets.put_secret_value(SecretId="token", SecretString=f"{TOKEN}\nother-token")
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.pass_time(10)
    world.tick()
    waiting = world.status()["waiting_for"]
    assert waiting["code"] == "token_refused"
    assert "One API token a stack since 0.9" in waiting["message"]
    assert api.accepted == []

    world.secrets.put_secret_value(SecretId="token", SecretString=TOKEN)
    world.settle(minutes=10)

    assert all_good(world, 3)
