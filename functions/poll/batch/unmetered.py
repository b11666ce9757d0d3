"""What a batch may have cost although the API reported no tokens for it. Pure.

The API bills what it accepts. So an accepted submit counts whose answer was never collected,
because the job was cancelled, because its time was over, or because the batch was submitted again.
A batch that was accepted, failed and was then divided counts beside its pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shared.models import Usage

if TYPE_CHECKING:
    from shared.models import Batch


class Unmetered(NamedTuple):
    """Accepted work without reported tokens.

    Attributes:
        size: bytes of the bodies.
        records: requests in them.
        uncollected: accepted submits whose answer was not collected.
        vain_size: bytes of those bodies that brought no answer: it was not collected, or the whole
            failed.
        vain_records: requests in them.
    """

    size: int
    records: int
    uncollected: int
    vain_size: int = 0
    vain_records: int = 0


def unmetered(batch: Batch) -> Unmetered:
    """What a final batch adds, whether it is done or divided.

    With the submits of it that were accepted.
    """
    usage = batch.part.usage if batch.part else Usage()
    accepted = len(batch.submissions)
    # A part of an answer tells only its own tokens, and the rest is billed too.
    has_reply = batch.ending is None or bool(batch.cause)
    has_failed = batch.part is None or batch.ending is not None
    collected = min(accepted, int(has_reply))
    without_tokens = accepted - (collected if usage.is_reported else 0)
    vain = min(accepted - (0 if has_failed else collected), without_tokens)
    return Unmetered(
        without_tokens * batch.body_size,
        without_tokens * batch.sendable,
        accepted - collected,
        vain * batch.body_size,
        vain * batch.sendable,
    )
