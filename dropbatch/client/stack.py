"""The stack that a command works on: its name, its outputs, and clients for its services."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Literal

from dropbatch.client import aws
from dropbatch.core import names
from dropbatch.errors import Error, NoStack, NotFound, UsageError

DEFAULT_NAME = "dropbatch"
LOCAL_FILE = Path(".local/stack.json")
ENVIRONMENT = "DROPBATCH_LOCAL"

_MEMBERS = {
    "_jobs": frozenset({"path"}),
    "status.json": frozenset({"state"}),
    "manifest.json": frozenset({"state", "counts", "files", "error"}),
}
"""What objects have that are read without looking first."""


@dataclass(repr=False)
class Stack:
    """A deployed stack.

    Attributes:
        client: creates a client of a service.
        default_model: of uploads that name none; None if it is not known.
        source_bucket: the bucket whose objects are uploads too; empty if there is none.
        source_prefix: how their keys begin.
    """

    name: str
    bucket: str
    outputs: dict[str, str]
    client: Any
    default_model: str | None = None
    source_bucket: str = ""
    source_prefix: str = ""
    _made: dict[str, Any] = field(default_factory=dict, init=False)
    _making: Lock = field(default_factory=Lock, init=False)

    def __repr__(self) -> str:
        return f"<Stack {self.name} s3://{self.bucket}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """What is pickled: clients are made anew."""
        return Stack, tuple(getattr(self, one.name) for one in fields(self) if one.init)

    @cached_property
    def s3(self) -> Any:
        """An S3 client."""
        return self.client("s3")

    def service(self, name: str) -> Any:
        """A client of another service, made once: boto3 must not make clients in threads."""
        with self._making:
            if name not in self._made:
                self._made[name] = self.client(name)
            return self._made[name]

    def ask(self, operation: str, key: str, **more: str) -> dict[str, Any] | None:
        """S3's answer to a read of an object of the bucket; None if the object does not exist."""
        from botocore.exceptions import ClientError

        with aws.explained():
            try:
                place = {"Bucket": self.bucket, "Key": key, **more}
                answer: dict[str, Any] = getattr(self.s3, operation)(**place)
            except ClientError as error:
                if aws.is_missing(self.s3, place["Bucket"], key, error):
                    return None
                raise
        return answer

    def read(self, key: str) -> bytes | None:
        """An object of the bucket; None if it does not exist."""
        with aws.explained():
            found = self.ask("get_object", key)
            body: bytes | None = found["Body"].read() if found else None
        return body

    def read_json(self, key: str) -> dict[str, Any] | None:
        """A JSON object of the bucket; None if it does not exist."""
        body = self.read(key)
        if body is None:
            return None
        try:
            found: Any = json.loads(body)
        except ValueError:
            found = None
        folder, _, name = key.rpartition("/")
        needed = _MEMBERS.get("_jobs" if f"{folder}/" == names.JOB_RECORDS else name, frozenset())
        if found is None or (needed and not (isinstance(found, dict) and needed <= found.keys())):
            raise Error(
                f"s3://{self.bucket}/{key} was changed: it is not the JSON that the stack wrote."
            )
        return found  # type: ignore[no-any-return]


def find_stack(
    name: str, *, local: bool = False, region: str | None = None, profile: str | None = None
) -> Stack:
    """The stack with a name in CloudFormation, or the local one."""
    with aws.explained():
        if local:
            client, name = _local_client()
        else:
            client = aws.Clients(region=region, profile=profile)
        described = _describe(client, name)
    outputs = {one["OutputKey"]: one["OutputValue"] for one in described.get("Outputs", [])}
    if "BucketName" not in outputs:
        raise NotFound(f'"{name}" is not a Dropbatch stack: it has no output BucketName.')
    given = described.get("Parameters", [])
    parameters = {one["ParameterKey"]: one["ParameterValue"] for one in given}
    client.kms_key = parameters.get("KmsKeyArn", "")
    source = parameters.get("SourceBucketName", ""), parameters.get("SourcePrefix", "")
    return Stack(
        name, outputs["BucketName"], outputs, client, parameters.get("DefaultModel"), *source
    )


def _describe(client: Any, name: str) -> dict[str, Any]:
    from botocore.exceptions import ClientError

    try:
        (found,) = client("cloudformation").describe_stacks(StackName=name)["Stacks"]
    except ClientError as error:
        if error.response["Error"]["Code"] == "ValidationError":
            message = f'There is no stack "{name}" in this account and region. Name another.'
            raise NoStack(message) from error
        raise
    described: dict[str, Any] = found
    return described


def local_file() -> Path:
    """The file that describes the local stack, if one is running."""
    path = Path(os.environ.get(ENVIRONMENT, LOCAL_FILE))
    return path / LOCAL_FILE if path.is_dir() else path


def _local_client() -> tuple[aws.Clients, str]:
    path = local_file()
    try:
        described = json.loads(path.read_text())
        place = described["endpoint_url"], described["region"]
    except OSError as error:
        raise NotFound(
            f"{path} does not exist: no local stack is running. Start one with `make up`, "
            "or name its folder in "
            f"{ENVIRONMENT}."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} does not describe a local stack. Write it again with `make down` and "
            "`make up`."
        ) from error
    return aws.Clients(place[0], place[1]), described.get("stack", DEFAULT_NAME)


S3 = "s3://"
CHUNK_BYTES = 1 << 20
READ_BYTES = 64 << 10
"""Bytes of a small read, as of a table's columns."""
MAX_ATTEMPTS = 5
"""Attempts to read an object when the connection is cut off."""
CONDITION_FAILED = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409"})
"""Codes of a call whose condition (`IfMatch`, `IfNoneMatch`) did not hold."""


@dataclass(frozen=True)
class ObjectHead:
    """What S3 knows about an object; its version is `null` in a bucket without versions."""

    size: int
    etag: str
    version: str
    modified: datetime
    metadata: dict[str, str] = field(repr=False)


def head_of(answer: Mapping[str, Any]) -> ObjectHead:
    """What S3's answer to a HEAD or a GET says."""
    return ObjectHead(
        answer["ContentLength"],
        answer["ETag"].strip('"'),
        answer.get("VersionId", "null"),
        answer["LastModified"],
        answer["Metadata"],
    )


def blocks(s3: Any, place: Mapping[str, str], size: int, start: int = 0) -> Iterator[bytes]:
    """The bytes of an object; read on where a connection was cut off."""
    from botocore.exceptions import ClientError

    held = start
    for attempt in range(MAX_ATTEMPTS):
        if held >= size:
            return
        with aws.explained(retry=attempt + 1 < MAX_ATTEMPTS):
            try:
                answer = s3.get_object(**place, Range=f"bytes={held}-{size - 1}")
            except ClientError as error:
                if error.response["Error"]["Code"] in CONDITION_FAILED:
                    raise NotFound(f"{place['Key']} was replaced while it was read.") from error
                raise
            for block in answer["Body"].iter_chunks(CHUNK_BYTES):
                held += len(block)
                yield block
            return


def find_object(stack: Stack, url: str) -> tuple[str, ObjectHead]:
    """The bucket of an object that is named `s3://bucket/key`, and what S3 knows of it."""
    bucket, _, key = url.removeprefix(S3).partition("/")
    if not bucket or not key or key.endswith("/"):
        raise UsageError(f"{url} names no object. Write s3://bucket/key.")
    found = stack.ask("head_object", key, Bucket=bucket)
    if found is None:
        raise NotFound(f"There is no {url}.")
    return bucket, head_of(found)


def object_file(s3: Any, place: dict[str, str], size: int) -> BinaryIO:
    """An object as a file that can be read anywhere."""
    return io.BufferedReader(_ObjectFile(s3, place, size), READ_BYTES)


class _ObjectFile(io.RawIOBase):
    def __init__(self, s3: Any, place: dict[str, str], size: int) -> None:
        self._s3, self._place, self._size, self._at = s3, place, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._size)
        begun = self._at
        for block in blocks(self._s3, self._place, end, begun):
            buffer[self._at - begun : self._at - begun + len(block)] = block
            self._at += len(block)
        return self._at - begun


def pages_of(stack: Stack, prefix: str, after: str = "") -> Iterator[list[dict[str, Any]]]:
    """The objects of the bucket under a prefix, a page of a listing at a time."""
    where = {"Bucket": stack.bucket, "Prefix": prefix} | ({"StartAfter": after} if after else {})
    pages = iter(stack.s3.get_paginator("list_objects_v2").paginate(**where))
    while True:
        with aws.explained():
            page = next(pages, None)
        if page is None:
            return
        yield page.get("Contents", [])


def common_prefix(first: str, last: str) -> str:
    """The prefix that the first and the last of sorted keys have, and so all between them."""
    same = next(
        (at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None
    )
    return first[:same] if same is not None else min(first, last, key=len)


# ── completion events ─────────────────────────────────────────────────────────────────────────────


def variables_of(stack: Stack) -> dict[str, str]:
    """The variables of the stack's functions."""
    name = stack.outputs["SubmitFunctionName"]
    found = stack.client("lambda").get_function_configuration(FunctionName=name)
    return dict(found.get("Environment", {}).get("Variables", {}))


def events_of(
    variables: Mapping[str, str], item: Mapping[str, Any]
) -> Iterator[tuple[Literal["ok", "note"], str]]:
    """What the functions' variables and their item, as DynamoDB has it, say of events."""
    refusal = item.get("refusal", {}).get("S", "")
    if variables.get("TRANSPORT") == "worker":
        yield "ok", "unavailable: Transport=worker cannot read a queue: batches are polled."
        return
    if variables.get("COMPLETION_EVENTS") != "yes":
        left = f" The next ticks remove the queue. Cloudflare said {refusal}." if refusal else ""
        how = f"by the parameter CompletionEvents (yes: on): batches are polled.{left}"
        yield "ok", f"off: switched off {how}"
        return
    if refusal:
        how = "Give the token Queues - Edit for the account; it is tried again within an hour."
        yield "note", f"refused: Cloudflare said {refusal}. Batches are polled. {how}"
    elif "queue_id" not in item:
        how = "if the token has the permission Queues - Edit"
        yield "ok", f"not set up: the first submit makes the queue at Cloudflare, {how}"
    else:
        queue = variables.get("EVENTS_QUEUE_NAME", "")
        yield "ok", f"on: batches are polled when Cloudflare says that they are over ({queue})"
    for model, one in sorted(item.items()):
        if model.startswith("@") and (problem := one["M"].get("problem", {}).get("S")):
            yield "note", f"{model}: no events: {problem}. Its batches are polled."
