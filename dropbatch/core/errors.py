"""The errors that the rules raise; `dropbatch.errors` has the whole tree."""

from __future__ import annotations


class Error(Exception):
    """The base class of all errors of the library.

    By itself, a service failed or gave what nobody expects.

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
