"""Objects that records name: read from the stack's own buckets when an upload is cut.

Keeps the promise that a record cannot have the stack read, or fetch, anything else: only what is
below `inbox/`, or below the source prefix in the source bucket. A name is an `s3://` URL, a key
that begins with `inbox/`, or else a path beside the upload. `dropbatch/core/read/attachments.py`
says what becomes of the content, and what happens at a death.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from dropbatch.core import names
from dropbatch.core.read.attachments import MAX_CONTENT_BYTES, Load
from shared.aws.object_store import in_order
from shared.errors import ObjectNotFoundError, RefusedError, StorageError
from shared.models import Upload
from shared.services import Services
from shared.settings import Settings

READ_AHEAD = 4
"""Objects read at the same time: at most 30 MB."""


def load_for(services: Services, upload: Upload) -> Load:
    """What reads the objects that an upload's records name."""

    def load(found: Iterable[str]) -> Iterator[bytes | str]:
        return in_order(partial(_content, services, upload), found, READ_AHEAD)

    return load


def _content(services: Services, upload: Upload, name: str) -> bytes | str:
    """An object's content, as much as fits in a request and a byte, or why there is none."""
    location = location_of(services.settings, upload, name)
    if not may_read(services.settings, location):
        bucket = services.settings.bucket_name
        return f"{location.url} is not read. Put it below s3://{bucket}/{names.INBOX}."
    try:
        store = services.store.in_bucket(location.bucket)
        return store.get(location.key, 0, MAX_CONTENT_BYTES + 1)
    except ObjectNotFoundError:
        return f"{location.url} does not exist. Upload it before the records that name it."
    except RefusedError as refusal:
        return f"S3 does not hand out {location.url}: {refusal.code}."
    except StorageError as error:
        if "InvalidRange" in str(error):
            return f"{location.url} is empty."
        raise


class Location(NamedTuple):
    """Where an object is."""

    bucket: str
    key: str

    @property
    def url(self) -> str:
        """For a message."""
        return f"s3://{self.bucket}/{self.key}"[:300]


def location_of(settings: Settings, upload: Upload, name: str) -> Location:
    """Where the object is that a record of an upload names."""
    if name.startswith("s3://"):
        bucket, _, key = name.removeprefix("s3://").partition("/")
        return Location(bucket, key)
    if name.startswith(names.INBOX):
        return Location(settings.bucket_name, name)
    folder, slash, _ = upload.object_key.rpartition("/")
    return Location(upload.bucket, f"{folder}{slash}{name}")


def may_read(settings: Settings, location: Location) -> bool:
    """Whether records may name an object: it is where uploads are."""
    if not 0 < len(location.key.encode()) <= names.MAX_KEY_BYTES:
        return False
    if location.bucket == settings.bucket_name:
        return location.key.startswith(names.INBOX)
    is_source = bool(location.bucket) and location.bucket == settings.source_bucket_name
    return is_source and location.key.startswith(settings.source_prefix)
