"""Reads an object of the store only if it is another one than before, and only its first bytes."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

from botocore.exceptions import ClientError

from shared.aws.client_errors import storage_errors
from shared.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from shared.aws.object_store import ObjectStore

_MISSING = frozenset({"404", "NoSuchKey"})
_UNCHANGED = frozenset({"304", "NotModified"})


def get_changed(store: ObjectStore, key: str, etag: str, most: int) -> tuple[bytes, str] | None:
    """An object's first bytes and its ETag; None if that is still this one.

    Args:
        store: the bucket.
        key: of the object.
        etag: that was read before, as S3 returned it; empty for none.
        most: how many bytes are read at most.

    Raises:
        ObjectNotFoundError: nothing is stored under the key.
        StorageError: S3 rejected the call or the connection failed.
    """
    condition: dict[str, Any] = {"IfNoneMatch": etag} if etag else {}
    with storage_errors(f"S3 get_object {key}"):
        try:
            answer = store.client.get_object(Bucket=store.bucket, Key=key, **condition)
        except ClientError as error:
            code = error.response["Error"]["Code"]
            if code in _UNCHANGED:
                return None
            if code in _MISSING:
                raise ObjectNotFoundError(f"{key} does not exist") from error
            raise
        with closing(answer["Body"]) as body:
            return body.read(most), answer["ETag"]
