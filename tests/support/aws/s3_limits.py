"""S3's limits that moto does not know: bytes of a key, bytes of metadata, number of pieces.

moto itself rejects pieces below 5 MiB when a multipart upload is completed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import botocore.client
from botocore.exceptions import ClientError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

MAX_KEY_BYTES = 1_024
MAX_METADATA_BYTES = 2_048
"""Of all names and values of an object's metadata together."""
MAX_PIECES = 10_000


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let S3 reject calls beyond its limits."""
    real: Callable[..., Any] = botocore.client.BaseClient._make_api_call  # type: ignore[attr-defined] # Private.

    def call(client: Any, operation: str, arguments: dict[str, Any]) -> Any:
        code = refusal(arguments) if client.meta.service_model.service_name == "s3" else None
        if code:
            raise ClientError({"Error": {"Code": code, "Message": "beyond S3's limits"}}, operation)
        return real(client, operation, arguments)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", call)


def refusal(arguments: dict[str, Any]) -> str | None:
    """The code with which S3 rejects a call; None if it is within the limits."""
    if len(str(arguments.get("Key", "")).encode()) > MAX_KEY_BYTES:
        return "KeyTooLongError"
    metadata = arguments.get("Metadata") or {}
    if (
        sum(len(name.encode()) + len(value.encode()) for name, value in metadata.items())
        > MAX_METADATA_BYTES
    ):
        return "MetadataTooLarge"
    parts = (arguments.get("MultipartUpload") or {}).get("Parts", [])
    if max([arguments.get("PartNumber", 0), *(part["PartNumber"] for part in parts)]) > MAX_PIECES:
        return "InvalidArgument"
    return None
