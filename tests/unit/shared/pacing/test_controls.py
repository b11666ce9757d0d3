"""What a pause or a model's wait becomes after each reply, and who may call meanwhile.

From given control items.

Random waits return their midpoint, unless a test says otherwise.
"""

from dataclasses import replace

import pytest

from shared import retry
from shared.aws.attribute_values import plain
from shared.pacing.controls import (
    CallKind,
    Denied,
    ModelWait,
    Pause,
    PauseReason,
    Permit,
)
from tests.support.doubles.control_items import MIDNIGHT, MODEL, NOW, GivenBudget, pause_of, wait_of

TOKEN, QUOTA, OUTAGE = PauseReason.TOKEN_REFUSED, PauseReason.QUOTA_SPENT, PauseReason.OUTAGE
SUBMIT, POLL = CallKind.SUBMIT, CallKind.POLL
PROBE = Permit(pause=pause_of())
MODEL_PROBE = Permit(model_wait=wait_of(NOW))


@pytest.fixture(autouse=True)
def spread(monkeypatch):
    """Sets where in what they may be the waits are: 0 at the beginning, 1 at the end."""

    def at(place):
        monkeypatch.setattr(retry.random, "uniform", lambda low, high: low + place * (high - low))

    at(0.5)
    return at


def written(items):
    """The members of the only item written but its key and its nonce.

    None if nothing was written.
    """
    if not items.written:
        return None
    (arguments,) = items.written
    return {
        name: plain(value)
        for name, value in arguments["Item"].items()
        if name not in {"pk", "sk", "nonce"}
    }


# ── pauses begin and go on ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("reason", "step", "until"),
    [(TOKEN, 60, None), (QUOTA, 1_800, MIDNIGHT), (OUTAGE, 15, None)],
)
@pytest.mark.parametrize(
    "old",
    [None, pause_of(QUOTA, until=NOW), pause_of(QUOTA, until=NOW - 1)],
    ids=["none", "ends now", "ended"],
)
def test_pause_begins_where_none_is_left(reason, step, until, old):
    items = GivenBudget(pause=old)
    items.pause(reason, NOW, "words", Permit())
    begun = {
        "reason": reason,
        "since": NOW,
        "next_probe": NOW + step,
        "step": step,
        "code": "words",
    }
    assert written(items) == (begun | {"until": until} if until else begun)


@pytest.mark.parametrize(
    ("now", "until"),
    [(MIDNIGHT - 1, MIDNIGHT), (MIDNIGHT, MIDNIGHT + 86_400), (MIDNIGHT + 1, MIDNIGHT + 86_400)],
)
def test_spent_quota_pauses_until_next_midnight(now, until):
    items = GivenBudget()
    items.pause(QUOTA, now, "3036", Permit())
    assert written(items)["until"] == until


@pytest.mark.parametrize(
    ("old", "reason", "permit"),
    [
        (pause_of(TOKEN), TOKEN, Permit()),
        (pause_of(TOKEN), TOKEN, PROBE),
        (pause_of(TOKEN), QUOTA, PROBE),
        (pause_of(TOKEN), OUTAGE, PROBE),
        (pause_of(QUOTA, until=NOW + 1), OUTAGE, Permit()),
        (pause_of(QUOTA, until=NOW + 1), OUTAGE, PROBE),
        (pause_of(OUTAGE), OUTAGE, Permit()),
        (replace(pause_of(OUTAGE), nonce="of a probe that failed before"), OUTAGE, PROBE),
    ],
)
def test_weaker_pause_does_not_replace_stronger(old, reason, permit):
    items = GivenBudget(pause=old)
    items.pause(reason, NOW, "words", permit)
    assert items.written == []


@pytest.mark.parametrize(
    ("old", "reason", "since", "step"),
    [
        (pause_of(OUTAGE), TOKEN, NOW, 60),
        (pause_of(QUOTA, until=NOW + 1), TOKEN, NOW, 60),
        (pause_of(OUTAGE), QUOTA, NOW, 1_800),
        (pause_of(QUOTA, until=NOW + 1), QUOTA, NOW - 100, 1_800),
    ],
)
def test_stronger_pause_replaces_weaker(old, reason, since, step):
    items = GivenBudget(pause=old)
    items.pause(reason, NOW, "words", Permit())
    new = written(items)
    assert (new["reason"], new["since"], new["step"]) == (reason, since, step)


@pytest.mark.parametrize(
    ("before", "after"), [(15, 30), (149, 298), (150, 300), (151, 300), (300, 300)]
)
def test_probes_of_outage_back_off_to_5_minutes(before, after):
    items = GivenBudget(pause=pause_of(OUTAGE, step=before))
    items.pause(OUTAGE, NOW, "words", PROBE)
    new = written(items)
    assert (new["since"], new["step"], new["next_probe"]) == (NOW - 100, after, NOW + after)


# ── waits of models begin and go on ───────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("old", "permit", "step", "since"),
    [
        (None, Permit(), 15, NOW),
        (None, MODEL_PROBE, 15, NOW),
        (wait_of(NOW, step=60), Permit(), 15, NOW - 100),
        (wait_of(NOW - 1, step=60), Permit(), 15, NOW - 100),
        (wait_of(NOW, step=60), MODEL_PROBE, 120, NOW - 100),
        (wait_of(NOW + 90, step=60), MODEL_PROBE, 120, NOW - 100),
        (wait_of(NOW, since=0.0), Permit(), 15, NOW),
        (wait_of(NOW, step=449), MODEL_PROBE, 898, NOW - 100),
        (wait_of(NOW, step=450), MODEL_PROBE, 900, NOW - 100),
        (wait_of(NOW, step=451), MODEL_PROBE, 900, NOW - 100),
    ],
)
def test_model_wait_doubles_from_15_seconds(old, permit, step, since):
    """After each failed probe."""
    items = GivenBudget(wait=old)
    assert items.delay_model(MODEL, NOW, "3040", permit) == NOW + step
    assert written(items) == {"until": NOW + step, "step": step, "code": "3040", "since": since}


def test_model_that_waits_already_waits_no_longer():
    items = GivenBudget(wait=wait_of(NOW + 1))
    assert items.delay_model(MODEL, NOW, "3040", Permit()) == NOW + 1
    assert items.written == []


@pytest.mark.parametrize(
    ("step", "place", "seconds"), [(450, 0, 720), (450, 1, 900), (60, 0, 96), (60, 1, 144)], ids=str
)
def test_model_wait_has_jitter_up_to_15_minutes(spread, step, place, seconds):
    spread(place)
    items = GivenBudget(wait=wait_of(NOW, step=step))
    assert items.delay_model(MODEL, NOW, "3040", MODEL_PROBE) == pytest.approx(
        NOW + seconds, abs=1e-3
    )


# ── who may call meanwhile ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("pause", "kind"),
    [
        (None, SUBMIT),
        (None, POLL),
        (pause_of(QUOTA, until=NOW), SUBMIT),
        (pause_of(QUOTA, until=NOW - 1), SUBMIT),
        (pause_of(QUOTA, until=NOW + 1), POLL),
        (pause_of(QUOTA, until=NOW + 1, next_probe=NOW), POLL),
        (pause_of(OUTAGE), POLL),
    ],
)
def test_unaffected_call_is_not_a_probe(pause, kind):
    items = GivenBudget(pause=pause)
    assert items.pass_pause(pause, kind, NOW) is None
    assert items.written == []


@pytest.mark.parametrize(
    ("next_probe", "until", "after"),
    [
        (NOW + 30, None, 30),
        (NOW + 0.5, None, 0.5),
        (NOW + 44, None, 44),
        (NOW + 46, None, 45),
        (NOW + 900, None, 45),
        (NOW + 900, NOW + 1_000, 45),
        (NOW + 25, NOW + 20, 20),
        (NOW + 10, NOW + 20, 10),
    ],
)
def test_paused_poll_rechecks_after_probe_end_or_45_seconds(next_probe, until, after):
    pause = pause_of(TOKEN, next_probe=next_probe, until=until)
    items = GivenBudget(pause=pause)
    assert items.pass_pause(pause, POLL, NOW) == Denied(
        NOW + after + 1 + 4.5, paused=True, since=pause.since
    )
    assert items.written == []


@pytest.mark.parametrize(
    ("next_probe", "until", "wake_at"),
    [(NOW + 900, None, NOW + 900), (NOW + 900, NOW + 800, NOW + 800), (NOW + 1, None, NOW + 1)],
)
def test_paused_submit_is_due_whenever_pause_is_lifted(next_probe, until, wake_at):
    pause = pause_of(OUTAGE, next_probe=next_probe, until=until)
    assert GivenBudget().pass_pause(pause, SUBMIT, NOW) == Denied(
        NOW + 2.5, paused=True, wake_at=wake_at
    )


@pytest.mark.parametrize(("place", "after"), [(0, 46), (1, 55)])
def test_paused_polls_resume_spread_over_nine_seconds(spread, place, after):
    spread(place)
    pause = pause_of(TOKEN)
    assert GivenBudget().pass_pause(pause, POLL, NOW) == Denied(
        NOW + after, paused=True, since=pause.since
    )


@pytest.mark.parametrize(
    ("reason", "kind", "since", "step"),
    [
        (TOKEN, POLL, NOW - 100, 60),
        (TOKEN, SUBMIT, NOW - 600, 60),
        (TOKEN, SUBMIT, NOW - 601, 300),
        (QUOTA, SUBMIT, NOW - 601, 60),
        (OUTAGE, SUBMIT, NOW - 601, 60),
    ],
)
@pytest.mark.parametrize("next_probe", [NOW, NOW - 50])
def test_probe_sets_time_of_next(reason, kind, since, step, next_probe):
    pause = pause_of(reason, since=since, next_probe=next_probe)
    items = GivenBudget()
    probing = items.pass_pause(pause, kind, NOW)
    assert probing == Pause(reason, "nonce", since, NOW + step, step, None, "code")
    assert written(items)["next_probe"] == NOW + step


@pytest.mark.parametrize("next_probe", [NOW, NOW - 50])
def test_who_comes_second_to_probe_looks_again_soon(next_probe):
    items = GivenBudget(loses=1)
    pause = pause_of(TOKEN, next_probe=next_probe)
    assert items.pass_pause(pause, POLL, NOW) == Denied(
        NOW + 1 + 4.5, paused=True, since=pause.since
    )


def test_model_that_does_not_wait_is_not_probed():
    items = GivenBudget()
    assert items.pass_model(MODEL, None, NOW) is None
    assert items.written == []


@pytest.mark.parametrize("until", [NOW, NOW - 50])
def test_one_batch_probes_waiting_model(until):
    items = GivenBudget()
    assert items.pass_model(MODEL, wait_of(until), NOW) == ModelWait(
        NOW + 90, 15.0, "nonce", "code", NOW - 100
    )
    assert written(items)["until"] == NOW + 90


@pytest.mark.parametrize(
    ("until", "loses", "after"),
    [(NOW + 1, 0, 1), (NOW + 90, 0, 90), (NOW, 1, 0), (NOW - 50, 1, 0)],
    ids=str,
)
def test_other_batches_recheck_behind_probe(until, loses, after):
    items = GivenBudget(loses=loses)
    assert items.pass_model(MODEL, wait_of(until), NOW) == Denied(NOW + after + 1 + 7, paused=False)
    assert items.written == []


@pytest.mark.parametrize(
    ("permit", "lifted"),
    [
        (Permit(), []),
        (PROBE, ["PAUSE"]),
        (MODEL_PROBE, [f"RATE#MODEL#{MODEL}"]),
        (Permit(PROBE.pause, MODEL_PROBE.model_wait), ["PAUSE", f"RATE#MODEL#{MODEL}"]),
    ],
)
def test_good_probe_lifts_what_it_probed(permit, lifted):
    items = GivenBudget(pause=pause_of(), wait=wait_of(NOW))
    items.lift(permit, MODEL)
    assert [one["Key"]["sk"]["S"] for one in items.written] == lifted
