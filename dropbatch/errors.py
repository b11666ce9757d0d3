"""The error that ends a command, and the exit codes."""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes, the same for every verb."""

    DONE = 0
    JOB_FAILED = 1
    """A job failed or was cancelled, or the command failed with the message on standard error."""
    USAGE = 2
    SOME_FAILED = 3
    """With `--strict`: the job is completed, and some of its records failed."""
    NOT_PERMITTED = 4
    NOT_FOUND = 5
    INTERRUPTED = 130


class CommandError(Exception):
    """Ends a command with a message for standard error.

    Attributes:
        code: the exit code.
    """

    def __init__(self, message: str, code: Exit = Exit.JOB_FAILED) -> None:
        super().__init__(message)
        self.code = code
