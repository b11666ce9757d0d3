"""The rate budget of a stack with several API tokens, on DynamoDB.

Each has its calls, its pause and its wait.
"""

from dataclasses import replace

import pytest

from shared.models import FIRST, Sender
from shared.pacing.budget import Budget
from shared.pacing.controls import Denied, PauseReason, Permit
from tests.support.doubles.control_items import is_free

NOW = 1_795_253_400.0
MODEL, OTHER = "@cf/a/one", "f" * 32
SECOND, THIRD = Sender(2), Sender(3, OTHER)
THREE = (FIRST, SECOND, THIRD)
TOKEN = PauseReason.TOKEN_REFUSED


@pytest.fixture
def three(budget):
    """The budget of three tokens, the last one of another account."""
    return Budget(
        budget.client, budget.table, 200, senders=lambda account: THREE if not account else (THIRD,)
    )


def submits(budget, now=NOW, **given):
    """The tokens of as many submits as are permitted."""
    found = []
    while isinstance(permit := budget.permit_submit(MODEL, now, **given), Permit):
        found.append(permit.sender)
    return found


def names(budget):
    """Sort keys of the control items."""
    items = budget.client.scan(TableName=budget.table)["Items"]
    return sorted(item["sk"]["S"] for item in items if item["pk"]["S"] == "CONTROL")


def test_tokens_submit_three_times_as_much(three):
    """Each takes its turn: the one with most calls left is next."""
    found = submits(three)
    assert [found.count(one) for one in THREE] == [50, 50, 50]
    assert set(found[:3]) == set(THREE)
    assert three.permit_submit(MODEL, NOW) == Denied(pytest.approx(NOW + 5, abs=2), paused=False)


def test_submit_waits_if_only_accounts_are_left_that_may_not(three):
    answer = three.permit_submit(MODEL, NOW, account=OTHER, without={OTHER})
    assert isinstance(answer, Denied)
    assert answer.paused


def test_one_token_writes_what_it_always_wrote(budget):
    submits(budget)
    budget.pause(TOKEN, NOW, "10000", Permit())
    budget.limit_rate(NOW, 30)
    assert names(budget) == ["PAUSE", "RATE"]
    pause = budget.get({"pk": {"S": "CONTROL"}, "sk": {"S": "PAUSE"}})
    assert {"account", "token"}.isdisjoint(pause)


def test_polls_take_from_their_token(three):
    assert three.permit_polls(200, NOW, SECOND) == (90, Permit(sender=SECOND))
    assert three.permit_polls(200, NOW, FIRST) == (90, Permit())
    assert three.permit_polls(200, NOW, SECOND)[0] == 0
    assert names(three) == ["RATE", "RATE#TOKEN#2"]


def test_wait_of_one_token_stops_no_other(three):
    three.limit_rate(NOW, 60, SECOND)

    assert set(submits(three)) == {FIRST, THIRD}
    assert three.permit_polls(1, NOW, SECOND)[0] == 0
    assert three.permit_polls(1, NOW, THIRD)[0] == 1
    assert three.can_submit(MODEL, NOW)


def test_refused_token_pauses_itself_alone(three):
    three.pause(TOKEN, NOW, "10000", Permit(sender=SECOND))

    assert set(submits(three)) == {FIRST, THIRD}
    assert isinstance(three.permit_polls(1, NOW, SECOND)[1], Denied)
    free = three.free(NOW)
    assert (free.paused, free.polls_paused) == (False, False)
    assert names(three)[0] == "PAUSE#TOKEN#2"


def test_all_refused_but_one_leave_its_calls(three):
    for sender in (FIRST, THIRD):
        three.pause(TOKEN, NOW, "10000", Permit(sender=sender))

    assert submits(three) == [SECOND] * 50


def test_calls_of_one_token_are_told_alone(three):
    three.pause(TOKEN, NOW, "10000", Permit())
    assert three.free(NOW, (FIRST,)).paused
    assert not three.free(NOW).paused


def test_pause_that_is_over_is_no_reason_to_come_first(three):
    """It is not probed: the token with most calls left submits."""
    three.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    tomorrow = three.controls().pause.until + 1
    three.permit_polls(5, tomorrow)

    assert three.permit_submit(MODEL, tomorrow) == Permit(sender=SECOND)


def test_probe_of_refused_token_comes_first(three):
    """Otherwise no call would ever show that it is good again."""
    three.pause(TOKEN, NOW, "10000", Permit(sender=THIRD))
    probe = three.controls(sender=THIRD).pause.next_probe

    permit = three.permit_submit(MODEL, probe)
    assert (permit.sender, permit.pause.reason) == (THIRD, TOKEN)
    assert three.permit_submit(MODEL, probe + 1).sender in (FIRST, SECOND)

    three.lift(permit, MODEL)
    assert THIRD in submits(three, probe + 2)


def test_stack_waits_when_all_tokens_are_refused(three):
    for sender in THREE:
        three.pause(TOKEN, NOW, "10000", Permit(sender=sender))

    denied = three.permit_submit(MODEL, NOW)
    free = three.free(NOW)
    assert denied.paused
    assert not three.can_submit(MODEL, NOW)
    assert (free.submits, free.paused, free.polls_paused) == (0, True, True)
    assert free.look_at == NOW + 60


def test_jobs_of_another_account_have_its_tokens_only(three):
    assert set(submits(three, account=OTHER)) == {THIRD}


def test_room_of_another_account_ends_with_its_last_token(three):
    three.pause(TOKEN, NOW, "10000", Permit(sender=FIRST))
    assert three.model_room(MODEL, NOW, OTHER).batches is None

    three.pause(TOKEN, NOW, "10000", Permit(sender=THIRD))
    assert three.model_room(MODEL, NOW, OTHER).batches == 0
    assert three.model_room(MODEL, NOW).batches is None


def test_limits_grow_with_tokens(three, budget):
    assert three.calls_in(60) == 3 * budget.calls_in(60)
    assert three.most_outstanding == 3 * budget.most_outstanding
    assert three.slot_seconds == budget.slot_seconds / 3


def test_one_token_gets_what_a_stack_of_one_gets(budget):
    one = Budget(budget.client, budget.table, 200, senders=lambda _: (FIRST,))
    assert (one.free(NOW), one.calls_in(60), one.slot_seconds) == (
        budget.free(NOW),
        budget.calls_in(60),
        budget.slot_seconds,
    )
    assert is_free(one.permit_submit(MODEL, NOW))


def test_pause_of_second_token_says_so(three):
    three.pause(TOKEN, NOW, "10000", Permit(sender=THIRD))
    pause = three.controls(sender=THIRD).pause
    assert (pause.token, pause.account, pause.sender) == (3, OTHER, THIRD)
    assert replace(pause, token=1).sk == f"PAUSE#{OTHER}"


def test_model_has_no_room_while_only_accounts_that_refuse_it_are_free(three):
    three.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit(sender=THIRD))
    assert three.can_submit(MODEL, NOW)
    assert not three.can_submit(MODEL, NOW, without={""})
    assert three.model_room(MODEL, NOW).batches is None
    assert three.model_room(MODEL, NOW, without={""}).batches == 0


def test_model_that_every_account_refuses_does_not_wait(three):
    """Its batches are looked at, which ends their job."""
    assert three.can_submit(MODEL, NOW, without={"", OTHER})
    assert three.model_room(MODEL, NOW, without={"", OTHER}).batches is None
