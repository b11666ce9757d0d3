"""For operators: `redrive`, `tail`, `doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from dropbatch.cli.context import Context, as_json, emit, parse_since, pass_context
from dropbatch.cli.exits import Exit

if TYPE_CHECKING:
    from datetime import datetime

RUNTIME_FIELDS = frozenset(
    {
        "cold_start",
        "exception_name",
        "function_arn",
        "function_memory_size",
        "function_name",
        "function_request_id",
        "level",
        "location",
        "message",
        "service",
        "stack_trace",
        "timestamp",
        "xray_trace_id",
    }
)
"""Fields of a log line that show where it comes from, not what happened.

Only `--json` prints them.
"""


@click.command()
@as_json
@pass_context
def redrive(context: Context) -> None:
    """Send messages of the dead-letter queues back to their queues."""
    from dropbatch.cli.operators import redrive as redrive_queues

    for queue, moved in redrive_queues(context.stack).items():
        emit({"queue": queue, "moved": moved}, f"{queue:<8}{moved:>6,} messages")


@click.command()
@click.argument("job", required=False)
@click.option(
    "--since",
    callback=parse_since,
    default="10m",
    show_default=True,
    help="30m, 12h, 7d, or a date.",
)
@click.option("--no-follow", is_flag=True, help="Print what has been logged so far, then exit.")
@as_json
@pass_context
def tail(context: Context, *, job: str | None, since: datetime, no_follow: bool) -> None:
    """Follow the functions' logs, of one job or of all."""
    from dropbatch.cli.operators import log_lines

    job_id = "" if job is None else context.job(job).id
    for line in log_lines(context.stack, job_id, since.timestamp(), follow=not no_follow):
        emit(line, *([_log_line(line)] if "message" in line else []))


def _log_line(line: dict[str, Any]) -> str:
    shown = {
        name: value
        for name, value in line.items()
        if name not in RUNTIME_FIELDS and value not in (None, "")
    }
    if "exception" in shown:
        shown["exception"] = str(shown["exception"]).strip().rpartition("\n")[2]
    fields = " ".join(f"{name}={value}" for name, value in shown.items())
    return f"{line.get('timestamp', '')}  {line.get('level', ''):<7}  {line['message']}  {fields}".rstrip()


LEVELS = {"ok": "ok", "note": "note", "bad": "BAD", "unknown": "?"}


@click.command()
@as_json
@pass_context
def doctor(context: Context) -> None:
    """Find what is wrong, and say what to do."""
    from dropbatch.cli.doctor import examine

    worst = Exit.DONE
    for finding in examine(context.stack):
        if finding.level == "bad":
            worst = Exit.JOB_FAILED
        shown = {"check": finding.name, "level": finding.level, "message": finding.message}
        emit(shown, f"{LEVELS[finding.level]:<5} {finding.name:<13} {finding.message}")
    raise SystemExit(worst)
