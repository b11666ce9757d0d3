"""Jobs of another Cloudflare account.

A job stays with the account it was created with, whatever the stack's is now.

Its submits and polls go to that account. What the API refuses there says nothing about the stack's
account, so each other account has pauses of its own (`shared.pacing.controls`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.models import Job
    from shared.services import Services


def other_account(services: Services, job: Job) -> str:
    """A job's Cloudflare account, if it is not the stack's; empty if it is."""
    account = job.plan.account
    return "" if account == services.settings.cloudflare_account_id else account
