"""The costs of a day on DynamoDB: what is reserved once counts once, whoever dies and whatever is sent twice."""

from dataclasses import replace

import pytest

from shared.aws.dynamodb import ConditionFailedError
from shared.models import Reservation
from shared.pacing.day_costs import KEPT_DAYS, DayCosts, DayLimit, Room, day_of

NOW = 1_795_253_400.0
TODAY, MIDNIGHT = "2026-11-21", 1_795_305_600.0
LIMIT = 1_000


@pytest.fixture
def day(budget):
    """A limit whose table has no day yet."""
    return DayLimit(budget.client, budget.table, LIMIT)


def today(day):
    seen = day.day(TODAY)
    return seen.spent, seen.reserved


def test_batch_reserves_and_is_settled(day):
    held = day.reserve("a", 400, None, 0, NOW)
    assert (held, today(day)) == (Reservation(TODAY, 400, 0), (0, 400))

    day.settle("a", held, 150, NOW + 60)
    assert today(day) == (150, 0)


def test_limit_waits_for_what_is_outstanding_and_pauses_when_spent(day):
    held = day.reserve("a", 700, None, 0, NOW)

    assert day.reserve("b", 400, None, 0, NOW) is Room.WAIT
    day.settle("a", held, 650, NOW)
    assert day.reserve("b", 400, None, 0, NOW) is Room.NONE
    assert day.reserve("b", 350, None, 0, NOW) == Reservation(TODAY, 350, 0)


def test_batch_dearer_than_a_day_has_a_day_to_itself(day):
    assert day.reserve("a", 5_000, None, 0, NOW) == Reservation(TODAY, LIMIT, 0)
    assert day.reserve("b", 1, None, 0, NOW) is Room.WAIT


def test_next_try_after_death_before_claim_counts_once(day):
    day.reserve("a", 400, None, 0, NOW)

    assert day.reserve("a", 400, None, 0, NOW + 200) == Reservation(TODAY, 400, 0)
    assert today(day) == (0, 400)


def test_next_try_after_death_before_post_uses_its_reservation(day):
    held = day.reserve("a", 400, None, 0, NOW)
    day.reserve("b", 400, None, 0, NOW)

    assert day.reserve("a", 400, held, 0, NOW + 200) is held
    assert today(day) == (0, 800)


def test_submit_after_one_that_may_be_paid_counts_both(day):
    held = day.reserve("a", 300, None, 0, NOW)

    again = day.reserve("a", 300, held, 1, NOW)
    assert (again, today(day)) == (Reservation(TODAY, 300, 1, counted=300), (300, 300))

    day.settle("a", again, 500, NOW)
    assert today(day) == (500, 0)


def test_new_day_has_its_own_money(day):
    held = day.reserve("a", 900, None, 0, MIDNIGHT - 1)

    assert day.reserve("b", 900, None, 0, MIDNIGHT) == Reservation("2026-11-22", 900, 0)
    day.settle("a", held, 100, MIDNIGHT + 1)
    assert today(day) == (0, 900), "a day that is over is left as it is"


def test_clocks_that_differ_at_midnight_count_for_their_own_day(day):
    day.reserve("a", 900, None, 0, MIDNIGHT + 5)
    day.reserve("b", 900, None, 0, MIDNIGHT - 5)

    assert today(day) == (0, 900)


def test_lifted_day_allows_everything_and_goes_on_counting(day):
    day.reserve("a", 900, None, 0, NOW)
    day.lift_day(NOW)

    assert day.reserve("b", 900, None, 0, NOW) == Reservation(TODAY, 900, 0)
    assert today(day) == (0, 1_800)
    assert day.reserve("c", 900, None, 0, MIDNIGHT) == Reservation("2026-11-22", 900, 0)
    assert day.reserve("d", 900, None, 0, MIDNIGHT) is Room.WAIT


def test_lift_is_not_lost_to_first_costs_of_the_day(day, monkeypatch):
    """Another function writes them just before the lift would."""
    call = day.call

    def outrun(operation, **arguments):
        if operation == "put_item":
            DayLimit(day.client, day.table, LIMIT).reserve("quicker", 1, None, 0, NOW)
        return call(operation, **arguments)

    monkeypatch.setattr(day, "call", outrun)
    day.lift_day(NOW)

    assert day.day(TODAY).lifted
    assert today(day) == (0, 1)


def test_lift_in_between_is_kept_by_slower_function(day, monkeypatch):
    day.reserve("a", 400, None, 0, NOW)
    stale = [day.day(TODAY)]
    day.lift_day(NOW)
    real = day.day
    monkeypatch.setattr(day, "day", lambda of: stale.pop() if stale else real(of))

    assert day.reserve("b", 500, None, 0, NOW) == Reservation(TODAY, 500, 0)
    assert real(TODAY).lifted
    assert today(day) == (0, 900)


def test_lift_of_day_without_costs_is_deleted_as_any_day(day):
    day.lift_day(NOW)
    day.lift_day(NOW)

    assert day.day(TODAY) == DayCosts(lifted=True, writes=2)
    (item,) = day.client.scan(TableName=day.table)["Items"]
    assert item["ttl"] == {"N": str(int(MIDNIGHT - 86_400 + KEPT_DAYS * 86_400))}


@pytest.mark.parametrize("amount", [0, 400])
def test_limit_of_0_allows_nothing_until_it_is_lifted(budget, amount):
    day = DayLimit(budget.client, budget.table, 0)

    assert day.reserve("a", amount, None, 0, NOW) is Room.NONE
    assert day.day(TODAY) == DayCosts()
    day.lift_day(NOW)
    assert day.reserve("a", amount, None, 0, NOW) == Reservation(TODAY, 0, 0)


def test_function_that_was_slower_reads_again(day, monkeypatch):
    stale = [DayCosts()]
    real = day.day
    monkeypatch.setattr(day, "day", lambda of: stale.pop() if stale else real(of))
    DayLimit(day.client, day.table, LIMIT).reserve("a", 700, None, 0, NOW)

    assert day.reserve("b", 400, None, 0, NOW) is Room.WAIT
    assert today(day) == (0, 700)


@pytest.mark.parametrize("arrives", [True, False])
def test_write_that_is_sent_twice_counts_once(day, monkeypatch, arrives):
    """The SDK got no answer to the first one, and the second one finds what the first has written, or another's."""
    call = day.call

    def sent_twice(operation, **arguments):
        if operation != "put_item":
            return call(operation, **arguments)
        monkeypatch.setattr(day, "call", call)
        if arrives:
            call(operation, **arguments)
        else:
            DayLimit(day.client, day.table, LIMIT).reserve("b", 100, None, 0, NOW)
        raise ConditionFailedError(sent_again=True)

    monkeypatch.setattr(day, "call", sent_twice)

    assert day.reserve("a", 400, None, 0, NOW) == Reservation(TODAY, 400, 0)
    assert today(day) == (0, 400 if arrives else 500)


def test_settled_day_is_never_below_zero(day):
    day.settle("a", Reservation(TODAY, 400, 0, counted=100), 0, NOW)

    assert today(day) == (0, 0)
    assert replace(day.day(TODAY), writes=0, last="") == DayCosts()


def test_wait_for_what_others_cost_is_seen_until_it_is_lifted(day):
    day.reserve("a", 700, None, 0, NOW)
    assert not day.is_awaited(NOW)

    assert day.reserve("b", 400, None, 0, NOW) is Room.WAIT
    assert day.is_awaited(NOW + 1_800), "the longest time between two looks"
    assert not day.is_awaited(NOW + 1_900)
    assert today(day) == (0, 700)
    day.lift_day(NOW)
    assert not day.is_awaited(NOW)


def test_nothing_is_awaited_once_all_costs_are_known(day):
    held = day.reserve("a", 700, None, 0, NOW)
    assert day.reserve("b", 400, None, 0, NOW) is Room.WAIT

    day.settle("a", held, 300, NOW)

    assert not day.is_awaited(NOW)


def test_days_change_at_midnight_utc():
    assert [day_of(at) for at in (MIDNIGHT - 0.001, MIDNIGHT)] == [TODAY, "2026-11-22"]
