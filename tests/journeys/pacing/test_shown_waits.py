"""A wait that Cloudflare asks for again and again is shown from the fifteenth minute on.

Until it is over.
"""

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, greetings

pytestmark = pytest.mark.slow  # Half an hour of ticks each.

MINUTE = 60.0


def looks(world, minutes):
    """What `waiting_for` says after each tick: the minute since the drop, and the code or None."""
    began, seen = world.now(), []
    while world.now() < began + minutes * MINUTE:
        world.deliver_all()
        world.tick()
        world.deliver_all()
        waiting = world.status()["waiting_for"]
        seen.append(((world.now() - began) / MINUTE, waiting and waiting["code"]))
        world.pass_time(MINUTE - world.now() % MINUTE)
    return seen


@pytest.mark.parametrize("retry_after", [-1, 300])
def test_rate_limit_is_shown_without_flickering(world, api, retry_after):
    api.inject(
        Fault(kind="error", on="submit", code=971, status=429, times=0, retry_after=retry_after)
    )
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    seen = looks(world, 30)

    assert {code for minute, code in seen if minute < 14} == {None}
    assert {code for minute, code in seen if minute > 16.1} == {"too_many_calls"}

    api.clear_faults()
    world.settle()
    assert all_good(world, 6)
