"""What an error of the API means. Where the reply alone does not decide, the token is checked.

Cloudflare replies 7000 both for an unknown model and for a wrong path, and its firewall replies
with the same status as for a refused token. The free call distinguishes them. It counts against
Cloudflare's rate limit, so it takes a token of the rate budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.api_tokens import ONE_A_STACK
from shared.observability import batch_log_fields, logger
from shared.workers_ai.client import TokenState
from shared.workers_ai.error_codes import (
    ErrorClass,
    classify_poll_error,
    classify_submit_error,
    classify_with_valid_token,
)

if TYPE_CHECKING:
    from shared.models import Batch
    from shared.services import Services
    from shared.workers_ai.replies import Rejected


def classify_rejection(
    services: Services, batch: Batch, reply: Rejected, *, polling: bool
) -> ErrorClass:
    """What an error reply to a batch's call means; never `ErrorClass.CHECK_TOKEN`.

    Args:
        services: the process's clients and settings.
        batch: the batch.
        reply: the error.
        polling: whether the call was a poll.

    Raises:
        StorageError: DynamoDB failed.
    """
    verdict = classify_poll_error(reply) if polling else classify_submit_error(reply)
    if verdict is not ErrorClass.CHECK_TOKEN:
        return verdict
    state = token_state(services)
    logger.info(
        "token checked",
        **batch_log_fields(batch),
        state=state,
        status=reply.status,
        code=reply.code,
    )
    match state:
        case TokenState.GOOD:
            return classify_with_valid_token(reply, polling=polling)
        case TokenState.REFUSED:
            return ErrorClass.ACCOUNT
        case _:
            return ErrorClass.TRY_LATER


def token_state(services: Services) -> TokenState | None:
    """Whether the token may use the account, by the free call.

    None if the rate budget has no call left for it.

    Raises:
        StorageError: DynamoDB failed.
    """
    if not services.budget.permit_check(services.now()):
        return None
    return services.api.check_token()


def cause_of_pause(reply: Rejected) -> str:
    """What users read of a reply that pauses calls: its code, or what is wrong with the secret."""
    return ONE_A_STACK if reply.message == ONE_A_STACK else str(reply.code or reply.status)
