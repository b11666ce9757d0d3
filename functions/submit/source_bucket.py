"""Maps objects of the source bucket, which the stack does not own, to uploads.

An upload is identified by its key under `inbox/`. An object of the source bucket gets the key that it would have there:
its own key, with `SourcePrefix` replaced by `inbox/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared import s3_keys as keys

if TYPE_CHECKING:
    from functions.submit.upload_events import ObjectCreated
    from shared.settings import Settings


def upload_key(settings: Settings, event: ObjectCreated) -> str | None:
    """Return the key under `inbox/` that identifies an object as an upload; None if it is not an upload."""
    key = event.key
    if event.bucket != settings.bucket_name:
        if event.bucket != settings.source_bucket_name or not key.startswith(settings.source_prefix):
            return None
        key = f"{keys.INBOX}{key.removeprefix(settings.source_prefix).lstrip('/')}"
    return key if keys.is_upload(key) else None
