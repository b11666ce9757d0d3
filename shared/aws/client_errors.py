"""Translates boto3's errors into Dropbatch's own: one place for all AWS services."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from shared.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def storage_errors(call: str) -> Iterator[None]:
    """Translate the errors that a boto3 call raises.

    Args:
        call: the service and its operation, for the message.

    Raises:
        StorageError: the service failed, after the client's own retries.
    """
    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise StorageError(f"{call}: {error}") from error
