"""Gives a batch its marker before it is submitted, and remembers which models refuse requests that have one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from dropbatch.core import keys
from dropbatch.core.formats.base import API_BODY_LIMIT
from shared.errors import StorageError
from shared.events.markers import MARKED_BYTES, draw_marker, marked, marked_body
from shared.events.subscribed import subscribed, subscribed_if_known
from shared.observability import batch_log_fields, logger
from shared.staged_batch import decode_index, decode_ranges

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.events.control_item import Subscription
    from shared.events.subscribed import Subscribed
    from shared.models import Batch, Job

UNMARKED_SECONDS = 30 * 86_400.0
"""Seconds for which a model gets no markers that refused a batch with one, and took it without."""
UNMARKED_AGAIN_SECONDS = 3_600.0
"""The same, if it took others with one: it may be due to that batch's references."""
MAX_ALONE_BYTES = API_BODY_LIMIT - 100_000
"""Bytes of a record that stands alone in its body, up to which it may carry a marker."""


class ToSend(NamedTuple):
    """What is sent.

    Attributes:
        body: with the marker, if there is one.
        markers: the batch's, this round's included.
        is_marked: whether the body has a marker.
    """

    body: bytes
    markers: tuple[str, ...]
    is_marked: bool = False


NOTHING = ToSend(b"", ())


def mark(services: Services, job: Job, batch: Batch, body: bytes) -> ToSend:
    """A batch's body with the marker of its round; a batch that is submitted again keeps the one it has.

    Raises:
        StorageError: S3 or DynamoDB failed, or what was staged does not exist.
    """
    plain = ToSend(body, batch.markers)
    is_noted = len(batch.markers) > batch.round
    if (is_noted and not batch.marker) or not (is_noted or _takes_markers(services, job)):
        return plain
    most = MAX_ALONE_BYTES if batch.sendable == 1 else min(job.plan.max_bytes, MAX_ALONE_BYTES)
    if len(body) + MARKED_BYTES > most:
        return plain
    rows = decode_index(services.store.get(keys.staged(job.job_id, batch.number), batch.index_offset))
    references, lengths = rows.references_sent(), [length for length in rows.lengths if length]
    if batch.round:
        places = decode_ranges(services.store.get(keys.staged(job.job_id, batch.number, batch.round), len(body)))
        references, lengths = [references[one] for one in places], [lengths[one] for one in places]
    marker = batch.marker or draw_marker()
    if (found := marked(references, marker)) is None:
        return plain
    if services.events and not is_noted:  # Before the POST: another search may see the answer first.
        services.events.ids.mark(marker, job.job_id, batch.number, services.now())
    markers = (*batch.markers, *[""] * (batch.round - len(batch.markers)), *([] if is_noted else [marker]))
    return ToSend(marked_body(body, lengths, found), markers, is_marked=True)


def without_marker(batch: Batch) -> tuple[str, ...]:
    """The batch's markers, with none for its round."""
    return (*batch.markers[: batch.round], "")


def note_accepted(services: Services, job: Job, batch: Batch) -> None:
    """Note that a model takes markers, or that it took a batch only without; a failure costs a submit."""
    events, now = services.events, services.now()
    if events is None or len(batch.markers) <= batch.round or (known := _subscription(services, job)) is None:
        return
    if batch.marker and not known.marked_at:
        known = replace(known, marked_at=now)
    elif not batch.marker and not batch.round and known.unmarked_until < now:
        seconds = UNMARKED_AGAIN_SECONDS if known.marked_at else UNMARKED_SECONDS
        known = replace(known, unmarked_until=now + seconds)
        logger.warning("model refuses markers", **batch_log_fields(batch))
    else:
        return
    try:
        events.item.note_subscription(job.plan.model, known)
    except StorageError as error:
        logger.warning("marker not remembered", **batch_log_fields(batch), reason=str(error))


def _takes_markers(services: Services, job: Job) -> bool:
    """Whether a batch gets a marker. A lost submit without one is billed twice, so a failed read is no answer."""
    known = _read_on(services, subscribed(services, job))
    return known is not None and known.unmarked_until <= services.now()


def _subscription(services: Services, job: Job) -> Subscription | None:
    """The subscription of a job's model; None if its batches cannot be recognized by events."""
    return _read_on(services, subscribed_if_known(services, job))


def _read_on(services: Services, known: Subscribed | None) -> Subscription | None:
    """A model's subscription; None if nobody will read what it sends now."""
    return known.subscription if known and known.state.will_pull(services.now()) else None
