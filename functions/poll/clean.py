"""What a job has staged is deleted an hour after its end: it costs money, and nobody needs it.

No function that reads it runs so long. A function that dies leaves the rest to the next one: what
was deleted is not listed again. What S3 refuses to delete, or fails to for three days, is left to
the bucket's lifecycle rule. A claim touches two numbers of an item, so any item can be claimed.
"""

from __future__ import annotations

from dataclasses import replace

from shared import keys
from shared.errors import RefusedError
from shared.ledger import DueEntry
from shared.observability import logger
from shared.retry import MAX_CLAIMS, claim_seconds
from shared.services import Services

CLEAN_AFTER_SECONDS = 3_600.0
CLAIM_SECONDS = 180.0


def clean(services: Services, due: DueEntry, ends: float) -> None:
    """Delete a job's staged objects, at least 1,000, and more until `ends`, Unix seconds."""
    ledger, now = services.ledger, services.now()
    claims = ledger.claims_of(due)
    if claims >= MAX_CLAIMS:
        ledger.forget_cleanup(due)
        logger.error("staged objects left to the lifecycle rule", job_id=due.job_id)
        return
    until = float(int(now + claim_seconds(claims, CLAIM_SECONDS)))
    if not ledger.set_aside(due, claims + 1, until):
        return  # Somebody else has it, or the index was out of date.
    claimed = replace(due, due_at=until)
    try:
        while page := services.store.versions(keys.staging(due.job_id)):
            services.store.delete(page)
            if services.now() >= ends:
                ledger.set_aside(claimed, 0, services.now())
                return
    except RefusedError as refusal:
        logger.warning(
            "staged objects left to the lifecycle rule", job_id=due.job_id, reason=str(refusal)
        )
    ledger.forget_cleanup(claimed)
