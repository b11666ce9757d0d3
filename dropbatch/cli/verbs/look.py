"""Look at jobs: `ls`, `status`, `wait`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import (
    Context,
    as_json,
    emit,
    is_json,
    parse_seconds,
    parse_since,
    pass_context,
    strict,
)
from dropbatch.cli.details import row
from dropbatch.cli.exits import worst
from dropbatch.core.names import JobState

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

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
    from dropbatch.client.find import history, newest

    def wanted(one: dict[str, Any]) -> bool:
        return not state or one["state"] == state

    found = (
        history(context.stack, since)
        if limit is None
        else newest(context.stack, since, limit, wanted)
    )
    for job, status in found:
        if wanted(status):
            emit(status | {"job_id": job.id, "path": job.path}, *row(job, status))


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@as_json
@pass_context
def status(context: Context, *, jobs: Sequence[str]) -> None:
    """Show the status of a job, or a line each of several."""
    from dropbatch.cli.details import details
    from dropbatch.client.progress import describe

    found, many = context.jobs(jobs)
    if many:
        for job, current in context.each(lambda job: job.status(), found, many=True):
            emit(current | {"job_id": job.id, "path": job.path}, *row(job, current))
        raise SystemExit(context.code)
    (only,) = found
    current = only.status()
    if is_json():
        emit(current)
        return
    emit(current, *describe(only.id, current), *details(only, current))


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--timeout",
    callback=parse_seconds,
    metavar="TIME",
    help="Give up after 90s, 30m or 12h: exit code 6.",
)
@strict
@as_json
@pass_context
def wait(context: Context, *, jobs: Sequence[str], timeout: float | None, strict: bool) -> None:
    """Wait until jobs are over."""
    from dropbatch.cli.following import Following
    from dropbatch.client.find import wait_for_job

    found, many = context.jobs(jobs, lambda name: wait_for_job(context.stack, name, timeout))
    following = Following(strict=strict, many=many, timeout=timeout)
    raise SystemExit(worst(following.follow(found), context.code))
