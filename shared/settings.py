"""Environment to frozen settings. The only reader of environment variables; knows no service and no client.

All bad variables are reported at once, so that one failed start tells everything there is to mend.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from shared.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})
API_BODY_LIMIT = 10_000_000
"""Bytes a submitted body must stay under: Cloudflare documents "under 10 MB" and no more; taken as 10^6."""

MODEL_ID = re.compile(r"@(?:cf|hf)/[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an operator chose, checked.

    Attributes:
        max_requests_per_batch: records in a batch, at most.
        max_batch_bytes: bytes of a batch's JSON body, at most; a larger record travels alone.
        api_calls_per_minute: calls of the Cloudflare API by all functions together.
        batch_deadline_hours: hours from acceptance after which a pending batch is submitted again.
        ambiguous_submit: what becomes of a submit whose outcome cannot be known.
    """

    bucket_name: str
    table_name: str
    upload_queue_url: str
    submit_queue_url: str
    poll_queue_url: str
    cloudflare_account_id: str
    cloudflare_api_token_secret_arn: str
    workers_ai_base_url: str
    default_model: str
    max_requests_per_batch: int
    max_batch_bytes: int
    api_calls_per_minute: int
    batch_deadline_hours: float
    ambiguous_submit: Literal["resubmit", "fail"]


ENVIRONMENT = frozenset(field.name.upper() for field in fields(Settings))
"""Names of the variables that the template must give, one for each setting."""


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _account_id(value: str) -> str:
    if not re.fullmatch(r"[0-9a-f]{32}", value):
        raise ValueError("must be 32 lower-case hexadecimal digits")
    return value


def _model(value: str) -> str:
    if value and not MODEL_ID.fullmatch(value):
        raise ValueError("must be empty or a model id such as @cf/baai/bge-small-en-v1.5")
    return value


def _base_url(value: str) -> str:
    """Refuse anything that could carry the token in the clear or to a host hidden behind user info."""
    parts = urlsplit(value)
    secure = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK_HOSTS)
    plain = value.isascii() and value.isprintable() and not set(value) & set(" @\\?#") and parts.port != 0
    if not secure or not parts.hostname or not plain:
        raise ValueError("must be an https URL (http only on loopback), without user, query or fragment")
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


def _ambiguous(value: str) -> str:
    if value not in {"resubmit", "fail"}:
        raise ValueError("must be resubmit or fail")
    return value


_PARSERS: dict[str, Callable[[str], object]] = {
    "cloudflare_account_id": _account_id,
    "workers_ai_base_url": _base_url,
    "default_model": _model,
    "max_requests_per_batch": _whole(1, 100_000),
    "max_batch_bytes": _whole(1_000, API_BODY_LIMIT - 1),
    "api_calls_per_minute": _whole(1, 240),
    "batch_deadline_hours": _hours,
    "ambiguous_submit": _ambiguous,
}


def read_settings(environment: Mapping[str, str]) -> Settings:
    """Read and check every setting.

    Raises:
        ConfigurationError: naming every variable that is missing or out of range.
    """
    values: dict[str, object] = {}
    problems: list[str] = []
    for field in fields(Settings):
        variable = field.name.upper()
        raw = environment.get(variable)
        if raw is None:
            problems.append(f"{variable} is not set")
            continue
        try:
            values[field.name] = _PARSERS.get(field.name, _text)(raw)
        except ValueError as error:
            problems.append(f"{variable} {error}")
    if problems:
        raise ConfigurationError("; ".join(problems))
    return Settings(**values)  # type: ignore[arg-type]
