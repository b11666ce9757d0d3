"""Each law of pauses holds for the writes of the product, and is broken by a wrong one."""

import pytest

from tests.simulation.worlds.pacing_laws import CLAIM, READ, REASON, SINCE, STEP, broken_by

NOW = 10_000.0


def wire(given):
    return {
        name: {"S": value} if isinstance(value, str) else {"N": str(value)}
        for name, value in given.items()
    } or None


def pause(reason="outage", **changes):
    return {
        "reason": reason,
        "nonce": "new",
        "since": NOW,
        "next_probe": NOW + 15,
        "step": 15,
        **changes,
    }


def laws(old, new, *, has_probe=False, read=None):
    return set(broken_by(wire(read or old), wire(old), wire(new), NOW, has_probe=has_probe))


OUTAGE = pause(nonce="old", since=9_000.0, next_probe=9_990.0, step=60)
TOKEN = pause("token_refused", nonce="old", since=9_500.0, next_probe=9_990.0, step=60)
QUOTA = pause(
    "quota_spent", nonce="old", since=9_000.0, next_probe=10_800.0, step=1_800, until=12_000.0
)
MODEL = pause("model_waits", nonce="old", since=9_000.0, next_probe=9_990.0, step=120)
LONGER = pause(since=9_000.0, next_probe=NOW + 120, step=120)
REFUSED = pause("token_refused", next_probe=NOW + 60, step=60)
ANOTHER_QUOTA = QUOTA | {"nonce": "new", "next_probe": NOW + 1_800}


@pytest.mark.parametrize(
    ("old", "new", "has_probe"),
    [
        ({}, pause(), False),
        (OUTAGE, OUTAGE | {"next_probe": NOW + 90}, False),
        (MODEL, MODEL | {"next_probe": NOW + 120}, False),
        (OUTAGE, LONGER, True),
        (OUTAGE | {"step": 300}, LONGER | {"next_probe": NOW + 300, "step": 300}, True),
        (OUTAGE, REFUSED, False),
        (QUOTA, ANOTHER_QUOTA, True),
        (QUOTA | {"until": 9_999.0}, pause(), False),
        (QUOTA, {}, False),
        (MODEL, MODEL | {"nonce": "new", "next_probe": NOW + 240, "step": 240}, True),
    ],
)
def test_right_write_of_pause_breaks_no_law(old, new, has_probe):
    assert laws(old, new, has_probe=has_probe) == set()


@pytest.mark.parametrize(
    ("old", "new", "has_probe", "law"),
    [
        (OUTAGE | {"next_probe": NOW + 5}, OUTAGE | {"next_probe": NOW + 90}, False, CLAIM),
        (OUTAGE, OUTAGE | {"next_probe": NOW + 60}, False, CLAIM),
        (OUTAGE, OUTAGE | {"next_probe": NOW + 300, "step": 300}, False, SINCE),
        (OUTAGE, OUTAGE | {"next_probe": NOW + 90, "since": NOW}, False, SINCE),
        (OUTAGE, LONGER, False, REASON),
        (OUTAGE, LONGER | {"next_probe": NOW + 300, "step": 300}, True, STEP),
        (OUTAGE | {"step": 300}, LONGER | {"next_probe": NOW + 600, "step": 600}, True, STEP),
        (OUTAGE, LONGER | {"since": NOW}, True, SINCE),
        (OUTAGE, REFUSED | {"since": 9_000.0}, False, SINCE),
        (QUOTA, ANOTHER_QUOTA, False, REASON),
        (QUOTA, pause(), False, REASON),
        (TOKEN, pause(), False, REASON),
        (TOKEN, REFUSED | {"since": 9_500.0}, False, REASON),
        ({}, pause(since=NOW + 5, next_probe=NOW + 20), False, SINCE),
    ],
)
def test_wrong_write_of_pause_breaks_law(old, new, has_probe, law):
    assert law in laws(old, new, has_probe=has_probe)


@pytest.mark.parametrize("new", [{}, LONGER], ids=["lifted", "replaced"])
def test_pause_that_was_not_read_is_left_alone(new):
    assert READ in laws(OUTAGE, new, read=OUTAGE | {"nonce": "before"}, has_probe=True)
    assert READ in set(broken_by(None, wire(OUTAGE), wire(new), NOW, has_probe=True))
