"""Control: `cancel`, `pause`, `resume`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from dropbatch.cli.context import Context, as_json, emit, pass_context
from dropbatch.cli.exits import Exit
from dropbatch.core.names import FINAL_JOB_STATES
from dropbatch.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dropbatch.client.job import Job


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--now",
    is_flag=True,
    help="Do not wait for batches that Workers AI has accepted; they may still be billed.",
)
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
            emit(
                {"job_id": job.id, "control": "cancel now" if now else "cancel"},
                f"{job.id}  is being cancelled",
            )
    raise SystemExit(context.code)


def _say_over(job: Job, state: str) -> None:
    emit({"job_id": job.id, "control": None, "state": state}, f"{job.id}  is over already: {state}")


@click.command()
@click.argument("job", required=False)
@click.option("--yes", is_flag=True, help="Do not ask before the whole stack is paused.")
@as_json
@pass_context
def pause(context: Context, *, job: str | None, yes: bool) -> None:
    """Pause a job's submits, or the whole stack's."""
    if job is None and not yes:  # An empty name is none of a job, and not left out.
        _ask(context.stack.name)
    _control(
        context, job, "pause", "paused: nothing more is submitted, accepted batches are collected"
    )


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
    found = None if job is None else context.job(job)
    if found and (state := found.status()["state"]) in FINAL_JOB_STATES:
        _say_over(found, state)
        return
    target = found or context.client
    target.resume() if word == "run" else target.pause()
    job_id = found.id if found else None
    emit({"job_id": job_id, "control": word}, f"{job_id or f'stack {context.stack.name}'}  {means}")
