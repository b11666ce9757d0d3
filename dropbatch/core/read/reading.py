"""Reads an upload's records batch by batch.

The functions and the check of a local file share it. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.errors import UploadRefused
from dropbatch.core.read.convert import cut_converted
from dropbatch.core.read.cut import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dropbatch.core.formats.base import Reader
    from dropbatch.core.plan import Checkpoint, SplitPlan
    from dropbatch.core.read.cut import Cut

RANGE_BYTES = 8 << 20
"""Stored bytes that are read at a time.

Large enough that S3's time to the first byte does not matter.
"""
MAX_BYTES_WITHOUT_BATCH = 4 << 30
"""Most unpacked bytes without the end of a batch.

Far more than 500 requests have, and read well within one turn.
"""


def read_batches(
    plan: SplitPlan, place: Checkpoint, number: int, blocks: Iterable[bytes], reader: Reader | None
) -> Iterator[Cut | Checkpoint]:
    """The batches from a place on, converted by the reader if there is one; as `cut` yields them.

    Raises:
        UploadRefused: `broken_document`, after the records before the damage have been yielded.
    """
    if reader is None:
        return cut(plan, place, number, blocks)
    return cut_converted(plan, place, number, blocks, reader)


def gap_error(packing: str) -> UploadRefused:
    """Refuse one endless line, or blank lines compressed a thousandfold.

    Each turn would read them again, forever.
    """
    return UploadRefused(
        "unknown_format" if packing == "plain" else "broken_archive",
        f"More than {MAX_BYTES_WITHOUT_BATCH >> 20:,} MB of the upload's content in a row "
        "did not complete a "
        "batch. Upload JSON Lines, one request per line, without long stretches of blank "
        "or broken lines.",
    )
