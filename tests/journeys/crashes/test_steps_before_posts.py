"""A step that fails is tried again soon.

Before a POST, it is counted, and is never called unknown.
"""

import time

import pytest

from local.workers_ai import Behaviour, WorkersAI
from tests.support.journeys.deaths import ASK, SUBMIT, Boundaries, Mode, mortal_world, strike_each
from tests.support.translations import M2M, greetings

SOON = 13.0
"""Seconds within which the item is due again."""


def run_with(boundaries: Boundaries, queue: str) -> tuple[float, int, int]:
    """A run in which one call before the POST fails.

    Seconds until the item is due again, POSTs, unknown outcomes.

    Some calls need not succeed: then the item is not due again at all.
    """
    api = WorkersAI(Behaviour(embedder="hash", latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    with mortal_world(api, boundaries) as world:
        world.upload_records("a.jsonl", greetings(1), model=M2M)
        boundaries.watching = False
        real, world.invoke = world.invoke, super(type(world), world).invoke
        world.deliver("UploadQueue")
        if queue == "PollQueue":
            world.deliver("SubmitQueue")
            world.pass_time(20)
        world.invoke = real
        boundaries.passed.clear()
        world.deliver(queue, most=1)
        item = world.item("BATCH#")
        got_through = item["state"]["S"] == ("queued" if queue == "SubmitQueue" else "done")
        waits = 0.0 if got_through else float(item["due_at"]["N"]) - time.time()
        world.settle()
        manifest = world.manifest()
        assert manifest["counts"] == {"total": 1, "succeeded": 1, "failed": 0}
        return waits, len(api.accepted), manifest["batches"][0]["unknowable_submits"]


def calls_before(queue: str, post: str) -> int:
    """How many calls a message makes before its POST."""
    boundaries = Boundaries()
    run_with(boundaries, queue)
    return boundaries.passed.index(post)


@pytest.mark.parametrize(("queue", "post"), [("SubmitQueue", SUBMIT), ("PollQueue", ASK)])
def test_failed_call_before_post_is_due_soon(queue, post):
    strikes: list[tuple[int, Mode]] = [
        (number, "unanswered") for number in range(1, calls_before(queue, post) + 1)
    ]

    found = strike_each(strikes, lambda boundaries: run_with(boundaries, queue))

    assert len(found) >= 4
    assert [one for one in found if one[0] > SOON or one[1:] != (1, 0)] == []
