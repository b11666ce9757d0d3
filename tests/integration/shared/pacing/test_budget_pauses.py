"""Pauses of the account and waits of one model: who may call, who probes, what ends them; on DynamoDB's conditions."""

import pytest

from shared.pacing.controls import (
    FIRST_MODEL_WAIT_SECONDS,
    FIRST_OUTAGE_WAIT_SECONDS,
    MAX_MODEL_WAIT_SECONDS,
    MAX_OUTAGE_WAIT_SECONDS,
    PAUSED_LOOK_SECONDS,
    Denied,
    PauseReason,
    Permit,
)
from tests.support.doubles.control_items import MODEL, NOW, OTHER, is_free, lift_by_hand

# ── pauses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def probes_in(budget, begin, end, *, submits=True, step=5.0):
    """Seconds after `begin` at which a call was let through as a probe."""
    found = []
    now = begin
    while now < end:
        permit = budget.permit_submit(MODEL, now) if submits else budget.permit_polls(1, now)[1]
        if isinstance(permit, Permit):
            assert permit.pause is not None
            found.append(round(now - begin))
        now += step
    return found


@pytest.mark.parametrize("submits", [True, False])
def test_refused_token_pauses_all_and_is_probed(budget, submits):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    found = probes_in(budget, NOW, NOW + 1_800, submits=submits)
    assert found[:11] == list(range(60, 661, 60))
    assert found[11] - found[10] == 300
    assert found[12] - found[11] == 300


def test_only_one_caller_is_probe(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    permits = [
        budget.permit_submit(MODEL, NOW + 60),
        budget.permit_polls(16, NOW + 60),
        budget.permit_submit(OTHER, NOW + 60),
    ]
    assert isinstance(permits[0], Permit)
    assert permits[1][0] == 0
    assert isinstance(permits[2], Denied)


def test_probing_poll_is_a_single_poll(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    granted, permit = budget.permit_polls(16, NOW + 60)
    assert granted == 1
    assert permit.pause.reason is PauseReason.TOKEN_REFUSED


def test_good_probe_lifts_pause(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    probe = budget.permit_submit(MODEL, NOW + 60)
    budget.lift(probe, MODEL)
    assert is_free(budget.permit_submit(MODEL, NOW + 61))


def test_good_probe_keeps_newer_pause(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    probe = budget.permit_submit(MODEL, NOW + 60)
    lift_by_hand(budget)
    budget.pause(PauseReason.QUOTA_SPENT, NOW + 61, "3036", Permit())
    budget.lift(probe, MODEL)
    assert budget.controls().pause.reason is PauseReason.QUOTA_SPENT


def test_deleted_pause_is_noticed(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    refusal = budget.permit_submit(MODEL, NOW + 1)
    assert refusal.paused
    assert refusal.until <= NOW + 1 + PAUSED_LOOK_SECONDS + 10
    lift_by_hand(budget)
    assert is_free(budget.permit_submit(MODEL, NOW + 2))


def test_used_up_quota_pauses_submits_until_midnight(budget):
    """It is probed each half hour, and polls continue."""
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    midnight = NOW - NOW % 86_400 + 86_400
    assert budget.controls().pause.until == midnight
    assert is_free(budget.permit_polls(16, NOW + 1)[1])
    assert probes_in(budget, NOW, NOW + 7_200, step=30) == [1_800, 3_600, 5_400]
    assert is_free(budget.permit_submit(MODEL, midnight))


def test_429_holds_everything_for_as_long_as_it_says(budget):
    budget.limit_rate(NOW, 17)
    assert isinstance(budget.permit_submit(MODEL, NOW + 16), Denied)
    assert budget.permit_polls(1, NOW + 16)[0] == 0
    assert is_free(budget.permit_submit(MODEL, NOW + 17))
    assert budget.permit_polls(1, NOW + 17)[0] == 1


def test_429_without_retry_after_holds_a_minute(budget):
    budget.limit_rate(NOW, None)
    assert isinstance(budget.permit_submit(MODEL, NOW + 59), Denied)
    assert is_free(budget.permit_submit(MODEL, NOW + 60))


def test_shorter_hold_does_not_shorten_longer_one(budget):
    budget.limit_rate(NOW, 100)
    budget.limit_rate(NOW + 1, 5)
    assert isinstance(budget.permit_submit(MODEL, NOW + 99), Denied)


def test_outage_lets_one_submit_try_with_back_off(budget):
    budget.pause(PauseReason.OUTAGE, NOW, "no answer", Permit())
    assert budget.permit_polls(16, NOW + 1)[0] == 16
    steps, now = [], NOW
    for _ in range(8):
        began = now
        while isinstance(permit := budget.permit_submit(MODEL, now), Denied):
            now += 5
        steps.append(now - began)
        budget.pause(PauseReason.OUTAGE, now, "no answer", permit)
    assert steps == [min(FIRST_OUTAGE_WAIT_SECONDS * 2**times, MAX_OUTAGE_WAIT_SECONDS) for times in range(8)]


def test_many_lost_answers_of_one_outage_are_one_step(budget):
    budget.pause(PauseReason.OUTAGE, NOW, "no answer", Permit())
    first = budget.controls().pause
    for _ in range(5):
        budget.pause(PauseReason.OUTAGE, NOW + 1, "no answer", Permit())
    assert budget.controls().pause == first


@pytest.mark.parametrize("other", [PauseReason.QUOTA_SPENT, PauseReason.OUTAGE])
def test_token_pause_is_never_replaced(budget, other):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit())
    budget.pause(other, NOW + 1, "words", Permit())
    assert budget.controls().pause.reason is PauseReason.TOKEN_REFUSED


@pytest.mark.parametrize("other", [PauseReason.QUOTA_SPENT, PauseReason.OUTAGE])
def test_refused_token_replaces_any_pause(budget, other):
    budget.pause(other, NOW, "words", Permit())
    budget.pause(PauseReason.TOKEN_REFUSED, NOW + 1, "10000", Permit())
    assert budget.controls().pause.reason is PauseReason.TOKEN_REFUSED


def test_outage_does_not_replace_used_up_quota(budget):
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    budget.pause(PauseReason.OUTAGE, NOW + 1, "no answer", Permit())
    assert budget.controls().pause.reason is PauseReason.QUOTA_SPENT


def test_hold_during_used_up_quota_holds_polls_too(budget):
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    budget.limit_rate(NOW + 1, 30)
    assert budget.permit_polls(1, NOW + 2)[0] == 0
    assert budget.permit_polls(1, NOW + 31)[0] == 1


def test_expired_pause_stops_no_call(budget):
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    after = budget.controls().pause.until + 20
    budget.pause(PauseReason.OUTAGE, after, "no answer", Permit())
    pause = budget.controls().pause
    assert (pause.reason, pause.since, pause.step) == (PauseReason.OUTAGE, after, FIRST_OUTAGE_WAIT_SECONDS)


# ── waits of one model ───────────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_model_leaves_others_alone(budget):
    budget.delay_model(MODEL, NOW, "3040", Permit())
    refusal = budget.permit_submit(MODEL, NOW + 1)
    assert isinstance(refusal, Denied)
    assert not refusal.paused
    assert is_free(budget.permit_submit(OTHER, NOW + 1))
    assert is_free(budget.permit_polls(1, NOW + 1)[1])


def test_one_batch_of_waiting_model_tries(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    probe, other = budget.permit_submit(MODEL, until), budget.permit_submit(MODEL, until)
    assert probe.model_wait is not None
    assert isinstance(other, Denied)
    assert other.until > until


def test_probe_that_never_returned_is_followed(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    assert budget.permit_submit(MODEL, until).model_wait is not None
    assert budget.permit_submit(MODEL, until + 100).model_wait is not None


def test_wait_doubles_with_each_failed_probe(budget):
    permit, now, waits = Permit(), NOW, []
    for _ in range(9):
        until = budget.delay_model(MODEL, now, "3040", permit)
        waits.append(until - now)
        now = until
        permit = budget.permit_submit(MODEL, now)
        assert isinstance(permit, Permit)
    wanted = [min(FIRST_MODEL_WAIT_SECONDS * 2**times, MAX_MODEL_WAIT_SECONDS) for times in range(9)]
    assert all(0.8 * step <= wait <= 1.2 * step for wait, step in zip(waits, wanted, strict=True))


def test_late_refusals_do_not_lengthen_wait(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    assert budget.delay_model(MODEL, NOW + 1, "3040", Permit()) == until


def test_good_probe_lifts_models_wait_and_no_other(budget):
    until = max(budget.delay_model(model, NOW, "3040", Permit()) for model in (MODEL, OTHER))
    probe = budget.permit_submit(MODEL, until)
    budget.lift(probe, MODEL)
    assert is_free(budget.permit_submit(MODEL, until))
    assert budget.controls(OTHER).model_wait is not None


def test_good_probe_keeps_newer_wait(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    probe = budget.permit_submit(MODEL, until)
    later = budget.delay_model(MODEL, until + 1, "3040", probe)
    budget.lift(probe, MODEL)
    assert budget.controls(MODEL).model_wait.until == later
