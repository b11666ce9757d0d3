"""Look at jobs: `ls`, `status`, `wait`; and at models: `models`."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import Context, as_json, emit, parse_since, pass_context, strict
from dropbatch.cli.exits import Exit, in_options
from dropbatch.core.keys import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from decimal import Decimal

    from dropbatch.client.job import Job

STATES = tuple(state.value for state in JobState)  # click would take the names of the members.


@click.command()
@click.option("--state", type=click.Choice(STATES), help="Only jobs in this state.")
@click.option("--since", callback=parse_since, default="7d", show_default=True, help="30m, 12h, 7d, or a date.")
@as_json
@pass_context
def ls(context: Context, *, state: str | None, since: datetime) -> None:
    """List jobs, oldest first."""
    from dropbatch.client.find_jobs import history

    for job, status in history(context.stack, since):
        if state and status["state"] != state:
            continue
        emit(status | {"job_id": job.id, "path": job.path}, _row(job, status))


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
def status(context: Context, *, job: str) -> None:
    """Show a job's status."""
    from dropbatch.client.progress import describe

    found = context.job(job)
    current = found.status()
    emit(current, *describe(found.id, current), f"s3://{context.stack.bucket}/{found.folder}")


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@strict
@as_json
@pass_context
def wait(context: Context, *, jobs: Sequence[str], strict: bool) -> None:
    """Wait until jobs are over."""
    from dropbatch.client.find_jobs import wait_for_job

    found = [wait_for_job(context.stack, job) for job in jobs]
    raise SystemExit(wait_and_report(found, strict=strict))


def wait_and_report(jobs: Sequence[Job], *, strict: bool) -> Exit:
    """Wait until jobs are over and print how each ended; return the exit code."""
    from dropbatch.client.progress import Progress
    from dropbatch.client.waiting import wait_until_over

    manifests = wait_until_over(jobs, Progress())
    code = Exit.DONE
    for job_id, manifest in manifests.items():
        emit(manifest)
        if error := manifest["error"]:
            click.echo(f"{job_id}  {manifest['state']}: {error['code']}: {in_options(error['message'])}", err=True)
        elif manifest["counts"]["failed"]:
            can_retry = any(entry["kind"] == "retry" for entry in manifest["files"])
            again = f", `dropbatch retry {job_id}` tries them again" if can_retry else ""
            click.echo(f"`dropbatch report {job_id}` shows why records failed{again}.", err=True)
        if manifest["state"] != "completed":
            code = Exit.JOB_FAILED
        elif strict and manifest["counts"]["failed"] and code is Exit.DONE:
            code = Exit.SOME_FAILED
    return code


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also list models that do not take batches.")
@as_json
def models(*, all_: bool) -> None:
    """List models: task, prices per million tokens, tokens of the context window."""
    from dropbatch.core.formats.model_catalog import catalog, find_model

    read_on = date.fromisoformat(catalog().read_on)
    days = (datetime.now(UTC).date() - read_on).days
    click.echo(f"Facts of {read_on}, {days:,} days old", err=True)
    for model in sorted((find_model(one.id) for one in catalog().models), key=lambda one: one.id):
        if not all_ and not model.batch:
            continue
        shown = {
            "id": model.id,
            "task": model.task or "unknown",
            "batch": model.batch,
            "input_price": _number(model.input_price),
            "output_price": _number(model.output_price),
            "cached_price": _number(model.cached_price),
            "priced_at": model.priced_at or None,
            "source": catalog().sources.get(model.price_source),
            "context": model.context,
            "efforts": model.efforts and list(model.efforts.values),
            "deprecated_at": model.deprecated_at or None,
            "needs_paid": model.needs_paid,
            "read_on": catalog().read_on,
        }
        costs = f"{_price(model.input_price):>9} in  {_price(model.output_price):>9} out  {model.priced_at:10}"
        context = f"{model.context:>9,} tokens" if model.context else ""
        notes = ("" if model.batch else "  no batches") + (f"  until {model.deprecated_at}" * bool(model.deprecated_at))
        emit(shown, f"{model.id:<46}  {shown['task']:<14}  {costs}  {context:16}{notes}".rstrip())


def _number(dollars: Decimal | None) -> str | None:
    return None if dollars is None else str(dollars)


def _price(dollars: Decimal | None) -> str:
    return "-" if dollars is None else f"${dollars}"
