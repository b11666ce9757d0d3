"""Batches in the ledger: reading, creating, and every transition of a batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shared.aws.attribute_values import attributes, read
from shared.aws.dynamodb import ABSENT, AtMost, Table
from shared.errors import InvariantError, UnreadableItemError
from shared.ledger.due import LIFE_SECONDS, batch_key
from shared.models import Batch, BatchState, DueKind, ErrorDetail, Part, Submission

HELD_BATCH_SECONDS = 86_400.0  # Seconds by which a batch is postponed while its job is paused
UNDIVIDED = AtMost("<=", 0)  # As expected `pieces`: the batch is not divided

Members = Mapping[str, object]


class Batches(Table):
    """Batches of the one table."""

    def batch(self, job_id: str, number: str) -> Batch | None:
        """One batch, read consistently."""
        item = self.get(batch_key(job_id, number))
        return read(item, Batch) if item else None

    def batches(
        self,
        job_id: str,
        after: str = "",
        limit: int | None = None,
        prefix: str = "",
        page_size: int | None = None,
        unreadable: list[str] | None = None,
    ) -> Iterator[Batch]:
        """Batches of a job after a number, in the order of their first record, read consistently.

        At most `limit`, `page_size` at a time. `unreadable` gets the numbers of those that cannot
        be read; without it, the first of them raises `UnreadableItemError`.
        """
        start = f"BATCH#{after}\x00" if after else f"BATCH#{prefix}"
        condition = {
            "KeyConditionExpression": "pk = :pk AND sk BETWEEN :start AND :stop",
            "ExpressionAttributeValues": {
                ":pk": {"S": f"JOB#{job_id}"},
                ":start": {"S": start},
                ":stop": {"S": f"BATCH#{prefix}~"},
            },
        }
        left = limit
        position: dict[str, Any] = {}
        while left is None or left > 0:
            sizes = [size for size in (left, page_size) if size]
            most = {"Limit": min(sizes)} if sizes else {}
            page = self.call("query", **condition, **position, **most, ConsistentRead=True)
            for item in page["Items"]:
                try:
                    batch = read(item, Batch)
                except UnreadableItemError:
                    if unreadable is None:
                        raise
                    unreadable.append(item["sk"]["S"].removeprefix("BATCH#"))
                    continue
                yield batch
            if "LastEvaluatedKey" not in page:
                return
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
            left = None if left is None else left - len(page["Items"])

    def last_batch(self, job_id: str) -> Batch | None:
        """The batch with the highest number: where split resumes."""
        page = self.call(
            "query",
            KeyConditionExpression="pk = :pk AND begins_with(sk, :prefix)",
            ExpressionAttributeValues={":pk": {"S": f"JOB#{job_id}"}, ":prefix": {"S": "BATCH#"}},
            ScanIndexForward=False,
            Limit=1,
            ConsistentRead=True,
        )
        return read(page["Items"][0], Batch) if page["Items"] else None

    def create_batch(self, batch: Batch) -> Batch | None:
        """Write a new batch; None if an item with its number exists already."""
        item = {**batch_key(batch.job_id, batch.number), **attributes(batch)}
        return batch if self.create(item) else None

    def begin_submit(self, batch: Batch, fence: float, **updates: object) -> Batch | None:
        """`ready` to `submitting`, before the POST; no other function may try before `fence`."""
        return self._change_batch(
            batch,
            {
                "state": BatchState.READY,
                "attempt": batch.attempt,
                "ending": ABSENT,
                "isolating": ABSENT,
            },
            {
                "state": BatchState.SUBMITTING,
                "attempt": batch.attempt + 1,
                "submission": None,
                "given_up": batch.accepted,
                "fence": fence,
                "held": None,
                # A batch left by a dead function is recovered even while submits are paused.
                "work": DueKind.POLL,
                "due_at": fence,
                "claims": batch.claims + 1,
                **updates,
            },
        )

    def undo_submit(self, batch: Batch, fence: float, due_at: float) -> Batch | None:
        """Undo a `begin_submit` that may have been written, by its caller, who has sent nothing."""
        return self._change_batch(
            batch,
            {"state": BatchState.SUBMITTING, "attempt": batch.attempt + 1, "fence": fence},
            {
                **_waiting(batch),
                "submission": batch.submission,
                "given_up": batch.given_up,
                "due_at": due_at,
                "claims": batch.claims,
            },
        )

    def accept(
        self, batch: Batch, submission: Submission, due_at: float, **updates: object
    ) -> Batch | None:
        """`submitting` to `queued`: the API has accepted the batch under a request_id."""
        return self._change_batch(
            batch,
            {"state": BatchState.SUBMITTING, "attempt": batch.attempt},
            {
                "state": BatchState.QUEUED,
                "submission": submission,
                "work": DueKind.POLL,
                "due_at": due_at,
                "claims": 0,
                "refusals": 0,
                "doubt": None,
                "calls_fail_since": 0.0,
                "paused": 0.0,
                "told_at": 0.0,
                **updates,
            },
        )

    def tell_over(self, batch: Batch, now: float) -> Batch | None:
        """Make a queued batch due now, because an event says so; None if that changes nothing.

        One that is being polled is only told: whoever polls it now has it polled again.
        """
        key = batch_key(batch.job_id, batch.number)
        untold = {"state": BatchState.QUEUED, "attempt": batch.attempt, "told_at": 0.0}
        waits = {"claims": 0, "due_at": AtMost(">", now)}
        due = self.update(key, {**untold, **waits}, {"due_at": now, "told_at": now}, Batch)
        return due or self.update(key, untold, {"told_at": now}, Batch)

    def make_ready(self, batch: Batch, due_at: float, **updates: object) -> Batch | None:
        """`submitting` back to `ready`: rejected, or settled after an unknown outcome."""
        return self._change_batch(
            batch,
            {"state": BatchState.SUBMITTING, "attempt": batch.attempt},
            {**_waiting(batch), "due_at": due_at, "claims": 0, "calls_fail_since": 0.0, **updates},
        )

    def postpone(self, batch: Batch, due_at: float, **updates: object) -> Batch | None:
        """Move a batch's `due_at` without claiming it."""
        return self._move(batch, due_at, updates)

    def wait(self, batch: Batch, due_at: float, seconds: float) -> Batch | None:
        """Postpone a batch that may not call the API now: these seconds count for no expiry."""
        return self.postpone(batch, due_at, paused=batch.paused_after(seconds, due_at), claims=0)

    def hold(self, batch: Batch, now: float, deadline_at: float | None = None) -> Batch | None:
        """Postpone a batch of a paused job by a day, at most to its deadline; its clock stops."""
        due_at = min(now + HELD_BATCH_SECONDS, math.inf if deadline_at is None else deadline_at)
        return self._move(batch, due_at, {"paused": _paused(batch, due_at), "held": True})

    def release(self, batch: Batch, due_at: float) -> Batch | None:
        """Make a held batch due again."""
        return self._move(batch, due_at, {"paused": _paused(batch, due_at), "held": None})

    def end_without_answer(
        self, batch: Batch, ending: ErrorDetail, now: float, **updates: object
    ) -> Batch | None:
        """Back to `ready`, with how all records end without an answer; not if it is divided."""
        changes = {"state": BatchState.READY, "work": DueKind.POLL, "ending": ending, **updates}
        undivided = {**_unchanged(batch), "pieces": UNDIVIDED}
        return self._change_batch(batch, undivided, {"due_at": now, "claims": 0, **changes})

    def claim_poll(self, batch: Batch, until: float) -> Batch | None:
        """Claim a batch to poll or collect it; moves `due_at` to the claim's end."""
        claimed = {"claims": batch.claims + 1, "polls": batch.polls + 1}
        return self._move(batch, until, claimed)

    def schedule_poll(self, batch: Batch, due_at: float, **updates: object) -> Batch | None:
        """Schedule the next poll of a batch that is not finished, with updates."""
        settled = {"claims": 0, "calls_fail_since": 0.0, "polls_settled": batch.polls}
        return self._move(batch, due_at, {**settled, **updates})

    def resubmit(self, batch: Batch, now: float, due_at: float) -> Batch | None:
        """`queued` back to `ready`; the id is given up once the next submit begins."""
        waits = {"state": BatchState.READY, "work": DueKind.SUBMIT, "ready_at": now, "paused": 0.0}
        polled = {"doubt": None, "partial_replies": (), "polls_settled": batch.polls}
        return self._move(batch, due_at, {**waits, **polled, "claims": 0})

    def begin_isolation(
        self, batch: Batch, reason: ErrorDetail, cause: str, now: float, **updates: object
    ) -> Batch | None:
        """Back to `ready`, but to be divided instead of being submitted."""
        changes = {"state": BatchState.READY, "work": DueKind.POLL, "claims": 0, **updates}
        isolating = {"isolating": reason, "cause": cause, "pieces": 0}
        return self._move(batch, now, {**isolating, **changes})

    def claim_isolation(self, batch: Batch, until: float) -> Batch | None:
        """Claim a batch that is to be divided; moves `due_at` to the claim's end."""
        return self._move(batch, until, {"claims": batch.claims + 1})

    def decide_pieces(self, batch: Batch, pieces: int) -> Batch | None:
        """Decide into how many pieces a claimed batch is divided: from now on it is."""
        undivided = {**_unchanged(batch), "pieces": UNDIVIDED, "ending": ABSENT}
        return self._change_batch(batch, undivided, {"pieces": pieces})

    def undo_pieces(self, batch: Batch, ending: ErrorDetail, now: float) -> Batch | None:
        """Decide how all records of a batch end of which no piece could be created."""
        decided = {**_unchanged(batch), "pieces": batch.pieces}
        changes = {"pieces": 0, "ending": ending, "due_at": now, "claims": 0}
        return self._change_batch(batch, decided, changes)

    def finish_division(self, batch: Batch, now: float) -> Batch | None:
        """`ready` to `divided`, once all pieces exist."""
        return self._end_batch(batch, _unchanged(batch), {"state": BatchState.DIVIDED}, now)

    def finish_batch(self, batch: Batch, part: Part, now: float) -> Batch | None:
        """`queued` or `ready` to `done`: the part is written, and this item names it."""
        changes: dict[str, object] = {"state": BatchState.DONE, "part": part}
        if batch.ending:
            changes["ending"] = batch.ending  # A sweep decides it with this write.
        undivided = {"state": batch.state, "attempt": batch.attempt, "pieces": UNDIVIDED}
        return self._end_batch(batch, undivided, changes, now)

    def abandon(self, batch: Batch, now: float) -> Batch | None:
        """`ready` to `done` without a part, which could not be written: its job cannot finish."""
        return self._end_batch(batch, _unchanged(batch), {"state": BatchState.DONE}, now)

    def _move(self, batch: Batch, due_at: float, changes: Members) -> Batch | None:
        """Change a batch that is as it was read, and its `due_at`."""
        return self._change_batch(batch, _unchanged(batch), {"due_at": due_at, **changes})

    def _end_batch(
        self, batch: Batch, expected: Members, changes: Members, now: float
    ) -> Batch | None:
        ended = {**changes, "completed_at": now, "ttl": int(now) + LIFE_SECONDS}
        return self._change_batch(batch, expected, ended, remove=("due_at", "work"))

    def _change_batch(
        self, batch: Batch, expected: Members, changes: Members, remove: Sequence[str] = ()
    ) -> Batch | None:
        key = batch_key(batch.job_id, batch.number)
        return self.update(key, expected, changes, Batch, remove=remove)


def _waiting(batch: Batch) -> dict[str, object]:
    """State and work of a batch that waits to be submitted."""
    return {"state": BatchState.READY, "work": batch.submit_work}


def _paused(batch: Batch, due_at: float) -> float:
    """Seconds of pauses of a batch whose `due_at` a pause moves."""
    return batch.paused_after(due_at - _due_at(batch), due_at)


def _unchanged(batch: Batch) -> dict[str, object]:
    """The condition that the batch is as it was read: its state, attempt and `due_at`."""
    return {"state": batch.state, "attempt": batch.attempt, "due_at": _due_at(batch)}


def _due_at(batch: Batch) -> float:
    if batch.due_at is None:
        raise InvariantError(f"batch {batch.job_id}/{batch.number} is open but has no due_at")
    return batch.due_at
