"""The composition root: settings and clients become services, once for each process, on first use, never at import."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.aws.event_bus import EventBus
from shared.aws.object_store import ObjectStore
from shared.aws.queues import Queues
from shared.errors import StorageError
from shared.ledger import Ledger
from shared.pacing.budget import Budget
from shared.pacing.completion_times import CompletionTimes
from shared.settings import Settings, read_settings
from shared.workers_ai.client import WorkersAI, http_client

if TYPE_CHECKING:
    from collections.abc import Callable

    from aws_lambda_powertools.utilities.parameters import SecretsProvider
    from mypy_boto3_secretsmanager import SecretsManagerClient

SECRET_SECONDS = 300
"""How long a token that was read is believed, unless the API refuses it."""


class Waits(NamedTuple):
    """How long one kind of AWS call may take: seconds to connect, seconds of silence, and tries."""

    connect: float
    read: float
    tries: int

    @property
    def longest(self) -> float:
        """Seconds after which a call that gets no answer is given up; botocore waits up to 1, 2, 4 … between tries."""
        return self.tries * (self.connect + self.read) + float((1 << self.tries - 1) - 1)


QUICK = Waits(connect=2, read=3, tries=3)
"""Calls that answer within milliseconds: those of the table, the queues, the secret and the event bus."""
OBJECTS = Waits(connect=2, read=5, tries=3)
"""Calls of S3, whose first byte takes tens of milliseconds."""
COPIES = Waits(connect=2, read=60, tries=2)
"""Copies within S3, which answer when all bytes are copied."""


@dataclass(frozen=True, slots=True)
class Services:
    """All a use case needs; a test makes its own."""

    settings: Settings
    ledger: Ledger
    store: ObjectStore
    queues: Queues
    api: WorkersAI
    budget: Budget
    times: CompletionTimes
    notices: EventBus
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
    session = boto3.session.Session()

    def client(name: str, waits: Waits) -> Any:  # noqa: ANN401 - boto3 makes its clients at run time
        config = Config(
            connect_timeout=waits.connect,
            read_timeout=waits.read,
            retries={"mode": "standard", "total_max_attempts": waits.tries},
            max_pool_connections=32,
        )
        return session.client(name, config=config)  # type: ignore[call-overload]

    dynamodb = client("dynamodb", QUICK)
    return Services(
        settings,
        Ledger(dynamodb, settings.table_name),
        ObjectStore(client("s3", OBJECTS), settings.bucket_name, cache(lambda: client("s3", COPIES))),
        Queues(client("sqs", QUICK), settings.upload_queue_url, settings.submit_queue_url, settings.poll_queue_url),
        WorkersAI(
            http_client(),
            settings.workers_ai_base_url,
            settings.cloudflare_account_id,
            _token_reader(settings.cloudflare_api_token_secret_arn, cache(lambda: client("secretsmanager", QUICK))),
        ),
        Budget(dynamodb, settings.table_name, settings.api_calls_per_minute),
        CompletionTimes(dynamodb, settings.table_name),
        EventBus(cache(lambda: client("events", QUICK))),
    )


def _token_reader(secret_arn: str, client: Callable[[], SecretsManagerClient]) -> Callable[[bool], str]:
    """Give a function that returns the token: read on first use, then every few minutes, and anew when asked to."""

    @cache
    def provider() -> SecretsProvider:
        from aws_lambda_powertools.utilities.parameters import SecretsProvider  # noqa: PLC0415 - see below

        return SecretsProvider(boto3_client=client())

    def token(fresh: bool) -> str:  # noqa: FBT001 - the one question there is
        # 100 ms that a warm call need not pay.
        from aws_lambda_powertools.utilities.parameters.exceptions import GetParameterError  # noqa: PLC0415

        try:
            return str(provider().get(secret_arn, max_age=SECRET_SECONDS, force_fetch=fresh)).strip()
        except GetParameterError as error:
            raise StorageError(f"Secrets Manager: {error}") from error

    return token
