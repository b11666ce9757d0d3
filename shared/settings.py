"""Environment variables as frozen settings; all bad ones are reported together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Literal
from urllib.parse import urlsplit

from dropbatch.core.formats.base import API_BODY_LIMIT
from dropbatch.core.models import MODEL_ID
from shared.errors import ConfigurationError

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
MAX_CALLS, MAX_WORKER_CALLS = 240, 2_400
"""Calls a minute: Cloudflare's limit of a token; through a Worker, which has no known limit."""
MAX_QUEUE_NAME, KEPT_OF_QUEUE_NAME = 63, 9
"""Maximum characters of a queue's name; its last ones, a hyphen and eight of the stack's id."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The operator's settings, checked. Those with a default may be absent from the environment."""

    bucket_name: str
    table_name: str
    upload_queue_url: str
    split_queue_url: str
    submit_queue_url: str
    poll_queue_url: str
    visit_queue_url: str
    cloudflare_account_id: str
    cloudflare_api_token_secret_arn: str
    workers_ai_base_url: str
    default_model: str
    max_requests_per_batch: int
    max_batch_bytes: int  # a larger record is sent alone
    api_calls_per_minute: int  # by all functions together
    batch_deadline_hours: float
    ambiguous_submit: Literal["resubmit", "fail"]
    transport: Literal["rest", "worker"] = "rest"
    ai_gateway_id: str = ""
    ai_gateway_token_secret_arn: str = ""
    worker_url: str = ""
    worker_secret_arn: str = ""
    source_bucket_name: str = ""
    source_prefix: str = ""
    kms_key_arn: str = ""  # empty if S3's own key encrypts
    completion_events: Literal["yes", "no"] = "no"
    events_queue_name: str = "dropbatch"

    @property
    def uses_events(self) -> bool:
        """Whether Cloudflare's events of batches are used."""
        return self.completion_events == "yes"


ENVIRONMENT = frozenset(field.name.upper() for field in fields(Settings))
"""Names of the variables that the template sets, one for each setting."""


def _matching(pattern: str, words: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise ValueError(words)
        return value

    return parse


def _base_url(value: str) -> str:
    """Check that a URL neither sends the token unencrypted nor hides its host behind user info."""
    parts = urlsplit(value)
    is_local = parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS
    is_plain = value.isascii() and value.isprintable() and not set(value) & set(" @\\?#")
    is_secure = parts.scheme == "https" or is_local
    if not (is_secure and is_plain and parts.hostname) or parts.port == 0:
        raise ValueError(
            "must be an https URL (http only on loopback), without user, query or fragment"
        )
    return value.rstrip("/")


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        if not value.isascii() or not value.isdigit() or not low <= int(value) <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return int(value)

    return parse


def _hours(value: str) -> float:
    try:
        hours = float(value)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= 24 * 7:
        raise ValueError("must be a number of hours above 0, at most 168")
    return hours


def _one_of(*choices: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in choices:
            raise ValueError(f"must be {', '.join(choices[:-1])} or {choices[-1]}")
        return value

    return parse


def _optional(parse: Callable[[str], str]) -> Callable[[str], str]:
    return lambda value: parse(value) if value else ""


def _queue_name(value: str) -> str:
    """A queue's name; a long one loses its middle, because its end keeps two stacks apart."""
    name = value.lower()
    if not re.fullmatch("[a-z0-9]([a-z0-9-]*[a-z0-9])?", name):
        raise ValueError("must be the name of a queue: letters, digits and hyphens")
    if len(name) <= MAX_QUEUE_NAME:
        return name
    return name[: MAX_QUEUE_NAME - KEPT_OF_QUEUE_NAME].rstrip("-") + name[-KEPT_OF_QUEUE_NAME:]


_PARSERS: dict[str, Callable[[str], object]] = {  # Others are texts, empty only by default
    "cloudflare_account_id": _matching("[0-9a-f]{32}", "must be 32 lower-case hexadecimal digits"),
    "workers_ai_base_url": _base_url,
    "default_model": _optional(
        _matching(
            MODEL_ID.pattern, "must be empty or a model id such as @cf/baai/bge-small-en-v1.5"
        )
    ),
    "max_requests_per_batch": _whole(1, 100_000),
    "max_batch_bytes": _whole(1_000, API_BODY_LIMIT - 1),
    "api_calls_per_minute": _whole(1, MAX_WORKER_CALLS),
    "batch_deadline_hours": _hours,
    "ambiguous_submit": _one_of("resubmit", "fail"),
    "cloudflare_api_token_secret_arn": str,
    "transport": _one_of("rest", "worker"),
    "ai_gateway_id": _optional(
        _matching("[A-Za-z0-9_-]{1,64}", "must be the name of an AI Gateway")
    ),
    "worker_url": _optional(_base_url),
    "completion_events": _one_of("yes", "no"),
    "events_queue_name": _queue_name,
}

_TEXT = _matching("(?s).+", "must not be empty")

_NEEDS = {
    "rest": ("cloudflare_api_token_secret_arn",),
    "worker": ("worker_url", "worker_secret_arn"),
}
"""Settings that must not be empty, by transport."""


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read and check every setting; raises `ConfigurationError`, which names every bad variable."""
    values: dict[str, object] = {}
    problems: list[str] = []
    for field in fields(Settings):
        variable = field.name.upper()
        raw, is_needed = environment.get(variable), field.default is MISSING
        if raw is None:
            if is_needed:
                problems.append(f"{variable} is not set")
            continue
        try:
            values[field.name] = _PARSERS.get(field.name, _TEXT if is_needed else str)(raw)
        except ValueError as error:
            problems.append(f"{variable} {error}")
    transport = str(values.get("transport", "rest"))
    problems += [
        f"{name.upper()} must not be empty with TRANSPORT={transport}"
        for name in _NEEDS[transport]
        if not environment.get(name.upper()) and f"{name.upper()} is not set" not in problems
    ]
    calls = values.get("api_calls_per_minute", 0)
    if transport != "worker" and isinstance(calls, int) and calls > MAX_CALLS:
        problems.append(
            f"API_CALLS_PER_MINUTE must be at most {MAX_CALLS} with TRANSPORT={transport}: "
            "Cloudflare "
            "allows a token no more. Only a Worker (TRANSPORT=worker) may make more calls"
        )
    if problems:
        raise ConfigurationError("; ".join(problems))
    return Settings(**values)  # type: ignore[arg-type]
