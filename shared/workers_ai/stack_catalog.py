"""What this stack knows of models.

Its own list in the bucket if there is one, else what is shipped.

Only what creates a job reads it, every 15 minutes at most and only if it has changed. It never
stops a job: while it cannot be read, the last one is used; instead of one that nobody would
believe, what is shipped. The log says both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core import names
from dropbatch.core.formats.catalog_reader import MAX_STORED_BYTES, CatalogError, stack_catalog
from dropbatch.core.models import Catalog, catalog
from shared.aws.changed_object import get_changed
from shared.errors import ObjectNotFoundError, StorageError
from shared.observability import logger

if TYPE_CHECKING:
    from shared.aws.object_store import ObjectStore

READ_EVERY_SECONDS = 900.0
"""Seconds for which a process uses what it has read."""


class StackCatalog:
    """The stack's catalogue; caches what it read."""

    def __init__(self, store: ObjectStore) -> None:
        """Use the stack's bucket; nothing is read yet."""
        self._store = store
        self._known: Catalog | None = None
        self._etag, self._read_at = "", -READ_EVERY_SECONDS

    def current(self, now: float) -> Catalog:
        """What is known of models at this time, Unix seconds."""
        if self._known is None or now - self._read_at >= READ_EVERY_SECONDS:
            self._read_at = now
            self._known = self._read() or self._known or catalog()
        return self._known

    def _read(self) -> Catalog | None:
        """The catalogue as it is now; None if it is as it was, or cannot be read."""
        try:
            changed = get_changed(self._store, names.CATALOG, self._etag, MAX_STORED_BYTES + 1)
        except ObjectNotFoundError:
            self._etag = ""
            return catalog()
        except StorageError as error:
            logger.warning("list of models not read", reason=str(error))
            return None
        if changed is None:
            return None
        content, self._etag = changed
        try:
            return stack_catalog(content)
        except CatalogError as error:
            logger.warning("list of models not used", reason=str(error))
            return catalog()
