"""A job belongs to the Cloudflare account with which it was created: only that knows its ids.

If `CloudflareAccountId` changes, no call is made for open jobs of the old account: one would be
billed to the wrong account, or be told that its id is unknown. They wait for an hour, in which a
deployment that is under way ends or a typo is mended; then they end `failed`, with their answers.
"""

from __future__ import annotations

from shared.models import ACCOUNT_CHANGED, NEVER, ErrorDetail, Job, Wait
from shared.retry import soon_after
from shared.services import Services

ACCOUNT_CHANGED_SECONDS = 3_600.0  # Seconds for which a job of another account waits
LOOK_SECONDS = 300.0  # Seconds after which a batch of such a job is looked at again


def is_of_account(services: Services, job: Job) -> bool:
    """Whether a job was created with the account that the stack has now."""
    return job.plan.account == services.settings.cloudflare_account_id


def wait_for_account(job: Job, now: float) -> Wait:
    """No call for a batch of another account."""
    return Wait(soon_after(now + LOOK_SECONDS, 30), ACCOUNT_CHANGED, since=_changed_at(job))


def _changed_at(job: Job) -> float:
    """Since when a job waits for its account, as far as was noted; 0: not."""
    return job.wait.since if job.wait and job.wait.code == ACCOUNT_CHANGED else 0.0


def watch_account(services: Services, job: Job) -> Job:
    """Note since when a job is of another account than the stack's, or that it no longer is."""
    if is_of_account(services, job) == (_changed_at(job) == 0.0):
        return job
    wait = None
    if not is_of_account(services, job):
        now = services.now()
        words = (
            f"{account_words(services, job)}; no call is made for it. Set CloudflareAccountId "
            "back, or it ends after an hour, with the answers that it has; retry.jsonl has the "
            "rest."
        )
        # Shown, and noted, until the job ends.
        wait = Wait(NEVER, ACCOUNT_CHANGED, words, now)
    return services.ledger.note_wait(job.job_id, wait) or job


def account_words(services: Services, job: Job) -> str:
    """What users read of a job of another account."""
    return (
        f"The job was created with the Cloudflare account {job.plan.account}, and the stack has "
        f"{services.settings.cloudflare_account_id} now"
    )


def account_fault(services: Services, job: Job, now: float) -> ErrorDetail | None:
    """Why a job ends that has waited for its account for too long; None while it does not end."""
    since = _changed_at(job)
    if is_of_account(services, job) or not since or now - since < ACCOUNT_CHANGED_SECONDS:
        return None
    return ErrorDetail(
        ACCOUNT_CHANGED,
        f"{account_words(services, job)}, for over an hour. Drop retry.jsonl again for the rest.",
    )
