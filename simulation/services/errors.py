"""Errors of simulated AWS services, as boto3 raises them."""

from typing import Any

from botocore.exceptions import ClientError


class ConditionalCheckFailedError(ClientError):
    """The condition of a write did not hold."""


def refused(code: str, operation: str, status: int = 400, retries: int = 0) -> ClientError:
    """The error of a call that a service refused."""
    reply: Any = {
        "Error": {"Code": code, "Message": "simulated"},
        "ResponseMetadata": {"HTTPStatusCode": status, "RetryAttempts": retries},
    }
    if code == "ConditionalCheckFailedException":
        return ConditionalCheckFailedError(reply, operation)
    return ClientError(reply, operation)
