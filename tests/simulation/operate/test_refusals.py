"""What S3 refuses for good.

It is shown within a minute, nothing is tried for ever, and no other job waits for it.
"""

import json
from collections import Counter

import pytest

from local.workers_ai import Behaviour
from tests.simulation.worlds.judges import Laws
from tests.simulation.worlds.users import drop
from tests.simulation.worlds.world import simulated

MINUTE, HOUR, DAY = 60.0, 3_600.0, 86_400.0
DENIED, GOOD = "denied.jsonl", "good.jsonl"
MOST_DELETIONS = 1


class RefusalLaws:
    """Judges a world in which S3 refuses calls about some objects.

    Attributes:
        broken: what did not hold.
    """

    SHOWN = "a lasting refusal is shown within a minute"
    DELETED = "no deletion is tried more than five times"

    def __init__(self, world, refusals):
        """Refuse calls: by operation, a part of the key and the code."""
        self.world, self.broken, self.deletions, self.shown_by = world, set(), Counter(), {}
        self.laws = Laws(world)

        def refuses(operation, key):
            code = next(
                (code for name, part, code in refusals if name == operation and part in key), ""
            )
            if code and operation == "DeleteObjects":
                self.deletions[key] += 1
                if self.deletions[key] > MOST_DELETIONS:
                    self.broken.add(self.DELETED)
            elif code and key not in self.shown_by:
                self.shown_by[key] = world.kernel.now + MINUTE
                world.kernel.at(self.shown_by[key], lambda: self._judge_shown(key))
            return code

        world.s3.refuses = refuses

    def _judge_shown(self, key):
        """Judge that a status or a manifest beside the results of an upload has a code."""
        folder = f"results/{key.removeprefix('inbox/')}/"
        found = [one for name, one in self.world.s3.objects.items() if name.startswith(folder)]
        told = [
            json.loads(one.body)
            for one in found
            if one.key.endswith(("status.json", "manifest.json"))
        ]
        if not any(one.get("waiting_for") or one.get("error") for one in told):
            self.broken.add(self.SHOWN)


def played(*refusals, seconds=2 * DAY, seed=1):
    """A world with two files, one of which S3 refuses to hand out or to delete."""
    with simulated(seed, behaviour=Behaviour(embedder="hash", latency=3.0)) as world:
        laws = RefusalLaws(world, refusals)
        files = [drop(world, name, 3) for name in (DENIED, GOOD)]
        world.run(10 * MINUTE)
        good = world.job(files[1].upload)["state"]["S"]
        world.wait_for_late_things(seconds)
        manifest = world.result(files[0].upload, "manifest.json")
        assert laws.laws.violations == []
        assert good == "completed"
        return world, laws, manifest and json.loads(manifest)


@pytest.mark.parametrize(
    ("code", "ends", "seconds"),
    [
        ("InvalidObjectState", "source_archived", HOUR),
        pytest.param("AccessDenied", "upload_denied", 2 * DAY, marks=pytest.mark.slow),
    ],
)
def test_upload_that_is_not_handed_out_is_shown_and_ends(code, ends, seconds):
    world, laws, manifest = played(("GetObject", f"inbox/{DENIED}", code), seconds=seconds)

    assert laws.broken == set()
    assert manifest["error"]["code"] == ends
    assert world.failures == []


@pytest.mark.slow
def test_upload_of_which_nothing_is_told_is_shown():
    world, laws, manifest = played(("HeadObject", f"inbox/{DENIED}", "AccessDenied"))

    assert laws.broken == set()
    assert manifest is None
    notice = json.loads(world.s3.objects[f"results/{DENIED}/status.json"].body)
    assert (notice["state"], notice["error"]["code"]) == ("failed", "upload_denied")
    assert not any(queue.dead for queue in world.sqs.queues.values())


@pytest.mark.slow
def test_locked_objects_are_left_to_lifecycle_rule():
    world, laws, _ = played(("DeleteObjects", "/request", "AccessDenied"), seconds=8 * DAY)

    assert laws.broken == set()
    assert set(laws.deletions.values()) == {MOST_DELETIONS}
    assert all(key.endswith("/request") for key in world.s3.objects if key.startswith("staging/"))
    assert not any(
        "due_at" in item for key, item in world.dynamodb.items.items() if key[1] == "META"
    )
