"""Verbs over thousands of jobs."""

import hashlib
import json
import tracemalloc
from bisect import bisect_left, bisect_right
from collections import Counter
from datetime import UTC, datetime

import pytest

from dropbatch.core import names
from tests.support.aws.resources import BUCKET

PAGE = 1_000
AT = datetime(2026, 11, 21, 9, tzinfo=UTC)
OUTPUT = b'{"id":0,"success":true,"result":{"translated_text":"x"}}\n'
COUNTS = {"total": 1, "succeeded": 1, "failed": 0}


def put_jobs(s3, count):
    """Put finished jobs, as the stack leaves them; yield the keys."""
    for number in range(count):
        path, job_id = (
            f"reviews/{number:05}.jsonl",
            f"20261121T09{number // 600:02}{number % 60:02}Z-{number:08x}",
        )
        folder = names.result(names.INBOX + path, job_id, "")
        manifest = {
            "job_id": job_id,
            "state": "completed",
            "format": "native",
            "error": None,
            "counts": COUNTS,
            "read_to_end": True,
            "cost": {"amount": "0.00001", "estimated": False},
            "source": {"bucket": BUCKET, "key": names.INBOX + path, "version": "v"},
            "files": [
                {
                    "name": "output.jsonl",
                    "kind": "output",
                    "bytes": len(OUTPUT),
                    "sha256": hashlib.sha256(OUTPUT).hexdigest(),
                }
            ],
        }
        status = {
            "state": "completed",
            "counts": COUNTS,
            "read_to_end": True,
            "fraction_done": 1.0,
            "updated_at": "2026-11-21T10:00:00Z",
        }
        for key, body in (
            (
                names.job_record(job_id),
                json.dumps({"path": path, "version": "v", "created_at": "2026-11-21T09:00:00Z"}),
            ),
            (f"{folder}status.json", json.dumps(status)),
            (f"{folder}manifest.json", json.dumps(manifest)),
            (f"{folder}output.jsonl", OUTPUT),
        ):
            s3.put_object(Bucket=BUCKET, Key=key, Body=body)
            yield key


class Calls(Counter):
    """How many calls of each operation were made; and the keys that are listed."""

    listed = ()


@pytest.fixture
def calls(before_calls):
    """Counts calls. Listings are answered from sorted keys."""
    made = Calls()

    def answer(operation, arguments):
        made[operation] += 1
        if operation != "ListObjectsV2" or "Delimiter" in arguments:
            return None
        after = arguments.get("ContinuationToken", arguments.get("StartAfter", ""))
        prefix = arguments["Prefix"]
        first = max(bisect_left(made.listed, prefix), bisect_right(made.listed, after))
        page = [key for key in made.listed[first : first + PAGE] if key.startswith(prefix)]
        more = len(page) == PAGE
        entries = [{"Key": key, "ETag": '"e"', "Size": 1, "LastModified": AT} for key in page]
        return {"Contents": entries, "IsTruncated": more} | (
            {"NextContinuationToken": page[-1]} if more else {}
        )

    before_calls(answer)
    return made


@pytest.mark.parametrize(
    "jobs", [25, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(1_800)])]
)
def test_verbs_over_many_jobs_are_bounded(command, calls, jobs, tmp_path):
    """A page of a listing for a thousand objects, each result read once."""
    calls.listed = sorted(put_jobs(command.world.s3, jobs))
    pages = jobs * 4 // PAGE + 2
    for verb, reads, listings in (
        (("ls",), 2 * jobs, jobs // PAGE + 2),
        (("ls", "--limit", "20"), 40, jobs // PAGE + 2),
        (("status", "reviews/*"), jobs, pages + 1),
        (("wait", "reviews/*"), jobs, 2 * pages + 1),
        (("get", "reviews/", "-o", tmp_path), 2 * jobs, pages),
        (("get", "reviews/", "-o", tmp_path), jobs, pages),
    ):
        calls.clear()
        tracemalloc.start()

        done = command.run(*verb)

        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert done.code == 0, done.err
        assert calls["GetObject"] <= reads, verb
        assert calls["ListObjectsV2"] <= listings, verb
        assert peak < 12e6 + jobs * 6_000, verb
