"""What S3 refuses to list or delete for good, because it is locked or a policy forbids it.

Five tries, one log line.
"""

from itertools import pairwise

import pytest
from botocore.exceptions import ClientError

import functions.poll.handler
from tests.journeys.results.test_delete_staged import (
    DAY,
    failing_deletions,
    finish,
    is_forgotten,
    large,
    small_pages,
    staged,
)

__all__ = ["large", "small_pages"]


def refused_for_days(world, capsys, caplog):
    """Let nine days pass, a tick every half.

    Return what was logged of deletions, none of it as an error.
    """
    capsys.readouterr()
    caplog.clear()
    for _ in range(2 * 9):
        world.tick()
        world.pass_time(DAY / 2)
    assert not [one for one in caplog.records if one.exc_info]
    assert '"Errors"' not in capsys.readouterr().out
    return [one.getMessage() for one in caplog.records if "staged objects" in one.getMessage()]


def test_refused_deletion_is_tried_five_times_and_logged_once(world, large, capsys, caplog):
    """A policy denies the call, as MFA delete does."""
    finish(world)
    tries = failing_deletions(world, "AccessDenied")

    assert refused_for_days(world, capsys, caplog) == ["staged objects left to the lifecycle rule"]

    assert len(tries) == 5
    assert tries[1] - tries[0] > 2 * DAY  # After the first hour, only when everything is due.
    assert is_forgotten(world)
    assert staged(world)


@pytest.mark.parametrize(
    "denied", [("AccessDenied", "a policy"), ("KMS.DisabledException", "a key")]
)
def test_refused_listing_is_tried_five_times_and_logged_once(world, denied, capsys, caplog):
    finish(world)
    tries = []

    def before(operation, _):
        if operation == "ListObjectVersions":
            tries.append(world.now())
            raise ClientError({"Error": {"Code": denied[0], "Message": denied[1]}}, operation)

    world.permissions.before = before
    assert refused_for_days(world, capsys, caplog) == ["staged objects left to the lifecycle rule"]
    world.permissions.before = None

    assert len(tries) == 5
    assert all(later - one >= DAY for one, later in pairwise(tries))
    assert is_forgotten(world)
    assert staged(world)


def test_locked_object_holds_up_deletion_of_no_other(
    world, small_pages, monkeypatch, capsys, caplog
):
    """One of the first page is under a legal hold; S3 lists two versions at a time."""
    finish(world)
    locked, *others = staged(world)
    assert len(others) >= 2
    client = functions.poll.handler.services().store.client
    real, tries = client.delete_objects, []

    def delete(**named):
        kept = [one for one in named["Delete"]["Objects"] if one["Key"] == locked]
        free = [one for one in named["Delete"]["Objects"] if one not in kept]
        answer = real(**{**named, "Delete": {"Objects": free, "Quiet": True}}) if free else {}
        tries.extend(kept)
        return {
            **answer,
            "Errors": [{**one, "Code": "AccessDenied", "Message": "legal hold"} for one in kept],
        }

    monkeypatch.setattr(client, "delete_objects", delete)
    assert refused_for_days(world, capsys, caplog) == ["staged objects left to the lifecycle rule"]

    assert staged(world) == [locked]
    assert len(tries) == 5
    assert is_forgotten(world)


def test_object_that_is_free_again_is_deleted(world):
    finish(world)
    tries = failing_deletions(world, "AccessDenied")
    world.pass_time(3 * DAY)
    world.tick()
    world.permissions.before = lambda *_: None
    world.pass_time(DAY)
    world.tick()

    assert len(tries) == 1
    assert staged(world) == []
    assert is_forgotten(world)
