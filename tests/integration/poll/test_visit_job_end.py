"""How a visit ends a job: as far as time allows, and one that could not be finished."""

import msgspec
import pytest

from dropbatch.core import names
from dropbatch.core.names import JobState
from dropbatch.core.plan import SplitPlan
from functions.poll import end
from functions.poll import files as result_files
from functions.poll.end import CLEAN_AFTER_SECONDS
from functions.poll.files import STEP_SECONDS, next_final_batches
from shared.errors import InvariantError
from shared.models import Job, JobTotals, ResultFileProgress, Status
from shared.retry import MAX_CLAIMS
from tests.support.doubles.ledger_items import JOB, M2M, REASON, T
from tests.support.doubles.visited_jobs import LINE

BEDROCK = SplitPlan(M2M, 500, 9_500_000, "account", format="bedrock")


def listed(visited):
    """Kinds of the files in the manifest, with their lines."""
    return {
        file["kind"]: file["lines"]
        for file in msgspec.json.decode(visited.read("manifest.json"))["files"]
    }


def loses_lease(visited, monkeypatch, name):
    """Another run takes the job just before this attribute of its item would be written."""
    real = visited.ledger.update_leased_job

    def update(job, changes):
        if name in changes:
            visited.item.change("lease_until", T + 999)
        return real(job, changes)

    monkeypatch.setattr(visited.ledger, "update_leased_job", update, raising=False)


# ── what is written ───────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("batches", "error", "files"),
    [
        ([], None, {"output": 0}),
        ([(2, 0), (1, 0)], None, {"output": 3}),
        ([(1, 1), (0, 1)], None, {"output": 3, "errors": 2, "retry": 2}),
        ([], REASON, {}),
        ([(1, 0)], REASON, {"output": 1}),
    ],
    ids=["no records", "no failures", "failures", "failed", "failed with an answer"],
)
def test_job_has_nonempty_files_and_if_completed_its_output(visited, batches, error, files):
    visited.hold(*batches, total=sum(map(sum, batches)), error=error)

    assert visited.visit()

    assert listed(visited) == files
    assert not files or visited.read("output.jsonl") == LINE * files["output"]
    state = JobState.FAILED if error else JobState.COMPLETED
    assert (visited.job.state, visited.job.completed_at) == (state, T)


@pytest.mark.parametrize("batches", [2, 3])
def test_long_list_of_batches_has_own_file(visited, monkeypatch, batches):
    monkeypatch.setattr(end, "MANIFEST_BATCHES", 2)
    visited.hold(*[(1, 0)] * batches, total=batches)

    visited.visit()

    in_manifest = [
        one["number"] for one in msgspec.json.decode(visited.read("manifest.json"))["batches"]
    ]
    assert in_manifest == (["00000000", "00000001"] if batches == 2 else [])
    assert listed(visited).get("batches") == (None if batches == 2 else 3)


@pytest.mark.parametrize(
    ("changes", "is_there"),
    [({}, False), ({"plan": BEDROCK}, True), ({"plan": BEDROCK, "error": REASON}, False)],
)
def test_only_bedrock_job_has_bedrock_manifest(visited, changes, is_there):
    visited.hold((1, 0), total=1, **changes)

    visited.visit()

    assert ("manifest.json.out" in visited.files()) is is_there
    assert "manifest.json" in visited.files()


def test_end_is_reported_with_its_first_time(visited):
    visited.hold((1, 0), total=1, state=JobState.FINALIZING, ended_at=T - 100)

    visited.visit()

    assert (
        msgspec.json.decode(visited.read("manifest.json"))["completed_at"] == "2026-11-21T09:28:20Z"
    )
    assert [told["state"] for told in visited.told] == ["completed"]


@pytest.mark.parametrize(
    "changes",
    [
        {"output": ResultFileProgress("00000000", 1, lines=2)},
        {
            "output": ResultFileProgress("00000000", 1, lines=1),
            "sums": JobTotals(1, succeeded=0, failed=0),
        },
        {
            "output": ResultFileProgress("00000000", 1, lines=1),
            "sums": JobTotals(1, succeeded=1, failed=1),
        },
    ],
    ids=["more lines", "fewer counted", "more counted"],
)
def test_job_with_wrong_line_count_does_not_end(visited, changes):
    visited.hold((1, 0), **{"total": 1, "sums": JobTotals(1, succeeded=1), **changes})

    with pytest.raises(InvariantError, match="lines for 1 records"):
        visited.visit()

    assert "manifest.json" not in visited.files()


# ── when the time is not enough, or another run takes the job ─────────────────────────────────────
@pytest.mark.parametrize("remaining", [STEP_SECONDS, STEP_SECONDS - 0.1])
def test_last_step_is_made_if_there_is_time_for_one(visited, remaining):
    visited.hold((1, 0), total=1)

    assert visited.visit(remaining)

    is_over = remaining == STEP_SECONDS
    assert visited.job.state is (JobState.COMPLETED if is_over else JobState.FINALIZING)
    assert visited.job.output.mark == ("00000000" if is_over else "")
    assert (visited.job.due_at, visited.job.lease_until) == (
        (T + CLEAN_AFTER_SECONDS if is_over else T),
        0.0,
    )


@pytest.mark.parametrize("remaining", [STEP_SECONDS, STEP_SECONDS - 0.1])
def test_next_file_gets_step_if_time_allows(visited, remaining):
    visited.hold((0, 1), total=1)
    left = [600.0]
    real = visited.ledger.update_leased_job

    def update(job, changes):
        if "output" in changes:
            left[0] = remaining
        return real(job, changes)

    visited.ledger.update_leased_job = update

    assert visited.visit(lambda: left[0])

    is_over = remaining == STEP_SECONDS
    assert visited.job.state is (JobState.COMPLETED if is_over else JobState.FINALIZING)
    assert (visited.job.output.mark, visited.job.errors.mark) == (
        "00000000",
        "00000000" if is_over else "",
    )
    assert ("manifest.json" in visited.files()) is is_over


@pytest.mark.parametrize("name", ["state", "output", "ended_at"])
def test_run_that_loses_its_lease_writes_no_manifest(visited, monkeypatch, name):
    visited.hold((1, 0), total=1)
    loses_lease(visited, monkeypatch, name)

    assert visited.visit() is False

    assert "manifest.json" not in visited.files()
    assert visited.job.lease_until == T + 999


def test_smaller_segment_of_earlier_run_counts(visited, monkeypatch):
    """The earlier run died after it had written the segment; the last batch was not final then."""
    monkeypatch.setattr(result_files, "SEGMENT_BYTES", len(LINE))
    visited.hold((1, 0), (1, 0), (1, 0), total=3)
    ledger = visited.ledger
    job = ledger.lease_job(visited.job, T, T + 1)
    job = result_files.append_segment(
        visited, job, "output", next_final_batches(visited, job, "output"), final=False
    )
    result_files.append_segment(
        visited, job, "output", next_final_batches(visited, job, "output"), final=False
    )
    for name in ("output", "sums"):
        visited.item.change(name, getattr(job, name))
    visited.item.change("lease_until", 0.0)
    visited.item.change("due_at", T)
    monkeypatch.setattr(result_files, "SEGMENT_BYTES", 1_000)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 1)

    assert visited.visit()
    assert (visited.job.output.mark, visited.job.due_at) == ("00000001", T)
    assert visited.visit()

    assert visited.read("output.jsonl") == 3 * LINE
    assert visited.job.state is JobState.COMPLETED


# ── a job that could not be finished for days ─────────────────────────────────────────────────────
def stuck(visited, *batches, **changes) -> Job:
    return visited.hold(
        *batches, **{"total": 9, "claims": MAX_CLAIMS, "status": Status(at=T), **changes}
    )


def test_given_up_job_has_lines_appended_so_far(visited, monkeypatch):
    monkeypatch.setattr(result_files, "MIN_STEP_BATCHES", 1)
    visited.hold((1, 1), None, (1, 0), total=9)
    visited.visit()
    visited.item.change("due_at", int(T))
    visited.item.change("claims", MAX_CLAIMS)

    assert visited.visit()

    assert visited.job.error.code == "internal"
    assert f"staging/{visited.job_id}/" in visited.job.error.message
    assert visited.job.state is JobState.FAILED
    assert listed(visited) == {"output": 2, "errors": 1, "retry": 1}
    assert visited.read("output.jsonl") == 2 * LINE
    assert visited.job.due_at is None, "the message says that the answers are kept"


@pytest.mark.parametrize("failed", [False, True])
def test_job_ends_as_its_manifest_says(visited, failed):
    stuck(visited, None, state=JobState.FINALIZING, error=REASON if failed else None, total=0)
    visited.store.put(names.result(JOB.upload.key, visited.job_id, "manifest.json"), b"{}")

    assert visited.visit()

    assert visited.read("manifest.json") == b"{}"
    assert visited.job.state is (JobState.FAILED if failed else JobState.COMPLETED)
    assert (visited.job.due_at is None) is failed, "what is staged for it stays"


def test_run_without_lease_does_not_give_up_job(visited, monkeypatch):
    stuck(visited, (1, 0), None)
    loses_lease(visited, monkeypatch, "error")

    assert visited.visit() is False

    assert visited.job.error is None
    assert visited.files() == set()


def test_given_up_job_continues_slow_file_later(visited):
    stuck(
        visited,
        (0, 1),
        None,
        output=ResultFileProgress("00000000", 1, size=len(LINE), lines=1),
        sums=JobTotals(1, failed=1, errors_size=len(LINE)),
    )

    assert visited.visit(STEP_SECONDS - 0.1)

    assert visited.job.state is JobState.FINALIZING
    assert "manifest.json" not in visited.files()
