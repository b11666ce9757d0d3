"""When a pause begins, who may probe it, and what follows from a probe's answer."""

from dataclasses import replace

import pytest

from shared import retry
from shared.aws.attribute_values import plain
from shared.models import NEVER, Wait
from shared.pacing.breaker import (
    LIFT_LOOK_SECONDS,
    PROBE_SECONDS,
    RULES,
    UNPAID,
    Controls,
    Pause,
    PauseReason,
    Permit,
)
from tests.support.doubles.control_items import MIDNIGHT, MODEL, NOW, GivenBudget, pause_of, wait_of

TOKEN, QUOTA = PauseReason.TOKEN_REFUSED, PauseReason.QUOTA_SPENT
OUTAGE, WAITS = PauseReason.OUTAGE, PauseReason.MODEL_WAITS
ENDED = [None, pause_of(QUOTA, until=NOW), pause_of(QUOTA, until=NOW - 1)]
PROBE = Permit(pause_of())
MODEL_PROBE = Permit(model_pause=wait_of(NOW))


@pytest.fixture(autouse=True)
def spread(monkeypatch):
    """Waits are in the middle of what they may be."""
    monkeypatch.setattr(retry.random, "uniform", lambda low, high: (low + high) / 2)


def written(items):
    """The members of the only item written but its key and its nonce; None: nothing was."""
    if not items.written:
        return None
    (arguments,) = items.written
    item = {name: plain(value) for name, value in arguments["Item"].items()}
    return {name: item[name] for name in item.keys() - {"pk", "sk", "nonce"}}


# ── pauses begin and go on ────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("reason", PauseReason)
@pytest.mark.parametrize("old", ENDED)
def test_pause_begins_where_none_is_left(reason, old):
    items, step = GivenBudget(pause=old), RULES[reason].first_step
    items.pause(reason, NOW, "words", Permit())
    ends = {"until": MIDNIGHT} if reason in UNPAID else {}
    times = {"since": NOW, "next_probe": NOW + step, "step": step}
    assert written(items) == ends | times | {"reason": reason, "code": "words"}


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
        (pause_of(TOKEN), QUOTA, PROBE),
        (pause_of(TOKEN), OUTAGE, PROBE),
        (pause_of(QUOTA, until=NOW + 1), QUOTA, Permit()),
        (pause_of(QUOTA, until=NOW + 1), OUTAGE, Permit()),
        (pause_of(QUOTA, until=NOW + 1), OUTAGE, PROBE),
        (pause_of(OUTAGE), OUTAGE, Permit()),
        (replace(pause_of(OUTAGE), nonce="of a probe that failed before"), OUTAGE, PROBE),
    ],
)
def test_pause_in_force_stays(old, reason, permit):
    items = GivenBudget(pause=old)
    assert items.pause(reason, NOW, "words", permit) == old
    assert items.written == []


@pytest.mark.parametrize(
    ("old", "reason"),
    [
        (pause_of(OUTAGE), TOKEN),
        (pause_of(QUOTA, until=NOW + 1), TOKEN),
        (pause_of(OUTAGE), QUOTA),
        (pause_of(QUOTA, until=NOW + 1), PauseReason.SPEND_LIMIT),
    ],
)
def test_stronger_pause_replaces_weaker(old, reason):
    items = GivenBudget(pause=old)
    items.pause(reason, NOW, "words", Permit())
    new = written(items)
    assert (new["reason"], new["since"], new["step"]) == (reason, NOW, RULES[reason].first_step)


@pytest.mark.parametrize(
    ("reason", "before", "after"),
    [
        (OUTAGE, 15, 30),
        (OUTAGE, 149, 298),
        (OUTAGE, 151, 300),
        (TOKEN, 60, 120),
        (TOKEN, 300, 300),
        (QUOTA, 1_800, 1_800),
    ],
)
def test_failed_probe_doubles_step_up_to_longest(reason, before, after):
    items = GivenBudget(pause=pause_of(reason, step=before))
    items.pause(reason, NOW, "words", Permit(pause_of(reason)))
    new = written(items)
    assert (new["since"], new["step"], new["next_probe"]) == (NOW - 100, after, NOW + after)


@pytest.mark.parametrize(
    ("old", "permit", "step"),
    [
        (None, Permit(), 15),
        (wait_of(NOW, step=60), MODEL_PROBE, 120),
        (wait_of(NOW, step=451), MODEL_PROBE, 900),
        (wait_of(NOW + 90, step=60), Permit(), None),
    ],
)
def test_pause_of_a_model_doubles_after_each_failed_probe(old, permit, step):
    items = GivenBudget(wait=old, pause=pause_of(TOKEN))
    known = items.pause(WAITS, NOW, "3040", permit, MODEL)
    if step is None:
        assert (known, items.written) == (old, [])
    else:
        assert written(items)["step"] == step == known.next_probe - NOW
        assert items.written[0]["Item"]["sk"] == {"S": f"PAUSE#{MODEL}"}


# ── who may call meanwhile ────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("reason", sorted(set(PauseReason) - {TOKEN}))
def test_polls_pass_what_stops_only_submits(reason):
    items = GivenBudget()
    assert items.pass_poll(Controls(pause_of(reason, next_probe=NOW)), NOW) == Permit()
    assert items.written == []


@pytest.mark.parametrize(
    ("next_probe", "after"), [(NOW + 30, 30), (NOW + 0.5, 0.5), (NOW + 44, 44), (NOW + 900, 45)]
)
def test_paused_poll_looks_again_at_probe_or_after_45_seconds(next_probe, after):
    items, pause = GivenBudget(), pause_of(TOKEN, next_probe=next_probe)
    wait = items.pass_poll(Controls(pause), NOW)
    assert (wait.until, wait.code, wait.since) == (NOW + after + 1 + 4.5, TOKEN, pause.since)
    assert items.written == []


@pytest.mark.parametrize(
    ("next_probe", "until", "at"),
    [(NOW + 900, None, NOW + 900), (NOW + 900, NOW + 800, NOW + 800), (NOW + 1, None, NOW + 1)],
)
def test_paused_submit_waits_for_probe_or_end(next_probe, until, at):
    pause = pause_of(OUTAGE, next_probe=next_probe, until=until)
    wait = GivenBudget().pass_submit(Controls(pause), MODEL, NOW)
    assert wait == Wait(at, OUTAGE, f"{RULES[OUTAGE].message} (API response: code.)", pause.since)


@pytest.mark.parametrize("next_probe", [NOW, NOW - 50])
@pytest.mark.parametrize(("step", "after"), [(60.0, PROBE_SECONDS), (300.0, 300.0)])
def test_probe_sets_time_of_next(step, after, next_probe):
    pause = pause_of(TOKEN, next_probe=next_probe, step=step)
    probing = replace(pause, next_probe=NOW + after)
    for items in (GivenBudget(), GivenBudget()):
        assert items.pass_submit(Controls(pause), MODEL, NOW) == Permit(probing)
        assert written(items)["next_probe"] == NOW + after
    assert GivenBudget().pass_poll(Controls(pause), NOW) == Permit(probing)


@pytest.mark.parametrize("which", ["pause", "model_pause"])
def test_who_comes_second_to_probe_waits(which):
    one = pause_of(TOKEN, next_probe=NOW) if which == "pause" else wait_of(NOW)
    controls = Controls(**{which: one})
    assert GivenBudget(loses=1).pass_submit(controls, MODEL, NOW).until == NOW + LIFT_LOOK_SECONDS
    if which == "pause":
        assert GivenBudget(loses=1).pass_poll(controls, NOW).until == NOW + 1 + 4.5


@pytest.mark.parametrize(
    ("permit", "lifted"),
    [
        (Permit(), []),
        (PROBE, ["PAUSE"]),
        (MODEL_PROBE, [f"PAUSE#{MODEL}"]),
        (Permit(PROBE.pause, MODEL_PROBE.model_pause), [f"PAUSE#{MODEL}", "PAUSE"]),
    ],
)
def test_good_probe_lifts_what_it_probed(permit, lifted):
    items = GivenBudget(pause=pause_of(), wait=wait_of(NOW))
    items.lift(permit, MODEL)
    assert [one["Key"]["sk"]["S"] for one in items.written] == lifted


def test_only_a_spent_quota_and_a_model_say_when_they_end():
    ends = {QUOTA: NOW + 9, WAITS: NOW + 5}
    for reason in PauseReason:
        pause = Pause(reason, "nonce", NOW, NOW + 5, 5.0, NOW + 9)
        assert pause.for_users().until == ends.get(reason, NEVER)
