"""Translates boto3's errors into Dropbatch's own: one place for all AWS services."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from botocore.exceptions import BotoCoreError, ClientError

from shared.errors import RefusedError, StorageError

ARCHIVED = "InvalidObjectState"
"""Code of a read of an object that has to be restored from an archive first."""
REFUSALS = {
    *("AccessDenied", "AccessDeniedException", "AccountProblem", "AllAccessDisabled"),
    *("InvalidRequest", "NoSuchBucket", ARCHIVED),
    *("400", "403"),  # HEAD, whose errors have no body.
}
"""Codes of calls that AWS will refuse until somebody changes something."""
_PASSING_KMS = (
    *("DependencyTimeoutException", "InternalException", "KeyUnavailableException"),
    *("ThrottlingException", "KmsThrottled"),
)


def is_refusal(code: str) -> bool:
    """Whether AWS will refuse the same call again, because of a policy, a key or an archive."""
    return code in REFUSALS or (
        code.startswith(("KMS.", "Kms")) and not code.endswith(_PASSING_KMS)
    )


@contextmanager
def storage_errors(call: str, lasting: Collection[str] = ()) -> Iterator[None]:
    """What a boto3 call raises as `StorageError`; as `RefusedError` with a code that lasts."""
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise _translated(call, error, lasting) from error


def _translated(
    call: str, error: ClientError | BotoCoreError, lasting: Collection[str]
) -> StorageError:
    code = error.response["Error"]["Code"] if isinstance(error, ClientError) else ""
    if isinstance(error, ClientError) and (is_refusal(code) or code in lasting):
        return RefusedError(call, code, error.response["Error"].get("Message", ""))
    return StorageError(f"{call}: {error}")
