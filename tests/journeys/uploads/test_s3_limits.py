"""S3's limits: keys of 1,024 bytes, metadata of 2,048, pieces of 5 MiB.

The longest paths and names end within them.
"""

import msgspec
import pytest

from dropbatch.core.names import MAX_KEY_BYTES, MAX_PATH_BYTES
from functions.poll.running_sha256 import RunningSha256
from shared.models import JobTotals, ResultFileProgress
from shared.workers_ai.usage import Usage
from tests.support.aws.resources import BUCKET
from tests.support.aws.s3_limits import MAX_METADATA_BYTES
from tests.support.translations import M2M

BAD_AND_GOOD = '{"text":"x","target_lang":"es"}\n{"text":"(refused)","target_lang":"es"}\n'
"""One record that succeeds, and one that fails and is in the retry file."""


def path_of(size, suffix=".jsonl"):
    """A path of so many bytes, most of them of letters with three."""
    letters, ascii_bytes = divmod(size - len(suffix), 3)
    return "評" * letters + "x" * ascii_bytes + suffix


def retry_of(world, folder):
    return world.s3.head_object(Bucket=BUCKET, Key=f"{folder}/retry.jsonl")["Metadata"]["retry-of"]


@pytest.mark.parametrize("size", [300, 740, MAX_PATH_BYTES])
def test_job_with_long_path_ends_and_its_retry_too(world, size):
    world.upload(path_of(size), BAD_AND_GOOD, model=M2M)
    world.settle()

    folder = world.only_folder()
    assert world.manifest()["counts"] == {"total": 2, "succeeded": 1, "failed": 1}
    assert retry_of(world, folder) == world.manifest()["job_id"]
    again = path_of(size, ".retry.jsonl")
    world.s3.copy_object(
        Bucket=BUCKET, Key=f"inbox/{again}", CopySource=f"{BUCKET}/{folder}/retry.jsonl"
    )
    world.settle()

    (child,) = [one for one in world.manifests() if one != folder]
    assert [key for key in world.objects() if "/retries/" in key] == [
        f"{folder}/retries/{world.manifest(child)['job_id']}.json"
    ]


@pytest.mark.parametrize("name", ["x", path_of(500)])
def test_longest_key_of_upload_ends_path_too_long(world, name):
    """Its `_options.json` would have a key that S3 does not allow."""
    folder = "f" * (MAX_KEY_BYTES - len(f"inbox//{name}".encode()))
    world.upload(f"{folder}/{name}", BAD_AND_GOOD, model=M2M)
    world.settle()

    assert world.only_folder().startswith("results/_long/")
    assert world.manifest()["error"]["code"] == "path_too_long"


def test_progress_fits_metadata_of_segment():
    digest = RunningSha256("", b"")
    digest.update(b"x" * 1_000)
    joined = ResultFileProgress("99999999.f.f.f.f.f", *[10**15] * 6, sha=digest.state(), upload="")
    sums = JobTotals(
        *[10**15] * 5,
        usage=Usage(10**15, 10**15, 10**15),
        unmetered_size=10**15,
        unmetered_records=10**15,
        uncollected=10**15,
        unknowable=10**15,
        estimated=10**15,
        answered=10**15,
    )

    assert len(b"progress" + msgspec.json.encode((joined, sums))) < MAX_METADATA_BYTES
