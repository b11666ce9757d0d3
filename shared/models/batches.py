"""A batch as it is stored in its item.

A batch's number is 8 digits. When a batch is divided to isolate bad records, the number of each
piece is that of the batch followed by `.` and one hexadecimal digit (`00000003.a`, and again
`00000003.a.0`). Numbers sort as text in the order of their first record, because `.` sorts before
every digit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from dropbatch.core.plan import Checkpoint  # noqa: TC001 - read at run time, from the fields
from shared.models.common import BatchState, DueKind, ErrorDetail, Usage


@dataclass(frozen=True, slots=True)
class Part:
    """A batch's part: three sections in one object (`dropbatch.core.names.part`).

    Attributes:
        key: the object; empty if no line is written before they are appended to a file. Then the
            sizes are estimates.
        output: bytes of the output lines, first in the object.
        errors: bytes of the error lines, after them.
        retry: bytes of the retry lines, last.
        for_capacity: the failed records that failed for lack of capacity or time.
    """

    key: str
    output: int
    errors: int
    retry: int
    retry_lines: int
    succeeded: int
    failed: int
    usage: Usage = field(default_factory=Usage)
    for_capacity: int = 0


@dataclass(frozen=True, slots=True)
class Submission:
    """One acceptance of a batch by the API.

    Attributes:
        request_id: empty if the answer came immediately.
        attempt: the POST that was accepted.
        at: Unix seconds of the acceptance.
        misses: once there is a later one, consecutive polls that found the id unknown, empty,
            failed or refused; `missed_at` is the time of the first.
        given_up: whether the misses were believed, or the batch of the id failed while an earlier
            id was still polled: the id is no longer polled, unless no other is left.
    """

    request_id: str
    attempt: int
    at: float
    misses: int = 0
    missed_at: float = 0.0
    given_up: bool = False


def cause_of(code: int | None, *, accepted: bool = False) -> str:
    """Why a batch failed, from the API's code; its pieces are compared by this. Of bounded length.

    Args:
        code: the API's.
        accepted: whether it had been accepted: what is refused proves nothing of what is paid for.
    """
    cause = "failed" if code is None else str(code)[:20]
    return f"{cause} after acceptance" if accepted else cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive records submitted together, as stored in their item. Times are Unix seconds."""

    # What it is.
    job_id: str
    number: str
    state: BatchState
    created_at: float
    completed_at: float | None = None

    # Its records, and the staged object: body, originals, index.
    first_id: int
    """Id of the first record."""
    requests: int
    """Records, sendable or not."""
    sendable: int
    """Records in the body."""
    body_size: int
    """Bytes of the body, first in the staged object."""
    originals_size: int = 0
    """Bytes of the records as written, which follow the body; 0 if they are sent as written."""
    end: Checkpoint | None = None
    """Where the cut continued after this batch; None for every piece of a batch but the last."""
    ordinal: int | None = None
    """How many batches with a sendable record the job has before this one.

    None if it was not counted.
    """
    estimate: int = 0
    """What it costs if each answer is as long as it may be (`dropbatch.core.cost_limit`).

    In billionths of a US dollar;
    0 unless the job has a `max_cost`.
    """
    estimated_before: int = 0
    """Sum of the estimates of the batches before it."""

    # When it is due, and who works on it.
    due_at: float | None = None
    """None in a final state."""
    work: DueKind | None = None
    """Which kind of due work it is; None in a final state."""
    claims: int = 0
    """Claims since the last change of state or answer."""
    fence: float = 0.0
    """End of the submit lease: no other function may try the batch before this time."""
    held: bool = False
    """Whether it is postponed because its job is paused."""
    ready_at: float = 0.0
    """Since when it waits to be accepted again, polled now and then meanwhile.

    0 until it was accepted once, outdated
    if it is before the last acceptance.
    """
    paused: float = 0.0
    """Seconds that pauses kept it waiting, since `ready_at` or since it was accepted."""

    # Submits.
    attempt: int = 0
    """POSTs begun for this batch; 0 before the first."""
    submissions: tuple[Submission, ...] = ()
    """Every request_id the batch ever had, oldest first."""
    unknowable: int = 0
    """Submits with an unknown outcome."""
    doubtful: int = 0
    """Submits that were refused in a way that does not prove it, and were tried again."""
    doubts: int = 0
    """Those since the last acceptance that prove as little as no reply."""
    refusals: int = 0
    """Consecutive refusals, for the back-off."""
    calls_fail_since: float = 0.0
    """Time of the first of the consecutive failed calls, submits or polls.

    0 if the last call did not fail.
    """

    # Polls.
    polls: int = 0
    """Polls begun."""
    polls_settled: int = 0
    """The last poll known to have stored no reply that still has to be processed."""
    pending_at: float = 0.0
    """When the API last reported it as pending."""
    api_status: str = ""
    """The API's own status word for a pending batch."""
    told_at: float = 0.0
    """When an event of the latest acceptance said that it is over; 0 if none did."""
    failures: int = 0
    """Consecutive polls of the latest id that got the same code.

    Which is believed only after several.
    """
    failing_code: int = 0
    """That code, negative with a server's status; 404 or 200 for misses.

    The id was unknown, or without answers.
    """
    failing_at: float = 0.0
    """Time of the first of these polls."""
    partial_replies: tuple[str, ...] = ()
    """Keys of the stored replies that lacked items, oldest first."""

    # How it ends.
    isolating: ErrorDetail | None = None
    """Why the API refused the batch as a whole, or failed it.

    Set once bad records in it are to be isolated.
    """
    cause: str = ""
    """What `cause_of` says of that refusal or failure.

    Batches and their pieces are compared by it.
    """
    pieces: int = 0
    """How many pieces the batch is divided into, decided once; 0 before that."""
    ending_if_unanswered: ErrorDetail | None = None
    """How its records end if its ids return no answer; nothing more is submitted."""
    ending: ErrorDetail | None = None
    """How all its records end, if no answer will come."""
    part: Part | None = None
    """Its result lines, once it is done."""

    @property
    def index_offset(self) -> int:
        """Where the index begins in the staged object."""
        return self.body_size + self.originals_size

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
        """Since when it waits to be accepted, excluding pauses."""
        return (self.ready_at or self.created_at) + self.paused

    def paused_after(self, seconds: float, until: float) -> float:
        """Seconds of pauses after one more, if the batch is due at `until`.

        Never more than it has waited then.

        The same pause may be counted twice: its message comes twice, or the clocks of two functions
        differ.
        """
        since = max(self.ready_at or self.created_at, self.accepted_at or 0.0)
        return max(min(self.paused + seconds, until - since), 0.0)

    @property
    def pollable(self) -> tuple[Submission, ...]:
        """What can be polled: the acceptances that were not given up, or else the latest."""
        return tuple(one for one in self.submissions if not one.given_up) or self.submissions[-1:]

    def polled_at(self, polls: int) -> Submission:
        """What a poll asks for before which there were so many.

        Each of `pollable` in turn, the latest first.
        """
        return self.pollable[-1 - polls % len(self.pollable)]

    @property
    def waits_to_resubmit(self) -> bool:
        """Whether it waits to be accepted again, while its ids are still polled."""
        return self.ready_at > (self.accepted_at or 0.0) and bool(self.submissions)
