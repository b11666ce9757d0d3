"""Objects of the source bucket, which the stack does not own, as uploads.

An upload is known by its key under `inbox/`. An object of the source bucket takes the key that it would have there:
its own, with `inbox/` in place of `SourcePrefix`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared import s3_keys as keys

if TYPE_CHECKING:
    from functions.submit.upload_events import ObjectCreated
    from shared.settings import Settings


def upload_key(settings: Settings, event: ObjectCreated) -> str | None:
    """Return the key under `inbox/` by which an object is an upload; None if it is no upload."""
    key = event.key
    if event.bucket != settings.bucket_name:
        if event.bucket != settings.source_bucket_name or not key.startswith(settings.source_prefix):
            return None
        key = f"{keys.INBOX}{key.removeprefix(settings.source_prefix).lstrip('/')}"
    return key if keys.is_upload(key) else None
