"""Look at jobs: `ls`, `status`, `wait`; and at models: `models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dropbatch.context import Context, as_json, emit, parse_since, pass_context, strict
from dropbatch.errors import CommandError, Exit

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from dropbatch.jobs import Job

STATES = ("splitting", "in_progress", "finalizing", "completed", "failed", "cancelled")


@click.command()
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--since", callback=parse_since, default="7d", show_default=True, help="30m, 12h, 7d, or a date.")
@as_json
@pass_context
def ls(context: Context, *, state: str | None, since: datetime, as_json: bool) -> None:
    """List jobs, oldest first."""
    from dropbatch.jobs import history

    for job, status in history(context.stack, since):
        if state and status["state"] != state:
            continue
        if as_json:
            emit(status | {"job_id": job.id, "path": job.path})
        else:
            click.echo(_row(job, status))


def _row(job: Job, status: dict[str, Any]) -> str:
    counts = status.get("counts") or {}
    total = counts.get("total")
    done = counts.get("succeeded", 0) + counts.get("failed", 0)
    records = f"{done:,}" if total is None or total == done else f"{done:,}/{total:,}"
    failed = f"{counts['failed']:,} failed" if counts.get("failed") else ""
    waiting = (status.get("waiting_for") or {}).get("code", "")
    return f"{job.id}  {status['state']:<11}  {records:>15}  {failed:>12}  {job.path}  {waiting}".rstrip()


@click.command()
@click.argument("job")
@as_json
@pass_context
def status(context: Context, *, job: str, as_json: bool) -> None:
    """Show a job's status."""
    from dropbatch.jobs import status_of
    from dropbatch.progress import describe

    found = context.job(job)
    current = status_of(context.stack, found)
    if as_json:
        emit(current)
        return
    for line in describe(found.id, current):
        click.echo(line)
    click.echo(f"s3://{context.stack.bucket}/{found.folder}")


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@strict
@as_json
@pass_context
def wait(context: Context, *, jobs: Sequence[str], strict: bool, as_json: bool) -> None:
    """Wait until jobs are over."""
    raise SystemExit(wait_and_report(context, context.jobs(jobs), strict=strict, as_json=as_json))


def wait_and_report(context: Context, jobs: Sequence[Job], *, strict: bool, as_json: bool) -> Exit:
    """Wait until jobs are over and print how each ended; return the exit code.

    Raises:
        CommandError: the user interrupted it.
    """
    from dropbatch.progress import Progress
    from dropbatch.waiting import wait_until_over

    try:
        manifests = wait_until_over(context.stack, jobs, Progress())
    except KeyboardInterrupt:
        names = " ".join(job.id for job in jobs)
        subject, them = ("The job continues", "it") if len(jobs) == 1 else ("The jobs continue", "them")
        raise CommandError(
            f"\nInterrupted. {subject}. Watch {them} with `dropbatch wait {names}`, stop {them} with "
            f"`dropbatch cancel {names}`.",
            Exit.INTERRUPTED,
        ) from None
    code = Exit.DONE
    for job_id, manifest in manifests.items():
        if as_json:
            emit(manifest)
        elif manifest["error"]:
            error = manifest["error"]
            click.echo(f"{job_id}  {manifest['state']}: {error['code']}: {error['message']}", err=True)
        if manifest["state"] != "completed":
            code = Exit.JOB_FAILED
        elif strict and manifest["counts"]["failed"] and code is Exit.DONE:
            code = Exit.SOME_FAILED
    return code


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also list models that do not take batches.")
@as_json
def models(*, all_: bool, as_json: bool) -> None:
    """List models: task, prices per million tokens."""
    from dropbatch.models import models as known

    for model in known():
        if not all_ and not model["batch"]:
            continue
        if as_json:
            emit(model)
            continue
        click.echo(
            f"{model['id']:<46}  {model['task']:<13}  {_price(model['input_price']):>9} in  "
            f"{_price(model['output_price']):>9} out  {model['priced_at'] or ''}".rstrip()
        )


def _price(dollars: str | None) -> str:
    return "-" if dollars is None else f"${dollars}"
