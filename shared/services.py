"""The composition root: settings and clients become services, once for each process, on first use, never at import."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from shared.budget import Budget
from shared.completion_times import CompletionTimes
from shared.errors import StorageError
from shared.ledger import Ledger
from shared.notices import Notices
from shared.queues import Queues
from shared.settings import Settings, read_settings
from shared.store import Store
from shared.workers_ai import WorkersAI, http_client

if TYPE_CHECKING:
    from collections.abc import Callable

SECRET_SECONDS = 300
"""How long a token that was read is believed, unless the API refuses it."""


@dataclass(frozen=True, slots=True)
class Services:
    """All a use case needs; a test makes its own."""

    settings: Settings
    ledger: Ledger
    store: Store
    queues: Queues
    api: WorkersAI
    budget: Budget
    times: CompletionTimes
    notices: Notices
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


@cache
def services() -> Services:
    """The services of this process.

    Raises:
        ConfigurationError: naming every bad environment variable.
    """
    import boto3  # noqa: PLC0415 - built once and late: at import there may be no region
    from botocore.config import Config  # noqa: PLC0415

    settings = read_settings(os.environ)
    config = Config(
        connect_timeout=2,
        read_timeout=20,
        retries={"mode": "standard", "total_max_attempts": 4},
        max_pool_connections=32,
    )
    session = boto3.session.Session()

    def client(name: str) -> Any:  # noqa: ANN401 - boto3 makes its clients at run time
        return session.client(name, config=config)  # type: ignore[call-overload]

    dynamodb = client("dynamodb")
    return Services(
        settings,
        Ledger(dynamodb, settings.table_name),
        Store(client("s3"), settings.bucket_name),
        Queues(client("sqs"), settings.upload_queue_url, settings.submit_queue_url, settings.poll_queue_url),
        WorkersAI(
            http_client(),
            settings.workers_ai_base_url,
            settings.cloudflare_account_id,
            _token_reader(settings.cloudflare_api_token_secret_arn),
        ),
        Budget(dynamodb, settings.table_name, settings.api_calls_per_minute),
        CompletionTimes(dynamodb, settings.table_name),
        Notices(cache(lambda: client("events"))),
    )


def _token_reader(secret_arn: str) -> Callable[[bool], str]:
    def token(fresh: bool) -> str:  # noqa: FBT001 - the one question there is
        from aws_lambda_powertools.utilities import parameters  # noqa: PLC0415 - 100 ms that a warm call need not pay

        try:
            return str(parameters.get_secret(secret_arn, max_age=SECRET_SECONDS, force_fetch=fresh)).strip()
        except parameters.GetParameterError as error:
            raise StorageError(f"Secrets Manager: {error}") from error

    return token
