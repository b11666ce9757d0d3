"""The errors that the library raises. Each message says what is wrong and what to do.

Error:
├── UsageError      the call is wrong: an option, a path, a name
├── UploadRefused   the upload is wrong; has the code that the manifest shows, and the line if it is known
├── JobFailed       a job ended without its answers
├── NotPermitted    AWS denied the call, or has no valid credentials
├── NotFound        there is no such stack, job, upload or file
├── TimedOut        jobs are not over after the time that was given
└── ConnectionLost  AWS could not be reached, or was busy; the same call may work later
"""

from __future__ import annotations


class Error(Exception):
    """The base class of all errors of the library; by itself, a service failed or gave what nobody expects.

    Attributes:
        source: the file that it is about, if several could be meant; the message begins with it.
    """

    source = ""

    def __str__(self) -> str:
        """The message."""
        return f"{self.source}: {super().__str__()}" if self.source else super().__str__()


class UsageError(Error):
    """The call is wrong."""


class UploadRefused(Error):  # noqa: N818 - the public name says what happened
    """A fault of a whole upload; its job ends with a failed manifest.

    Attributes:
        code: one of the documented upload codes, such as `unknown_format`.
        message: what is wrong and how to fix it, for the user.
        line: of the file, from 1; None if it is not known.
    """

    def __init__(self, code: str, message: str, line: int | None = None) -> None:
        """Keep the code and the message that the manifest will show."""
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.line = line


class JobFailed(Error):  # noqa: N818
    """A job ended without its answers."""


class TimedOut(Error):  # noqa: N818
    """Jobs are not over after the time that was given to wait; they continue."""


class NotPermitted(Error):  # noqa: N818
    """AWS denied the call, or has no valid credentials."""


class NotFound(Error):  # noqa: N818
    """There is no such stack, job, upload or file."""


class ConnectionLost(Error):  # noqa: N818
    """AWS could not be reached, the connection was cut off, or the service was busy."""


class Interrupted(KeyboardInterrupt):
    """The user interrupted a call; says what is done already, and how to go on."""
