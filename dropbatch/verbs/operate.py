"""For operators: `redrive`, `tail`, `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dropbatch.context import Context, as_json, emit, parse_since, pass_context

if TYPE_CHECKING:
    from datetime import datetime

LOG_FIELDS = ("job_id", "number", "request_id", "code", "reason", "state")


@click.command()
@as_json
@pass_context
def redrive(context: Context, *, as_json: bool) -> None:
    """Send messages of the dead-letter queues back to their queues."""
    from dropbatch.operators import redrive as redrive_queues

    for queue, moved in redrive_queues(context.stack).items():
        if as_json:
            emit({"queue": queue, "moved": moved})
        else:
            click.echo(f"{queue:<8}{moved:>6,} messages")


@click.command()
@click.argument("job", required=False)
@click.option("--since", callback=parse_since, default="10m", show_default=True, help="30m, 12h, 7d, or a date.")
@click.option("--no-follow", is_flag=True, help="Print what was logged so far, and end.")
@as_json
@pass_context
def tail(context: Context, *, job: str | None, since: datetime, no_follow: bool, as_json: bool) -> None:
    """Follow the functions' logs, of one job or of all."""
    from dropbatch.operators import log_lines

    job_id = context.job(job).id if job else ""
    for line in log_lines(context.stack, job_id, since.timestamp(), follow=not no_follow):
        if as_json:
            emit(line)
        elif "message" in line:
            click.echo(_log_line(line))


def _log_line(line: dict[str, Any]) -> str:
    fields = " ".join(f"{name}={line[name]}" for name in LOG_FIELDS if line.get(name))
    return f"{line.get('timestamp', '')}  {line.get('level', ''):<7}  {line['message']}  {fields}".rstrip()
