"""What the bucket holds already of what is to be uploaded: the same path, options and content."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dropbatch.client.transfer.objects import common_prefix, head_of, pages_of
from dropbatch.client.transfer.threads import at_once
from dropbatch.client.uploads import PART_BYTES, Uploaded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import BinaryIO

    from dropbatch.client.stack import Stack
    from dropbatch.client.transfer.objects import ObjectHead
    from dropbatch.client.transfer.submitting import Submission

READS_AT_ONCE = 16
EVER = datetime.min.replace(tzinfo=UTC)


def find_existing(
    stack: Stack, submissions: Sequence[Submission], since: datetime = EVER
) -> dict[str, Uploaded]:
    """Find the uploads that need not be sent.

    A listing a page, and a call for each that may be the same.

    Args:
        stack: the stack.
        submissions: what is to be sent; each is read if an object of its size is found. What can be
            read once is always sent: nothing of it would be left. What the stack reads where it
            lies is never sent.
        since: uploads that are older do not count.

    Returns:
        The newest version of each that the bucket holds, by key.
    """
    by_key = {one.key: one for one in submissions if one.opens_again and not one.in_place}
    found: dict[str, Uploaded] = {}
    candidates = [
        by_key[key]
        for key, size in _listed(stack, by_key, since)
        if by_key[key].size in {None, size}
    ]
    for submission, same in at_once(
        lambda one: _same(stack, one, since), candidates, READS_AT_ONCE
    ):
        if same:
            found[submission.key] = same
    return found


def _listed(stack: Stack, by_key: Mapping[str, Any], since: datetime) -> list[tuple[str, int]]:
    """Those of some keys that exist, with their sizes."""
    if not by_key:
        return []
    first, last = min(by_key), max(by_key)
    found = []
    for page in pages_of(stack, common_prefix(first, last)):
        found += [
            (one["Key"], one["Size"])
            for one in page
            if one["Key"] in by_key and one["LastModified"] >= since
        ]
        if page and page[-1]["Key"] > last:
            break
    return found


def _same(stack: Stack, submission: Submission, since: datetime) -> Uploaded | None:
    answer = stack.ask("head_object", submission.key, ChecksumMode="ENABLED")
    if answer is None:
        return None
    head = head_of(answer)
    if head.modified < since or head.metadata != submission.metadata:
        return None
    opened = submission.open()
    try:
        if opened.stored:
            is_same = _is_copy(stack, submission, head)
        else:
            is_same = bool({head.etag, head.checksum} & _fingerprints(opened.stream))
    finally:
        submission.release()
    if not is_same:
        return None
    return Uploaded(
        submission.key, head.version, head.etag, head.modified, head.size, head.metadata
    )


def _is_copy(stack: Stack, submission: Submission, head: ObjectHead) -> bool:
    """Whether an object of the same size is a copy.

    Its digest says so or, where none does, its time.

    An object that is encrypted with a key of KMS, or was sent in parts, has an ETag that is no
    digest of its content.
    """
    from dropbatch.client.transfer.stored import find_object

    source = find_object(stack, str(submission.source))[1]
    digests = _digest_of(source), _digest_of(head)
    return digests[0] == digests[1] if all(digests) else source.modified <= head.modified


def _digest_of(head: ObjectHead) -> str:
    """What the ETag of an object says of its whole content, as if it was sent in one part.

    Empty if nothing.
    """
    if head.is_kms or not (matched := re.fullmatch(r"([0-9a-f]{32})(-1)?", head.etag)):
        return ""
    whole, in_part = matched.groups()
    return (
        head.etag
        if in_part
        else f"{hashlib.md5(bytes.fromhex(whole), usedforsecurity=False).hexdigest()}-1"
    )


def _fingerprints(stream: BinaryIO) -> set[str]:
    """The ETags and checksums that S3 may show for these bytes.

    Sent by one call, or in parts as by `upload`.
    """
    whole, parts, checksums, crc, count = hashlib.md5(usedforsecurity=False), b"", b"", 0, 0
    while part := stream.read(PART_BYTES):
        whole.update(part)
        parts += hashlib.md5(part, usedforsecurity=False).digest()
        checksums += zlib.crc32(part).to_bytes(4, "big")
        crc = zlib.crc32(part, crc)
        count += 1
    return {
        whole.hexdigest(),
        f"{hashlib.md5(parts, usedforsecurity=False).hexdigest()}-{count}",
        base64.b64encode(crc.to_bytes(4, "big")).decode(),
        f"{base64.b64encode(zlib.crc32(checksums).to_bytes(4, 'big')).decode()}-{count}",
    }
