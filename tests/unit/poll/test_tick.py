"""A tick: the pauses that it ends and counts, the batches that it sends."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from functions.poll import commands
from functions.poll.commands import METRIC_OF_REASON, OUTAGE_SECONDS, SOON_SECONDS, watch_pause
from functions.poll.contain import DueItem
from functions.poll.dispatch import DISPATCHED_SECONDS, dispatch
from shared.ledger import DueEntry
from shared.models import BatchState, DueKind
from shared.pacing.breaker import Controls, Pause, PauseReason, StackControl
from shared.workers_ai.client import TokenState
from tests.support.doubles.ledger_items import JOB, READY, T

# ── when a tick ends a pause, and when it counts one ──────────────────────────────────────────────
TOKEN, QUOTA, OUTAGE = PauseReason.TOKEN_REFUSED, PauseReason.QUOTA_SPENT, PauseReason.OUTAGE


class Paused:
    """The services of a tick during a pause; a test says what waits, and what a free call shows."""

    def __init__(self, monkeypatch):
        self.pause = Pause(TOKEN, "nonce", T - 60, T, 60.0)
        self.probe = Pause(OUTAGE, "new", T, T, 1)
        self.held_since, self.due, self.job, self.token = 0.0, {}, JOB, None
        self.lifted, self.counted, self.checks = [], [], 0
        self.has_token, self.tokens_taken, self.claims = True, 0, 0
        budget = SimpleNamespace(
            controls=lambda: Controls(self.pause, stack=StackControl("", self.held_since)),
            permit_check=self._permit_check,
            claim_probe=self._claim_probe,
            lift=lambda permit, model: self.lifted.append(permit.pause),
        )
        self.services = SimpleNamespace(
            api=SimpleNamespace(check_token=self._check_token),
            settings=SimpleNamespace(cloudflare_account_id=JOB.plan.account),
            budget=budget,
            ledger=SimpleNamespace(due=self._due, job=lambda job_id: self.job),
        )
        monkeypatch.setattr(commands, "count", self.counted.append)

    def _due(self, work, until, limit):
        due = [at for at in self.due.get(work, ()) if at <= until]
        return [DueEntry(JOB.job_id, "00000000", at) for at in due[:limit]], None

    def _permit_check(self, now):
        self.tokens_taken += 1
        return self.has_token

    def _claim_probe(self, pause, now):
        self.claims += 1
        return self.probe

    def _check_token(self):
        self.checks += 1
        return self.token

    def tick(self, *, submits=False, polls=False):
        """What a tick does: `over` or `counted`; nothing for a pause that is over by itself."""
        watch_pause(self.services, T, submits_wait=submits, polls_wait=polls)
        if self.counted:
            is_long = T - self.pause.since >= OUTAGE_SECONDS
            alarmed = is_long or self.pause.reason is not OUTAGE
            assert self.counted == [METRIC_OF_REASON[self.pause.reason], *["Paused"] * alarmed]
        return "over" if self.lifted else "counted" if self.counted else ""


@pytest.fixture
def paused(monkeypatch):
    return Paused(monkeypatch)


@pytest.mark.parametrize(
    ("seconds", "alarms"), [(OUTAGE_SECONDS - 1, False), (OUTAGE_SECONDS, True)]
)
def test_short_outage_raises_no_alarm(paused, seconds, alarms):
    paused.pause = Pause(PauseReason.OUTAGE, "nonce", T - seconds, T, 60.0)
    paused.due = {DueKind.SUBMIT: [T]}
    paused.tick(submits=True)
    assert ("Paused" in paused.counted) is alarms


@pytest.mark.parametrize(
    ("reason", "submits", "comes_to"),
    [
        (OUTAGE, False, "over"),
        (OUTAGE, True, "counted"),
        (TOKEN, False, "counted"),
        (QUOTA, False, "counted"),
    ],
)
def test_outage_is_over_if_nothing_is_to_be_submitted(paused, reason, submits, comes_to):
    paused.pause = replace(paused.pause, reason=reason)

    assert paused.tick(submits=submits) == comes_to
    assert paused.lifted == ([paused.pause] if comes_to == "over" else [])


@pytest.mark.parametrize("reason", [TOKEN, QUOTA, OUTAGE])
@pytest.mark.parametrize(
    ("token", "claimed", "is_good"),
    [
        (TokenState.GOOD, True, True),
        (TokenState.GOOD, False, False),
        (TokenState.REFUSED, True, False),
        (TokenState.UNKNOWN, True, False),
    ],
)
def test_free_call_ends_pause_of_held_batches(paused, reason, token, claimed, is_good):
    """A spent quota is not seen by it; the call is made only by who claims the probe."""
    paused.pause = replace(paused.pause, reason=reason)
    paused.token, paused.probe = token, paused.probe if claimed else None

    assert paused.tick(submits=True) == ("over" if is_good and reason is not QUOTA else "counted")
    assert paused.checks == (claimed and reason is not QUOTA)


def test_probe_is_not_claimed_without_token(paused):
    """It would be lost: nothing would be called, and the next probe would be later."""
    paused.has_token, paused.token = False, TokenState.GOOD

    assert paused.tick(submits=True) == "counted"
    assert (paused.claims, paused.checks) == (0, 0)


@pytest.mark.parametrize(
    ("due", "held_since", "account", "calls"),
    [
        ({DueKind.SUBMIT: [T + SOON_SECONDS]}, 0.0, JOB.plan.account, 0),
        ({DueKind.FIRST: [T + SOON_SECONDS]}, 0.0, JOB.plan.account, 0),
        ({DueKind.SUBMIT: [T + SOON_SECONDS + 1]}, 0.0, JOB.plan.account, 1),
        ({DueKind.SUBMIT: [T]}, T - 9, JOB.plan.account, 1),
        ({DueKind.SUBMIT: [T]}, 0.0, "another", 1),
        ({DueKind.POLL: [T + SOON_SECONDS]}, 0.0, JOB.plan.account, 0),
        ({DueKind.POLL: [T + SOON_SECONDS]}, T - 9, JOB.plan.account, 0),
        ({DueKind.POLL: [T + SOON_SECONDS + 1]}, 0.0, JOB.plan.account, 1),
        ({DueKind.POLL: [T]}, 0.0, "another", 1),
    ],
)
def test_free_call_is_left_to_batches_that_call_soon(paused, due, held_since, account, calls):
    paused.due, paused.held_since = due, held_since
    paused.job = replace(JOB, plan=replace(JOB.plan, account=account))

    paused.tick(submits=True, polls=True)

    assert paused.checks == calls


# ── batches that a tick sends to the submit function ──────────────────────────────────────────────
@pytest.mark.parametrize(
    ("batch", "paused"),
    [
        ({"created_at": T - 900, "due_at": T - 20, "paused": 7.0}, 27.0),
        ({"created_at": T - 10, "due_at": T - 20, "paused": 90.0}, 100.0),
        ({"due_at": T - 20, "paused": 7.0, "state": BatchState.SUBMITTING}, 7.0),
    ],
    ids=["overdue", "by a clock that is behind", "to be settled"],
)
def test_time_overdue_is_paused_but_never_longer_than_batch_waits(batch, paused):
    noted = []
    services = SimpleNamespace(
        now=lambda: T,
        ledger=SimpleNamespace(
            postpone=lambda _batch, due_at, **changes: noted.append((due_at, changes)) or True
        ),
        queues=SimpleNamespace(send_all=lambda messages: noted.append(len(messages))),
    )

    due = replace(READY, **batch)
    assert (
        dispatch(services, [DueItem(DueEntry(due.job_id, due.number, due.due_at), JOB, due)]) == 1
    )

    assert noted == [(T + DISPATCHED_SECONDS, {"paused": paused}), 1]


@pytest.mark.parametrize(
    ("until", "comes_to"), [(None, "counted"), (T + 1, "counted"), (T, ""), (T - 1, "")]
)
def test_pause_that_ended_by_itself_is_not_counted(paused, until, comes_to):
    paused.pause = replace(paused.pause, reason=QUOTA, until=until)

    assert paused.tick() == comes_to


@pytest.mark.parametrize("until_probe", [0, 1])
def test_probe_takes_no_token_before_its_time(paused, until_probe):
    paused.pause, paused.token = replace(paused.pause, next_probe=T + until_probe), TokenState.GOOD

    paused.tick(submits=True)

    assert paused.tokens_taken == 1 - until_probe


@pytest.mark.parametrize(
    ("reason", "polls", "calls"), [(TOKEN, True, 0), (TOKEN, False, 1), (OUTAGE, True, 1)]
)
def test_only_a_refused_token_is_probed_by_polls(paused, reason, polls, calls):
    """Polls go on during an outage of submits; one that was not counted may be due."""
    paused.pause, paused.due = replace(paused.pause, reason=reason), {DueKind.POLL: [T]}

    paused.tick(submits=True, polls=polls)

    assert paused.checks == calls
