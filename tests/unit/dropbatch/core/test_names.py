"""Object keys, ids of jobs, sizes of batches, and what a secret may hold."""

import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.core import names
from dropbatch.core.errors import holds_several
from dropbatch.core.plan import FIRST_BATCH_RECORDS, SplitPlan, body_room, max_records
from dropbatch.core.read.index import WRAPPER_BYTES
from shared import keys
from shared.workers_ai.transports import NO_TOKEN, ONE_A_STACK, Credentials

UPLOAD = ("bucket", "inbox/a.jsonl", "v1", "etag")
MODIFIED = datetime(2026, 11, 21, 9, 30, 0, 999_000, tzinfo=UTC)
JOB = "20261121T093000Z-5f3a9c1e"


def test_job_id_has_time_and_eight_hex_digits():
    assert re.fullmatch(r"20261121T093000Z-[0-9a-f]{8}", names.job_id(*UPLOAD, MODIFIED))


@pytest.mark.parametrize("changed", range(4))
def test_other_bucket_key_or_version_is_another_job(changed):
    other = tuple(part + "x" if index == changed else part for index, part in enumerate(UPLOAD))
    assert names.job_id(*other, MODIFIED) != names.job_id(*UPLOAD, MODIFIED)


NO_UPLOADS = [
    *("inbox/", "inbox", "", "results/a", "Inbox/a", "xinbox/a", "/inbox/a", "inbox/folder/"),
    *("inbox/_temporary/0/part-0", "inbox/_SUCCESS", "inbox/a/_b/c", "inbox/.hidden"),
    *("inbox/a/.part", "inbox/a/../b", "inbox/."),
]


def test_what_tools_leave_behind_is_not_upload():
    assert [key for key in NO_UPLOADS if names.is_upload(key)] == []


@pytest.mark.parametrize(("character", "most"), [("a", 900), ("ü", 450), ("日", 300), ("😀", 225)])
def test_path_over_900_bytes_is_reported_apart(character, most):
    fits, long = (
        names.result("inbox/" + count * character, JOB, "manifest.json")
        for count in (most, most + 1)
    )
    assert fits.startswith("results/" + character)
    assert long == f"results/_long/{JOB}/manifest.json"


@given(path=st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=1_000))
def test_every_result_key_fits_in_s3(path):
    for name in ("output.jsonl", "errors.jsonl", "manifest.json", "batches.jsonl"):
        assert len(names.result("inbox/" + path, JOB, name).encode()) <= 1024


def test_no_two_things_share_key():
    made = [
        *(keys.staged(JOB, number) for number in ("00000000", "00000000.0", "00000001")),
        *(keys.receipt(JOB, "00000000", attempt) for attempt in (1, 2, 11)),
        *(keys.part(JOB, "00000000", attempt) for attempt in (1, 2, 11)),
        *(keys.raw(JOB, "00000000", *place) for place in product((1, 11), (0, 1, 11))),
        *(keys.segment(JOB, *place) for place in product(("output", "errors"), (0, 1))),
    ]
    assert len(set(made)) == len(made)
    assert all(key.startswith(f"staging/{JOB}/") for key in made)


def plan_of(most, first, first_bytes=0):
    plan = SplitPlan("@cf/baai/bge-m3", most, 9_500_000, "account", first_requests=first)
    return replace(plan, first_bytes=first_bytes)


def test_million_records_are_at_most_450_batches():
    """A small job keeps to small batches."""
    plan = plan_of(5_000, FIRST_BATCH_RECORDS)
    sizes = [max_records(plan, number) for number in range(450)]
    assert sum(sizes) >= 1_000_000
    assert sizes == sorted(sizes)
    assert max(sizes) == 5_000
    assert sum(sizes[:4]) == 2_000


RECORDS = {
    (5_000, 500): {0: 500, 3: 500, 4: 1_000, 8: 2_000, 15: 4_000, 16: 5_000, 10**20: 5_000},
    (300, 500): {0: 300, 4: 300, 400: 300},
    (500, 500): {0: 500, 4: 500, 400: 500},
}
BYTES = {
    3_000_000: {0: 3_000_000, 3: 3_000_000, 4: 6_000_000, 8: 9_500_000, 400: 9_500_000},
    0: {0: 9_500_000, 400: 9_500_000},
}


def test_sizes_double_every_four_batches(subtests):
    for (most, first), sizes in RECORDS.items():
        for number, size in sizes.items():
            with subtests.test(most=most, number=number):
                assert max_records(plan_of(most, first), number) == size
    for first, sizes in BYTES.items():
        for number, size in sizes.items():
            with subtests.test(first_bytes=first, number=number):
                room = body_room(plan_of(5_000, 500, first), number)
                assert room == size - WRAPPER_BYTES + 1


TABLE = {
    "abc": "",
    "": NO_TOKEN,
    "one\ntwo": ONE_A_STACK,
    "one,two": ONE_A_STACK,
    f"one {'f' * 32}": ONE_A_STACK,
    "queues=three": ONE_A_STACK,
    "ä": NO_TOKEN,
}


@pytest.mark.parametrize("value", TABLE)
def test_value_that_cannot_be_sent_is_named(value):
    assert Credentials(value).fault() == TABLE[value]
    assert holds_several(f" {value}\n") == (TABLE[value] == ONE_A_STACK)
