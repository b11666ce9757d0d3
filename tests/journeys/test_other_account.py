"""Jobs of another Cloudflare account than the stack's.

After a redeployment with another `CloudflareAccountId`.
"""

import dataclasses
import json
import time

import pytest

import functions.poll.handler
import functions.submit.handler
from local.workers_ai import Fault
from shared.workers_ai.client import WorkersAI
from shared.workers_ai.transports import transport_of
from tests.support.aws.resources import ACCOUNT, TOKEN, WAYS
from tests.support.translations import M2M, greetings, polls, submits

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


def pauses(world):
    return {
        item["sk"]["S"]: item["reason"]["S"]
        for item in world.items()
        if item["sk"]["S"].startswith("PAUSE")
    }


def folder_of(world, name):
    (found,) = [folder for folder in world.manifests() if f"/{name}/" in folder]
    return found


def statuses(world):
    """Every job's status by the name of its upload."""
    found = [key for key in world.objects() if key.endswith("/status.json")]
    return {key.split("/")[1]: json.loads(world.read(key)) for key in found}


def batches_of(world, name):
    """The items of the batches of an upload's job."""
    (job,) = [
        one["job_id"]["S"]
        for one in world.items()
        if one["sk"]["S"] == "META" and name in str(one["upload"])
    ]
    return [
        item
        for item in world.items()
        if item["pk"]["S"] == f"JOB#{job}" and item["sk"]["S"] != "META"
    ]


def run_for(world, hours):
    ends = time.time() + hours * HOUR
    world.settle(minutes=int(hours * 60) + 60, until=lambda: time.time() >= ends)


@pytest.mark.parametrize("way", [WAYS["rest"], WAYS["gateway"]], ids=["rest", "gateway"])
def test_job_in_flight_stays_with_its_account(start, api):
    """Polls, submits that wait, resubmissions and pieces.

    Everything goes to the account of the job.
    """
    world = start(MAX_REQUESTS_PER_BATCH=4, BATCH_DEADLINE_HOURS=1)
    api.inject(
        Fault(kind="stuck", on="submit"),
        Fault(kind="5006", on="submit", contains="hello 9", times=0),
    )
    world.upload_records("a.jsonl", greetings(12), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=1)
    redeploy(world, SECOND)
    world.settle(minutes=180)

    world.upload_records("b.jsonl", greetings(1), model=M2M)
    world.settle()

    first = world.manifest(folder_of(world, "a.jsonl"))
    assert first["counts"] == {"total": 12, "succeeded": 11, "failed": 1}
    assert accounts(api)[-1] == SECOND
    assert set(accounts(api)[:-1]) == {ACCOUNT}
    assert len(api.accepted) == first["batches"][0]["attempts"] + 1 + 3 + 1
    assert first["batches"][0]["attempts"] == 2
    assert pauses(world) == {}


def test_account_closed_to_token_holds_only_its_jobs(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.switch(latency=60.0, retention=0.0)
    world.upload_records("a.jsonl", greetings(8), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=2)
    redeploy(world, SECOND)
    api.switch(token_accounts={TOKEN: (SECOND,)})
    called = submits(api) + polls(api)
    run_for(world, 6)

    calls = submits(api) + polls(api) - called
    assert calls <= 15 + 6 * 12, "one call at a time, every minute at first, then every five"
    assert accounts(api) == [ACCOUNT] * 2
    waiting = statuses(world)["a.jsonl"]["waiting_for"]
    assert waiting["code"] == "other_account"
    assert ACCOUNT in waiting["message"]
    assert "CloudflareAccountId" in waiting["message"]
    assert pauses(world) == {f"PAUSE#{ACCOUNT}": "token_refused"}
    batches = batches_of(world, "a.jsonl")
    assert [item["state"]["S"] for item in batches] == ["queued", "queued", "ready", "ready"]
    assert not any("claims" in item for item in batches)

    began = time.time()
    world.upload_records("b.jsonl", greetings(2), model=M2M)
    world.settle(until=lambda: "b.jsonl" in str(world.manifests()))
    assert time.time() - began < 180
    assert statuses(world)["b.jsonl"]["waiting_for"] is None

    api.switch(token_accounts={})
    world.settle(minutes=30)
    first = world.manifest(folder_of(world, "a.jsonl"))
    assert first["counts"] == {"total": 8, "succeeded": 8, "failed": 0}
    assert sorted(accounts(api)) == [ACCOUNT] * 4 + [SECOND]
    assert [batch["attempts"] for batch in first["batches"]] == [1] * 4
    assert pauses(world) == {}


def test_unknown_id_of_closed_account_is_not_believed(start, api):
    """As if the API looked for the id before it looked at the token's accounts."""
    world = start()
    api.switch(latency=300.0)
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver_all()
    redeploy(world, SECOND)
    api.switch(token_accounts={TOKEN: (SECOND,)})
    api.inject(Fault(kind="error", on="poll", code=10404, status=404, times=40))
    run_for(world, 3)
    assert statuses(world)["a.jsonl"]["waiting_for"]["code"] == "other_account"

    api.clear_faults()
    api.switch(token_accounts={})
    world.settle(minutes=30)
    assert world.manifest()["counts"]["succeeded"] == 2
    assert len(api.accepted) == 1


def test_lost_id_is_resubmitted_in_its_account(start, api):
    world = start()
    api.inject(Fault(kind="forgotten"))
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver_all()
    redeploy(world, SECOND)

    world.settle()

    assert world.manifest()["counts"]["succeeded"] == 2
    assert accounts(api) == [ACCOUNT] * 2


def test_quota_of_another_account_pauses_nothing_else(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver("UploadQueue")
    redeploy(world, SECOND)
    api.inject(Fault(kind="3036", on="submit", contains="hello", times=0))
    world.deliver_all()
    world.upload_records("b.jsonl", greetings(2, "goodbye"), model=M2M)
    world.settle(minutes=10, until=lambda: "b.jsonl" in str(world.manifests()))

    assert pauses(world) == {f"PAUSE#{ACCOUNT}": "quota_spent"}
    assert submits(api) == 1 + 2
    world.settle(minutes=10, until=lambda: statuses(world)["a.jsonl"]["waiting_for"] is not None)
    assert statuses(world)["a.jsonl"]["waiting_for"]["code"] == "quota_spent"

    api.clear_faults()
    world.settle(minutes=60)
    assert accounts(api) == [SECOND] * 2 + [ACCOUNT] * 3


def test_other_accounts_job_probes_no_stack_token(start, api):
    """Its answers come from another account.

    They would lift the pause, and the next call would begin it again.
    """
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.switch(latency=900.0)
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=2)
    redeploy(world, SECOND)
    api.switch(token_accounts={TOKEN: (ACCOUNT,)})
    world.upload_records("b.jsonl", greetings(1), model=M2M)
    world.deliver_all()
    (since,) = [item["since"]["N"] for item in world.items() if item["sk"]["S"] == "PAUSE"]

    world.settle(minutes=180, until=lambda: "a.jsonl" in str(world.manifests()))

    assert [item["since"]["N"] for item in world.items() if item["sk"]["S"] == "PAUSE"] == [since]
    assert accounts(api) == [ACCOUNT] * 6
    assert statuses(world)["b.jsonl"]["waiting_for"]["code"] == "token_refused"


@pytest.mark.parametrize(
    ("rate", "records"), [(200, 2), (2, 150)], ids=["to be polled", "to be submitted"]
)
def test_refused_token_is_checked_for_other_accounts(start, api, rate, records):
    """The stack's own token is checked while only jobs of other accounts wait."""
    world = start(MAX_REQUESTS_PER_BATCH=1, API_CALLS_PER_MINUTE=rate)
    api.inject(Fault(kind="stuck", seconds=86_400, times=0))
    world.upload_records("a.jsonl", greetings(records), model=M2M)
    world.deliver("UploadQueue")
    world.deliver("SubmitQueue", most=2)
    redeploy(world, SECOND)
    api.switch(token_accounts={TOKEN: (ACCOUNT,)})
    world.upload_records("b.jsonl", greetings(1), model=M2M)
    world.settle(minutes=30, until=lambda: "PAUSE" in pauses(world))
    (b,) = {item["pk"]["S"].removeprefix("JOB#") for item in batches_of(world, "b.jsonl")}
    world.control(b, "cancel")
    world.settle(minutes=30, until=lambda: "b.jsonl" in str(world.manifests()))
    run_for(world, 0.2)
    assert pauses(world) == {"PAUSE": "token_refused"}

    api.switch(token_accounts={TOKEN: (ACCOUNT, SECOND)})
    run_for(world, 0.2)

    assert pauses(world) == {}
    assert "a.jsonl" not in str(world.manifests())


@pytest.mark.parametrize("way", [WAYS["worker"]], ids=["worker"])
def test_worker_is_never_asked_for_another_account(start, api):
    world = start()
    api.switch(latency=60.0, retention=0.0)
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver_all()
    called = submits(api) + polls(api)
    redeploy(world, SECOND)
    run_for(world, 3)

    assert submits(api) + polls(api) == called
    waiting = statuses(world)["a.jsonl"]["waiting_for"]
    assert waiting["code"] == "other_account"
    assert "Worker" in waiting["message"]

    redeploy(world, ACCOUNT)
    world.settle(minutes=15)
    assert world.manifest()["counts"]["succeeded"] == 2
    assert len(api.accepted) == 1


def test_wait_of_account_extends_deadline(start, api):
    world = start(BATCH_DEADLINE_HOURS=2)
    api.switch(latency=5.5 * HOUR, retention=0.0)
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver_all()
    redeploy(world, SECOND)
    api.switch(token_accounts={TOKEN: (SECOND,)})
    run_for(world, 5)

    api.switch(token_accounts={})
    world.settle(minutes=60)
    assert len(api.accepted) == 1
    assert world.manifest()["counts"]["succeeded"] == 2
