"""Exit codes, the same for every verb, and the one for each error of the library."""

from __future__ import annotations

from enum import IntEnum

from dropbatch.errors import Error, NotFound, NotPermitted, UsageError


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
    INTERRUPTED = 130


_OF_ERRORS = {UsageError: Exit.USAGE, NotPermitted: Exit.NOT_PERMITTED, NotFound: Exit.NOT_FOUND}


def exit_of(error: Error) -> Exit:
    """The exit code of a command that an error ends."""
    return _OF_ERRORS.get(type(error), Exit.JOB_FAILED)
