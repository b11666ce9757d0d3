"""Submits that the API may have accepted although it gave no id."""

from dataclasses import replace

import pytest

from shared.models import DueKind
from shared.pacing.breaker import Pause, PauseReason, Permit
from shared.workers_ai.replies import OutcomeUnknown, Pending, Rejected
from tests.support.doubles.ledger_items import T
from tests.support.doubles.submitting import DUE, UNKNOWN, sent, told

OUTAGE = PauseReason.OUTAGE
PERMIT = Permit(Pause(PauseReason.QUOTA_SPENT, "nonce", T - 60, T, 60.0))
LAST = {"ending": UNKNOWN, "work": DueKind.POLL, "due_at": T}
REPLIES = {
    "broken off": (OutcomeUnknown("broken off"), "no answer"),
    "pending": (Pending("queued"), "no answer"),
    "a server's error": (told(500, 10013), "10013"),
    "a blamed request": (told(503, 5006), "5006"),
    "without a code": (told(503, None), "503"),
    "a timeout": (told(408, 3007), "3007"),
    "a redirect": (Rejected(307, None, "a page"), "307"),
}
POLICIES = [
    ("resubmit", 0, {"due_at": T + 63}),
    ("resubmit", 1, {"due_at": T + 315}),
    ("resubmit", 2, {"due_at": T + 945}),
    ("resubmit", 3, LAST),
    ("fail", 0, LAST),
]


@pytest.mark.parametrize("name", REPLIES)
@pytest.mark.parametrize(("policy", "before", "changes"), POLICIES)
def test_ambiguous_submit_is_counted_and_repeated_or_the_last(begin, name, policy, before, changes):
    reply, code = REPLIES[name]
    batch = replace(DUE, unknowable=before)
    at = begin(batch, reply)
    at.services.settings.ambiguous_submit, at.permit = policy, PERMIT

    at.run()

    assert at.batch == sent(batch, **changes, unknowable=before + 1)
    assert at.budget_calls[1:] == [("pause", OUTAGE, T, code, PERMIT)]
    assert at.counted[-1] == "AmbiguousSubmits"
