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
    size = records = uncollected = vain_size = vain_records = 0
    for round_ in range(batch.round + 1):
        accepted = sum(1 for one in batch.submissions if one.round == round_)
        collected = min(accepted, int(_has_reply(batch, round_)))
        without_tokens = accepted - (collected if usage.is_reported else 0)
        vain = min(accepted - (0 if _has_failed(batch, round_) else collected), without_tokens)
        uncollected += accepted - collected
        size += without_tokens * _size(batch, round_)
        records += without_tokens * _records(batch, round_)
        vain_size += vain * _size(batch, round_)
        vain_records += vain * _records(batch, round_)
    return Unmetered(size, records, uncollected, vain_size, vain_records)


def _has_reply(batch: Batch, round_: int) -> bool:
    """Whether the API's reply to a round was collected.

    A whole answer, or the failure of the whole.

    A part of an answer tells only its own tokens, and the rest is billed too.
    """
    if round_ < batch.round:
        return round_ < len(batch.answered) and bool(batch.answered[round_])
    return batch.ending is None or bool(batch.cause)


def _has_failed(batch: Batch, round_: int) -> bool:
    """Whether the reply to a round said that the whole failed, if there was one."""
    return round_ == batch.round and (batch.part is None or batch.ending is not None)


def _size(batch: Batch, round_: int) -> int:
    """Bytes of a round's body; of an earlier round of a few records, those of the last one."""
    return batch.round_size if round_ else batch.body_size


def _records(batch: Batch, round_: int) -> int:
    """About how many requests a round's body holds."""
    return -(-batch.sendable * _size(batch, round_) // max(batch.body_size, 1))
