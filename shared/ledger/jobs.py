"""Jobs in the ledger: reading, creating, and every transition of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dropbatch.core.names import SCHEMA, JobState
from shared.aws.attribute_values import attribute, attributes, plain, read
from shared.aws.dynamodb import ABSENT, AtMost, SameMembers, Table, call_dynamodb
from shared.errors import LeaseLostError, UnreadableItemError
from shared.ledger.due import LIFE_SECONDS, job_key
from shared.models import DueKind, ErrorDetail, Job, JobControl, Status, Wait


def still_leased(changed: Job | None, job_id: str) -> Job:
    """The job after a write under its lease; raises `LeaseLostError` if there was none."""
    if changed is None:
        raise LeaseLostError(job_id)
    return changed


class Jobs(Table):
    """Jobs of the one table."""

    def job(self, job_id: str) -> Job | None:
        """One job, read consistently."""
        item = self.get(job_key(job_id))
        if item and (work := plain(item.get("work", attribute("")))) and work not in set(DueKind):
            raise UnreadableItemError(
                f"job {job_id}: its work is {work}, of another schema than {SCHEMA}"
            )
        return read(item, Job) if item else None

    def models_of(self, job_ids: Sequence[str]) -> dict[str, str | None]:
        """The models of jobs that exist, None for one that the table did not return now."""
        models: dict[str, str | None] = {}
        for start in range(0, len(job_ids), 100):
            keys = [job_key(job_id) for job_id in job_ids[start : start + 100]]
            names = {"#plan": "plan", "#model": "model"}
            asked: dict[str, Any] = {"Keys": keys, "ProjectionExpression": "pk, #plan.#model"}
            asked["ExpressionAttributeNames"] = names
            answer = call_dynamodb(self.client, "batch_get_item", RequestItems={self.table: asked})
            for item in answer["Responses"].get(self.table, []):
                if model := item.get("plan", {}).get("M", {}).get("model", {}).get("S"):
                    models[item["pk"]["S"].removeprefix("JOB#")] = model
            unread = answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
            models |= dict.fromkeys(key["pk"]["S"].removeprefix("JOB#") for key in unread)
        return models

    def create_job(self, job: Job) -> Job | None:
        """Write a new job; None if an item with its id exists already."""
        item = {**job_key(job.job_id), **attributes(job), "work": attribute(DueKind.JOB)}
        return job if self.create(item) else None

    def lease_job(self, job: Job, now: float, until: float) -> Job | None:
        """Lease a job until `until`, if it is not leased and still in the state that was read."""
        free = {"state": job.state, "lease_until": AtMost("<=", now)}
        leased = {"lease_until": until, "due_at": until, "claims": job.claims + 1}
        return self._change_job(job.job_id, free, leased)

    def release_job(
        self, job: Job, due_at: float, work: DueKind = DueKind.JOB, **updates: object
    ) -> Job | None:
        """Release a leased job, with updates; `work` says whether its next visit moves it on."""
        released = {"lease_until": 0.0, "due_at": due_at, "work": work, "claims": 0}
        return self.update_leased_job(job, {**released, **updates})

    def retry_job(self, job: Job, due_at: float, claims: int) -> Job | None:
        """Release a leased job whose visit or turn failed, unless somebody else has it."""
        changes = {"lease_until": 0.0, "due_at": due_at, "claims": claims}
        return self._change_job(job.job_id, {"lease_until": job.lease_until}, changes)

    def postpone_job(self, job: Job, due_at: float) -> Job | None:
        """Move a job's `due_at` without leasing it."""
        expected: dict[str, object] = {"state": job.state, "due_at": job.due_at}
        return self._change_job(job.job_id, expected, {"due_at": due_at})

    def pin_plan(self, job: Job) -> Job | None:
        """Pin what was detected about the upload and is known of its model, under the lease."""
        expected = {"state": JobState.SPLITTING, "lease_until": job.lease_until}
        return self._change_job(job.job_id, expected, {"plan": job.plan, "work": DueKind.JOB})

    def end_split(
        self,
        job: Job,
        total: int,
        error: ErrorDetail | None,
        due_at: float,
        work: DueKind = DueKind.JOB,
        *,
        to_end: bool = True,
        has_endings: bool = False,
    ) -> Job | None:
        """`splitting` to `in_progress`: the upload was read to its end, or as far as it is used."""
        changes = {
            "state": JobState.IN_PROGRESS,
            "total": total,
            "reading": replace(job.reading, to_end=to_end, has_endings=has_endings),
            "lease_until": 0.0,
            "due_at": due_at,
            "work": work,
            "claims": 0,
        }
        if error and not job.error:
            changes["error"] = error
        return self._change_job(job.job_id, {"state": JobState.SPLITTING}, changes)

    def fail_job(self, job: Job, fault: ErrorDetail, now: float) -> Job | None:
        """Note a fault of the whole upload, and make the job due; the first fault is kept."""
        changes = {"error": fault, "due_at": now, "work": DueKind.JOB}
        return self._change_job(job.job_id, {"error": ABSENT, "completed_at": ABSENT}, changes)

    def refuse_rest(self, job: Job, refused: ErrorDetail, now: float) -> Job | None:
        """Note that the rest of a job is not sent, and make it due; the first reason is kept."""
        changes = {"refused": refused, "due_at": now, "work": DueKind.JOB}
        return self._change_job(job.job_id, {"refused": ABSENT, "completed_at": ABSENT}, changes)

    def note_control(
        self, job: Job, control: JobControl, due_at: float | None = None
    ) -> Job | None:
        """Store the result of users' commands, if nothing else changed it since it was read."""
        seen = SameMembers(job.control, ("version", "cancelled"))
        due = {} if due_at is None else {"due_at": due_at, "work": DueKind.JOB}
        expected = {"state": job.state, "control": seen}
        return self._change_job(job.job_id, expected, {"control": control, **due})

    def note_wait(self, job_id: str, wait: Wait | None) -> Job | None:
        """Note what an open job waits for, for its next status; None: for nothing any more."""
        return self._change_job(job_id, {"completed_at": ABSENT}, {"wait": wait})

    def leave_out_references(self, job: Job) -> None:
        """Send the bodies of a job without `external_reference` from now on."""
        self._change_job(job.job_id, {"completed_at": ABSENT}, {"without_references": True})

    def update_leased_job(self, job: Job, changes: Mapping[str, object]) -> Job | None:
        """Change a leased job."""
        expected = {"state": job.state, "lease_until": job.lease_until}
        return self._change_job(job.job_id, expected, changes)

    def bring_visit_forward(self, job: Job, due_at: float) -> Job | None:
        """Make a job due earlier, unless somebody works on it."""
        expected: dict[str, object] = {"state": JobState.IN_PROGRESS, "due_at": job.due_at}
        return self._change_job(job.job_id, expected, {"due_at": due_at, "work": DueKind.JOB})

    def begin_finalizing(self, job: Job, **updates: object) -> Job | None:
        """`in_progress` to `finalizing`, under the lease: all batches are final."""
        changes = {"state": JobState.FINALIZING, "work": DueKind.JOB, **updates}
        return self.update_leased_job(job, changes)

    def note_status(self, job: Job, status: Status, fields: Mapping[str, object]) -> Job | None:
        """Store what a status tells of a job that is being split, unless another run does."""
        seen = SameMembers(job.status, ("at",))
        expected: dict[str, object] = {"state": JobState.SPLITTING, "status": seen}
        return self._change_job(job.job_id, expected, {"status": status, **fields})

    def note_appended(self, job: Job, changes: Mapping[str, object]) -> Job | None:
        """Store how much of a file is appended, under the lease, or if nobody appended more."""
        if job.state is not JobState.SPLITTING:
            return self.update_leased_job(job, changes)
        seen = SameMembers(job.output, ("mark",))
        expected = {"state": JobState.SPLITTING, "output": seen}
        return self._change_job(job.job_id, expected, changes)

    def end_job(self, job: Job, state: JobState, now: float, clean_at: float | None) -> Job | None:
        """`finalizing` to `completed`, `failed` or `cancelled`; staged objects go at `clean_at`."""
        changes: dict[str, object] = {
            "state": state,
            "completed_at": now,
            "ttl": int(now) + LIFE_SECONDS,
            "claims": 0,
        }
        remove = ["lease_until"]
        if clean_at is None:
            remove += ["due_at", "work"]
        else:
            changes |= {"due_at": clean_at, "work": DueKind.ROUTINE}
        return self._change_job(job.job_id, {"state": JobState.FINALIZING}, changes, remove)

    def _change_job(
        self,
        job_id: str,
        expected: Mapping[str, object],
        changes: Mapping[str, object],
        remove: Sequence[str] = (),
    ) -> Job | None:
        return self.update(job_key(job_id), expected, changes, Job, remove=remove)
