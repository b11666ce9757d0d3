"""Exit codes, the same for every verb.

The code of each error of the library, and its words for a command line.
"""

from __future__ import annotations

import re
from enum import IntEnum

from dropbatch.errors import Error, NotFound, NotPermitted, TimedOut, UsageError


class Exit(IntEnum):
    """Exit codes."""

    DONE = 0
    JOB_FAILED = 1
    """A job failed or was cancelled, or the command failed with the message on standard error."""
    USAGE = 2
    SOME_FAILED = 3
    """With `--strict`: the job is completed, and some of its records failed."""
    NOT_PERMITTED = 4
    NOT_FOUND = 5
    TIMED_OUT = 6
    """Jobs are not over after `--timeout`."""
    INTERRUPTED = 130


_OF_ERRORS: dict[type[Error], Exit] = {
    UsageError: Exit.USAGE,
    NotPermitted: Exit.NOT_PERMITTED,
    NotFound: Exit.NOT_FOUND,
    TimedOut: Exit.TIMED_OUT,
}
_FROM_BEST = (Exit.DONE, Exit.SOME_FAILED, Exit.JOB_FAILED)


def worst(*codes: Exit) -> Exit:
    """The code of a command of whose jobs each has one."""
    return max(
        codes, key=lambda one: _FROM_BEST.index(one) if one in _FROM_BEST else len(_FROM_BEST) + one
    )


def exit_of(error: Error) -> Exit:
    """The exit code of a command that an error ends."""
    return next(
        (code for kind, code in _OF_ERRORS.items() if isinstance(error, kind)), Exit.JOB_FAILED
    )


_ARGUMENTS = {
    "stack": "--stack or DROPBATCH_STACK",
    "folder": "folder with -o",
    "force=True": "--force",
    "check=False": "--no-check",
    **{name: f"--{name}" for name in ("name", "model", "format", "template", "delimiter")},
}


def in_options(message: str) -> str:
    """A message of the library, or of a job, in the words of the command line.

    The library names arguments and calls as a program writes them: `force=True`, `max_cost`,
    `job.wait()`.
    """
    from dropbatch.core.names import JOB_ID
    from dropbatch.core.options import OPTIONS

    jobs = " ".join(JOB_ID.findall(message)) or "JOB"

    def spoken(found: re.Match[str]) -> str:
        name = found[1]
        if name.startswith("job."):
            return f"`dropbatch {name[len('job.') : -len('()')]} {jobs}`"
        if name == "client.jobs()":
            return "`dropbatch ls`"
        return _ARGUMENTS.get(name) or (f"-o {name}" if name in OPTIONS else found[0])

    return re.sub(r"`([\w.=()]+)`", spoken, message)
