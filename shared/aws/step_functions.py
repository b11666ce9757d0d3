"""Step Functions: reports to an execution that waits with a task token. Knows nothing about jobs.

The token is a secret, and Step Functions' messages may quote it: no error that leaves this module
contains it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shared.aws.client_errors import storage_errors
from shared.errors import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable

GONE = frozenset({"InvalidToken", "TaskDoesNotExist", "TaskTimedOut"})
"""Codes of a token that no task waits with, or no longer.

The same for one that was reported to already.
"""
REFUSED = frozenset(
    {
        *("AccessDeniedException", "InvalidOutput", "ValidationException"),
        *("KmsAccessDeniedException", "KmsInvalidStateException"),
    }
)
"""Codes of a report that will be refused again: a policy, a machine's key, or what it says."""
MAX_OUTPUT, MAX_ERROR, MAX_CAUSE = 262_144, 256, 32_768
"""Characters that Step Functions takes of what a task returns.

Of its error and of the error's cause.
"""


@dataclass(frozen=True, slots=True)
class Gone:
    """The task is gone.

    Attributes:
        code: Step Functions' own.
        sent_again: the SDK got no answer at first and sent the report again, so it may have found
            its own first one.
    """

    code: str
    sent_again: bool = False


class StepFunctions:
    """Executions that wait for a report.

    Each report returns None if it was taken, or that its task is gone.
    """

    def __init__(self, client: Callable[[], Any]) -> None:
        """Take a function that creates the client: most invocations report to no execution."""
        self.client = client

    def beat(self, token: str) -> Gone | None:
        """Report that the task is worked on; raises like `succeed`."""
        return self._send("send_task_heartbeat", token)

    def succeed(self, token: str, output: str) -> Gone | None:
        """Report that the task has succeeded.

        Args:
            token: of the task.
            output: JSON, at most `MAX_OUTPUT` characters.

        Raises:
            RefusedError: Step Functions refuses the report, and will until somebody changes
                something.
            StorageError: it failed; the report must be sent again.
        """
        return self._send("send_task_success", token, output=output)

    def fail(self, token: str, error: str, cause: str) -> Gone | None:
        """Report that the task has failed; raises like `succeed`."""
        return self._send("send_task_failure", token, error=error, cause=cause)

    def _send(self, operation: str, token: str, **report: str) -> Gone | None:
        try:
            with storage_errors(f"Step Functions {operation}", GONE | REFUSED, secret=token):
                getattr(self.client(), operation)(taskToken=token, **report)
        except RefusedError as refusal:
            if refusal.code not in GONE:
                raise
            return Gone(refusal.code, refusal.sent_again)
        return None
