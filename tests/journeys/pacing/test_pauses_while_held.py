"""An outage or a refused token ends, and its alarm with it.

Although the only work that waits is paused by a user.
"""

import pytest

from functions.poll import commands
from local.workers_ai import Fault
from local.workers_ai.replies import page
from tests.support.aws.resources import TOKEN
from tests.support.translations import M2M, greetings

CAUSES = {"outage": "Outage", "token_refused": "TokenRefused"}


@pytest.fixture
def broken(start, api, monkeypatch):
    """Begins a pause with one call, then pauses the job or the stack."""
    real, away, counted = api.handle, [False], []
    monkeypatch.setattr(api, "handle", lambda *call: page(502) if away[0] else real(*call))
    monkeypatch.setattr(
        commands, "count", lambda name: counted.append(name) if name in CAUSES.values() else None
    )

    def begin(cause, who):
        world = start(MAX_REQUESTS_PER_BATCH=1)
        if cause == "outage":
            api.inject(Fault(kind="accept_then_reset", times=1))
        else:
            api.switch(tokens=("other",))
        world.upload_records("a.jsonl", greetings(3), model=M2M)
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue", most=1)
        away[0] = cause == "outage"
        world.control(world.job_id() if who == "job" else "stack", "pause")
        world.deliver_all()
        return world, away, counted

    return begin


def pass_minutes(world, minutes):
    for _ in range(minutes):
        world.tick()
        world.deliver_all()
        world.pass_time(60)


@pytest.mark.parametrize("who", ["job", "stack"])
@pytest.mark.parametrize("cause", CAUSES)
def test_pause_ends_once_its_cause_is_over(broken, api, cause, who):
    world, away, counted = broken(cause, who)
    pass_minutes(world, 12)
    assert world.pauses() == [cause]
    assert counted[-10:] == [CAUSES[cause]] * 10

    away[0] = False
    api.switch(tokens=(TOKEN,))
    accepted = len(api.accepted)
    pass_minutes(world, 6)
    assert world.pauses() == []
    counted.clear()
    pass_minutes(world, 3)

    assert counted == []
    assert len(api.accepted) == accepted
