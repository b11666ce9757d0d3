"""Each law of pauses and of what is shared holds for right writes, and is broken by wrong ones."""

from types import SimpleNamespace

import pytest

from dropbatch.core.names import CONTROL_PK
from shared.aws.queues import SUBMIT_GRACE_SECONDS
from simulation import Awkward
from tests.simulation.worlds import share_laws
from tests.simulation.worlds.pacing_laws import CLAIM, READ, REASON, SINCE, STEP, broken_by
from tests.simulation.worlds.share_laws import Outstanding, ShareLaws

NOW = 10_000.0


def wire(given):
    return {
        name: {"S": value} if isinstance(value, str) else {"N": str(value)}
        for name, value in (given or {}).items()
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


KEY = ("JOB#a", "BATCH#00000000")
PIECE = ("JOB#a", "BATCH#00000000.0")
WATCH = (CONTROL_PK, "RATE#OUTSTANDING")
PAUSE = (CONTROL_PK, "PAUSE")


class Given:
    """A world in which one invocation runs, at one time; and what its writes and reads break."""

    def __init__(self, calls=4):
        self.broken = set()
        self.one = object()
        burst = max(1, calls // 2)
        kernel = SimpleNamespace(now=NOW, life=lambda: self.one)
        job = {"plan": {"M": {"model": {"S": "m"}}}}
        dynamodb = SimpleNamespace(watchers=[], items={("JOB#a", "META"): job})
        world = SimpleNamespace(
            calls=SimpleNamespace(held_up={}, awkward=Awkward()),
            calls_per_minute=calls,
            kernel=kernel,
            clock=lambda: kernel.now,
            called_at=lambda: kernel.now,
            dynamodb=dynamodb,
        )
        laws = SimpleNamespace(broken=lambda law, _detail: self.broken.add(law))
        self.kernel, self.dynamodb = kernel, dynamodb
        ShareLaws(SimpleNamespace(laws=laws, world=world, burst=burst, interval=60_000 // calls))

    def write(self, key, old, new):
        for watch in self.dynamodb.watchers:
            watch(key, wire(old), wire(new))


def batch(**changes):
    return {
        "state": "queued",
        "work": "v2#poll",
        "due_at": NOW + 60,
        "created_at": NOW,
        "polls": 0,
        **changes,
    }


def outstanding(**counts):
    made = Outstanding(4)  # 30 batches, less half of those of others.
    for model, count in counts.items():
        for _ in range(count):
            made.note(NOW - 100, model, 1)
    return made


@pytest.mark.parametrize(
    ("counts", "named", "wrong"),
    [
        ({"m": 29}, set(), set()),
        ({"m": 30}, {"m"}, set()),
        ({"m": 30}, set(), {"m"}),
        ({"m": 29}, {"m"}, {"m"}),
        ({"m": 25, "n": 9}, set(), set()),
        ({"m": 25, "n": 10}, {"m"}, set()),
        ({"m": 70, "n": 1}, {"m"}, set()),
        ({"m": 70, "n": 1}, {"m", "n"}, {"n"}),
        ({"m": 70, "n": 2}, {"m", "n"}, set()),
    ],
)
def test_model_is_full_with_its_share(counts, named, wrong):
    assert outstanding(**counts).wrong(named, NOW - 10) == wrong


@pytest.mark.parametrize("named", [set(), {"m"}])
def test_either_is_right_if_the_share_was_reached_while_it_was_counted(named):
    made = outstanding(m=29)
    made.note(NOW - 5, "m", 1)
    assert made.wrong(named, NOW - 10) == set()


def test_tick_names_full_models():
    given = Given()
    for place in range(30):
        given.write(("JOB#a", f"BATCH#{place:08}"), None, batch())
    given.kernel.now += 100
    told = {"ticked_at": given.kernel.now, "watched_from": given.kernel.now}
    given.dynamodb.watchers[0](WATCH, {}, wire(told) | {"full_models": {"SS": ["m"]}})
    assert given.broken == set()
    given.write(WATCH, {}, told | {"ticked_at": given.kernel.now + 1})
    assert given.broken == {share_laws.FULL}


@pytest.mark.parametrize(
    ("key", "old", "due", "broken"),
    [
        (KEY, None, NOW, False),
        (KEY, None, NOW - 1, True),
        (PIECE, None, NOW + SUBMIT_GRACE_SECONDS, False),
        (PIECE, None, NOW + SUBMIT_GRACE_SECONDS - 1, True),
        (KEY, batch(), NOW - 1, False),
        (KEY, batch(), NOW - 20, True),
        (KEY, batch(due_at=NOW - 30), NOW - 20, False),
    ],
)
def test_nothing_is_made_due_before_the_present(key, old, due, broken):
    given = Given()
    given.write(key, old, batch(due_at=due))
    assert (share_laws.PAST in given.broken) == broken


@pytest.mark.parametrize(
    ("calls", "due", "firsts", "broken"),
    [
        (4, NOW - 61, 8, False),
        (4, NOW - 61, 9, True),
        (4, NOW - 59, 9, False),
        (20, NOW - 61, 9, False),
    ],
)
def test_polls_take_turns_with_first_batches(calls, due, firsts, broken):
    given = Given(calls)
    given.write(KEY, batch(due_at=due), batch(due_at=due))
    for place in range(firsts):
        ready = batch(state="ready", work="v2#first")
        given.write(
            ("JOB#a", f"BATCH#{place + 1:08}"),
            ready,
            ready | {"state": "submitting", "work": "v2#poll"},
        )
    assert (share_laws.POLLS in given.broken) == broken
    given.write(KEY, batch(due_at=due), batch(polls=1))
    given.broken.clear()
    given.write(PIECE, batch(state="ready", work="v2#first"), batch(state="submitting"))
    assert given.broken == set()


@pytest.mark.parametrize(
    ("step", "times", "refusals", "broken"),
    [(15, 6, False, False), (15, 7, False, True), (300, 9, False, False), (15, 9, True, False)],
)
def test_outage_is_probed_more_and_more_rarely(step, times, refusals, broken):
    given = Given()
    pause = {"reason": "outage", "nonce": "n", "step": step}
    for place in range(times):
        given.write(PAUSE, pause, pause | {"next_probe": place})
        if refusals:
            given.write(KEY, batch(refusals=place), batch(refusals=place + 1))
    assert given.broken == ({share_laws.BACKS_OFF} if broken else set())


@pytest.mark.parametrize(
    ("job", "claims", "broken"),
    [("a", 1, False), ("missing", 2, False), ("missing", 1, True), ("missing", 0, True)],
)
def test_claim_of_what_cannot_be_worked_on_counts(job, claims, broken):
    given = Given()
    given.write((f"JOB#{job}", KEY[1]), batch(claims=1), batch(claims=claims, due_at=NOW + 90))
    assert given.broken == ({share_laws.CLAIM} if broken else set())


@pytest.mark.parametrize(
    ("old", "new", "broken"),
    [
        ({"paused": 0}, {"due_at": NOW + 120, "paused": 60}, False),
        ({"paused": 0}, {"due_at": NOW + 120, "paused": 125}, True),
        ({"paused": 50}, {"due_at": NOW + 120, "paused": 110}, False),
        ({"paused": 50}, {"due_at": NOW + 120, "paused": 40}, True),
        ({"paused": 100}, {"due_at": NOW + 120, "paused": 160}, True),
        ({"paused": 200}, {"due_at": NOW + 120, "paused": 130}, False),
        ({"paused": 100, "ready_at": NOW - 60}, {"due_at": NOW + 120, "paused": 160}, False),
    ],
)
def test_clock_of_a_batch_stands_still_while_it_waits(old, new, broken):
    given, was = Given(), batch(ready_at=NOW - 10) | old
    before, after = ({**wire(one), "submissions": {"L": []}} for one in (was, was | new))
    for watch in given.dynamodb.watchers:
        watch(KEY, before, after)
    assert given.broken == ({share_laws.CLOCK} if broken else set())
