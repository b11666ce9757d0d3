"""A secret with several tokens.

Who sends what, if one is refused, rotated, removed, slow, or of another account.
"""

import json
import time
from collections import Counter
from typing import NamedTuple

import pytest

from dropbatch.core.api_tokens import read_tokens
from functions.submit import submit_batch as submit_module
from local.workers_ai import Fault
from shared.errors import StorageError
from shared.ledger import Ledger
from shared.models import Sender
from shared.pacing.controls import Denied, PauseReason, Permit
from shared.workers_ai.senders import Tokens
from tests.support.aws.resources import ACCOUNT
from tests.support.journeys.placed_items import services_of
from tests.support.translations import M2M, all_good, greetings

OTHER = "f" * 32
ONE, TWO, THREE = "local-token", "second-token", "third-token"
LATER = 400
"""Seconds after which a process reads the secret again."""


class Call(NamedTuple):
    """A call of a model: its token, its account, and what it polls; empty for a submit."""

    token: str
    account: str
    polled: str


@pytest.fixture
def calls(api, monkeypatch):
    """Every call of a model, in order."""
    found, real = [], api.handle

    def handle(method, path, query, headers, body):
        if "/ai/run/" in path:
            given = {name.lower(): value for name, value in headers.items()}
            token = given["authorization"].removeprefix("Bearer ")
            found.append(Call(token, path.split("/")[4], json.loads(body).get("request_id", "")))
        return real(method, path, query, headers, body)

    monkeypatch.setattr(api, "handle", handle)
    return found


@pytest.fixture
def begin(start, api, calls):
    """A world whose secret has these lines; every token is good, and a batch has one record."""

    def begin(*lines, **settings):
        api.switch(tokens=(ONE, TWO, THREE), latency=60.0)
        world = start(MAX_REQUESTS_PER_BATCH=1, API_CALLS_PER_MINUTE=20, **settings)
        rotate(world, *lines)
        return world

    return begin


def rotate(world, *lines):
    world.secrets.put_secret_value(SecretId="token", SecretString="\n".join(lines))


def submitted_by(calls):
    return Counter(one.token for one in calls if not one.polled)


def senders(world):
    """By number of each batch, the token's number that its manifest entry has."""
    return {one["number"]: one["token"] for one in world.manifest()["batches"]}


def batches(world):
    return [item for item in world.items() if item["sk"]["S"].startswith("BATCH#")]


def pauses(world):
    return [item["sk"]["S"] for item in world.items() if item["sk"]["S"].startswith("PAUSE")]


def test_one_token_leaves_items_as_they_were(begin, calls):
    world = begin(ONE)
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.settle()

    assert all_good(world, 3)
    assert set(senders(world).values()) == {1}
    assert all("sender" not in str(item) for item in batches(world))
    assert "TOKEN" not in str(world.items())


def test_every_token_submits_and_polls_its_own(begin, calls, api):
    world = begin(ONE, TWO, f"{THREE} {OTHER}")
    world.upload_records("a.jsonl", greetings(12), model=M2M)
    world.settle()

    assert all_good(world, 12)
    assert set(submitted_by(calls)) == {ONE, TWO, THREE}
    assert Counter(senders(world).values()) == {1: 4, 2: 4, 3: 4}
    assert {one.account for one in calls if one.token == THREE} == {OTHER}
    assert {one.account for one in calls if one.token != THREE} == {ACCOUNT}
    by_number = {1: ONE, 2: TWO, 3: THREE}
    owner = {one["request_id"]: by_number[one["token"]] for one in world.manifest()["batches"]}
    assert all(owner[one.polled] == one.token for one in calls if one.polled)


def test_no_token_is_in_what_is_stored(begin):
    world = begin(ONE, TWO, THREE)
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.settle()

    stored = str(world.items()) + "".join(str(world.read(key)) for key in world.objects(""))
    assert not any(token in stored for token in (ONE, TWO, THREE))


def test_refused_token_pauses_itself_alone(begin, calls, api):
    """What it submitted waits for it.

    All else goes on, and a new value in its line is used at its probe.
    """
    world = begin(ONE, TWO)
    world.upload_records("a.jsonl", greetings(4), model=M2M)
    world.deliver_all()
    api.switch(tokens=(ONE,))
    world.upload_records("b.jsonl", greetings(6), model=M2M)
    world.settle(minutes=20, until=lambda: "b.jsonl" in str(world.manifests()))

    assert pauses(world) == ["PAUSE#TOKEN#2"]
    (key,) = [one for one in world.objects() if "/a.jsonl/" in one and one.endswith("status.json")]
    waiting = json.loads(world.read(key))["waiting_for"]
    assert waiting["code"] == "some_tokens_refused"
    assert "2 API tokens, by their place there: 2" in waiting["message"]
    api.switch(tokens=(ONE, THREE))
    rotate(world, ONE, THREE)
    world.settle(minutes=60)

    assert pauses(world) == []
    assert len(api.accepted) == 10, "nothing was sent twice"


def test_all_refused_but_one(begin, calls, api):
    world = begin(ONE, TWO, THREE)
    api.switch(tokens=(TWO,))
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.settle(minutes=30)

    assert all_good(world, 6)
    assert set(senders(world).values()) == {2}
    assert submitted_by(calls)[ONE] <= 4, "its probes"
    assert all(int(item["attempt"]["N"]) <= 3 for item in batches(world)), (
        "no batch is every token's probe"
    )


def test_removed_token_is_replaced_by_one_of_its_account(begin, calls, api):
    world = begin(ONE, TWO)
    world.upload_records("a.jsonl", greetings(4), model=M2M)
    world.deliver_all()
    before = len(calls)
    api.switch(tokens=(ONE,))
    rotate(world, ONE)
    world.pass_time(LATER)
    world.settle(minutes=30)

    assert all_good(world, 4)
    assert {one.token for one in calls[before:]} == {ONE}
    assert len(api.accepted) == 4


def test_lines_that_change_places_lose_no_answer(begin, calls, api):
    """A batch of the other account is asked for there, by whichever token is that account's now."""
    world = begin(ONE, f"{TWO} {OTHER}")
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.deliver_all()
    before = len(calls)
    rotate(world, f"{TWO} {OTHER}", ONE)
    world.pass_time(LATER)
    world.settle(minutes=30)

    assert all_good(world, 6)
    assert {(one.token, one.account) for one in calls[before:]} == {(ONE, ACCOUNT), (TWO, OTHER)}
    assert len(api.accepted) == 6


def test_too_many_calls_of_one_token_stop_no_other(begin, calls, api):
    world = begin(ONE, TWO)
    api.inject(Fault(kind="971", retry_after=600))
    world.upload_records("a.jsonl", greetings(8), model=M2M)
    began = time.time()
    world.settle(minutes=30)

    assert all_good(world, 8)
    assert time.time() - began < 600
    assert set(senders(world).values()) == {2}


@pytest.mark.parametrize(
    "lines", [(ONE, f"{TWO} {OTHER}"), (f"{TWO} {OTHER}", ONE)], ids=["kept", "reordered"]
)
def test_receipt_names_token_that_submitted(begin, calls, api, monkeypatch, lines):
    """The table did not take the acceptance.

    Whoever reads the receipt polls with the token of that account.
    """

    def refuses(*_):
        raise StorageError("the table is away")

    world = begin(ONE, f"{TWO} {OTHER}")
    services_of().budget.limit_rate(time.time(), 600)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "accept", refuses)
        world.upload_records("a.jsonl", greetings(2), model=M2M)
        world.deliver_all()
    rotate(world, *lines)
    world.settle(minutes=30)

    assert all_good(world, 2)
    assert [one["account"] for one in api.accepted] == [OTHER] * 2
    assert {(one.token, one.account) for one in calls} == {(TWO, OTHER)}


def test_idle_stack_reads_no_secret(begin, monkeypatch):
    """Each reading costs: an idle tick does not ask how many tokens there are."""
    world, reads = begin(ONE, TWO), []
    tokens = services_of().tokens
    real = tokens._read
    monkeypatch.setattr(tokens, "_read", lambda fresh: reads.append(fresh) or real(fresh))

    for _ in range(3):
        world.pass_time(60)
        world.tick()

    assert reads == []
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.settle()
    assert reads


def asked(calls):
    """How often each account was asked to take a batch."""
    return Counter(one.account for one in calls if not one.polled)


def test_model_that_one_account_may_not_use_goes_to_the_other(begin, calls, api):
    """It is asked once, for all jobs; an hour later once more."""
    world = begin(ONE, f"{TWO} {OTHER}")
    api.switch(accounts_without_models=(ACCOUNT,))
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.settle()
    assert all_good(world, 6)
    assert asked(calls) == {ACCOUNT: 1, OTHER: 6}

    world.upload_records("b.jsonl", greetings(6), model=M2M)
    world.settle(until=lambda: len(world.manifests()) == 2)
    assert asked(calls) == {ACCOUNT: 1, OTHER: 12}

    world.pass_time(3_600)
    world.upload_records("c.jsonl", greetings(6), model=M2M)
    world.settle(until=lambda: len(world.manifests()) == 3)
    assert asked(calls) == {ACCOUNT: 2, OTHER: 18}


def test_refused_model_waits_for_the_account_that_may(begin, calls, api):
    """Its token is refused for a while."""
    world = begin(ONE, f"{TWO} {OTHER}")
    api.switch(accounts_without_models=(ACCOUNT,), tokens=(ONE,))
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    for _ in range(10):
        world.deliver_all()
        world.pass_time(60)
        world.tick()
    assert world.manifests() == {}
    assert asked(calls)[ACCOUNT] == 1

    api.switch(tokens=(ONE, TWO))
    world.settle(minutes=20)
    assert all_good(world, 2)
    assert asked(calls)[ACCOUNT] == 1


def test_job_ends_once_every_account_refuses_its_model(begin, calls, api):
    """Later jobs ask again: somebody may have changed that."""
    world = begin(ONE, f"{TWO} {OTHER}", f"{THREE} {OTHER}")
    api.switch(accounts_without_models=(ACCOUNT, OTHER))
    for times, name in enumerate(("a.jsonl", "b.jsonl"), 1):
        world.upload_records(name, greetings(6), model=M2M)
        world.settle(until=lambda times=times: len(world.manifests()) == times)
        assert asked(calls) == {ACCOUNT: times, OTHER: times}
        world.pass_time(120)
    assert {one["error"]["code"] for one in world.manifests().values()} == {"unknown_model"}


def test_death_after_note_of_a_refused_model_asks_no_account_again(begin, calls, api, monkeypatch):
    world = begin(ONE, f"{TWO} {OTHER}")
    api.switch(accounts_without_models=(ACCOUNT,))
    refuse, died = Ledger.refuse, []

    def die(self, batch, due_at, **updates):
        if not died:
            died.append(batch.number)
            raise RuntimeError("it dies")
        return refuse(self, batch, due_at, **updates)

    monkeypatch.setattr(Ledger, "refuse", die)
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.settle(minutes=60)
    assert died
    assert all_good(world, 2)
    assert asked(calls) == {ACCOUNT: 1, OTHER: 2}


def test_stack_whose_tokens_are_all_refused_waits(begin, calls, api):
    """Each is tried now and then.

    `resume` ends all pauses, and jobs go on with what is good by then.
    """
    world = begin(ONE, TWO)
    api.switch(tokens=())
    world.upload_records("a.jsonl", greetings(4), model=M2M)
    world.settle(minutes=10, until=lambda: len(pauses(world)) == 2)

    assert pauses(world) == ["PAUSE", "PAUSE#TOKEN#2"]
    world.pass_time(60)
    world.tick()
    assert world.status()["waiting_for"]["code"] == "token_refused"

    api.switch(tokens=(ONE, TWO))
    world.control("stack", "run")
    world.deliver_all()
    assert pauses(world) == []
    world.settle(minutes=30)
    assert all_good(world, 4)


def test_free_call_shows_that_a_token_without_work_is_good_again(begin, api):
    """Nothing was submitted with it, so no poll probes it; and no batch waits to be submitted."""
    world = begin(ONE, TWO)
    api.switch(latency=7_200.0)
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.deliver_all()
    services = services_of()
    refused = Permit(sender=Sender(2))
    services.budget.pause(PauseReason.TOKEN_REFUSED, time.time(), "10000", refused)

    world.settle(minutes=10, until=lambda: not pauses(world))

    assert pauses(world) == []


@pytest.mark.parametrize(
    ("before", "sender", "after"),
    [
        ((ONE, f"{TWO} {OTHER}"), Sender(2, OTHER), (ONE, THREE, f"{TWO} {OTHER}")),
        ((ONE, THREE, f"{TWO} {OTHER}"), Sender(2), (ONE, f"{TWO} {OTHER}", THREE)),
        ((ONE, THREE), Sender(1), (f"{TWO} {OTHER}", ONE)),
    ],
    ids=["inserted", "changed places", "inserted first"],
)
def test_pause_of_a_line_that_moved_ends(begin, api, before, sender, after):
    """Whoever has the line now shows that it is good; no batch does."""
    world = begin(*before)
    api.switch(latency=7_200.0)
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.deliver_all()
    services_of().budget.pause(
        PauseReason.TOKEN_REFUSED, time.time(), "10000", Permit(sender=sender)
    )
    rotate(world, *after)
    world.pass_time(LATER)

    world.settle(minutes=600, until=lambda: not pauses(world))

    assert pauses(world) == []


def test_token_that_is_added_while_all_others_are_paused_is_used_at_once(begin, calls):
    """By processes too that have read the secret before."""
    world = begin(ONE, TWO)
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.settle()
    for number in (1, 2):
        services_of().budget.pause(
            PauseReason.QUOTA_SPENT, time.time(), "3036", Permit(sender=Sender(number))
        )
    rotate(world, ONE, TWO, THREE)
    world.upload_records("b.jsonl", greetings(1), model=M2M)
    world.deliver_all()
    assert THREE in submitted_by(calls)


def test_queues_have_a_token_of_their_own(begin, calls, api):
    """The tokens that run models need no right to edit queues."""
    world = begin(ONE, TWO, f"queues={THREE}", COMPLETION_EVENTS="yes")
    api.switch(queues_tokens=(THREE,))
    for name in ("a.jsonl", "b.jsonl"):
        world.upload_records(name, greetings(6), model=M2M)
        world.settle()

    assert len(api.queues) == 1
    assert {manifest["events"] for manifest in world.manifests().values()} == {"used"}
    assert set(submitted_by(calls)) == {ONE, TWO}


@pytest.mark.parametrize(
    "switches", [{"tokens": (TWO,)}, {"queues_tokens": (TWO,)}], ids=["refused", "no right"]
)
def test_queues_are_read_by_another_token_than_a_refused_one(begin, api, switches):
    world = begin(ONE, TWO, COMPLETION_EVENTS="yes")
    api.switch(**switches)
    for name in ("a.jsonl", "b.jsonl"):
        world.upload_records(name, greetings(6), model=M2M)
        world.settle()

    assert len(api.queues) == 1
    assert {manifest["events"] for manifest in world.manifests().values()} == {"used"}


def test_batches_of_another_account_do_not_wait_for_events(begin, calls, api):
    """They have none; those of the stack's account have."""
    world = begin(ONE, f"{TWO} {OTHER}", COMPLETION_EVENTS="yes")
    for name in ("a.jsonl", "b.jsonl"):
        world.upload_records(name, greetings(8), model=M2M)
        world.settle()

    told = [item for item in batches(world) if "told_at" in item]
    assert set(submitted_by(calls)) == {ONE, TWO}
    assert told
    assert not any("sender" in item for item in told)
    assert {item["state"]["S"] for item in batches(world)} == {"done"}


def test_wait_for_calls_in_a_search_is_that_of_its_token(begin, calls, api):
    """A submit of the second token whose reply is lost is looked for by that token."""
    world = begin(ONE, TWO, COMPLETION_EVENTS="yes")
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.settle()
    api.inject(Fault(kind="accept_then_reset"), Fault(kind="971", on="poll", retry_after=30))
    world.upload_records("b.jsonl", greetings(1), model=M2M)

    def held():
        return {
            item["sk"]["S"]
            for item in world.items()
            if float(item.get("hold_until", {"N": "0"})["N"])
        }

    world.settle(minutes=20, until=held)

    assert [one.token for one in calls if not one.polled][-1] == TWO
    assert held() == {"RATE#TOKEN#2"}


def test_account_that_is_removed_while_it_refuses_a_model_ends_no_job(
    begin, calls, api, monkeypatch
):
    """The account that is left was not asked yet."""
    real = api.handle

    def handle(method, path, query, headers, body):
        if "/ai/run/" in path and f"/{ACCOUNT}/" in path:
            monkeypatch.setattr(Tokens, "_parsed", lambda *_: read_tokens(f"{TWO} {OTHER}"))
        return real(method, path, query, headers, body)

    monkeypatch.setattr(api, "handle", handle)
    world = begin(ONE, f"{TWO} {OTHER}")
    services_of().budget.limit_rate(time.time(), 1, Sender(2, OTHER))
    api.inject(Fault(kind="5007", on="submit"))
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.settle(minutes=30)
    assert all_good(world, 2)
    assert asked(calls) == {ACCOUNT: 1, OTHER: 2}


def test_model_waits_if_the_last_account_for_it_was_just_removed(begin):
    """The secret may change between the look at who refuses and the permit."""
    begin(ONE)
    permit = services_of().budget.permit_submit(M2M, time.time(), without={""})
    assert isinstance(permit, Denied)


def test_wait_for_the_account_that_may_use_a_model_is_shown_and_costs_little(
    begin, calls, api, monkeypatch
):
    """The other account has calls left, and refuses the model."""
    world = begin(ONE, f"{TWO} {OTHER}")
    api.switch(accounts_without_models=(ACCOUNT,))
    services_of().budget.pause(
        PauseReason.QUOTA_SPENT, time.time(), "3036", Permit(sender=Sender(2, OTHER))
    )
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.deliver_all()
    runs = []
    real = submit_module._submit_if_permitted
    monkeypatch.setattr(
        submit_module, "_submit_if_permitted", lambda *given: runs.append(given) or real(*given)
    )
    for _ in range(10):
        world.pass_time(60)
        world.tick()
        world.deliver_all()
    assert world.status()["waiting_for"]["code"] == "quota_spent"
    assert len(runs) < 10, "each batch was tried in every minute"
    assert asked(calls) == {ACCOUNT: 1}
