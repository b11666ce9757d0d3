"""What waits for a pause's end is submitted once it is lifted, at the rate of the budget."""

import pytest

from dropbatch.core.names import CONTROL_PK
from local.workers_ai import Behaviour, Fault
from tests.simulation.worlds.item_laws import ItemLaws
from tests.simulation.worlds.judges import Laws
from tests.simulation.worlds.release_laws import DUE_SECONDS, FIRST_SECONDS
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import TOKEN, simulated


def no_quota(world):
    world.inject(Fault(kind="3036", on="submit", times=0))


def refused_token(world):
    world.api.switch(tokens=("another-token",))


def no_answers(world):
    world.inject(Fault(kind="accept_then_reset", times=1), Fault(kind="refuse", times=0))


def held(world):
    world.command("stack", "pause")


def over(world):
    """The cause is over; the next probe shows it."""
    world.api.clear_faults()
    world.api.switch(tokens=(TOKEN,))


def resumed(world):
    """The cause is over, and an operator writes so."""
    over(world)
    world.command("stack", "run")


class Played:
    """A world in which files are dropped during a pause, which ends after some seconds.

    Attributes:
        times: seconds from the pause's end to each submit's acceptance.
        violations: of laws.
    """

    def __init__(self, begin, end, files, seconds, seed=1, calls=200):
        settings = {"MAX_REQUESTS_PER_BATCH": 1, "API_CALLS_PER_MINUTE": calls}
        with simulated(
            seed, behaviour=Behaviour(embedder="hash", latency=400.0), **settings
        ) as world:
            laws = Laws(world)
            ItemLaws(laws)
            begin(world)
            world.run(1.0)
            for place, size in enumerate(files):
                drop(world, f"{place}.jsonl", size, may_fail=True)
            world.run(seconds)
            before, ended = len(world.api.accepted), world.kernel.now
            end(world)
            world.run(3_600, lambda: len(world.api.accepted) - before == sum(files))
            self.times = [one["time"] - ended for one in world.api.accepted[before:]]
            self.violations = laws.violations


ONE = [1]
MANY = [pytest.param(files, marks=pytest.mark.slow) for files in ([40], [1] * 30)]
LONG = [
    pytest.param(seconds, marks=pytest.mark.slow)
    for seconds in (64.0, 95.0, 118.0, 200.0, 400.0, 3_000.0)
]


@pytest.mark.parametrize("seconds", [70.0, *LONG])
@pytest.mark.parametrize("files", [ONE, *MANY], ids=["one", "a job", "jobs"])
@pytest.mark.parametrize("begin", [no_quota, refused_token, held])
def test_command_releases_what_waited(begin, files, seconds):
    played = Played(begin, resumed, files, seconds)

    assert played.times[0] <= FIRST_SECONDS
    assert played.times[-1] <= DUE_SECONDS
    assert len(played.times) == sum(files)
    assert played.violations == []


@pytest.mark.slow
@pytest.mark.parametrize("files", [[40], [1] * 30], ids=["a job", "jobs"])
@pytest.mark.parametrize("begin", [no_quota, refused_token, no_answers])
def test_probe_releases_what_waited(begin, files):
    played = Played(begin, over, files, 70.0)

    probe, first, *_, last = played.times
    assert first - probe <= FIRST_SECONDS
    assert last - probe <= DUE_SECONDS
    assert played.violations == []


@pytest.mark.parametrize("kind", ["971", "10013"])
def test_probe_that_is_refused_for_another_reason_lifts_nothing(kind):
    lifted = []
    with simulated(1, behaviour=Behaviour(embedder="hash", latency=400.0)) as world:
        drop(world, "a.jsonl", 2, may_fail=True)
        world.run(5.0)
        refused_token(world)
        world.run(60.0)
        world.dynamodb.watchers.append(
            lambda key, _old, new: lifted.append(key) if key[1] == "PAUSE" and not new else None
        )
        world.inject(Fault(kind=kind, on="poll"))
        world.run(900.0, lambda: not world.api.faults)
        world.run(5.0)
        assert (CONTROL_PK, "PAUSE") in world.dynamodb.items
    assert world.api.faults == lifted == []
