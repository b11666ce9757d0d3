"""Where a turn of split begins and how it ends.

Read to the end, to be gone on with, broken, cancelled.

Who takes a turn and how long it lasts: test_split_turn.py.
"""

from dataclasses import replace

import pytest

from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint
from dropbatch.errors import UploadRefused
from functions.submit import read as turn
from functions.submit import stage as split
from shared.errors import InvariantError
from shared.models import CANCEL, ErrorDetail, JobControl
from shared.retry import MAX_CLAIMS
from tests.support.doubles.splitting import SIZES, Fake, place

NOW = 1_000.0
BROKEN = ErrorDetail("bad_options", "the first error")
OVER = JobControl("v", cancelled=CANCEL)


def after_a_turn(batches=3):
    """A job of which some batches are there."""
    fake = Fake()
    fake.run()
    for number in list(fake.batches)[batches:]:
        del fake.batches[number], fake.objects[f"staging/job/{number}/request"]
    fake.job = replace(fake.job, state=JobState.SPLITTING, total=None)
    fake.calls.clear()
    return fake


# ── where it begins and how it ends ───────────────────────────────────────────────────────────────


def test_partly_read_upload_is_due_immediately(monkeypatch):
    monkeypatch.setattr(turn, "TURN_SECONDS", -1.0)
    fake = Fake()

    assert fake.run()

    assert fake.given["release"] == NOW
    assert "end" not in fake.calls


@pytest.mark.parametrize(
    ("job", "error"),
    [
        ({"claims": MAX_CLAIMS}, None),
        (
            {"claims": MAX_CLAIMS + 1},
            ErrorDetail(
                "internal",
                "Dropbatch could not read the whole upload; the submit function's log shows why.",
            ),
        ),
        ({"error": BROKEN}, BROKEN),
        ({"error": BROKEN, "claims": MAX_CLAIMS + 1}, BROKEN),
    ],
    ids=["the last claim", "one claim more", "an error", "its first error stays"],
)
def test_job_with_error_ends_where_it_is(job, error):
    fake = after_a_turn(3)
    fake.job = replace(fake.job, **job)

    assert fake.run()

    assert fake.given["end"] == ((23, None, True) if error is None else (3, error, False))
    assert ("create" in fake.calls) is (error is None)
    assert "release" not in fake.calls
    if error is None:
        fake.check_whole(SIZES)


def test_cancelled_job_ends_where_it_is():
    fake = after_a_turn(3)
    fake.job = replace(fake.job, control=OVER)

    assert fake.run()

    assert fake.given["end"] == (3, None, False)
    assert "create" not in fake.calls
    assert "status" not in fake.calls


@pytest.mark.parametrize(
    ("changes", "error"),
    [({"control": OVER}, None), ({"error": BROKEN}, BROKEN)],
    ids=["cancelled", "failed"],
)
def test_job_stopped_while_split_ends(changes, error):
    fake = Fake()
    fake.update_leased_job = lambda job, _changes: replace(job, **changes)

    assert fake.run()

    assert fake.given["end"] == (1, error, False)
    assert (fake.messages, fake.visits) == (["00000000"], ["job"])
    assert "release" not in fake.calls


@pytest.mark.parametrize(
    ("changes", "end"), [({"control": OVER}, (0, None, False)), (None, (23, None, True))]
)
def test_command_that_came_before_job_is_obeyed(monkeypatch, changes, end):
    """If something else changed the job meanwhile, the next visit obeys it."""
    monkeypatch.setattr(split, "obey", lambda _services, job: changes and replace(job, **changes))
    fake = Fake()

    assert fake.run()

    assert fake.given["end"] == end


def test_run_that_is_replaced_sends_no_visit():
    fake = Fake()
    fake.job = replace(fake.job, error=BROKEN)
    fake.end_split = lambda *_given, **_more: None

    assert fake.run()

    assert fake.visits == []


def test_broken_upload_ends_after_batches_before(monkeypatch):
    monkeypatch.setattr("functions.submit.stage.MAX_AHEAD", 0)
    fake = Fake()
    read = fake.read_version
    monkeypatch.setattr("functions.submit.read.RANGE_BYTES", 100)

    def gone(key, version, etag, start, length):
        if start >= 100:
            raise UploadRefused("source_gone", "it was removed")
        return read(key, version, etag, start, length)

    fake.read_version = gone

    assert fake.run()

    total, error, read_to_end = fake.given["end"]
    assert (error, read_to_end) == (ErrorDetail("source_gone", "it was removed"), False)
    assert total == sum(batch.records.requests for batch in fake.batches.values()) > 0


@pytest.mark.parametrize(("form", "put"), [("jsonl", False), ("", True)])
def test_job_ended_without_plan_is_found_by_id(form, put):
    fake = Fake()
    fake.job = replace(fake.job, error=BROKEN, plan=replace(fake.job.plan, form=form))

    assert fake.run()

    assert ("results/_jobs/job.json" in fake.objects) is put


def test_job_without_batch_begins_at_first_record():
    """After a byte order mark, or the header of a table."""
    fake = Fake()
    plan = replace(fake.job.plan, start=place(2).offset, start_line=2)
    fake.job = replace(fake.job, plan=plan)
    fake.check = lambda: None

    assert fake.run()

    assert fake.batches["00000000"].records.end == Checkpoint(place(3).offset, 3, 1)
    assert fake.given["end"] == (21, None, True)


def test_last_batch_without_end_breaks_law():
    fake = after_a_turn(3)
    last = fake.batches["00000002"]
    fake.batches["00000002"] = replace(last, records=replace(last.records, end=None))

    with pytest.raises(InvariantError, match="batch job/00000002 has no end"):
        fake.run()


# ── what is refused as a whole ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("a" * 900, None),
        ("é" * 450, None),
        ("a" * 901, "path_too_long"),
        ("é" * 450 + "a", "path_too_long"),
    ],
    ids=["900 letters", "450 of two bytes", "901 letters", "450 of two bytes and one more"],
)
def test_path_has_900_bytes_at_most(path, code):
    fake = Fake()
    fake.job = replace(fake.job, upload=replace(fake.job.upload, key=f"inbox/{path}"))

    assert fake.run()

    _, error, _ = fake.given["end"]
    assert (error and error.code) == code


@pytest.mark.parametrize(
    ("model", "code"), [("", "no_model"), ("gpt-4", "bad_model"), ("@cf/a/b", None)]
)
def test_upload_with_record_needs_model(model, code):
    fake = Fake()
    fake.job = replace(fake.job, plan=replace(fake.job.plan, model=model))

    assert fake.run()

    total, error, read_to_end = fake.given["end"]
    assert (error and error.code) == code
    assert (total, read_to_end) == ((0, False) if code else (23, True))


@pytest.mark.parametrize("model", ["", "gpt-4"])
def test_empty_upload_needs_none(model):
    fake = Fake()
    fake.job = replace(
        fake.job, plan=replace(fake.job.plan, model=model), upload=replace(fake.job.upload, size=0)
    )

    assert fake.run()

    assert fake.given["end"] == (0, None, True)
    assert fake.visits == ["job"], "no answer brings its visit"
