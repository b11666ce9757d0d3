"""The words of the ledger: jobs, batches and their states, as data. Knows no service.

A batch's number is 8 digits. When a batch is split to isolate bad records, the number of each piece is that of the
batch followed by `.` and one hexadecimal digit (`00000003.a`, and again `00000003.a.0`). Numbers sort as text in the
order of their first record, because `.` sorts before every digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

SCHEMA = "v1"
"""Version of the items' schema; part of the `due` index's partition key, so that newer items are left alone."""


class JobState(StrEnum):
    """States of a job; the last two are final."""

    SPLITTING = "splitting"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"


class BatchState(StrEnum):
    """States of a batch; the last two are final."""

    READY = "ready"
    SUBMITTING = "submitting"
    QUEUED = "queued"
    HALVED = "halved"
    DONE = "done"


FINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.FAILED})


class DueKind(StrEnum):
    """Kinds of due work: the partition keys of the `due` index."""

    FIRST = f"{SCHEMA}#first"  # A job's first batch, to be submitted: no backlog stands before it.
    SUBMIT = f"{SCHEMA}#submit"
    POLL = f"{SCHEMA}#poll"
    JOB = f"{SCHEMA}#job"


@dataclass(frozen=True, slots=True)
class ErrorDetail:
    """Why something ended other than well.

    Attributes:
        code: one of the documentation's.
        message: words of ours for the user.
        said: key of the object with the API's message, which may quote a prompt (`shared.api_messages`); or empty.
    """

    code: str
    message: str
    said: str = ""


MAX_JOB_SECONDS = 50 * 86_400
"""Seconds after which a job ends, whatever it waits for: well before staging, after 60 days, and items are deleted."""
TOO_OLD_CODE = ErrorDetail(
    "expired", "The job was open for 50 days, longer than Dropbatch keeps what it needs to go on."
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the API told them; None where it told none."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None

    def plus(self, other: Usage) -> Usage:
        """Sum two usages; what neither knows stays unknown."""

        def add(a: int | None, b: int | None) -> int | None:
            return b if a is None else a if b is None else a + b

        return Usage(
            add(self.prompt_tokens, other.prompt_tokens),
            add(self.completion_tokens, other.completion_tokens),
            add(self.total_tokens, other.total_tokens),
        )


@dataclass(frozen=True, slots=True)
class SplitPlan:
    """How an upload is cut; pinned in its job, so that every run cuts alike.

    Attributes:
        model: the model id, empty while none was given.
        max_requests: records in a batch, at most.
        max_bytes: bytes of a batch's body.
        account: the Cloudflare account the job is submitted to.
        form: `jsonl`, `object` (the API's document) or `array` (one without its wrapper); empty until it is known.
        packing: `plain`, `gzip` or `zstd`; empty until it is known.
        start: offset in the unpacked bytes of the first record's line, or of the place after the array's bracket.
        first_requests: records in the first batches, at most; later ones grow up to `max_requests`. 0: all have
            `max_requests` (jobs created before batches grew).
    """

    model: str
    max_requests: int
    max_bytes: int
    account: str
    form: str = ""
    packing: str = ""
    start: int = 0
    first_requests: int = 0

    @property
    def is_document(self) -> bool:
        """Whether records are elements of a JSON document instead of lines."""
        return self.form in {"object", "array"}


@dataclass(frozen=True, slots=True)
class Upload:
    """One version of one object under `inbox/`; `size` is its stored bytes."""

    bucket: str
    key: str
    version: str
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a cut ends: offset in the unpacked bytes, lines read, records read."""

    offset: int = 0
    line: int = 0
    record: int = 0


@dataclass(frozen=True, slots=True)
class ResultFileProgress:
    """How far one result file of a job has been joined into segments.

    Attributes:
        mark: number of the last batch taken in; empty before the first.
        next_id: records of all batches up to the mark, that is, the first record id after it.
        segments: segments that are large enough to be copied as they are.
        growing: times the one behind them, which is not yet, was written, each time longer; 0 if there is none.
        growing_size: its bytes.
        size: bytes joined, in all segments.
        lines: lines joined, in all segments.
        sha: state of the running SHA-256 over these bytes, which holds none of them; empty before the first.
        upload: id of the multipart upload that joins the segments; empty until it has begun.
    """

    mark: str = ""
    next_id: int = 0
    segments: int = 0
    growing: int = 0
    growing_size: int = 0
    size: int = 0
    lines: int = 0
    sha: str = ""
    upload: str = ""


@dataclass(frozen=True, slots=True)
class JobTotals:
    """What the batches up to the output's mark amount to; `batches` are leaves: a halved one counts as its halves."""

    batches: int = 0
    succeeded: int = 0
    failed: int = 0
    errors_size: int = 0
    retry_size: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Part:
    """What a batch's part holds: three sections in one object (`shared.s3_keys.part`).

    Attributes:
        key: the object.
        output: bytes of the output lines, first in the object.
        errors: bytes of the error lines, after them.
        retry: bytes of the retry lines, last.
    """

    key: str
    output: int
    errors: int
    retry: int
    retry_lines: int
    succeeded: int
    failed: int
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Submission:
    """One acceptance of a batch by the API, in one of its rounds.

    Attributes:
        request_id: empty where the answer came at once.
        attempt: the POST that was accepted.
        at: Unix seconds of the acceptance.
        round: the round.
        misses: once there is a later one of its round, polls in a row that found the id unknown, failed or refused;
            `missed_at` is the first of them.
        given_up: whether that was believed, so that the id is polled no more.
    """

    request_id: str
    attempt: int
    at: float
    round: int = 0
    misses: int = 0
    missed_at: float = 0.0
    given_up: bool = False


@dataclass(frozen=True, slots=True)
class LastingError:
    """What one batch of a job has been tried against in vain, for a quarter of an hour or longer.

    Attributes:
        code: the API's code or the HTTP status of the last try; 0 for no connection or no answer.
        since: Unix seconds of the first try.
        at: Unix seconds of the last try.
        polling: whether a request_id was asked after, instead of a batch submitted.
    """

    code: int
    since: float
    at: float
    polling: bool


def cause_of(code: int | None) -> str:
    """What a batch failed for, by the API's code: what its pieces are compared by. Of bounded length."""
    return "failed" if code is None else str(code)[:20]


@dataclass(frozen=True, slots=True)
class Isolation:
    """What isolating bad records has come to in a job. Its size is bounded, whatever the job's.

    Attributes:
        submits: submits it was granted so far: one for each piece of each batch that was granted a split.
        granted: numbers of batches that were granted a split and may not have written it down yet.
        causes: by cause, what this job knows of it (`functions.poll.bisect_batch`).
    """

    submits: int = 0
    granted: tuple[str, ...] = ()
    causes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartialReply:
    """A stored reply of one of a batch's rounds that lacked items; `key` is its object."""

    key: str
    round: int


@dataclass(frozen=True, slots=True)
class Job:
    """The work for one upload, as its item holds it. Times are Unix seconds.

    Attributes:
        due_at: when somebody must look at the job again; None only in a final state.
        lease_until: until when an invocation works on it.
        claims: claims since the last change of state.
        total: records of the upload; None until it has been read to its end.
        error: the whole upload's fault, which stops further submits.
        stopped: why further submits are pointless although the upload is sound; written by earlier versions only.
        seen_accepted: whether any batch was ever accepted.
        isolation: what isolating bad records has come to; None before the first batch is split.
        quiet: visits in a row at which nothing had changed.
        status_sha: digest of the status.json written last, without its time.
        told_at: when the job was last looked at to be told of.
        told_succeeded: records that the last status counted as succeeded.
        told_failed: records that it counted as failed.
        bytes_read: stored bytes of the upload that split has read.
        trouble: what one of its batches is tried against in vain.
    """

    job_id: str
    state: JobState
    upload: Upload
    plan: SplitPlan
    created_at: float
    due_at: float | None = None
    lease_until: float = 0.0
    claims: int = 0
    total: int | None = None
    error: ErrorDetail | None = None
    stopped: ErrorDetail | None = None
    seen_accepted: bool = False
    isolation: Isolation | None = None
    output: ResultFileProgress = field(default_factory=ResultFileProgress)
    errors: ResultFileProgress = field(default_factory=ResultFileProgress)
    retry: ResultFileProgress = field(default_factory=ResultFileProgress)
    batches: ResultFileProgress = field(default_factory=ResultFileProgress)
    sums: JobTotals = field(default_factory=JobTotals)
    quiet: int = 0
    fraction: float = 0.0
    status_sha: str = ""
    told_at: float = 0.0
    told_succeeded: int = 0
    told_failed: int = 0
    bytes_read: int = 0
    trouble: LastingError | None = None
    completed_at: float | None = None

    def believes(self, cause: str) -> bool:
        """Whether a batch of this job failed for this cause before, so that one answer suffices to believe it."""
        return self.isolation is not None and cause in self.isolation.causes

    def is_too_old(self, now: float) -> bool:
        """Whether it has to end, because what it needs will soon be deleted."""
        return now - self.created_at > MAX_JOB_SECONDS


@dataclass(frozen=True, slots=True)
class Batch:
    """Consecutive records submitted together, as their item holds them. Times are Unix seconds.

    Attributes:
        attempt: POSTs begun for this batch; 0 before the first.
        first_id: id of the first record.
        requests: records, sendable or not.
        sendable: records that the body holds.
        body_size: bytes of the body, first in the staged object; its sidecar follows.
        end: where the cut went on after this batch; None for every piece of a batch but the last.
        ordinal: how many batches with a sendable record the job has before this one; None where nobody counted.
        work: which kind of due work it is; None in a final state.
        fence: nobody else may try the batch before this time.
        claims: claims since the last change of state or answer.
        submissions: every request_id the batch ever had, oldest first.
        polls: polls begun.
        polls_settled: the last poll of which it is known that it stored no reply that is still to be taken in.
        pending_at: when the API last said that it is pending.
        api_status: the API's own word for a pending batch.
        round: 0 for the whole batch, 1 and 2 while records that the service failed are tried again by themselves.
        round_requests: records that the round's body holds, and `round_size` its bytes; both 0 in round 0.
        answered: keys of the replies that earlier rounds came to; empty where what they lacked is tried by itself.
        partial_replies: replies that lacked items, oldest first; at most two of each round.
        misses: polls in a row that found the latest id unknown; `missed_at` is the first of them.
        failures: polls of the latest id in a row answered with the same code, `failing_code`, that is believed after
            several only; `failing_at` is the first of them.
        refusals: refusals in a row, for the back-off.
        vain_since: when the first of the calls was that came to nothing, one after another; 0 if the last did not.
        missing_asks: times the answer was asked for again because items were missing.
        unknowable: submits whose outcome nobody can know.
        ready_at: since when it waits to be accepted anew, polled now and then meanwhile; 0 until it was accepted once,
            and of the past where it is before the last acceptance.
        paused: seconds that pauses kept it waiting, since then or since it was accepted.
        halving: why the API refused the batch as a whole, or failed it, since bad records in it are to be isolated.
        cause: the code of that refusal or failure; what a batch and its pieces, or batches of a job, have in common.
        pieces: how many pieces the batch is split into, decided once; 0 before that.
        last_word: how its records end if the ids it has bring no answer: nothing more is submitted.
        ending: how all its records end, when no answer is to come.
    """

    job_id: str
    number: str
    state: BatchState
    first_id: int
    requests: int
    sendable: int
    body_size: int
    created_at: float
    end: Checkpoint | None = None
    ordinal: int | None = None
    attempt: int = 0
    due_at: float | None = None
    work: DueKind | None = None
    fence: float = 0.0
    claims: int = 0
    submissions: tuple[Submission, ...] = ()
    polls: int = 0
    polls_settled: int = 0
    round: int = 0
    round_requests: int = 0
    round_size: int = 0
    answered: tuple[str, ...] = ()
    partial_replies: tuple[PartialReply, ...] = ()
    pending_at: float = 0.0
    api_status: str = ""
    misses: int = 0
    missed_at: float = 0.0
    failures: int = 0
    failing_code: int = 0
    failing_at: float = 0.0
    refusals: int = 0
    vain_since: float = 0.0
    missing_asks: int = 0
    unknowable: int = 0
    ready_at: float = 0.0
    paused: float = 0.0
    halving: ErrorDetail | None = None
    cause: str = ""
    pieces: int = 0
    last_word: ErrorDetail | None = None
    ending: ErrorDetail | None = None
    part: Part | None = None
    completed_at: float | None = None

    @property
    def submit_work(self) -> DueKind:
        """The kind of due work that it is while it waits to be submitted."""
        return DueKind.FIRST if self.ordinal == 0 and not self.submissions else DueKind.SUBMIT

    @property
    def accepted_at(self) -> float | None:
        """When the API last accepted the batch."""
        return self.submissions[-1].at if self.submissions else None

    @property
    def waiting_since(self) -> float:
        """Since when it waits to be accepted; pauses come off."""
        return (self.ready_at or self.created_at) + self.paused

    @property
    def of_round(self) -> tuple[Submission, ...]:
        """Every acceptance in the round that is under way, oldest first."""
        return tuple(one for one in self.submissions if one.round == self.round)

    @property
    def pollable(self) -> tuple[Submission, ...]:
        """What can be asked after: those of the round, but earlier ones that were given up."""
        return tuple(one for one in self.of_round if one is self.submissions[-1] or not one.given_up)

    @property
    def waits_anew(self) -> bool:
        """Whether it waits to be accepted once more, while the ids it has are polled on."""
        return self.ready_at > (self.accepted_at or 0.0) and bool(self.of_round)

    @property
    def is_partly_answered(self) -> bool:
        """Whether a reply of the round under way is stored, from which items were missing."""
        return any(one.round == self.round for one in self.partial_replies)
