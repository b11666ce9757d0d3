"""Each law of tokens is broken by code that does not keep it, and held by the code as it is."""

from dataclasses import replace

import pytest

from functions.poll.batch import poll_batch
from functions.submit import submit_batch
from shared.models import FIRST, Sender
from shared.pacing.budget import Budget
from shared.pacing.control_items import ControlItems
from shared.workers_ai.senders import Tokens
from tests.simulation.tokens.laws import BATCH, NUMBER, OWN, RATE, REFUSED
from tests.simulation.tokens.secret import GOOD, OTHER, Change, draw_changes
from tests.simulation.worlds.plans import Command, Drop, Plan, draw
from tests.simulation.worlds.runs import random_world, run

THREE = (GOOD[0], GOOD[1], f"of-other {OTHER}")
PLAN = Plan(
    3,
    latency=40.0,
    settings=(("MAX_REQUESTS_PER_BATCH", 2), ("API_CALLS_PER_MINUTE", 4)),
    acts=(Change(0.0, THREE), Drop(0.0, "a.jsonl", 24), Drop(5.0, "b.jsonl", 1)),
)
"""Three tokens, the last one of another account, which are all good."""
REFUSAL = replace(PLAN, acts=(*PLAN.acts, Change(60.0, THREE, (GOOD[1],)), Change(6_000.0, THREE)))
RUN = replace(REFUSAL, acts=(*REFUSAL.acts, Command(690.0, "", "run")))
MOVED = replace(
    PLAN, latency=2_000.0, acts=(*PLAN.acts, Change(60.0, (THREE[2], THREE[0], THREE[1])))
)
"""The answers come after every process has read the secret again."""


def laws_broken(plan):
    """Broken code may never end a job."""
    return {one.law for one in run(plan, settle_seconds=7_200).violations}


@pytest.mark.parametrize(
    "plan",
    [PLAN, *(pytest.param(one, marks=pytest.mark.slow) for one in (REFUSAL, RUN, MOVED))],
    ids=["all good", "refused", "refused, and an operator's run", "moved"],
)
def test_good_code_keeps_every_law(plan):
    assert run(plan).violations == ()


def test_poll_with_the_first_token_is_noticed(monkeypatch):
    monkeypatch.setattr(poll_batch, "api_of", lambda services, _sender: services.api)
    assert BATCH in laws_broken(PLAN)


def test_token_without_a_budget_is_noticed(monkeypatch):
    take = Budget._take

    def free_for_others(self, rate, tokens, burst, now, sender=FIRST):
        return sender.number > 1 or take(self, rate, tokens, burst, now, sender)

    monkeypatch.setattr(Budget, "_take", free_for_others)
    assert {RATE, OWN} <= laws_broken(PLAN)


def test_budget_of_another_token_is_noticed(monkeypatch):
    take = Budget._take

    def of_the_first(self, rate, tokens, burst, now, sender=FIRST):
        return take(self, rate, tokens, burst, now, FIRST)

    monkeypatch.setattr(Budget, "_take", of_the_first)
    assert OWN in laws_broken(PLAN)


@pytest.mark.slow
def test_call_with_a_refused_token_is_noticed(monkeypatch):
    pause = ControlItems.pause

    def only_the_first(self, reason, now, code, permit):
        if permit.sender == FIRST:
            pause(self, reason, now, code, permit)

    monkeypatch.setattr(ControlItems, "pause", only_the_first)
    assert REFUSED in laws_broken(REFUSAL)


def test_submission_without_its_number_is_noticed(monkeypatch):
    monkeypatch.setattr(submit_batch, "as_told", lambda _job, sender: Sender(1, sender.account))
    assert NUMBER in laws_broken(PLAN)


@pytest.mark.slow
def test_secret_read_once_for_ever_is_noticed(monkeypatch):
    """The calls of an account whose token has moved would be counted as those of whoever has its line now."""
    monkeypatch.setattr(Tokens, "sender", lambda _self, account, number: Sender(number, account))
    assert OWN in laws_broken(MOVED)


def test_random_worlds_have_every_kind_of_change():
    drawn = [draw_changes(seed, one_account=False) for seed in range(400)]
    several = [one for one in drawn if one]
    assert 60 < len(several) < 140
    assert {len(one) for one in several} == {1, 2, 3}
    assert {len(one[0].lines) for one in several} == {1, 2, 3, 4}
    assert any(OTHER in line for one in several for line in one[0].lines)
    assert any(change.refused for one in several for change in one)


@pytest.mark.parametrize(
    "seed", [one for one in range(60) if any(isinstance(act, Change) for act in draw(one).acts)][:6]
)
def test_no_law_is_broken_in_worlds_with_tokens(seed):
    assert random_world(seed).violations == ()
