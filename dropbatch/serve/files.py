"""Uploaded files: `files/<file_id>` in the bucket, the name in its metadata, the rest in its id."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any
from urllib.parse import quote, unquote

from starlette.datastructures import FormData, UploadFile

from dropbatch.client.stack import ObjectHead
from dropbatch.serve import objects
from dropbatch.serve.objects import ApiError, file_object, no_such, wrong
from dropbatch.serve.store import MAX_PAGE, Store

MAX_FILE_BYTES = 5 << 30
"""What one call of S3 takes; it reads the file from the disk, so that none is in memory."""
MAX_NAME = 150
"""Characters of a file's name that are kept: S3's metadata has room for 2 KB."""
LIFETIME_SECONDS = 30 * 86_400
"""The bucket's lifecycle deletes a file after these; `expires_after` may ask for less."""
MIN_LIFETIME_SECONDS = 3_600
BLOCK_BYTES = 2 << 20
"""Bytes that are read at a time, and that a slow reader keeps in memory."""
_KNOWN_FILES = 10_000


class Files:
    """The uploaded files of a bucket. `ApiError`: there is no such file."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # A file never changes, and a listing shows only those that exist.
        self._listed = lru_cache(_KNOWN_FILES)(self.head)

    def create(self, form: FormData) -> dict[str, Any]:
        """Keep the file of a form, which lies in a temporary file; return its object."""
        file, fields = _checked(form)
        file_id, lifetime = f"file-{objects.new_id(time.time())}", lifetime_of(fields)
        metadata = {"filename": quote(_printable(file.filename or "")[:MAX_NAME])}
        if lifetime != LIFETIME_SECONDS:
            metadata["lifetime"] = str(lifetime)
        self.store.put(objects.file_key(file_id), file.file, Metadata=metadata)
        return _object(file_id, file.size or 0, metadata)

    def head(self, file_id: str) -> ObjectHead:
        """What S3 knows about a file."""
        found = self.store.head(objects.file_key(file_id)) if objects.is_file(file_id) else None
        if found is None or _expires_at(file_id, found.metadata) <= time.time():
            raise no_such("File", file_id)
        return found

    def retrieve(self, file_id: str) -> dict[str, Any]:
        """A file's object."""
        found = self.head(file_id)
        return _object(file_id, found.size, found.metadata)

    def page(self, after: str, limit: int) -> tuple[list[dict[str, Any]], bool]:
        """Files after the one with the id `after`, newest first, and whether there are more."""
        if after and not objects.is_file(after):
            raise no_such("File", after, "after")
        limit = min(limit, MAX_PAGE)
        start = objects.file_key(after) if after else objects.FILES
        ids = (key.rpartition("/")[2] for key in self.store.keys(objects.FILES, start))
        found: list[dict[str, Any]] = []
        while len(found) <= limit and (some := list(islice(ids, limit + 1))):  # Some have expired.
            found += filter(None, self.store.each(self._listed_object, some))
        return found[:limit], len(found) > limit

    def _listed_object(self, file_id: str) -> dict[str, Any] | None:
        try:
            found = self._listed(file_id)
        except ApiError:  # deleted a moment ago
            return None
        is_over = _expires_at(file_id, found.metadata) <= time.time()
        return None if is_over else _object(file_id, found.size, found.metadata)

    def blocks(self, file_id: str) -> Iterator[bytes]:
        """A file's content."""
        return self.store.blocks(objects.file_key(file_id), self.head(file_id), BLOCK_BYTES)

    def delete(self, file_id: str) -> None:
        """Delete a file."""
        self.head(file_id)
        self.store.delete(objects.file_key(file_id))


def lifetime_of(fields: Mapping[str, str]) -> int:
    """For how many seconds a new file is kept: `expires_after`, as a form writes it."""
    given = {name: value for name, value in fields.items() if name.startswith("expires_after")}
    if not given:
        return LIFETIME_SECONDS
    seconds = given.get("expires_after[seconds]", "")
    is_number = re.fullmatch("[0-9]{1,9}", seconds)
    if given.get("expires_after[anchor]") != "created_at" or not is_number:
        raise wrong("expires_after", "It must have the anchor created_at and a number of seconds.")
    if not MIN_LIFETIME_SECONDS <= int(seconds) <= LIFETIME_SECONDS:
        range_ = f"{MIN_LIFETIME_SECONDS} to {LIFETIME_SECONDS}"
        raise wrong("expires_after[seconds]", f"It must be {range_}.")
    return int(seconds)


def _checked(form: FormData) -> tuple[UploadFile, dict[str, str]]:
    """A form's file and its fields."""
    files = [one for one in form.getlist("file") if isinstance(one, UploadFile)]
    fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    purpose = fields.get("purpose")
    if purpose is None:
        raise wrong("purpose", "You must provide a purpose: batch.", "missing_required_parameter")
    if purpose != "batch":
        message = f"'{purpose[:60]}' is not supported: the purpose must be batch."
        raise wrong("purpose", message)
    if len(files) != 1:
        raise wrong("file", "You must provide one file.", "missing_required_parameter")
    if not files[0].size:
        raise wrong("file", "The file is empty.", "empty_file")
    return files[0], fields


def _expires_at(file_id: str, metadata: Mapping[str, str]) -> int:
    return objects.created_at(file_id) + int(metadata.get("lifetime", LIFETIME_SECONDS))


def _object(file_id: str, size: int, metadata: Mapping[str, str]) -> dict[str, Any]:
    name = unquote(metadata.get("filename", ""))
    return file_object(file_id, size, name, _expires_at(file_id, metadata))


def _printable(name: str) -> str:
    own = name.rpartition("/")[2] or "upload"
    return "".join(letter if letter.isprintable() else "_" for letter in own)
