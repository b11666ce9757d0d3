"""Jobs: `ls`, `status`, `wait`, `cancel`, `pause`, `resume`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

import click

from dropbatch.cli.context import (
    Context,
    Exit,
    as_json,
    emit,
    flag,
    is_json,
    jobs_argument,
    parse_seconds,
    parse_since,
    pass_context,
    row_of,
    strict,
    worst,
)
from dropbatch.cli.follow import Following, again_options, incomplete_in
from dropbatch.client.again import Again
from dropbatch.client.download import blocks_of
from dropbatch.client.find import history, newest
from dropbatch.client.job import Job
from dropbatch.client.progress import counted, describe, duration
from dropbatch.client.records import lines_of
from dropbatch.client.report import billed_again
from dropbatch.client.wait import wait_for_job
from dropbatch.core.names import FINAL_JOB_STATES, JOB_ID, JobState, job_record, job_time
from dropbatch.errors import UsageError

STATES = tuple(state.value for state in JobState)  # click would take the names of the members.


@click.command()
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option(
    "--since",
    callback=parse_since,
    default="7d",
    show_default=True,
    help="30m, 12h, 7d, or a date.",
)
@click.option("--limit", type=click.IntRange(1), help="Only so many, the newest.")
@as_json
@pass_context
def ls(context: Context, *, state: str | None, since: datetime, limit: int | None) -> None:
    """List jobs, oldest first."""

    def wanted(one: dict[str, Any]) -> bool:
        return not state or one["state"] == state

    stack = context.stack
    found = newest(stack, since, limit, wanted) if limit else history(stack, since)
    for job, status in found:
        if wanted(status):
            emit(status | {"job_id": job.id, "path": job.path}, _row(job, status))


@click.command()
@jobs_argument
@as_json
@pass_context
def status(context: Context, *, jobs: Sequence[str]) -> None:
    """Show the status of a job, or a line each of several."""
    found, many = context.jobs(jobs)
    if many:
        for job, current in context.each(lambda job: job.status(), found, many=True):
            emit(current | {"job_id": job.id, "path": job.path}, _row(job, current))
        raise SystemExit(context.code)
    (only,) = found
    current = only.status()
    emit(current, *([] if is_json() else [*describe(only.id, current), *details(only, current)]))


@click.command()
@jobs_argument
@click.option(
    "--timeout",
    callback=parse_seconds,
    metavar="TIME",
    help="Give up after 90s, 30m or 12h: exit code 6.",
)
@again_options
@strict
@as_json
@pass_context
def wait(
    context: Context,
    *,
    jobs: Sequence[str],
    timeout: float | None,
    again: Again | None,
    strict: bool,
) -> None:
    """Wait until jobs are over."""
    found, many = context.jobs(jobs, lambda name: wait_for_job(context.stack, name, timeout))
    following = Following(strict=strict, many=many, timeout=timeout, again=again)
    raise SystemExit(worst(following.follow(found), context.code))


def _row(job: Job, status: Mapping[str, Any]) -> str:
    counts = status.get("counts") or {}
    total = counts.get("total")
    done = counts.get("succeeded", 0) + counts.get("failed", 0)
    records = f"{done:,}" if total is None or total == done else f"{done:,}/{total:,}"
    failed = f"{counts['failed']:,} failed" if counts.get("failed") else ""
    waiting = (status.get("waiting_for") or {}).get("code", "")
    numbers = f"{duration(_age(job)):>10}", f"{records:>15}", f"{failed:>12}"
    return row_of(job.id, f"{status['state']:<11}", *numbers, job.path, waiting)


def _age(job: Job) -> float:
    """Seconds since the upload; the time is in the job's id."""
    if not JOB_ID.fullmatch(job.id):
        return 0.0
    return max((datetime.now(UTC) - job_time(job.id)).total_seconds(), 0.0)


def details(job: Job, status: Mapping[str, Any]) -> Iterator[str]:
    """A job's file, model, age and cost, why it failed, and where its results are."""
    # Or S3 tells the stack nothing of the upload.
    has_job = not (job.uploaded and status.get("error"))
    manifest = job.manifest() if has_job and status["state"] in FINAL_JOB_STATES else None
    record = manifest or job.stack.read_json(job_record(job.id)) or {}
    yield f"file     {job.path}"
    format_ = record.get("format") or "not known yet"
    yield f"model    {record.get('model') or 'none'}, format {format_}"
    yield f"age      {duration(_age(job))}"
    if manifest:
        yield f"cost     {_cost(manifest.get('cost'))}"
    for one in billed_again(manifest or {}):
        yield f"billed   {one}"
    if error := (manifest or status).get("error"):
        yield f"because  {error['code']}: {error['message']}"
    for note in status.get("notes") or []:
        yield f"note     {note['code']}: {note['message']}"
    if told := incomplete_in(manifest or status):
        yield f"answers  {told}"
    if manifest and (first := _first_failure(job, manifest)):
        yield f"failed   {counted(manifest['counts']['failed'], 'record')}; the first: {first}"
    yield f"results  s3://{job.stack.bucket}/{job.folder}"


def _cost(cost: Mapping[str, Any] | None) -> str:
    if not cost:
        return "not known: the model's price is not"
    return f"${cost['amount']}{', estimated' if cost['estimated'] else ''}"


def _first_failure(job: Job, manifest: Mapping[str, Any]) -> str:
    entry = next((one for one in manifest["files"] if one["kind"] == "errors"), None)
    if entry is None:
        return ""
    failure = json.loads(next(lines_of(blocks_of(job, entry))))
    where = f"line {failure['line']:,}" if failure.get("line") else f"record {failure['id']:,}"
    return f"{where}: {failure['error']['code']}: {failure['error']['message'][:500]}"


@click.command()
@jobs_argument
@flag("--now", help="Do not wait for batches that were accepted; they may still be billed.")
@as_json
@pass_context
def cancel(context: Context, *, jobs: Sequence[str], now: bool) -> None:
    """Cancel jobs. Answers that have arrived are kept."""
    found, many = context.jobs(jobs)

    def stop(job: Job) -> str:
        state: str = job.status()["state"]
        if state not in FINAL_JOB_STATES:
            job.cancel(now=now)
        return state

    for job, state in context.each(stop, found, many=many):
        if state in FINAL_JOB_STATES:
            _say_over(job, state)
        else:
            told = {"job_id": job.id, "control": "cancel now" if now else "cancel"}
            emit(told, f"{job.id}  is being cancelled")
    raise SystemExit(context.code)


def _say_over(job: Job, state: str) -> None:
    emit({"job_id": job.id, "control": None, "state": state}, f"{job.id}  is over already: {state}")


@click.command()
@click.argument("job", required=False)
@flag("--yes", help="Do not ask before the whole stack is paused.")
@as_json
@pass_context
def pause(context: Context, *, job: str | None, yes: bool) -> None:
    """Pause a job's submits, or the whole stack's."""
    if job is None and not yes:  # An empty name is none of a job, and not left out.
        _ask(context.stack.name)
    means = "paused: nothing more is submitted, accepted batches are collected"
    _control(context, job, "pause", means)


def _ask(stack: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise UsageError(
            f"Without a job, all jobs of stack {stack} are paused. Add --yes if you mean that."
        )
    if not click.confirm(f"Pause all jobs of stack {stack}?", err=True):
        raise SystemExit(Exit.DONE)


@click.command()
@click.argument("job", required=False)
@as_json
@pass_context
def resume(context: Context, *, job: str | None) -> None:
    """Resume a paused job, or the whole stack."""
    _control(context, job, "run", "resumed")


def _control(context: Context, job: str | None, word: Literal["pause", "run"], means: str) -> None:
    found = None if job is None else context.client.job(job)
    if found and (state := found.status()["state"]) in FINAL_JOB_STATES:
        _say_over(found, state)
        return
    target = found or context.client
    target.resume() if word == "run" else target.pause()
    job_id = found.id if found else None
    emit({"job_id": job_id, "control": word}, f"{job_id or f'stack {context.stack.name}'}  {means}")
