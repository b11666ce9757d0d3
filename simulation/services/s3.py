"""S3 in memory: one versioned bucket behind the calls of boto3's client, with its limits.

Writes may be conditional; objects are joined by multipart copies; times have whole seconds. What is
not simulated raises.
"""

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from itertools import count
from typing import IO, Any

from simulation.services.calls import Calls, reads, writes
from simulation.services.errors import refused
from simulation.services.expressions import NotSimulatedError

MAX_KEY_BYTES, MAX_METADATA_BYTES = 1_024, 2_048
MIN_PART_BYTES, MAX_PARTS = 5 << 20, 10_000
MAX_LISTED = 1_000


@dataclass(frozen=True, slots=True)
class Version:
    key: str
    id: str
    body: bytes
    etag: str
    modified: datetime
    metadata: dict[str, str]

    def described(self) -> dict[str, Any]:
        """What HEAD returns."""
        return {
            "ContentLength": len(self.body),
            "ETag": f'"{self.etag}"',
            "VersionId": self.id,
            "LastModified": self.modified,
            "Metadata": self.metadata,
        }


def _md5(content: bytes) -> str:
    return md5(content, usedforsecurity=False).hexdigest()


def _md5_of(version: Version) -> str:
    """The MD5 of a version's bytes, which is its ETag unless it was joined of parts."""
    return _md5(version.body) if "-" in version.etag else version.etag


@dataclass(slots=True)
class _Upload:
    key: str
    metadata: dict[str, str]
    parts: dict[int, Version] = field(default_factory=dict)


class S3:
    """A client for one bucket.

    Attributes:
        objects: every object's newest version; None where it was deleted.
        refuses: the code with which a call about an object is refused, by operation and key; empty
            where it is not.
    """

    def __init__(self, calls: Calls, bucket: str) -> None:
        self.calls = calls
        self.bucket = bucket
        self.objects: dict[str, Version] = {}
        self._versions: dict[tuple[str, str], Version] = {}
        self._uploads: dict[str, _Upload] = {}
        self._ids = count(1)
        self.watchers: list[Callable[[Version], None]] = []
        self.refuses: Callable[[str, str], str] = lambda _operation, _key: ""

    # ── reading ───────────────────────────────────────────────────────────────────────────────────

    @reads("s3.head_object")
    def head_object(self, *, Bucket: str, Key: str, VersionId: str = "") -> dict[str, Any]:
        found = self._find(Bucket, Key, VersionId)
        if found is None:
            raise refused("404", "HeadObject", 404)
        if self.refuses("HeadObject", Key):
            raise refused("403", "HeadObject", 403)  # HEAD has no body that could say more.
        return found.described()

    @reads("s3.get_object")
    def get_object(
        self, *, Bucket: str, Key: str, VersionId: str = "", IfMatch: str = "", Range: str = ""
    ) -> dict[str, Any]:
        found = self._find(Bucket, Key, VersionId)
        if found is None:
            raise refused("NoSuchVersion" if VersionId else "NoSuchKey", "GetObject", 404)
        if IfMatch and IfMatch.strip('"') != found.etag:
            raise refused("PreconditionFailed", "GetObject", 412)
        if code := self.refuses("GetObject", Key):
            raise refused(code, "GetObject", 403)
        content = found.body
        if Range:
            first, _, last = Range.removeprefix("bytes=").partition("-")
            if int(first) >= len(content):
                raise refused("InvalidRange", "GetObject", 416)
            content = content[int(first) : int(last) + 1 if last else None]
        return {**found.described(), "Body": io.BytesIO(content)}

    def _find(self, bucket: str, key: str, version: str = "") -> Version | None:
        self._check(bucket, key)
        return self._versions.get((key, version)) if version else self.objects.get(key)

    # ── writing ───────────────────────────────────────────────────────────────────────────────────

    def put_object(
        self,
        *,
        Bucket: str,
        Key: str,
        Body: bytes | IO[bytes],
        Metadata: dict[str, str] | None = None,
        ContentType: str = "",
        IfNoneMatch: str = "",
        IfMatch: str = "",
        ServerSideEncryption: str = "",
    ) -> dict[str, Any]:
        del ContentType, ServerSideEncryption
        content = Body if isinstance(Body, bytes) else bytes(Body.read())

        def write() -> dict[str, Any]:
            self._check(Bucket, Key)
            self._test("PutObject", Key, IfNoneMatch, IfMatch)
            return self._store(Key, content, _md5(content), Metadata or {})

        return self.calls.write("s3.put_object", write)

    def _store(
        self, key: str, content: bytes, etag: str, metadata: dict[str, str]
    ) -> dict[str, Any]:
        if sum(len(one.encode()) for pair in metadata.items() for one in pair) > MAX_METADATA_BYTES:
            raise refused("MetadataTooLarge", "PutObject")
        modified = datetime.fromtimestamp(int(self.calls.now()), UTC)
        version = Version(key, f"v{next(self._ids):08}", content, etag, modified, dict(metadata))
        self.objects[key] = self._versions[key, version.id] = version
        for watch in self.watchers:
            watch(version)
        return {"ETag": f'"{etag}"', "VersionId": version.id}

    # ── joining ───────────────────────────────────────────────────────────────────────────────────

    @writes("s3.create_multipart_upload")
    def create_multipart_upload(
        self,
        *,
        Bucket: str,
        Key: str,
        Metadata: dict[str, str] | None = None,
        ContentType: str = "",
        ServerSideEncryption: str = "",
    ) -> dict[str, Any]:
        del ContentType, ServerSideEncryption
        self._check(Bucket, Key)
        upload_id = f"u{next(self._ids):08}"
        self._uploads[upload_id] = _Upload(Key, Metadata or {})
        return {"UploadId": upload_id}

    @writes("s3.upload_part_copy")
    def upload_part_copy(
        self, *, Bucket: str, Key: str, UploadId: str, PartNumber: int, CopySource: dict[str, str]
    ) -> dict[str, Any]:
        """Copy a whole object to its place among the parts."""
        source = self._find(Bucket, CopySource["Key"])
        if source is None:
            raise refused("NoSuchKey", "UploadPartCopy", 404)
        if not 0 < PartNumber <= MAX_PARTS:
            raise refused("InvalidArgument", "UploadPartCopy")
        self._upload(Key, UploadId).parts[PartNumber] = source
        return {"CopyPartResult": {"ETag": f'"{_md5_of(source)}"'}}

    @reads("s3.list_object_versions")
    def list_object_versions(
        self, *, Bucket: str, Prefix: str, KeyMarker: str = ""
    ) -> dict[str, Any]:
        self._check(Bucket, Prefix)
        within = (pair for pair in self._versions if pair[0].startswith(Prefix))
        found = sorted(pair for pair in within if pair[0] > KeyMarker)
        page = found[:MAX_LISTED]
        versions = [{"Key": key, "VersionId": version} for key, version in page]
        if len(found) > len(page):
            return {"Versions": versions, "IsTruncated": True, "NextKeyMarker": page[-1][0]}
        return {"Versions": versions, "IsTruncated": False}

    @writes("s3.delete_objects")
    def delete_objects(self, *, Bucket: str, Delete: dict[str, Any]) -> dict[str, Any]:
        if not 0 < len(Delete["Objects"]) <= MAX_LISTED:
            raise refused("MalformedXML", "DeleteObjects")
        errors = []
        for one in Delete["Objects"]:
            self._check(Bucket, one["Key"])
            if code := self.refuses("DeleteObjects", one["Key"]):
                errors.append({**one, "Code": code, "Message": "simulated"})
                continue
            gone = self._versions.pop((one["Key"], one["VersionId"]), None)
            if gone is not None and self.objects.get(gone.key) is gone:
                del self.objects[gone.key]
                older = [kept for (key, _), kept in self._versions.items() if key == gone.key]
                if older:
                    self.objects[gone.key] = older[-1]
        return {"Errors": errors} if errors else {}

    @reads("s3.list_parts")
    def list_parts(
        self, *, Bucket: str, Key: str, UploadId: str, PartNumberMarker: int = 0
    ) -> dict[str, Any]:
        self._check(Bucket, Key)
        found = sorted(self._upload(Key, UploadId).parts.items())
        page = [pair for pair in found if pair[0] > PartNumberMarker][:1_000]
        parts = [
            {"PartNumber": n, "Size": len(one.body), "ETag": f'"{_md5_of(one)}"'} for n, one in page
        ]
        if page and page[-1] != found[-1]:
            return {"Parts": parts, "IsTruncated": True, "NextPartNumberMarker": page[-1][0]}
        return {"Parts": parts, "IsTruncated": False}

    @writes("s3.complete_multipart_upload")
    def complete_multipart_upload(
        self,
        *,
        Bucket: str,
        Key: str,
        UploadId: str,
        MultipartUpload: dict[str, Any],
        IfNoneMatch: str = "",
    ) -> dict[str, Any]:
        self._check(Bucket, Key)
        if self.calls.retries and UploadId not in self._uploads:
            return {}  # S3 answers a repeated completion as it answered the first.
        upload = self._upload(Key, UploadId)
        self._test("CompleteMultipartUpload", Key, IfNoneMatch, "")
        parts = MultipartUpload["Parts"]
        numbers = [one["PartNumber"] for one in parts]
        copied = {number: f'"{_md5_of(part)}"' for number, part in upload.parts.items()}
        if any(copied.get(one["PartNumber"]) != one["ETag"] for one in MultipartUpload["Parts"]):
            raise refused("InvalidPart", "CompleteMultipartUpload")
        if numbers != sorted(numbers):
            raise refused("InvalidPartOrder", "CompleteMultipartUpload")
        bodies = [upload.parts[number].body for number in numbers]
        if any(len(body) < MIN_PART_BYTES for body in bodies[:-1]):
            raise refused("EntityTooSmall", "CompleteMultipartUpload")
        content = b"".join(bodies)
        digests = b"".join(bytes.fromhex(_md5_of(upload.parts[number])) for number in numbers)
        etag = f"{_md5(digests)}-{len(bodies)}"
        stored = self._store(Key, content, etag, upload.metadata)
        del self._uploads[UploadId]
        return stored

    @writes("s3.abort_multipart_upload")
    def abort_multipart_upload(self, *, Bucket: str, Key: str, UploadId: str) -> dict[str, Any]:
        self._check(Bucket, Key)
        self._uploads.pop(UploadId, None)
        return {}

    def _upload(self, key: str, upload_id: str) -> _Upload:
        found = self._uploads.get(upload_id)
        if found is None or found.key != key:
            raise refused("NoSuchUpload", "MultipartUpload", 404)
        return found

    def _test(self, operation: str, key: str, if_none_match: str, if_match: str) -> None:
        found = self.objects.get(key)
        if if_none_match not in {"", "*"}:
            raise NotSimulatedError(f"If-None-Match: {if_none_match}")
        if if_match and found is None:
            raise refused("NoSuchKey", operation, 404)
        if (if_none_match and found) or (if_match and found and if_match.strip('"') != found.etag):
            raise refused("PreconditionFailed", operation, 412)

    def _check(self, bucket: str, key: str) -> None:
        if bucket != self.bucket:
            raise refused("NoSuchBucket", "S3", 404)
        if not 0 < len(key.encode()) <= MAX_KEY_BYTES:
            raise refused("KeyTooLongError", "S3")
