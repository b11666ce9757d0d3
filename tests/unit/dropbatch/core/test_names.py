"""Object keys: which key is an upload, one job id for one upload."""

import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core import names
from shared import keys

UPLOAD = ("bucket", "inbox/a.jsonl", "v1", "etag")
MODIFIED = datetime(2026, 11, 21, 9, 30, 0, 999_000, tzinfo=UTC)
JOB = "20261121T093000Z-5f3a9c1e"


def test_job_id_has_time_and_eight_hex_digits():
    assert re.fullmatch(r"20261121T093000Z-[0-9a-f]{8}", names.job_id(*UPLOAD, MODIFIED))


@pytest.mark.parametrize("changed", range(4))
def test_other_bucket_key_or_version_is_another_job(changed):
    other = tuple(part + "x" if index == changed else part for index, part in enumerate(UPLOAD))
    assert names.job_id(*other, MODIFIED) != names.job_id(*UPLOAD, MODIFIED)


@pytest.mark.parametrize(
    "key",
    [
        "inbox/",
        "inbox",
        "",
        "results/a",
        "Inbox/a",
        "xinbox/a",
        "/inbox/a",
        "inbox/folder/",
        "inbox/_temporary/0/part-0",
        "inbox/_SUCCESS",
        "inbox/a/_b/c",
        "inbox/.hidden",
        "inbox/a/.part",
        "inbox/a/../b",
        "inbox/.",
    ],
)
def test_what_tools_leave_behind_is_not_upload(key):
    assert not names.is_upload(key)


@pytest.mark.parametrize(("character", "most"), [("a", 900), ("ü", 450), ("日", 300), ("😀", 225)])
def test_path_over_900_bytes_is_reported_apart(character, most):
    assert names.result("inbox/" + most * character, JOB, "manifest.json").startswith(
        "results/" + character
    )
    assert (
        names.result("inbox/" + (most + 1) * character, JOB, "manifest.json")
        == f"results/_long/{JOB}/manifest.json"
    )


@given(path=st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=1_000))
def test_every_result_key_fits_in_s3(path):
    for name in ("output.jsonl", "errors.jsonl", "manifest.json", "batches.jsonl"):
        assert len(names.result("inbox/" + path, JOB, name).encode()) <= 1024


def test_no_two_things_share_key():
    made = [
        *(keys.staged(JOB, number) for number in ("00000000", "00000000.0", "00000001")),
        *(
            make(JOB, "00000000", attempt)
            for make in (keys.receipt, keys.part)
            for attempt in (1, 2, 11)
        ),
        *(
            keys.raw(JOB, "00000000", attempt, ordinal)
            for attempt in (1, 11)
            for ordinal in (0, 1, 11)
        ),
        *(keys.segment(JOB, kind, ordinal) for kind in ("output", "errors") for ordinal in (0, 1)),
    ]
    assert len(set(made)) == len(made)
    assert all(key.startswith(f"staging/{JOB}/") for key in made)
