"""The bucket as the API uses it. Calls block; any number of threads may make them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, BinaryIO, TypeVar

from dropbatch.client import aws
from dropbatch.client.stack import CONDITION_FAILED, ObjectHead, Stack, blocks, head_of, pages_of
from dropbatch.client.upload import copy_parts, with_options_apart

Out = TypeVar("Out")

CONNECTIONS = 64
"""Connections to S3 that are kept open."""
PARALLEL_READS = 16
"""Calls that one listing makes at the same time."""
MAX_PAGE = 1_000
"""Most entries in one answer, as S3 lists them."""


class Store:
    """The objects of a stack's bucket."""

    def __init__(self, stack: Stack) -> None:
        from botocore.config import Config

        config = Config(max_pool_connections=CONNECTIONS)
        self.stack = replace(stack, client=lambda service: stack.client(service, config=config))
        self.bucket = stack.bucket
        self.s3 = self.stack.s3
        self._readers = ThreadPoolExecutor(PARALLEL_READS, "listing")

    def each(self, function: Callable[[str], Out], values: Iterable[str]) -> list[Out]:
        """Call a function for each value, some at the same time."""
        return list(self._readers.map(function, values))

    def head(self, key: str) -> ObjectHead | None:
        """What S3 knows about an object; None if it does not exist."""
        found = self.stack.ask("head_object", key)
        return head_of(found) if found else None

    def get(self, key: str) -> tuple[bytes, str] | None:
        """A small object and its ETag; None if it does not exist."""
        with aws.explained():
            found = self.stack.ask("get_object", key)
            return (found["Body"].read(), found["ETag"]) if found else None

    def blocks(self, key: str, head: ObjectHead, size: int) -> Iterator[bytes]:
        """An object's bytes, so many at a time; `NotFound` if it was deleted or replaced."""
        place = {"Bucket": self.bucket, "Key": key, "IfMatch": head.etag}
        for start in range(0, head.size, size):
            yield b"".join(blocks(self.s3, place, min(start + size, head.size), start))

    def put(self, key: str, content: bytes | BinaryIO, **more: Any) -> bool:
        """Write an object with one call; return whether its `IfMatch` or `IfNoneMatch` held."""
        from botocore.exceptions import ClientError

        with aws.explained():
            try:
                self.s3.put_object(Bucket=self.bucket, Key=key, Body=content, **more)
            except ClientError as error:
                if error.response["Error"]["Code"] in CONDITION_FAILED:
                    return False
                raise
        return True

    def delete(self, key: str) -> None:
        """Delete an object; its version is deleted a day later."""
        with aws.explained():
            self.s3.delete_object(Bucket=self.bucket, Key=key)

    def keys(self, prefix: str, after: str) -> Iterator[str]:
        """Keys under a prefix that come after another key, in S3's order."""
        for page in pages_of(self.stack, prefix, after):
            yield from (entry["Key"] for entry in page)

    def copy(self, source: str, head: ObjectHead, target: str, metadata: dict[str, str]) -> None:
        """Copy this version of an object; the new one exists only when it is whole."""
        place = {"Bucket": self.bucket, "Key": source}
        to = {"Bucket": self.bucket, "Key": target}
        with aws.explained():
            stored = with_options_apart(self.s3, self.bucket, metadata)
            copy_parts(self.s3, place, head.size, to, stored, CopySourceIfMatch=f'"{head.etag}"')
