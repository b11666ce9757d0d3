"""The errors that the library raises. Each message says what is wrong and what to do.

Error:
├── UsageError      the call is wrong: an option, a path, a name
│   ├── Taken           a file of somebody else is in the way
│   └── UnknownModel    perhaps a new one: it may be sent all the same, unchecked
├── UploadRefused   the upload is wrong; has the code that the manifest shows, and perhaps a line
│   └── NoRecordFits    of those at its beginning: it may be uploaded all the same, unchecked
├── JobFailed       a job ended without its answers
├── NotPermitted    AWS denied the call, or has no valid credentials
├── NotFound        there is no such stack, job, upload or file
│   ├── NoStack         in this account and region
│   ├── NoJob           of this name
│   ├── NotOver         a job, whose results are wanted
│   └── NothingToRetry  of a job
├── TimedOut        jobs are not over after the time that was given
└── ConnectionLost  AWS could not be reached, or was busy; the same call may work later
    └── IdUnknown       of what was uploaded: it must not be sent again
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dropbatch.core.errors import Error, UploadRefused, UsageError

if TYPE_CHECKING:
    from dropbatch.client.job import Job

__all__ = ["Error", "UploadRefused", "UsageError"]  # The rules raise these; others are below.


class JobFailed(Error):  # noqa: N818
    """A job ended without its answers.

    Attributes:
        job: the job.
        error: its `code` and `message`; None if it was cancelled.
    """

    def __init__(self, message: str, job: Job, error: Mapping[str, str] | None) -> None:
        """Keep what the manifest says."""
        super().__init__(message)
        self.job = job
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        return JobFailed, (*self.args, self.job, self.error)


class Taken(UsageError):  # noqa: N818
    """Files of another job or program are in the way."""


class UnknownModel(UsageError):  # noqa: N818
    """Dropbatch does not know the model."""


class TimedOut(Error):  # noqa: N818
    """Jobs are not over after the time that was given to wait; they continue."""


class NotPermitted(Error):  # noqa: N818
    """AWS denied the call, or has no valid credentials."""


class NotFound(Error):  # noqa: N818
    """There is no such stack, job, upload or file."""


class NoStack(NotFound):
    """There is no such stack."""


class NoJob(NotFound):
    """There is no job of this name."""


class NoRecordFits(UploadRefused):
    """None of the records at the beginning of an upload can be sent to its model."""


class NotOver(NotFound):
    """A job has no results yet."""


class NothingToRetry(NotFound):
    """A job has no records that can be tried again."""


class ConnectionLost(Error):  # noqa: N818
    """AWS could not be reached, the connection was cut off, or the service was busy."""


class IdUnknown(ConnectionLost):
    """An upload was stored, but its job's id could not be read."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a call; says what is done already, and how to go on."""
