"""A job as it is stored in its item."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dropbatch.core.names import JobState
from dropbatch.core.plan import Checkpoint, SplitPlan
from shared.models.common import ErrorDetail, Usage, Wait

MAX_JOB_SECONDS = 50 * 86_400
"""Seconds after which a job ends: before its staging objects and items expire (60 days)."""


TOO_OLD_CODE = ErrorDetail(
    "expired",
    "The job was open for 50 days, longer than Dropbatch keeps what it needs to continue.",
)
ACCOUNT_CHANGED = "account_changed"
"""Code of a job whose account is no longer the stack's, and of its records without an answer."""
COST_LIMIT = ErrorDetail(
    "cost_limit", "Not sent: with this batch the job would probably cost more than max_cost."
)
OF_RECORDS = frozenset({TOO_OLD_CODE.code, ACCOUNT_CHANGED})
"""Codes of a job's error that its records have too."""
PAST_DEADLINE = ErrorDetail("expired", "The job's deadline_hours were over.")


@dataclass(frozen=True, slots=True)
class Upload:
    """One version of one object."""

    bucket: str  # the stack's own, or the source bucket
    # key under `inbox/`; for an object of the source bucket, it is derived from the object's own
    # key
    key: str
    version: str  # version id; `null` if the bucket has no versions
    etag: str  # without quotes
    size: int  # stored bytes
    # key in the source bucket; None for an object of the stack's bucket
    source_key: str | None = None

    @property
    def object_key(self) -> str:
        """Key of the object in its bucket."""
        return self.key if self.source_key is None else self.source_key


@dataclass(frozen=True, slots=True)
class ResultFileProgress:
    """How far one result file of a job has been appended to segments."""

    mark: str = ""  # number of the last batch appended; empty before the first
    next_id: int = 0  # records of all batches up to the mark, that is, the first record id after it
    segments: int = 0  # segments that are large enough to be copied as they are
    # how often the segment after them, still too small, was written, each time longer; 0 if there
    # is none
    growing: int = 0
    growing_size: int = 0  # bytes of that segment
    size: int = 0  # bytes appended, in all segments
    lines: int = 0  # lines appended, in all segments
    # state of the running SHA-256 over these bytes, which contains none of them; empty before the
    # first
    sha: str = ""
    # id of the multipart upload that makes the file of its segments; empty until it has begun
    upload: str = ""


@dataclass(frozen=True, slots=True)
class JobTotals:
    """Totals of the batches up to the output's mark."""

    batches: int = 0  # a divided batch counts as its pieces
    succeeded: int = 0
    failed: int = 0
    errors_size: int = 0
    retry_size: int = 0
    usage: Usage = field(default_factory=Usage)
    unmetered_size: int = 0  # bytes of accepted bodies for which the API reported no tokens
    unmetered_records: int = 0  # requests in these bodies
    # accepted submits whose answer was not collected; their bodies are among these, as are those of
    # batches that were accepted and then divided
    uncollected: int = 0
    # ids of theirs whose answers nobody asks for any more, because they were submitted again
    given_up: int = 0
    # their submits with an unknown outcome, and those of batches that were divided into them
    unknowable: int = 0
    told: int = 0  # batches of which an event told that they are over
    pieces: int = 0  # into how many the batches were divided
    for_capacity: int = 0  # the failed records that failed for lack of capacity or time
    estimated: int = 0  # sum of the batches' estimates, if the job has a `max_cost`
    answered: int = 0  # the part of it for records that have an answer


@dataclass(frozen=True, slots=True)
class CostLimit:
    """A job's `max_cost` (`shared.pacing.cost`), in billionths of a US dollar."""

    limit: int  # the option
    room: int  # the sum of estimates up to which its batches may be submitted
    is_reached: bool = False  # whether nothing more of it is submitted


CANCEL, CANCEL_NOW = "cancel", "cancel now"
CANCELLED = ErrorDetail(
    "cancelled", "The job was cancelled before Workers AI accepted this request."
)
CANCELLED_ACCEPTED = ErrorDetail(
    "cancelled",
    "The job was cancelled immediately; Workers AI had accepted this request, so it may be billed.",
)


@dataclass(frozen=True, slots=True)
class JobControl:
    """The result of users' commands (`control/jobs/<job_id>`) in a job. Times are Unix seconds."""

    version: str = ""  # version of the object that was carried out last
    held_since: float = 0.0  # when the job was paused; 0 while it is not
    resumed_at: float = 0.0  # when it was resumed last; 0 if it never was
    # `CANCEL` or `CANCEL_NOW` once it was cancelled, which is final; else empty
    cancelled: str = ""


class SweepGoal(StrEnum):
    """What a sweep does with a job's batches."""

    END_ALL = "end all"  # None is submitted, and no answer is awaited.
    # None is submitted; those that the API has accepted keep waiting for their answers.
    END = "end"
    HOLD = "hold"  # None is submitted for now.
    RELEASE = "release"  # Those that were held get slots again.
    FINISH = "finish"  # Those that split created only to end them are ended.


@dataclass(frozen=True, slots=True)
class Sweep:
    """The progress of a sweep over a job's batches (`functions.poll.sweep`)."""

    goal: SweepGoal  # what it does
    since: float  # the command that it carries out; 0 if there can be only one reason for its goal
    passes: int  # passes over the batches that are still to be made
    due: float = 0.0  # when the pass under way continues
    after: str = ""  # number of the last batch that it looked at; empty at its beginning


@dataclass(frozen=True, slots=True)
class Reading:
    """How far a job's upload has been read; the turns that read it write this."""

    bytes_read: int = 0  # stored bytes that were read
    # where reading continues, if only blank lines lie between this place and the last batch
    blank_until: Checkpoint | None = None
    to_end: bool = True  # whether it was read to its end, or still is being read
    has_endings: bool = False  # whether many batches were created that are never submitted


@dataclass(frozen=True, slots=True)
class Status:
    """What a job's last status told; visits write this."""

    sha: str = ""  # digest of the `status.json` written last, without its time.
    at: float = 0.0  # when it was last computed, Unix seconds
    fraction: float = 0.0  # fraction of its records that had an outcome, 0 to 1; it never falls
    succeeded: int = 0  # records that it counted as succeeded
    failed: int = 0  # records that it counted as failed
    unchanged: int = 0  # consecutive visits at which nothing had changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The work for one upload, as stored in its item. Times are Unix seconds."""

    # What it is.
    job_id: str
    state: JobState
    upload: Upload
    plan: SplitPlan
    created_at: float
    ended_at: float | None = None
    """When its end was first written; its last files, and later writes of them, give this time."""
    completed_at: float | None = None  # When it reached its final state

    # Options that are needed without its `options.json`.
    deadline_at: float | None = None
    """When its records end without an answer; None without the option `deadline_hours`."""
    max_failed_fraction: float | None = None
    """Fraction of its answered records, 0 to 1, above which it fails; None without the option."""
    cost: CostLimit | None = None  # Its `max_cost`, and what it leaves; None without the option
    output_tokens: int = 0
    """Tokens that an answer has on average, by its user; 0 without the option."""
    tags: dict[str, str] = field(default_factory=dict)  # The user's own names and values
    retry_of: str = ""
    """Key of the manifest of the job whose failed records it tries again; else empty."""

    # When it is due, and who works on it.
    due_at: float | None = None
    """When it must be visited again, or its staged objects deleted; None if over."""
    lease_until: float = 0.0  # Until when an invocation works on it
    claims: int = 0  # Claims since the last change of state

    # Its upload.
    total: int | None = None  # Records of the upload; None until it has been read to its end
    reading: Reading = field(default_factory=Reading)

    # Its batches.
    refused: ErrorDetail | None = None
    """How the rest of its records end, because the API refused all that were tried alone."""
    sweep: Sweep | None = None
    """The progress of the newest sweep over its batches; None before the first."""
    wait: Wait | None = None
    """What only its own calls show that it waits for: they fail, or its account is gone."""
    without_references: bool = False
    """Whether its bodies are sent without `external_reference`, which its model refuses."""

    # Why it ends early.
    error: ErrorDetail | None = None  # The whole upload's fault, which stops further submits
    control: JobControl | None = None  # The result of its users' commands; None before the first

    # Its result files.
    output: ResultFileProgress = field(default_factory=ResultFileProgress)
    errors: ResultFileProgress = field(default_factory=ResultFileProgress)
    retry: ResultFileProgress = field(default_factory=ResultFileProgress)
    batches: ResultFileProgress = field(default_factory=ResultFileProgress)
    sums: JobTotals = field(default_factory=JobTotals)

    status: Status = field(default_factory=Status)

    @property
    def is_held(self) -> bool:
        """Whether its users paused it."""
        return self.control is not None and self.control.held_since > 0

    @property
    def cancelled(self) -> str:
        """`CANCEL` or `CANCEL_NOW` if its users cancelled it; else empty."""
        return self.control.cancelled if self.control else ""

    @property
    def final_state(self) -> JobState:
        """The state it ends in, as far as is known now."""
        if self.error:
            return JobState.FAILED
        return JobState.CANCELLED if self.cancelled else JobState.COMPLETED

    @property
    def is_answerless(self) -> bool:
        """Whether no answer of it is awaited: its users or its account ended it at once."""
        is_foreign = self.error is not None and self.error.code == ACCOUNT_CHANGED
        return is_foreign or self.cancelled == CANCEL_NOW

    def is_too_old(self, now: float) -> bool:
        """Whether it has to end, because what it needs will soon be deleted."""
        return now - self.created_at > MAX_JOB_SECONDS

    def is_past_deadline(self, now: float) -> bool:
        """Whether nothing more of it is submitted, because its `deadline_hours` are over."""
        return self.deadline_at is not None and now >= self.deadline_at

    def ending(self, now: float) -> ErrorDetail | None:
        """How its records end that the API has not accepted; None while they may be submitted."""
        if (error := self.error) is not None:
            code = error.code if error.code in OF_RECORDS else "rejected"
            return ErrorDetail(
                code, f"Not sent, because the job was stopped: {error.message}", error.said
            )
        if self.is_past_deadline(now):
            return PAST_DEADLINE
        if self.cancelled:
            return CANCELLED
        if self.refused:
            return self.refused
        return COST_LIMIT if self.cost and self.cost.is_reached else None
