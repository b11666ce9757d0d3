"""What becomes of each reply to a submit that says what happened."""

import time

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, referenced, submits

BGE = "@cf/baai/bge-small-en-v1.5"


@pytest.mark.parametrize("kind", ["3040", pytest.param("3021", marks=pytest.mark.slow)])
def test_one_batch_of_full_model_tries(start, api, kind):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind=kind, on="submit", model=M2M, times=4))
    world.upload_records("a.jsonl", referenced(6), model=M2M)
    world.upload_records("b.jsonl", [{"text": "other"}], model=BGE)

    world.settle(minutes=120)

    assert {one["counts"]["failed"] for one in world.manifests().values()} == {0}
    assert len(api.accepted) == 7
    assert submits(api) <= 7 + 4 + 4


def test_429_waits_as_long_as_retry_after_says(world, api):
    api.inject(Fault(kind="971", on="submit", retry_after=120))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    world.deliver_all()
    told = time.time()
    world.upload_records("b.jsonl", referenced(3), model=M2M)
    while time.time() < told + 110:
        world.deliver_all()
        world.tick()
        world.pass_time(10)

    assert submits(api) == 1

    world.settle()
    assert len(api.accepted) == 2


def test_used_up_quota_pauses_submits_and_is_reported(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.pass_time(86_400 - time.time() % 86_400 + 22 * 3600)  # 22:00 UTC
    api.inject(Fault(kind="3036", on="submit", nth=2, times=0))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    world.deliver_all()
    evening = submits(api)

    world.settle(minutes=10 * 60, until=lambda: time.time() % 86_400 > 23 * 3600)

    waiting = world.status()["waiting_for"]
    assert waiting["code"] == "quota_spent"
    assert waiting["until"].endswith("T00:00:00Z")
    assert submits(api) - evening <= 2 + 1
    assert world.status()["counts"]["succeeded"] == 1

    api.clear_faults()
    world.settle(minutes=10 * 60)
    assert all_good(world, 3)


def test_refused_token_pauses_all_until_secret_is_changed(world, api):
    api.switch(tokens=("new-token",))
    world.upload_records("a.jsonl", referenced(3), model=M2M)
    began = time.time()
    world.settle(minutes=180, until=lambda: time.time() > began + 40 * 60)

    assert world.status()["waiting_for"]["code"] == "token_refused"
    assert submits(api) <= 10 + 30 / 5 + 5

    secret = world.secrets.list_secrets()["SecretList"][0]["ARN"]
    world.secrets.put_secret_value(SecretId=secret, SecretString="new-token")
    world.settle(minutes=30)
    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.refused == []
