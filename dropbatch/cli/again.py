"""Records that are sent again by who waits, and answers that do not fit their schema."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from dropbatch.cli.context import flag, note
from dropbatch.client.again import Again, Wanted
from dropbatch.client.job import Job
from dropbatch.client.progress import counted
from dropbatch.core.formats.table import FORMATS
from dropbatch.errors import UsageError

MAX_NAMED = 20
"""At most so many answers that do not fit are named."""
_OPTIONS = (
    click.option(
        "--retry",
        "times",
        type=click.IntRange(0),
        default=0,
        metavar="N",
        help="Up to N times, send records again that failed for lack of capacity, of an answer or "
        "of time, and merge the answers. They are billed again.",
    ),
    flag("--incomplete", help="With --retry: also those whose answers are none."),
    flag("--misfits", help="With --retry: also those whose answers do not fit their schema."),
    flag("--unknown", help="With --retry: also those that may be billed already."),
)


def again_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that say what is sent again; the command gets them as `again`."""

    @wraps(command)
    def gathered(*given: Any, times: int, **more: Any) -> Any:
        chosen = {name: more.pop(name) for name in ("unknown", "incomplete", "misfits")}
        if any(chosen.values()) and not times:
            raise UsageError("--incomplete, --misfits and --unknown need --retry N.")
        again = Again(times, Wanted(failed=True, **chosen), note) if times else None
        return command(*given, again=again, **more)

    for option in reversed(_OPTIONS):
        gathered = option(gathered)
    return gathered


def note_misfits(job: Job, *, merged: bool) -> bool:
    """Name the answers of a job that do not fit their schema; whether there are any."""
    count, what = 0, "row" if FORMATS[job.manifest()["format"]].is_table else "line"
    for record in job.results(merged=merged, check=True):
        if record.misfit:
            count += 1
            if count <= MAX_NAMED:
                place = f"{what} {record.id + 1:,} of the output"
                note(f"{job.id}  {place}: {record.misfit.message}")
    if count:
        again = f"`dropbatch retry {job.id} --misfits` sends these again"
        fits = "does not fit its" if count == 1 else "do not fit their"
        note(f"{job.id}  {counted(count, 'answer')} {fits} schema: {again}.")
    return bool(count)
