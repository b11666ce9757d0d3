"""Errors of simulated AWS services, as boto3 raises them."""

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace

from botocore.exceptions import ClientError


class ConditionalCheckFailedError(ClientError):
    """The condition of a write did not hold."""


EXCEPTIONS = SimpleNamespace(ConditionalCheckFailedException=ConditionalCheckFailedError)


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
