"""Control: `cancel`, `pause`, `resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from dropbatch.cli.context import Context, as_json, emit, pass_context

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@click.argument("jobs", nargs=-1, required=True, metavar="JOB...")
@click.option(
    "--now", is_flag=True, help="Do not wait for batches that Workers AI has accepted; they may still be billed."
)
@as_json
@pass_context
def cancel(context: Context, *, jobs: Sequence[str], now: bool, as_json: bool) -> None:
    """Cancel jobs. Answers that have arrived are kept."""
    from dropbatch.control import control_job

    word: Literal["cancel", "cancel now"] = "cancel now" if now else "cancel"
    for job in context.jobs(jobs):
        control_job(context.stack, job.id, word)
        if as_json:
            emit({"job_id": job.id, "control": word})
        else:
            click.echo(f"{job.id}  is being cancelled")


@click.command()
@click.argument("job", required=False)
@as_json
@pass_context
def pause(context: Context, *, job: str | None, as_json: bool) -> None:
    """Pause a job's submits, or the whole stack's."""
    _control(
        context, job, "pause", "paused: nothing more is submitted, accepted batches are collected", as_json=as_json
    )


@click.command()
@click.argument("job", required=False)
@as_json
@pass_context
def resume(context: Context, *, job: str | None, as_json: bool) -> None:
    """Resume a paused job, or the whole stack."""
    _control(context, job, "run", "resumed", as_json=as_json)


def _control(context: Context, job: str | None, word: Literal["pause", "run"], means: str, *, as_json: bool) -> None:
    from dropbatch.control import control_job, control_stack

    job_id = context.job(job).id if job else None
    if job_id is None:
        control_stack(context.stack, word)
    else:
        control_job(context.stack, job_id, word)
    if as_json:
        emit({"job_id": job_id, "control": word})
    else:
        click.echo(f"{job_id or f'stack {context.stack.name}'}  {means}")
