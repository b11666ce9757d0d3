"""What a refusal means, with the token checked where the reply alone does not say.

Cloudflare says 7000 for an unknown model and for a wrong path alike, and its firewall answers with the same status as
a refused token. The free call tells them apart. It counts against Cloudflare's rate, so it takes a token of the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.observability import batch_log_fields, logger
from shared.workers_ai.client import TokenState
from shared.workers_ai.error_codes import ErrorClass, classify_error, classify_with_valid_token

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.models import Batch
    from shared.workers_ai.replies import Rejected


def classify_rejection(services: Services, batch: Batch, reply: Rejected, *, polling: bool) -> ErrorClass:
    """What a refusal of a batch's call means; never `ErrorClass.CHECK_TOKEN`.

    Raises:
        StorageError: the table refused or broke off.
    """
    verdict = classify_error(reply.status, reply.code, reply.message, enveloped=reply.enveloped, polling=polling)
    if verdict is not ErrorClass.CHECK_TOKEN:
        return verdict
    state = token_state(services)
    logger.info("token checked", **batch_log_fields(batch), state=state, status=reply.status, code=reply.code)
    match state:
        case TokenState.GOOD:
            return classify_with_valid_token(reply.status, reply.code, enveloped=reply.enveloped, polling=polling)
        case TokenState.REFUSED:
            return ErrorClass.ACCOUNT
        case _:
            return ErrorClass.TRY_LATER


def token_state(services: Services) -> TokenState:
    """What the free call says of the token; `UNKNOWN` too when the rate budget has no call left for it.

    Raises:
        StorageError: the table refused or broke off.
    """
    if not services.budget.permit_check(services.now()):
        return TokenState.UNKNOWN
    return services.api.check_token()
