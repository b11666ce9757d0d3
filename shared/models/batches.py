"""A batch as it is stored in its item.

A batch's number is 8 digits. When a batch is divided to isolate bad records, the number of each
piece is that of the batch followed by `.` and one hexadecimal digit (`00000003.a`, and again
`00000003.a.0`). Numbers sort as text in the order of their first record, because `.` sorts before
every digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dropbatch.core.plan import Checkpoint
from shared.models.common import BatchState, DueKind, ErrorDetail, Usage


@dataclass(frozen=True, slots=True)
class Part:
    """A batch's part: three sections in one object (`shared.keys.part`)."""

    # the object; empty if no line is written before they are appended to a file. Then the sizes are
    # estimates.
    key: str
    output: int  # bytes of the output lines, first in the object
    errors: int  # bytes of the error lines, after them
    retry: int  # bytes of the retry lines, last
    retry_lines: int
    succeeded: int
    failed: int
    usage: Usage = field(default_factory=Usage)
    for_capacity: int = 0  # the failed records that failed for lack of capacity or time


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of a batch and their staged object: body, originals, index. Written once."""

    first_id: int  # id of the first record
    requests: int  # how many, sendable or not
    sendable: int  # how many in the body
    body_size: int  # bytes of the body, first in the staged object
    # bytes of the records as written, which follow it; 0 if they are sent so
    originals_size: int = 0
    # where the cut continued after them; None for every piece of a batch but the last
    end: Checkpoint | None = None
    # batches with a sendable record before this one in its job; None if not counted
    ordinal: int | None = None
    # what they cost if each answer is as long as it may be, in billionths of a dollar; 0 unless the
    # job has a `max_cost`
    estimate: int = 0
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
    """Polls in a row that got the same reply, which is believed only after several."""

    kind: str  # the reply (`functions.poll.doubts`); another kind is another doubt.
    since: float  # Unix seconds of the first of these polls
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
    fence: float = 0.0
    """End of the submit lease: no other function may try the batch before this time."""
    held: bool = False  # Whether it is postponed because its job is paused
    ready_at: float = 0.0  # Since when it waits to be accepted again; 0 until it was accepted once
    paused: float = 0.0
    """Seconds that pauses kept it waiting, since `ready_at` or since it was accepted."""

    # Submits.
    attempt: int = 0  # POSTs begun for this batch; 0 before the first
    submission: Submission | None = None
    """Its latest acceptance; None before the first, and once another submit has begun."""
    given_up: int = 0  # Acceptances before it, whose answers nobody asks for any more
    unknowable: int = 0  # Submits with an unknown outcome
    refusals: int = 0  # Consecutive refusals, for the back-off
    calls_fail_since: float = 0.0
    """Time of the first of the consecutive failed calls; 0 if the last did not fail."""

    # Polls.
    polls: int = 0  # Polls begun
    polls_settled: int = 0
    """The last poll known to have stored no reply that still has to be processed."""
    pending: Pending | None = None  # What the API last said of it while it was pending
    told_at: float = 0.0
    """When an event of the latest acceptance said that it is over; 0 if none did."""
    doubt: Doubt | None = None  # What the last polls said, if it is believed only after several
    partial_replies: tuple[str, ...] = ()
    """Keys of the stored replies that lacked items, oldest first."""

    # How it ends.
    isolating: ErrorDetail | None = None
    """Why the API refused it as a whole, or failed it, once bad records are to be isolated."""
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
