"""The exceptions of both functions: adapters translate foreign errors, the rest sees only these.

A fault of the user's upload is `dropbatch.core.errors.UploadRefused`. A reply of the Workers AI API
is a value, not an exception: see `shared.workers_ai.replies` and `.error_codes`.
"""

from __future__ import annotations


class ConfigurationError(Exception):
    """The operator's fault: the message names every bad environment variable."""


class InvariantError(Exception):
    """Dropbatch's fault: the ledger contradicts itself; nothing may be finished on that basis."""


class UnreadableItemError(InvariantError):
    """An item of the ledger does not match its schema."""


class RetryableError(Exception):
    """Nobody's fault; the queue's next delivery or the next tick tries again."""


class LeaseLostError(RetryableError):
    """Another invocation works on the item now, and does what is left to do."""


class StorageError(RetryableError):
    """An AWS service rejected a call or the connection failed, after the client's short retries."""


class ObjectNotFoundError(StorageError):
    """Nothing is stored under the key, or no longer that version."""


class WriteConflictError(StorageError):
    """Two conditional writes of one object collided (409)."""


class RefusedError(StorageError):
    """AWS refuses a call, and will until somebody changes a policy, a key or the object.

    `code` is the service's own, or the HTTP status; `said` its message, empty if it sent none.
    """

    def __init__(self, call: str, code: str, said: str) -> None:
        super().__init__(f"{call}: {code} {said}")
        self.call = call
        self.code = code
        self.said = said


class UploadDeniedError(RetryableError):
    """S3 does not hand out an upload, and perhaps never will; `said` is for the user.

    `wait`: seconds until its message is to be delivered again, if it has no job.
    """

    def __init__(self, said: str, wait: float = 0.0) -> None:
        super().__init__(said)
        self.said = said
        self.wait = wait
