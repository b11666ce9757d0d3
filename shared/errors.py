"""The error tree. Errors are made at the border to a foreign system; above it only these exist.

    DropbatchError
    ├── PermanentError              trying again changes nothing
    │   ├── ConfigurationError      the operator's: the message names every bad variable
    │   ├── UploadError             the user's: a fault of the whole upload, with the code the manifest shows
    │   └── LawBrokenError          ours: the ledger contradicts itself; alarm and do not finish
    │       └── UnreadableItemError an item does not hold what its schema promises
    └── RetryableError              nobody's: a service did not answer; the message or the schedule tries again
        ├── StorageError            S3, DynamoDB, SQS or Secrets Manager refused or broke off
        └── LeaseLostError          somebody else works on the item now; let go

What the Workers AI API says is a value, not an exception: see `shared.workers_ai.replies` and `.error_codes`.
"""

from __future__ import annotations


class DropbatchError(Exception):
    """The root of everything that Dropbatch raises itself."""


class PermanentError(DropbatchError):
    """Trying again changes nothing."""


class ConfigurationError(PermanentError):
    """The operator's fault: an environment variable is missing or out of range."""


class UploadError(PermanentError):
    """A fault of a whole upload; it ends its job with a failed manifest.

    Attributes:
        code: one of the upload codes of the documentation, `unknown_format` for instance.
        message: what is wrong and how to fix it, for the user.
    """

    def __init__(self, code: str, message: str) -> None:
        """Keep the code and the message that the manifest will show."""
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class InvariantError(PermanentError):
    """The ledger contradicts itself; nothing may be finished on such ground."""


class UnreadableItemError(InvariantError):
    """An item of the ledger does not hold what its schema promises."""


class RetryableError(DropbatchError):
    """Nobody's fault; the queue's next delivery or the next tick tries again."""


class StorageError(RetryableError):
    """An AWS service refused or broke off after the client's own short retries."""


class LeaseLostError(RetryableError):
    """Somebody else works on the item now; whatever is left to do is theirs."""
