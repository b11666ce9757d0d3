"""What the clients of all services have: boto3's errors, and no operations but those that are simulated."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from simulation.services.expressions import NotSimulatedError

if TYPE_CHECKING:
    from collections.abc import Callable


class ConditionalCheckFailedError(ClientError):
    """The condition of a write did not hold."""


EXCEPTIONS = SimpleNamespace(ConditionalCheckFailedException=ConditionalCheckFailedError)


class Client:
    """A client of a service, with the operations that its class has."""

    exceptions = EXCEPTIONS

    if not TYPE_CHECKING:  # Otherwise no attribute would be unknown to a type checker.

        def __getattr__(self, name: str) -> object:
            """Raise an error that no handler takes for one of AWS's."""
            if name.startswith("_"):
                raise AttributeError(name)
            raise NotSimulatedError(f"{type(self).__name__}.{name}")


def refused(code: str, operation: str, status: int = 400, retries: int = 0) -> ClientError:
    """The error of a call that a service refused."""
    reply = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": retries},
    }
    return _kind(code)(reply, operation)


@cache
def _kind(code: str) -> Callable[..., ClientError]:
    return ConditionalCheckFailedError if code == "ConditionalCheckFailedException" else ClientError
