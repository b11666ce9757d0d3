"""A job's options: resolved once, when the job is created, and pinned in `options.json` beside its results."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from shared import s3_keys as keys
from shared.aws.object_store import ObjectNotFoundError
from shared.errors import UploadError
from shared.job_status import JSON_TYPE
from shared.options import (
    MAX_OPTIONS_BYTES,
    OPTIONS_FILE,
    Options,
    decode_options,
    encode_options,
    file_options,
    metadata_options,
    named_options,
    options_keys,
    resolve,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from shared.bootstrap import Services
    from shared.models import Job

RETRY_OF = "retry-of"
"""Metadata of a retry file: the key of its job's manifest, percent-encoded."""
_MODEL_SEGMENTS = 3


def resolve_options(services: Services, upload_key: str, metadata: Mapping[str, str]) -> Options:
    """The options of an upload, from its metadata, its path, the nearest `_options.json` and the job that it retries.

    Raises:
        UploadError: `bad_options`.
        StorageError: S3 failed.
    """
    layers = [metadata_options(metadata), path_options(upload_key), _nearest_file(services, upload_key)]
    if parent := retried_manifest(metadata):
        layers.append(_parent_options(services, parent))
    return resolve(layers)


def path_options(upload_key: str) -> dict[str, Any]:
    """The model that a path begins with, valid or not."""
    segments = keys.upload_path(upload_key).split("/")
    if segments[0] not in {"@cf", "@hf"}:
        return {}
    return {"model": "/".join(segments[:_MODEL_SEGMENTS] if len(segments) > _MODEL_SEGMENTS else segments[:-1])}


def retried_manifest(metadata: Mapping[str, str]) -> str:
    """If an upload is a job's retry file, the key of that job's manifest; otherwise empty."""
    key = unquote(metadata.get(RETRY_OF, ""))
    is_manifest = key.startswith("results/") and key.endswith("/manifest.json")
    return key if is_manifest and len(key.encode()) <= keys.MAX_KEY_BYTES else ""


def _nearest_file(services: Services, upload_key: str) -> dict[str, Any]:
    for key in options_keys(f"{keys.INBOX}{keys.upload_path(upload_key)}", keys.INBOX):
        stored = services.store.head(key)
        if stored is None:
            continue
        if not 0 < stored.size <= MAX_OPTIONS_BYTES:
            raise UploadError(
                "bad_options", f"{OPTIONS_FILE}: It must be a JSON object of at most {MAX_OPTIONS_BYTES:,} bytes."
            )
        return file_options(services.store.get(key, 0, MAX_OPTIONS_BYTES))
    return {}


def _parent_options(services: Services, manifest: str) -> dict[str, Any]:
    """The options of the job that is retried; empty for a job that is older than options."""
    key = f"{manifest.removesuffix('manifest.json')}options.json"
    try:
        return named_options(decode_options(services.store.get(key)))
    except ObjectNotFoundError:
        return {}


def pin_options(services: Services, upload_key: str, job_id: str, options: Options) -> Options:
    """Write `options.json` once; return the options in it, which another run of the same event may have written.

    Raises:
        StorageError: S3 failed.
    """
    key = keys.result(upload_key, job_id, "options.json")
    if services.store.put_if_absent(key, encode_options(options), kind=JSON_TYPE):
        return options
    return decode_options(services.store.get(key))


def pinned_options(services: Services, job: Job) -> Options:
    """A job's options; empty for a job that is older than options.

    Raises:
        StorageError: S3 failed.
    """
    try:
        return decode_options(services.store.get(keys.result(job.upload.key, job.job_id, "options.json")))
    except ObjectNotFoundError:
        return Options()
