"""The composition root: builds the services of a process once, in Lambda's init or on first use."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from botocore.exceptions import ClientError

from shared.aws.event_bus import EventBus
from shared.aws.object_store import ObjectStore
from shared.aws.queues import (
    PollMessage,
    Queues,
    SplitMessage,
    SubmitMessage,
    VisitMessage,
    WakeMessage,
)
from shared.errors import ConfigurationError, StorageError
from shared.events.subscribe import events_of
from shared.ledger import Ledger
from shared.observability import logger
from shared.pacing.breaker import Known
from shared.pacing.budget import CLOUDFLARE_CALLS, Budget
from shared.pacing.cadence import Cadence
from shared.pacing.wake import Wakes
from shared.retry import jittered
from shared.services import Services
from shared.settings import Settings, read_settings
from shared.workers_ai.client import WorkersAI, http_client
from shared.workers_ai.transports import Credentials, transport_of

if TYPE_CHECKING:
    from mypy_boto3_secretsmanager import SecretsManagerClient


SECRET_SECONDS = 300
"""Until a secret is read again; one that the API refuses is read again immediately."""


NO_SECRET = {
    *("AccessDeniedException", "DecryptionFailure"),
    *("InvalidRequestException", "ResourceNotFoundException"),
}
"""Codes of a secret that nobody can read until somebody changes a policy, a key or the secret."""


class Waits(NamedTuple):
    """Limits of one kind of AWS call: seconds to connect, seconds without data, and tries.

    There are few tries, because a call to a service that hangs must fail in time. If a service
    answers that it is busy, the call is tried again after each of `BUSY_WAITS`.
    """

    connect: float
    read: float
    tries: int

    def after_busy(
        self, response: tuple[Any, dict[str, Any]] | None, attempts: int, **_: object
    ) -> float | None:
        """Botocore's event `needs-retry`: seconds until another try of a call that it gives up."""
        further = attempts - self.tries
        if response is None or not 0 <= further < len(BUSY_WAITS):
            return None
        http, parsed = response
        code = parsed.get("Error", {}).get("Code")
        is_busy = http.status_code >= SERVER_ERROR or code in THROTTLED
        return jittered(BUSY_WAITS[further]) if is_busy else None


BUSY_WAITS = (0.1, 0.2, 0.4)
"""Before each further try: if 30 % of all calls are refused as busy, 1 in 1,000 still fails."""
SERVER_ERROR = 500
"""The lowest HTTP status of a service that failed; S3's `SlowDown` (503) is one of them."""
THROTTLED = {
    *("ProvisionedThroughputExceededException", "RequestLimitExceeded"),
    *("RequestThrottled", "ThrottlingException"),
}
"""Error codes of busy services that have another status."""


QUICK_CALLS = Waits(connect=2, read=3, tries=3)
"""Calls that return within milliseconds: to the table, queues, secrets and the event bus."""
OBJECT_CALLS = Waits(connect=2, read=5, tries=3)
"""Calls to S3, whose first byte takes tens of milliseconds."""
COPY_CALLS = Waits(connect=2, read=60, tries=2)
"""Copies within S3, which return only when all bytes are copied."""


@cache
def services() -> Services:
    """The services of this process; raises `ConfigurationError`, which names every bad variable."""
    settings, client = read_settings(os.environ), _clients()
    dynamodb = client("dynamodb", QUICK_CALLS)
    credentials = _secret_reader(settings, lambda: client("secretsmanager", QUICK_CALLS))
    api = WorkersAI(http_client(), transport_of(settings), credentials)
    copying = cache(lambda: client("s3", COPY_CALLS))
    store = ObjectStore(
        client("s3", OBJECT_CALLS), settings.bucket_name, copying, settings.kms_key_arn
    )
    made = Services(
        settings,
        Ledger(dynamodb, settings.table_name),
        store,
        Queues(
            client("sqs", QUICK_CALLS),
            settings.upload_queue_url,
            {
                SplitMessage: settings.split_queue_url,
                SubmitMessage: settings.submit_queue_url,
                PollMessage: settings.poll_queue_url,
                WakeMessage: settings.poll_queue_url,
                VisitMessage: settings.visit_queue_url,
            },
        ),
        api,
        Budget(
            dynamodb,
            settings.table_name,
            settings.api_calls_per_minute,
            # What limits a token does not limit the AI binding, as far as Cloudflare's documents
            # say.
            None if settings.transport == "worker" else CLOUDFLARE_CALLS,
        ),
        # Between two polls of a batch: half of the calls are for submits.
        Cadence(dynamodb, settings.table_name, 120.0 / settings.api_calls_per_minute),
        EventBus(cache(lambda: client("events", QUICK_CALLS))),
        Wakes(dynamodb, settings.table_name),
        Known(dynamodb, settings.table_name),
    )
    return replace(made, events=events_of(made)) if settings.uses_events else made


def _clients() -> Callable[[str, Waits], Any]:
    """What makes the clients of AWS services."""
    import boto3  # noqa: PLC0415 - outside Lambda there may be no region
    from botocore.config import Config  # noqa: PLC0415

    session = boto3.session.Session()

    def client(name: str, waits: Waits) -> Any:
        config = Config(
            connect_timeout=waits.connect,
            read_timeout=waits.read,
            retries={"mode": "standard", "total_max_attempts": waits.tries},
            max_pool_connections=32,
        )
        made = session.client(name, config=config)  # type: ignore[call-overload]
        made.meta.events.register("needs-retry", waits.after_busy)
        return made

    return client


def build_in_init() -> None:
    """Build the services in Lambda's init, with a whole processor; it hides errors of settings."""
    if "AWS_LAMBDA_RUNTIME_API" in os.environ:
        with suppress(ConfigurationError):
            services()


def _secret_reader(
    settings: Settings, client: Callable[[], SecretsManagerClient]
) -> Callable[[bool], Credentials]:
    """What reads the secrets, on first use and then every `SECRET_SECONDS`; with True, again."""
    from aws_lambda_powertools.utilities.parameters import (  # noqa: PLC0415 - it imports boto3
        GetParameterError,
        SecretsProvider,
    )

    # Now: the first request waits for the secret.
    provider = SecretsProvider(boto3_client=client())

    def read(arn: str, *, fresh: bool) -> str:
        try:
            return str(provider.get(arn, max_age=SECRET_SECONDS, force_fetch=fresh)).strip()
        except GetParameterError as error:
            cause = error.__context__  # botocore's own error.
            code = cause.response["Error"]["Code"] if isinstance(cause, ClientError) else ""
            if code in NO_SECRET:
                # Calls wait as with a refused token. A new stack's secret has no value yet.
                logger.warning("no token can be read", code=code)
                return ""
            raise StorageError(f"Secrets Manager: {error}") from error

    worker = settings.transport == "worker"
    token = settings.worker_secret_arn if worker else settings.cloudflare_api_token_secret_arn
    gateway = settings.ai_gateway_token_secret_arn if settings.ai_gateway_id and not worker else ""
    return lambda fresh: Credentials(
        read(token, fresh=fresh), read(gateway, fresh=fresh) if gateway else ""
    )
