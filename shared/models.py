"""The ledger's jobs and batches as data. Knows no service.

A batch's number is 8 digits. When a batch is divided to isolate bad records, the number of each
piece is that of the batch followed by `.` and one hexadecimal digit (`00000003.a`, and again
`00000003.a.0`). Numbers sort as text in the order of their first record, because `.` sorts before
every digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from dropbatch.core.names import SCHEMA, JobState
from dropbatch.core.plan import Checkpoint, SplitPlan
from shared.workers_ai.usage import Usage


class BatchState(StrEnum):
    """States of a batch; the last two are final."""

    READY = "ready"
    SUBMITTING = "submitting"
    QUEUED = "queued"
    DIVIDED = "divided"
    DONE = "done"


class DueKind(StrEnum):
    """Kinds of due work: the partition keys of the `due` index."""

    FIRST = f"{SCHEMA}#first"  # A job's first batch, to be submitted: no backlog delays it.
    SUBMIT = f"{SCHEMA}#submit"
    POLL = f"{SCHEMA}#poll"
    # A job whose visit moves it on: its upload is read, its batches are swept, its files written.
    JOB = f"{SCHEMA}#job"
    # A job whose visit only shows how far it is, or one that is over and is to be cleaned up: no
    # number of these delays work.
    ROUTINE = f"{SCHEMA}#routine"


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """Why something ended without success."""

    code: str  # one of the documented error codes
    message: str  # Dropbatch's own text for the user
    said: str = ""  # key of the API's own words (`shared.keys`), if it said any


LASTING_SECONDS = 900.0  # Of failing calls, to telling users; then deadlines count
NEVER = 1e11  # A time that does not come, Unix seconds; no item holds an infinite number


@dataclass(frozen=True, slots=True)
class Wait:
    """Why work is put off."""

    until: float  # when it is tried again, Unix seconds; `NEVER` if somebody has to act first
    code: str = ""  # for programs; empty for a moment's lack of calls, of which nobody is told
    message: str = ""  # for people: what it is, and what to do
    since: float = 0.0  # when it began, Unix seconds; 0 if that is not known


@dataclass(frozen=True, slots=True)
class Part:
    """A batch's part: three sections in one object (`shared.keys.part`)."""

    key: str  # the object; empty until its lines are appended to a file, then sizes are estimates
    output: int  # bytes of the output lines, first in the object
    errors: int  # bytes of the error lines, after them
    retry: int  # bytes of the retry lines, last
    retry_lines: int
    succeeded: int
    failed: int
    usage: Usage = field(default_factory=Usage)
    for_capacity: int = 0  # the failed records that failed for lack of capacity or time
    incomplete: int = 0  # the answered records whose answer is none: empty, or cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of a batch and their staged object: body, originals, index. Written once."""

    first_id: int  # id of the first record
    requests: int  # how many, sendable or not
    sendable: int  # how many in the body
    body_size: int  # bytes of the body, first in the staged object
    originals_size: int = 0  # bytes of the records as written, after it; 0 if they are sent so
    end: Checkpoint | None = None  # where the cut continued; None for pieces but the last
    ordinal: int | None = None  # batches with a sendable record before it, if they are counted
    estimate: int = 0  # with longest answers, in billionths of a dollar; 0 without `max_cost`
    estimated_before: int = 0  # sum of the estimates of the batches before
    suspected: str = ""  # of a piece: the `cause` of the batch that was divided


@dataclass(frozen=True, slots=True)
class Submission:
    """The acceptance of a batch by the API that counts: its latest."""

    request_id: str  # empty if the answer came immediately
    attempt: int  # the POST that was accepted
    at: float  # Unix seconds of the acceptance


@dataclass(frozen=True, slots=True)
class Pending:
    """A reply that the batch is pending: when it came, Unix seconds, and the API's own word."""

    at: float
    status: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """The same reply to polls in a row, or to submits (5028): believed only after several."""

    kind: str  # the reply (`functions.poll.doubts`); another kind is another doubt.
    since: float  # Unix seconds of the first of them
    times: int = 1  # how many they are
    is_shared: bool = False  # whether another id of the account got the same reply meanwhile


def cause_of(code: int | None) -> str:
    """Why a batch was refused or failed, from the API's code; of bounded length."""
    return "failed" if code is None else str(code)[:20]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive records submitted together, as stored in their item. Times are Unix seconds."""

    # What it is.
    job_id: str
    number: str
    state: BatchState
    created_at: float
    completed_at: float | None = None
    records: Records

    # When it is due, and who works on it.
    due_at: float | None = None  # None in a final state
    work: DueKind | None = None  # Which kind of due work it is; None in a final state
    claims: int = 0  # Claims since the last change of state or answer
    fence: float = 0.0  # End of the submit lease: before it, no other function may try
    held: bool = False  # Whether it is postponed because its job is paused
    ready_at: float = 0.0  # Since when it waits to be accepted again; 0 until it was accepted once
    paused: float = 0.0  # Seconds of pauses since `ready_at` or since it was accepted

    # Submits.
    attempt: int = 0  # POSTs begun for this batch; 0 before the first
    submission: Submission | None = None  # Its acceptance; None once another submit has begun
    given_up: int = 0  # Acceptances before it, whose answers nobody asks for any more
    unknowable: int = 0  # Submits with an unknown outcome
    refusals: int = 0  # Consecutive refusals, for the back-off
    calls_fail_since: float = 0.0  # Time of the first of consecutive failed calls; 0 for none

    # Polls.
    polls: int = 0  # Polls begun
    polls_settled: int = 0  # The last poll whose reply, if one is stored, needs nothing more
    pending: Pending | None = None  # What the API last said of it while it was pending
    told_at: float = 0.0  # When an event said that it is over; 0 if none did
    doubt: Doubt | None = None  # What the last calls said, if it is believed only after several
    partial_replies: tuple[str, ...] = ()  # Keys of stored replies that lacked items, oldest first

    isolating: ErrorDetail | None = None  # Why it was refused or failed as a whole, and is divided
    cause: str = ""  # What `cause_of` says of that refusal or failure; pieces are compared by it
    pieces: int = 0  # How many pieces the batch is divided into, decided once; 0 before that
    ending: ErrorDetail | None = None  # How all its records end, if no answer will come
    part: Part | None = None  # Its result lines, once it is done

    @property
    def index_offset(self) -> int:
        """Where the index begins in the staged object."""
        return self.records.body_size + self.records.originals_size

    @property
    def submit_work(self) -> DueKind:
        """The kind of due work that it is while it waits to be submitted."""
        return DueKind.FIRST if self.records.ordinal == 0 and not self.ready_at else DueKind.SUBMIT

    @property
    def accepted_at(self) -> float | None:
        """When the API last accepted the batch."""
        return self.submission.at if self.submission else None

    @property
    def pending_at(self) -> float:
        """When the API last said that it is pending; 0 if it never did."""
        return self.pending.at if self.pending else 0.0

    @property
    def accepted(self) -> int:
        """How often the API has accepted it."""
        return self.given_up + (self.submission is not None)

    @property
    def submits(self) -> int:
        """Submits that the API accepted, or may have accepted."""
        return self.accepted + self.unknowable

    @property
    def waiting_since(self) -> float:
        """Since when it waits to be accepted, excluding pauses."""
        return (self.ready_at or self.created_at) + self.paused

    def paused_after(self, seconds: float, until: float) -> float:
        """Seconds of pauses after one more, if the batch is due at `until`; no more than it waited.

        The same pause may be counted twice: by a message that comes twice, or clocks that differ.
        """
        since = max(self.ready_at or self.created_at, self.accepted_at or 0.0)
        return max(min(self.paused + seconds, until - since), 0.0)


MAX_JOB_SECONDS = 50 * 86_400  # Then a job ends: what it needs expires at 60 days
TOO_OLD_CODE = ErrorDetail(
    "expired",
    "The job was open for 50 days, longer than Dropbatch keeps what it needs to continue.",
)
ACCOUNT_CHANGED = "account_changed"  # Code of a job of an account that is not the stack's
COST_LIMIT = ErrorDetail(
    "cost_limit", "Not sent: with this batch the job would probably cost more than max_cost."
)
OF_RECORDS = frozenset({TOO_OLD_CODE.code, ACCOUNT_CHANGED})  # Codes that a job's records have too
PAST_DEADLINE = ErrorDetail("expired", "The job's deadline_hours were over.")


@dataclass(frozen=True, slots=True)
class Upload:
    """One version of one object."""

    bucket: str  # the stack's own, or the source bucket
    key: str  # key under `inbox/`; that of an object of the source bucket is derived
    version: str  # version id; `null` if the bucket has no versions
    etag: str  # without quotes
    size: int  # stored bytes
    source_key: str | None = None  # key in the source bucket; None for one of the own bucket

    @property
    def object_key(self) -> str:
        """Key of the object in its bucket."""
        return self.key if self.source_key is None else self.source_key


@dataclass(frozen=True, slots=True)
class ResultFileProgress:
    """How far one result file of a job has been appended to segments."""

    mark: str = ""  # number of the last batch appended; empty before the first
    next_id: int = 0  # the first record id after the mark
    segments: int = 0  # segments that are large enough to be copied as they are
    growing: int = 0  # how often the one after them, still too small, was written; 0: never
    growing_size: int = 0  # bytes of that segment
    size: int = 0  # bytes appended, in all segments
    lines: int = 0  # lines appended, in all segments
    sha: str = ""  # state of the running SHA-256 over these bytes; empty before the first
    upload: str = ""  # id of the multipart upload that makes the file, once it has begun


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
    uncollected: int = 0  # accepted submits without a collected answer; their bodies count above
    given_up: int = 0  # ids whose answers nobody asks for any more
    unknowable: int = 0  # submits with an unknown outcome
    told: int = 0  # batches of which an event told that they are over
    pieces: int = 0  # into how many the batches were divided
    for_capacity: int = 0  # the failed records that failed for lack of capacity or time
    incomplete: int = 0  # the answered records whose answer is none: empty, or cut off
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
    cancelled: str = ""  # `CANCEL` or `CANCEL_NOW` once it was cancelled, for good


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
    ended_at: float | None = None  # When its end was first written; its last files tell this time
    completed_at: float | None = None  # When it reached its final state

    deadline_at: float | None = None  # When its records end without an answer, by `deadline_hours`
    max_failed_fraction: float | None = None  # Fraction of answered records above which it fails
    cost: CostLimit | None = None  # Its `max_cost`, and what it leaves; None without the option
    output_tokens: int = 0  # Tokens of an answer on average, by its user; 0: not given
    tags: dict[str, str] = field(default_factory=dict)  # The user's own names and values
    retry_of: str = ""  # Key of the manifest of the job whose failed records it tries again

    due_at: float | None = None  # When it is visited, or its staged objects deleted
    lease_until: float = 0.0  # Until when an invocation works on it
    claims: int = 0  # Claims since the last change of state

    # Its upload.
    total: int | None = None  # Records of the upload; None until it has been read to its end
    reading: Reading = field(default_factory=Reading)

    refused: ErrorDetail | None = None  # How the rest ends: all that were tried alone were refused
    sweep: Sweep | None = None  # The progress of the newest sweep over its batches
    wait: Wait | None = None  # What only its own calls show that it waits for
    without_references: bool = False  # Whether its model refuses `external_reference`

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
