"""The commands of docs/results.md that wait for a job."""

import re
import subprocess
from datetime import UTC, datetime

import pytest

from dropbatch.core.names import job_id
from tests.support.shipped import ROOT

UPLOADED = datetime(2026, 11, 21, 20, 39, 32, tzinfo=UTC)


@pytest.mark.parametrize(
    "printed", ["2026-11-21T20:39:32+00:00", "2026-11-21T20:39:32.000Z"], ids=["cli-2", "cli-1"]
)
def test_waiting_finds_job_of_newest_upload_of_key(printed):
    page = (ROOT / "docs" / "results.md").read_text()
    (shown,) = re.findall(r"^AT=\$\(aws [^|]+\| (.+)\)$", page, re.MULTILINE)
    (prefix,) = re.findall(r"results/\$FILE/(\S+) \| grep manifest\.json$", page, re.MULTILINE)

    done = subprocess.run(
        ["sh", "-c", shown], input=printed + "\n", capture_output=True, text=True, check=True
    )

    folder = prefix.replace("${AT}", done.stdout.strip())
    assert job_id("files", "inbox/july.jsonl", "v2", "etag", UPLOADED).startswith(folder)
    assert not job_id(
        "files", "inbox/july.jsonl", "v1", "etag", UPLOADED.replace(second=31)
    ).startswith(folder)
