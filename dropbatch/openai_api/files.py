"""Uploaded files: `files/<file_id>` in the bucket, the name in its metadata.

Everything else in its id.
"""

from __future__ import annotations

import re
import time
from collections import deque
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from starlette.datastructures import UploadFile

from dropbatch.openai_api import names
from dropbatch.openai_api.errors import ApiError, no_such
from dropbatch.openai_api.store import MAX_PAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from starlette.datastructures import FormData

    from dropbatch.client.transfer.objects import ObjectHead
    from dropbatch.openai_api.store import Store

MAX_FILE_BYTES = 10 << 30
MAX_NAME = 150
"""Characters of a file's name that are kept: S3's metadata has room for 2 KB."""
LIFETIME_SECONDS = 30 * 86_400
"""Seconds after which the bucket's lifecycle deletes a file.

The most that `expires_after` may ask for.
"""
MIN_LIFETIME_SECONDS = 3_600
BLOCK_BYTES = 2 << 20
"""Bytes that are read at a time, and that a slow reader keeps in memory."""
_KNOWN_FILES = 10_000


class Files:
    """The uploaded files of a bucket."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # A file never changes, and a listing shows only those that exist.
        self._listed = lru_cache(_KNOWN_FILES)(self.head)

    def create(self, form: FormData) -> dict[str, Any]:
        """Keep the file of a form, which lies in a temporary file; return its object.

        Raises:
            ApiError: the form is no upload for a batch, or its file is empty.
        """
        file, fields = _checked(form)
        file_id, lifetime = f"file-{names.new_id(time.time())}", lifetime_of(fields)
        metadata = {"filename": quote(_printable(file.filename or "")[:MAX_NAME])}
        if lifetime != LIFETIME_SECONDS:
            metadata["lifetime"] = str(lifetime)
        self.store.upload(names.file_key(file_id), file.file, metadata)
        return _object(file_id, file.size or 0, metadata)

    def head(self, file_id: str) -> ObjectHead:
        """What S3 knows about a file.

        Raises:
            ApiError: there is no such file.
        """
        found = self.store.head(names.file_key(file_id)) if names.is_file(file_id) else None
        if found is None or _expires_at(file_id, found.metadata) <= time.time():
            raise no_such("File", file_id)
        return found

    def retrieve(self, file_id: str) -> dict[str, Any]:
        """A file's object.

        Raises:
            ApiError: there is no such file.
        """
        found = self.head(file_id)
        return _object(file_id, found.size, found.metadata)

    def list(
        self, after: str, limit: int, *, newest_first: bool
    ) -> tuple[list[dict[str, Any]], bool]:
        """Files, and whether there are more.

        Args:
            after: id of the last one of the page before; empty for the first page.
            limit: most entries; never more than `MAX_PAGE` are returned.
            newest_first: S3's own order.

        Raises:
            ApiError: `after` is no file's id.
        """
        if after and not names.is_file(after):
            raise no_such("File", after, "after")
        limit, found = min(limit, MAX_PAGE), list[dict[str, Any]]()
        more = True
        while more and len(found) <= limit:  # Of a page, all may have expired.
            if newest_first:
                start = names.file_key(after) if after else names.FILES
                keys = list(islice(self.store.keys(names.FILES, start, limit + 1), limit + 1))
            else:
                keys = list(_before(self.store.keys(names.FILES, names.FILES), after, limit + 1))
            ids = [key.rpartition("/")[2] for key in keys]
            found += filter(None, self.store.each(self._listed_object, ids))
            more, after = len(keys) > limit, ids[-1] if ids else after
        return found[:limit], len(found) > limit

    def _listed_object(self, file_id: str) -> dict[str, Any] | None:
        try:
            found = self._listed(file_id)
        except ApiError:  # deleted a moment ago
            return None
        if _expires_at(file_id, found.metadata) <= time.time():
            return None
        return _object(file_id, found.size, found.metadata)

    def blocks(self, file_id: str) -> Iterator[bytes]:
        """A file's content.

        Raises:
            ApiError: there is no such file.
        """
        head = self.head(file_id)
        return (
            self.store.read(names.file_key(file_id), head.etag, start, BLOCK_BYTES)
            for start in range(0, head.size, BLOCK_BYTES)
        )

    def delete(self, file_id: str) -> None:
        """Delete a file.

        Raises:
            ApiError: there is no such file.
        """
        self.head(file_id)
        self.store.delete(names.file_key(file_id))


def _before(keys: Iterable[str], after: str, most: int) -> Iterable[str]:
    """The last keys before that of a file, in reverse order.

    The oldest files that are younger than it.
    """
    last = names.file_key(after) if after else names.MAX_KEY
    kept = deque[str](maxlen=most)
    for key in keys:
        if key >= last:
            break
        kept.append(key)
    return reversed(kept)


def lifetime_of(fields: Mapping[str, str]) -> int:
    """For how many seconds a new file is kept: `expires_after`, as a form writes it.

    Raises:
        ApiError: it is not one of OpenAI's.
    """
    given = {name: value for name, value in fields.items() if name.startswith("expires_after")}
    if not given:
        return LIFETIME_SECONDS
    seconds = given.get("expires_after[seconds]", "")
    if given.get("expires_after[anchor]") != "created_at" or not re.fullmatch(
        "[0-9]{1,9}", seconds
    ):
        raise ApiError(
            400, "It must have the anchor created_at and a number of seconds.", "expires_after"
        )
    if not MIN_LIFETIME_SECONDS <= int(seconds) <= LIFETIME_SECONDS:
        range_ = f"{MIN_LIFETIME_SECONDS} to {LIFETIME_SECONDS}"
        raise ApiError(400, f"It must be {range_}.", "expires_after[seconds]")
    return int(seconds)


def _checked(form: FormData) -> tuple[UploadFile, dict[str, str]]:
    """A form's file and its fields.

    Raises:
        ApiError: it is no upload for a batch.
    """
    files = [
        value
        for name, value in form.multi_items()
        if name == "file" and isinstance(value, UploadFile)
    ]
    fields = {name: value for name, value in form.multi_items() if isinstance(value, str)}
    purpose = fields.get("purpose")
    if purpose is None:
        raise ApiError(
            400, "You must provide a purpose: batch.", "purpose", "missing_required_parameter"
        )
    if purpose != "batch":
        raise ApiError(
            400,
            f"'{purpose[:60]}' is not supported: the purpose must be batch.",
            "purpose",
            "invalid_value",
        )
    if len(files) != 1:
        raise ApiError(400, "You must provide one file.", "file", "missing_required_parameter")
    if not files[0].size:
        raise ApiError(400, "The file is empty.", "file", "empty_file")
    return files[0], fields


def _expires_at(file_id: str, metadata: Mapping[str, str]) -> int:
    return names.created_at(file_id) + int(metadata.get("lifetime", LIFETIME_SECONDS))


def _object(file_id: str, size: int, metadata: Mapping[str, str]) -> dict[str, Any]:
    return file_object(
        file_id, size, unquote(metadata.get("filename", "")), _expires_at(file_id, metadata)
    )


def file_object(
    file_id: str,
    size: int,
    filename: str,
    expires_at: int | None,
    **more: Any,  # noqa: ANN401
) -> dict[str, Any]:
    """A file as OpenAI's API shows it: an upload, unless `more` says otherwise."""
    return {
        "id": file_id,
        "object": "file",
        "bytes": size,
        "created_at": names.created_at(file_id),
        "expires_at": expires_at,
        "filename": filename,
        "purpose": "batch",
        "status": "processed",
        **more,
    }


def _printable(name: str) -> str:
    return (
        "".join(letter if letter.isprintable() else "_" for letter in name.rpartition("/")[2])
        or "upload"
    )
