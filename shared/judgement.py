"""What a refusal means, with the token checked where the reply alone does not say.

Cloudflare says 7000 for an unknown model and for a wrong path alike, and its firewall answers with the same status as
a refused token. The free call tells them apart. It counts against Cloudflare's rate, so it takes a token of the budget.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.observability import logger, of_batch
from shared.verdicts import Verdict, judge, judge_with_good_token
from shared.workers_ai import TokenState

if TYPE_CHECKING:
    from shared.api_replies import Refused
    from shared.services import Services
    from shared.words import Batch


def judged(services: Services, batch: Batch, reply: Refused, *, polling: bool) -> Verdict:
    """What a refusal of a batch's call means; never `Verdict.CHECK_TOKEN`.

    Raises:
        StorageError: the table refused or broke off.
    """
    verdict = judge(reply.status, reply.code, reply.message, enveloped=reply.enveloped, polling=polling)
    if verdict is not Verdict.CHECK_TOKEN:
        return verdict
    state = token_state(services)
    logger.info("token checked", **of_batch(batch), state=state, status=reply.status, code=reply.code)
    match state:
        case TokenState.GOOD:
            return judge_with_good_token(reply.status, reply.code, enveloped=reply.enveloped, polling=polling)
        case TokenState.REFUSED:
            return Verdict.ACCOUNT
        case _:
            return Verdict.TRY_LATER


def token_state(services: Services) -> TokenState:
    """What the free call says of the token; `UNKNOWN` too when the rate budget has no call left for it.

    Raises:
        StorageError: the table refused or broke off.
    """
    if not services.budget.permit_check(services.now()):
        return TokenState.UNKNOWN
    return services.api.check_token()
