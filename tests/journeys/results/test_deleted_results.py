"""Results and staged objects that are deleted while their job runs.

It ends, and its manifest lists what is there.
"""

import pytest

from functions.poll import files as result_files
from functions.poll import visit as visit_job
from local.workers_ai import Fault
from shared.errors import StorageError
from tests.support.aws.resources import BUCKET
from tests.support.translations import M2M, greetings

DAY = 1_440


def days_to_the_end(world, at_most=6):
    """Days until the job is over, with a tick each hour."""
    began = world.now()
    world.settle(minutes=at_most * DAY, until=lambda: bool(world.manifests()))
    return (world.now() - began) / 86_400


def delete(world, prefix, part):
    """Delete the objects whose key begins so and has a part."""
    found = [key for key in world.objects(prefix) if part in key]
    assert found
    for key in found:
        world.s3.delete_object(Bucket=BUCKET, Key=key)


@pytest.mark.slow
@pytest.mark.parametrize("records", [3, 110], ids=["3 records", "bytes that a digest ends at"])
def test_output_that_is_deleted_before_the_manifest_is_written_is_not_replaced_by_an_empty_one(
    world, monkeypatch, records
):
    """The manifest told of 10,560 bytes."""

    def fail(*_args, **_named):
        raise StorageError("S3 put_object: 503")

    monkeypatch.setattr(visit_job, "_close", fail)
    world.upload_records("a.jsonl", greetings(records), model=M2M)
    world.settle(
        minutes=20, until=lambda: any(key.endswith("output.jsonl") for key in world.objects())
    )
    monkeypatch.undo()
    delete(world, "results/", "output.jsonl")

    assert days_to_the_end(world) < 5
    assert world.manifest()["state"] == "failed"
    assert "output" not in {one["kind"] for one in world.manifest()["files"]}


@pytest.mark.slow
def test_job_whose_lines_were_deleted_from_staging_ends(start, api, monkeypatch):
    monkeypatch.setattr(result_files, "MIN_STEP_BATCHES", 2)
    world = start(MAX_REQUESTS_PER_BATCH=2)
    api.inject(Fault(kind="stuck", contains="hello 11", seconds=3_600))
    world.upload_records("a.jsonl", greetings(12), model=M2M)
    world.settle(
        minutes=20, until=lambda: any("segments/" in key for key in world.objects("staging/"))
    )
    delete(world, "staging/", "segments/")

    assert days_to_the_end(world) < 5
    assert world.manifest()["state"] == "failed"
