"""The ledger: jobs and batches in DynamoDB, every transition one conditional write to one item.

What may change into what, and under which condition, is written here and nowhere else. A transition returns the
item as it is afterwards, or None when the item was no longer as the caller believed: somebody else was faster, and
the caller lets go. A write that the SDK sent again because no answer came is known as the caller's own. Reads that
decide anything are consistent; the `due` index is only a hint where to look.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from botocore.exceptions import BotoCoreError, ClientError

from shared.aws.attribute_values import attribute, attributes, plain, read
from shared.errors import InvariantError, StorageError
from shared.models import (
    Batch,
    BatchState,
    DueKind,
    ErrorDetail,
    Isolation,
    Job,
    JobState,
    LastingError,
    Part,
    Submission,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T", Job, Batch)

JOB_LIFE_SECONDS = 90 * 86_400
"""Seconds an item outlives its job; within them the job item is the tombstone."""

ABSENT = object()
"""As an expected value: the attribute must not exist."""


@dataclass(frozen=True, slots=True)
class AtMost:
    """As an expected value: the attribute must compare so; an attribute that is absent counts as 0 with `<=`."""

    operator: str
    value: float


UNSPLIT = AtMost("<=", 0)
"""As expected `pieces`: the batch is not split."""


TOO_LARGE = ("refused_alone",)
"""What earlier versions kept in a job without a bound; an item that it filled up takes no write that leaves it."""


@dataclass(frozen=True, slots=True)
class DueEntry:
    """One entry of the `due` index."""

    job_id: str
    number: str
    """Of a batch; empty for the job itself."""
    due_at: float | None
    """As the index said; None where a message named the item."""

    @property
    def key(self) -> dict[str, Any]:
        """The item's key."""
        return _batch_key(self.job_id, self.number) if self.number else _job_key(self.job_id)


def _job_key(job_id: str) -> dict[str, Any]:
    return {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": "META"}}


def _batch_key(job_id: str, number: str) -> dict[str, Any]:
    return {"pk": {"S": f"JOB#{job_id}"}, "sk": {"S": f"BATCH#{number}"}}


class Ledger:
    """The one table, seen as jobs and batches."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        """Use a ready client; nothing is read yet."""
        self.client = client
        self.table = table

    # ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────

    def job(self, job_id: str) -> Job | None:
        """One job, read consistently."""
        item = self._get(_job_key(job_id))
        return read(item, Job) if item else None

    def batch(self, job_id: str, number: str) -> Batch | None:
        """One batch, read consistently."""
        item = self._get(_batch_key(job_id, number))
        return read(item, Batch) if item else None

    def batches(
        self,
        job_id: str,
        after: str = "",
        limit: int | None = None,
        prefix: str = "",
        page_size: int | None = None,
    ) -> Iterator[Batch]:
        """Batches of a job in the order of their first record, read consistently, a page at a time.

        Args:
            job_id: the job.
            after: only numbers behind this one.
            limit: items to read, at most; None for all.
            prefix: only numbers that begin so.
            page_size: items to read at once, where the caller may well stop early.
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
            page = self._call(
                "query",
                **condition,
                **position,
                **({"Limit": min(sizes)} if (sizes := [size for size in (left, page_size) if size]) else {}),
                ConsistentRead=True,
            )
            for item in page["Items"]:
                yield read(item, Batch)
            if "LastEvaluatedKey" not in page:
                return
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
            left = None if left is None else left - len(page["Items"])

    def last_batch(self, job_id: str) -> Batch | None:
        """The batch with the highest number: where split resumes."""
        page = self._call(
            "query",
            KeyConditionExpression="pk = :pk AND begins_with(sk, :prefix)",
            ExpressionAttributeValues={":pk": {"S": f"JOB#{job_id}"}, ":prefix": {"S": "BATCH#"}},
            ScanIndexForward=False,
            Limit=1,
            ConsistentRead=True,
        )
        return read(page["Items"][0], Batch) if page["Items"] else None

    def due(self, work: DueKind, now: float, limit: int) -> tuple[list[DueEntry], float | None]:
        """What of one kind is due, oldest first, and when the next of it will be.

        The index may lag, so every claim checks the item itself.

        Args:
            work: the kind.
            now: Unix seconds.
            limit: entries to look at.

        Returns:
            What is due, at most `limit`; and when the first entry behind it is due: None if there is none.
        """
        page = self._call(
            "query",
            IndexName="due",
            KeyConditionExpression="#work = :work",
            ExpressionAttributeNames={"#work": "work"},
            ExpressionAttributeValues={":work": {"S": work.value}},
            Limit=limit + 1,
        )
        times = [float(item["due_at"]["N"]) for item in page["Items"]]
        entries = [
            DueEntry(
                item["pk"]["S"].removeprefix("JOB#"),
                item["sk"]["S"].removeprefix("BATCH#") if item["sk"]["S"] != "META" else "",
                at,
            )
            for item, at in zip(page["Items"], times, strict=True)
        ]
        due = sum(at <= now for at in times[:limit])
        return entries[:due], times[due] if due < len(times) else None

    def count_by_job(self, work: DueKind, most: int) -> Counter[str]:
        """Items of one kind of work by their job, due or not, counted up to about `most`."""
        counted: Counter[str] = Counter()
        position: dict[str, Any] = {}
        while counted.total() < most:
            page = self._call(
                "query",
                IndexName="due",
                KeyConditionExpression="#work = :work",
                ExpressionAttributeNames={"#work": "work"},
                ExpressionAttributeValues={":work": {"S": work.value}},
                ProjectionExpression="pk",
                **position,
            )
            counted.update(item["pk"]["S"].removeprefix("JOB#") for item in page["Items"])
            if "LastEvaluatedKey" not in page:
                break
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        return counted

    def models_of(self, job_ids: Sequence[str]) -> dict[str, str]:
        """The models of jobs, as far as they can be read; a model never changes."""
        models = {}
        for start in range(0, len(job_ids), 100):
            keys = [_job_key(job_id) for job_id in job_ids[start : start + 100]]
            names = {"#plan": "plan", "#model": "model"}
            asked = {"Keys": keys, "ProjectionExpression": "pk, #plan.#model", "ExpressionAttributeNames": names}
            answer = call_dynamodb(self.client, "batch_get_item", RequestItems={self.table: asked})
            for item in answer["Responses"].get(self.table, []):
                model = item.get("plan", {}).get("M", {}).get("model", {}).get("S")
                if model:
                    models[item["pk"]["S"].removeprefix("JOB#")] = model
        return models

    def count_open(self, work: DueKind, most: int) -> int:
        """Items of one kind of work, due or not, counted up to about `most`."""
        counted = 0
        position: dict[str, Any] = {}
        while counted < most:
            page = self._call(
                "query",
                IndexName="due",
                KeyConditionExpression="#work = :work",
                ExpressionAttributeNames={"#work": "work"},
                ExpressionAttributeValues={":work": {"S": work.value}},
                Select="COUNT",
                **position,
            )
            counted += page["Count"]
            if "LastEvaluatedKey" not in page:
                break
            position = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        return counted

    # ── creating ─────────────────────────────────────────────────────────────────────────────────────────────────

    def create_job(self, job: Job) -> Job | None:
        """Write a new job; None when an item with its id is there already."""
        return job if self._create(_job_key(job.job_id), job, DueKind.JOB) else None

    def create_batch(self, batch: Batch) -> Batch | None:
        """Write a new batch; None when an item with its number is there already."""
        return batch if self._create(_batch_key(batch.job_id, batch.number), batch, None) else None

    # ── transitions of jobs ──────────────────────────────────────────────────────────────────────────────────────

    def lease_job(self, job: Job, now: float, until: float) -> Job | None:
        """Claim a job until `until`, if nobody else holds it and it is in the state we saw."""
        return self._change_job(
            job,
            {"state": job.state, "lease_until": AtMost("<=", now)},
            {"lease_until": until, "due_at": until, "claims": job.claims + 1},
            remove=TOO_LARGE,
        )

    def release_job(self, job: Job, due_at: float, **learned: object) -> Job | None:
        """Give a leased job back, with what this visit learned."""
        return self._change_job(
            job,
            {"state": job.state, "lease_until": job.lease_until},
            {"lease_until": 0.0, "due_at": due_at, "claims": 0, **learned},
        )

    def postpone_job(self, job: Job, due_at: float) -> Job | None:
        """Move a job's `due_at` without leasing it."""
        expected: dict[str, object] = {"state": job.state, "due_at": job.due_at}
        return self._change_job(job, expected, {"due_at": due_at}, remove=TOO_LARGE)

    def pin_plan(self, job: Job) -> Job | None:
        """Pin what was learned of the upload's form."""
        return self._change_job(job, {"state": JobState.SPLITTING}, {"plan": job.plan})

    def end_split(self, job: Job, total: int, error: ErrorDetail | None, due_at: float) -> Job | None:
        """`splitting` to `in_progress`: the upload has been read to its end, or to its fault."""
        changes = {
            "state": JobState.IN_PROGRESS,
            "total": total,
            "lease_until": 0.0,
            "due_at": due_at,
            "claims": 0,
        }
        if error and not job.error:
            changes["error"] = error
        return self._change_job(job, {"state": JobState.SPLITTING}, changes)

    def fail_job(self, job_id: str, fault: ErrorDetail, now: float) -> None:
        """Note a fault of the whole upload; the first one stays."""
        self._change(_job_key(job_id), {"error": ABSENT, "completed_at": ABSENT}, {"error": fault, "due_at": now}, Job)

    def record_acceptance(self, job_id: str) -> None:
        """Remember that the API accepted something of this job; saying it twice changes nothing."""
        self._change(_job_key(job_id), {}, {"seen_accepted": True}, Job, remove=TOO_LARGE)

    def note_isolation(self, job: Job, isolation: Isolation) -> Job | None:
        """Replace what isolation has come to in a job, if nobody else did since it was read."""
        seen = ABSENT if job.isolation is None else job.isolation
        return self._change_job(job, {"isolation": seen, "completed_at": ABSENT}, {"isolation": isolation})

    def note_lasting_error(self, job_id: str, trouble: LastingError | None) -> None:
        """Note what a batch is tried against in vain, for its user to see, or that it no longer is."""
        self._change(_job_key(job_id), {"completed_at": ABSENT}, {"trouble": trouble}, Job)

    def update_leased_job(self, job: Job, changes: Mapping[str, object]) -> Job | None:
        """Change a leased job: a mark moved on, or the next of its last states."""
        return self._change_job(job, {"state": job.state, "lease_until": job.lease_until}, dict(changes))

    def end_job(self, job: Job, state: JobState, now: float) -> Job | None:
        """`finalizing` to a final state; the item is a tombstone from now on."""
        return self._change_job(
            job,
            {"state": JobState.FINALIZING},
            {"state": state, "completed_at": now, "ttl": int(now) + JOB_LIFE_SECONDS},
            remove=("due_at", "work", "lease_until"),
        )

    # ── transitions of batches ───────────────────────────────────────────────────────────────────────────────────

    def begin_submit(self, batch: Batch, fence: float) -> Batch | None:
        """`ready` to `submitting`, before the POST; nobody else may try before the fence."""
        return self._change_batch(
            batch,
            {"state": BatchState.READY, "attempt": batch.attempt, "ending": ABSENT, "halving": ABSENT},
            {
                "state": BatchState.SUBMITTING,
                "attempt": batch.attempt + 1,
                "fence": fence,
                "work": DueKind.POLL,  # What a dead function left is recovered even while submits are paused.
                "due_at": fence,
                "claims": batch.claims + 1,
            },
        )

    def accept(self, batch: Batch, submission: Submission, due_at: float) -> Batch | None:
        """`submitting` to `queued`: the API holds the batch under a request_id."""
        return self._change_batch(
            batch,
            {"state": BatchState.SUBMITTING, "attempt": batch.attempt},
            {
                "state": BatchState.QUEUED,
                "submissions": (*batch.submissions, submission),
                "work": DueKind.POLL,
                "due_at": due_at,
                "claims": 0,
                "refusals": 0,
                "misses": 0,
                "failures": 0,
                "vain_since": 0.0,
                "paused": 0.0,
            },
        )

    def keep_polling(self, batch: Batch, last_word: ErrorDetail, now: float, **learned: object) -> Batch | None:
        """Back to `queued`: it is submitted no more, but the ids it has may still bring the answer."""
        return self._change_batch(
            batch,
            _unchanged(batch),
            {
                "state": BatchState.QUEUED,
                "last_word": last_word,
                "work": DueKind.POLL,
                "due_at": now,
                "claims": 0,
                **learned,
            },
        )

    def refuse(self, batch: Batch, due_at: float, **learned: object) -> Batch | None:
        """`submitting` back to `ready`: surely not accepted, or settled as unknowable.

        A batch that still has ids goes back to `queued` instead: they are polled until it is submitted again.
        """
        return self._change_batch(
            batch,
            {"state": BatchState.SUBMITTING, "attempt": batch.attempt},
            {**_waiting(batch), "due_at": due_at, "claims": 0, "vain_since": 0.0, **learned},
        )

    def poll_on(self, batch: Batch, due_at: float) -> Batch | None:
        """`ready` back to `queued`: it cannot be submitted again now, and its ids may bring the answer meanwhile."""
        return self._change_batch(batch, _unchanged(batch), {**_waiting(batch), "due_at": due_at, "claims": 0})

    def postpone(self, batch: Batch, due_at: float, **learned: object) -> Batch | None:
        """Move a batch's `due_at` without claiming it."""
        return self._change_batch(batch, _unchanged(batch), {"due_at": due_at, **learned})

    def end_without_answer(self, batch: Batch, ending: ErrorDetail, now: float, **learned: object) -> Batch | None:
        """Settle how all records of a batch end without an answer; never of one that is split."""
        return self._change_batch(
            batch,
            {**_unchanged(batch), "pieces": UNSPLIT},
            {"state": BatchState.READY, "ending": ending, "work": DueKind.POLL, "due_at": now, "claims": 0, **learned},
        )

    def claim_poll(self, batch: Batch, until: float) -> Batch | None:
        """Claim a batch for asking or collecting; moves `due_at` to the claim's end."""
        return self._change_batch(
            batch,
            _unchanged(batch),
            {"due_at": until, "claims": batch.claims + 1, "polls": batch.polls + 1},
        )

    def schedule_poll(self, batch: Batch, due_at: float, **learned: object) -> Batch | None:
        """An asked batch is not finished: when to ask again, and what was learned."""
        settled = {"due_at": due_at, "claims": 0, "vain_since": 0.0, "polls_settled": batch.polls}
        return self._change_batch(batch, _unchanged(batch), {**settled, **learned})

    def begin_round(
        self, batch: Batch, answered: str, requests: int, size: int, now: float, due_at: float
    ) -> Batch | None:
        """`queued` back to `ready`: the answer is in, but some of its records are tried again by themselves."""
        return self._change_batch(
            batch,
            _unchanged(batch),
            {
                "state": BatchState.READY,
                "round": batch.round + 1,
                "round_requests": requests,
                "round_size": size,
                "answered": (*batch.answered, answered),
                "work": DueKind.SUBMIT,
                "due_at": due_at,
                "claims": 0,
                "missing_asks": 0,
                "misses": 0,
                "failures": 0,
                "ready_at": now,
                "paused": 0.0,
                "polls_settled": batch.polls,
            },
        )

    def resubmit(self, batch: Batch, now: float) -> Batch | None:
        """`queued` back to `ready`: its answer is overdue or its id is lost; the ids stay.

        Where an earlier try to submit it again came to nothing, its wait goes on with that.
        """
        clock = {} if batch.waits_anew else {"ready_at": now, "paused": 0.0}
        return self._change_batch(
            batch,
            {"state": BatchState.QUEUED, "attempt": batch.attempt},
            {
                "state": BatchState.READY,
                "work": DueKind.SUBMIT,
                "due_at": now,
                "claims": 0,
                "misses": 0,
                "failures": 0,
                "polls_settled": batch.polls,
                **clock,
            },
        )

    def begin_halving(self, batch: Batch, reason: ErrorDetail, cause: str, now: float, pieces: int = 0) -> Batch | None:
        """Back to `ready`, but to isolate bad records instead of being submitted: the poll function goes on with it."""
        return self._change_batch(
            batch,
            _unchanged(batch),
            {
                "state": BatchState.READY,
                "halving": reason,
                "cause": cause,
                "pieces": pieces,
                "work": DueKind.POLL,
                "due_at": now,
                "claims": 0,
            },
        )

    def claim_isolation(self, batch: Batch, until: float) -> Batch | None:
        """Claim a batch in which bad records are to be isolated; moves `due_at` to the claim's end."""
        return self._change_batch(batch, _unchanged(batch), {"due_at": until, "claims": batch.claims + 1})

    def decide_split(self, batch: Batch, pieces: int) -> Batch | None:
        """Decide into how many pieces a claimed batch is split; from now on that is what becomes of it."""
        return self._change_batch(batch, {**_unchanged(batch), "pieces": UNSPLIT, "ending": ABSENT}, {"pieces": pieces})

    def undo_split(self, batch: Batch, ending: ErrorDetail, now: float) -> Batch | None:
        """Settle how all records end of a batch whose split was decided, but of which no piece could be created."""
        return self._change_batch(
            batch,
            {**_unchanged(batch), "pieces": batch.pieces},
            {"pieces": 0, "ending": ending, "due_at": now, "claims": 0},
        )

    def halve(self, batch: Batch, now: float) -> Batch | None:
        """To `halved`, once all pieces exist."""
        return self._change_batch(
            batch,
            _unchanged(batch),
            {"state": BatchState.HALVED, "completed_at": now, "ttl": int(now) + JOB_LIFE_SECONDS},
            remove=("due_at", "work"),
        )

    def finish_batch(self, batch: Batch, part: Part, now: float) -> Batch | None:
        """To `done`: the part is written, and this item names it."""
        return self._change_batch(
            batch,
            {"state": batch.state, "attempt": batch.attempt, "pieces": UNSPLIT},
            {"state": BatchState.DONE, "part": part, "completed_at": now, "ttl": int(now) + JOB_LIFE_SECONDS},
            remove=("due_at", "work"),
        )

    def abandon(self, batch: Batch, now: float) -> Batch | None:
        """To `done` without a part: not even its failed lines could be written; its job cannot finish."""
        return self._change_batch(
            batch,
            _unchanged(batch),
            {"state": BatchState.DONE, "completed_at": now, "ttl": int(now) + JOB_LIFE_SECONDS},
            remove=("due_at", "work"),
        )

    # ── items that cannot be worked on ───────────────────────────────────────────────────────────────────────────

    def claims_of(self, due: DueEntry) -> int:
        """How often an item was claimed, whatever else it holds; 0 where it does not say."""
        return _claims(self._get(due.key) or {})

    def unclaimed(self, job_id: str, number: str, now: float) -> tuple[DueEntry, int] | None:
        """When an open item is due and how often it was claimed; None while somebody holds it."""
        item = self._get(DueEntry(job_id, number, None).key) or {}
        held = item.get("state") == attribute(BatchState.SUBMITTING.value)
        if "due_at" not in item or held or float(item.get("lease_until", {}).get("N", "0")) > now:
            return None
        return DueEntry(job_id, number, float(item["due_at"]["N"])), _claims(item)

    def set_aside(self, due: DueEntry, claims: int, due_at: float) -> bool:
        """Claim an item that could not be read or written, if it is due as the index said.

        Only two short numbers are replaced, so that this works for an item that is as large as DynamoDB allows.
        """
        return self._change_raw(
            due,
            "SET due_at = :due_at, claims = :claims",
            {":due_at": attribute(int(due_at)), ":claims": attribute(claims)},
        )

    def retire(self, due: DueEntry, now: float) -> bool:
        """End an item that could not be read or written for days; its other attributes stay for whoever looks."""
        state = BatchState.DONE if due.number else JobState.FAILED
        return self._change_raw(
            due,
            "SET #state = :state, completed_at = :now, #ttl = :ttl REMOVE due_at, #work, lease_until",
            {
                ":state": attribute(state.value),
                ":now": attribute(int(now)),
                ":ttl": attribute(int(now) + JOB_LIFE_SECONDS),
            },
            {"#state": "state", "#ttl": "ttl", "#work": "work"},
        )

    def _change_raw(
        self, due: DueEntry, update: str, values: dict[str, Any], names: dict[str, str] | None = None
    ) -> bool:
        try:
            self._call(
                "update_item",
                Key=due.key,
                UpdateExpression=update,
                ConditionExpression="due_at = :seen",
                ExpressionAttributeValues={**values, ":seen": attribute(due.due_at)},
                **({"ExpressionAttributeNames": names} if names else {}),
            )
        except ConditionFailedError:
            return False  # it was worked on meanwhile
        return True

    # ── the one way to write ─────────────────────────────────────────────────────────────────────────────────────

    def _create(self, key: dict[str, Any], value: Job | Batch, work: DueKind | None) -> bool:
        item = {**key, **attributes(value)}
        if work:
            item["work"] = attribute(work.value)
        try:
            self._call("put_item", Item=item, ConditionExpression="attribute_not_exists(pk)")
        except ConditionFailedError as error:
            return error.sent_again and _holds(self._get(key), item)
        return True

    def _change_job(
        self, job: Job, expected: dict[str, object], changes: dict[str, object], remove: Sequence[str] = ()
    ) -> Job | None:
        return self._change(_job_key(job.job_id), expected, changes, Job, remove=remove)

    def _change_batch(
        self,
        batch: Batch,
        expected: dict[str, object],
        changes: dict[str, object],
        remove: Sequence[str] = (),
    ) -> Batch | None:
        return self._change(_batch_key(batch.job_id, batch.number), expected, changes, Batch, remove=remove)

    def _change(
        self,
        key: dict[str, Any],
        expected: Mapping[str, object],
        changes: Mapping[str, object],
        kind: type[T],
        remove: Sequence[str] = (),
    ) -> T | None:
        """One conditional update; the item as it is afterwards, or None if it was not as expected."""
        names: dict[str, str] = {"#pk": "pk"}
        values: dict[str, Any] = {}

        def name(of: str) -> str:
            names[f"#{of}"] = of
            return f"#{of}"

        def value(of: str, prefix: str, given: object) -> str:
            values[f":{prefix}{of}"] = attribute(given)
            return f":{prefix}{of}"

        conditions = ["attribute_exists(#pk)"]
        for of, wanted in expected.items():
            if wanted is ABSENT:
                conditions.append(f"attribute_not_exists({name(of)})")
            elif isinstance(wanted, AtMost):
                compared = f"{name(of)} {wanted.operator} {value(of, 'if_', wanted.value)}"
                conditions.append(f"(attribute_not_exists({name(of)}) OR {compared})")
            else:
                conditions.append(f"{name(of)} = {value(of, 'if_', wanted)}")
        removed = [*remove, *(of for of, new in changes.items() if new is None)]
        clauses = []
        if removed:
            clauses.append("REMOVE " + ", ".join(name(of) for of in removed))
        if settings := [f"{name(of)} = {value(of, 'to_', new)}" for of, new in changes.items() if new is not None]:
            clauses.append("SET " + ", ".join(settings))
        try:
            answer = self._call(
                "update_item",
                Key=key,
                UpdateExpression=" ".join(clauses),
                ConditionExpression=" AND ".join(conditions),
                ExpressionAttributeNames=names,
                **({"ExpressionAttributeValues": values} if values else {}),
                ReturnValues="ALL_NEW",
            )
        except ConditionFailedError as error:
            return self._changed_already(key, changes, removed, kind) if error.sent_again else None
        return read(answer["Attributes"], kind)

    def _changed_already(
        self, key: dict[str, Any], changes: Mapping[str, object], removed: Sequence[str], kind: type[T]
    ) -> T | None:
        """The item, if it is as the write that was sent twice would leave it."""
        there = self._get(key)
        wanted = {of: attribute(new) for of, new in changes.items() if new is not None}
        if wanted and _holds(there, wanted) and not any(of in there for of in removed):
            return read(there, kind)
        return None

    def _get(self, key: dict[str, Any]) -> dict[str, Any] | None:
        item: dict[str, Any] | None = self._call("get_item", Key=key, ConsistentRead=True).get("Item")
        return item

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - boto3's own arguments
        return call_dynamodb(self.client, operation, TableName=self.table, **arguments)


def _claims(item: Mapping[str, Any]) -> int:
    claims = item.get("claims", {}).get("N", "0")
    return int(claims) if claims.isdecimal() else 0


class ConditionFailedError(Exception):
    """The item was not as the write expected; never leaves `shared`.

    Attributes:
        sent_again: the SDK got no answer at first and sent the write again, so that it may have met itself.
    """

    def __init__(self, *, sent_again: bool) -> None:
        super().__init__()
        self.sent_again = sent_again


def _holds(item: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> TypeGuard[Mapping[str, Any]]:
    """Whether an item holds what a write put there: each claim's times make it differ from everybody else's."""
    return item is not None and all(of in item and plain(item[of]) == plain(wire) for of, wire in wanted.items())


def call_dynamodb(client: DynamoDBClient, operation: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401
    """One call of DynamoDB with its errors translated.

    Raises:
        ConditionFailedError: the condition did not hold.
        StorageError: DynamoDB refused or broke off.
    """
    try:
        answer: dict[str, Any] = getattr(client, operation)(**arguments)
    except client.exceptions.ConditionalCheckFailedException as error:
        raise ConditionFailedError(sent_again=error.response["ResponseMetadata"].get("RetryAttempts", 0) > 0) from error
    except (ClientError, BotoCoreError) as error:
        raise StorageError(f"DynamoDB {operation}: {error}") from error
    return answer


def _waiting(batch: Batch) -> dict[str, object]:
    """State and work of a batch that waits to be submitted: one that has ids of this round is polled meanwhile."""
    if batch.pollable:
        return {"state": BatchState.QUEUED, "work": DueKind.POLL}
    return {"state": BatchState.READY, "work": batch.submit_work}


def _unchanged(batch: Batch) -> dict[str, object]:
    """The condition that nobody touched the batch since we read it: its state, attempt and `due_at`."""
    if batch.due_at is None:
        raise InvariantError(f"batch {batch.job_id}/{batch.number} is open and has no due_at")
    return {"state": batch.state, "attempt": batch.attempt, "due_at": batch.due_at}
