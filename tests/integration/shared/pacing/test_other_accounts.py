"""Room for the batches of another account than the stack's: only that account's pause counts.

On DynamoDB.
"""

import pytest

from shared.models import Sender
from shared.pacing.controls import MODEL_PROBE_SECONDS, PauseReason, Permit

NOW = 1_795_253_400.0
MODEL, OTHER = "@cf/a/one", "0" * 32
OTHERS = Sender(account=OTHER)


@pytest.mark.parametrize("account", ["", OTHER])
@pytest.mark.parametrize("reason", [PauseReason.TOKEN_REFUSED, PauseReason.OUTAGE])
def test_stack_pause_is_judged_elsewhere(budget, reason, account):
    budget.pause(reason, NOW, "10000", Permit())

    assert budget.model_room(MODEL, NOW, account).batches is None


def test_paused_account_has_no_room_until_probe(budget):
    budget.pause(PauseReason.TOKEN_REFUSED, NOW, "10000", Permit(sender=OTHERS))
    probe = budget.controls(sender=OTHERS).pause.next_probe

    assert budget.model_room(MODEL, probe - 1, OTHER).batches == 0
    room = budget.model_room(MODEL, probe, OTHER)

    assert (room.batches, room.until) == (1, probe + MODEL_PROBE_SECONDS)


def test_pause_that_is_over_leaves_room(budget):
    budget.pause(PauseReason.QUOTA_SPENT, NOW, "3036", Permit(sender=OTHERS))
    midnight = budget.controls(sender=OTHERS).pause.until

    assert budget.model_room(MODEL, NOW + 1, OTHER).batches == 0
    assert budget.model_room(MODEL, midnight + 1, OTHER).batches is None
