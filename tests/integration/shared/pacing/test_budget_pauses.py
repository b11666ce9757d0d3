"""Pauses of the account and waits of one model: who may call, who probes, what ends them; on DynamoDB's conditions."""

import pytest

from shared.pacing.controls import (
    FIRST_OUTAGE_WAIT_SECONDS,
    MAX_OUTAGE_WAIT_SECONDS,
    Denied,
    PauseReason,
    Permit,
)
from tests.support.doubles.control_items import MODEL, NOW, OTHER, is_free

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


def test_used_up_quota_pauses_submits_until_midnight(budget):
    """It is probed each half hour, and polls continue."""
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit())
    midnight = NOW - NOW % 86_400 + 86_400
    assert budget.controls().pause.until == midnight
    assert is_free(budget.permit_polls(16, NOW + 1)[1])
    assert probes_in(budget, NOW, NOW + 7_200, step=30) == [1_800, 3_600, 5_400]
    assert is_free(budget.permit_submit(MODEL, midnight))


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


# ── waits of one model ───────────────────────────────────────────────────────────────────────────────────────────────


def test_waiting_model_leaves_others_alone(budget):
    budget.delay_model(MODEL, NOW, "3040", Permit())
    refusal = budget.permit_submit(MODEL, NOW + 1)
    assert isinstance(refusal, Denied)
    assert not refusal.paused
    assert is_free(budget.permit_submit(OTHER, NOW + 1))
    assert is_free(budget.permit_polls(1, NOW + 1)[1])


def test_probe_that_never_returned_is_followed(budget):
    until = budget.delay_model(MODEL, NOW, "3040", Permit())
    assert budget.permit_submit(MODEL, until).model_wait is not None
    assert budget.permit_submit(MODEL, until + 100).model_wait is not None


def test_good_probe_lifts_models_wait_and_no_other(budget):
    until = max(budget.delay_model(model, NOW, "3040", Permit()) for model in (MODEL, OTHER))
    probe = budget.permit_submit(MODEL, until)
    budget.lift(probe, MODEL)
    assert is_free(budget.permit_submit(MODEL, until))
    assert budget.controls(OTHER).model_wait is not None
