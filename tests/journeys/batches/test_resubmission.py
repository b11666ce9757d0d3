"""A batch that is submitted again.

Every id it ever had is polled on, and each is judged for itself.
"""

import pytest

from local.workers_ai import Fault
from tests.support.translations import M2M, all_good, greetings, polls, submits

pytestmark = pytest.mark.slow  # They take minutes together.

HOUR = 3_600.0


@pytest.fixture
def world(start):
    """A Dropbatch that submits again after an hour."""
    return start(BATCH_DEADLINE_HOURS=1)


@pytest.mark.parametrize(
    "obstacle",
    [
        pytest.param({"kind": "3036"}, id="3036"),
        pytest.param({"kind": "402402", "status": 402}, id="402"),
        pytest.param({"kind": "3040"}, id="3040", marks=pytest.mark.slow),
        pytest.param({"kind": "971", "retry_after": 900}, id="971", marks=pytest.mark.slow),
    ],
)
def test_late_answer_cancels_second_submit(world, api, obstacle):
    """It is used while the second submit waits, and nothing is billed twice."""
    api.inject(
        Fault(kind="stuck", seconds=2.5 * HOUR), Fault(on="submit", nth=2, times=0, **obstacle)
    )
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(minutes=300)

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert submits(api) > 1, "the second submit was tried"


def test_prompt_second_submit_costs_no_poll(world, api):
    api.inject(Fault(kind="stuck", times=1))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.settle(
        minutes=180,
        until=lambda: (
            world.item("BATCH#00000000")["state"]["S"] == "ready" or len(api.accepted) == 2
        ),
    )
    before = polls(api)

    world.deliver_all()

    assert len(api.accepted) == 2
    assert polls(api) == before
