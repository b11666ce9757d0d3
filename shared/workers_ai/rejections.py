"""What an error of the API means. Where the reply alone does not decide, the token is checked.

Cloudflare replies 7000 both for an unknown model and for a wrong path, and its firewall replies
with the same status as for a refused token. The free call distinguishes them. It counts against
Cloudflare's rate limit, so it takes a token of the rate budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.observability import batch_log_fields, logger
from shared.workers_ai.client import TokenState
from shared.workers_ai.error_codes import (
    ErrorClass,
    classify_poll_error,
    classify_submit_error,
    classify_with_valid_token,
)
from shared.workers_ai.other_account import other_account
from shared.workers_ai.senders import api_of

if TYPE_CHECKING:
    from shared.models import Batch, Job, Sender
    from shared.services import Services
    from shared.workers_ai.replies import Rejected


def classify_rejection(
    services: Services, job: Job, batch: Batch, reply: Rejected, sender: Sender, *, polling: bool
) -> ErrorClass:
    """What an error reply to a batch's call means; never `ErrorClass.CHECK_TOKEN`.

    Args:
        services: the process's clients and settings.
        job: the batch's job, as the account sees it that was asked.
        batch: the batch.
        reply: the error.
        sender: who made the call.
        polling: whether the call was a poll.

    Raises:
        StorageError: DynamoDB failed.
    """
    verdict = classify_poll_error(reply) if polling else classify_submit_error(reply)
    # An id may be unknown only to a token that may not use its account; the stack's own account
    # needs no such doubt.
    doubted = verdict is ErrorClass.UNKNOWN_ID and other_account(services, job)
    if verdict is not ErrorClass.CHECK_TOKEN and not doubted:
        return verdict
    state = token_state(services, sender)
    logger.info(
        "token checked",
        **batch_log_fields(batch),
        state=state,
        status=reply.status,
        code=reply.code,
    )
    match state:
        case TokenState.GOOD if doubted:
            return verdict
        case TokenState.GOOD:
            return classify_with_valid_token(reply, polling=polling)
        case TokenState.REFUSED:
            return ErrorClass.ACCOUNT
        case _:
            return ErrorClass.TRY_LATER


def token_state(services: Services, sender: Sender) -> TokenState | None:
    """Whether a token may use its account, by the free call.

    None if the rate budget has no call left for it.

    Raises:
        StorageError: DynamoDB failed.
    """
    if not services.budget.permit_check(services.now(), sender=sender):
        return None
    return api_of(services, sender).check_token()
