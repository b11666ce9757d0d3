"""Watches a pause in force: counts it for its alarm, and ends it even if no batch may be submitted to probe it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.poll.schedule.due_items import readable_job
from shared.job_status import iso_time
from shared.models import DueKind
from shared.observability import count, logger
from shared.pacing.controls import UNPAID, PauseReason, Permit
from shared.workers_ai.client import TokenState
from shared.workers_ai.other_account import other_account

if TYPE_CHECKING:
    from shared.bootstrap import Services
    from shared.pacing.controls import Pause

METRIC_OF_REASON = {
    PauseReason.TOKEN_REFUSED: "TokenRefused",
    **dict.fromkeys(UNPAID, "QuotaSpent"),
    PauseReason.OUTAGE: "Outage",
}
"""The metric that counts the ticks of a pause."""
OUTAGE_SECONDS = 600.0
"""Seconds after which an outage raises the alarm of pauses; every other pause raises it at once."""


SOON_SECONDS = 600.0
"""Seconds within which a batch is due that may be submitted; those of a paused job are due a day later."""
MAX_PROBES_EXAMINED = 20
"""Batches of which one has to be of the stack's account; if none is, the free call probes instead."""


def watch_pause(services: Services, now: float, *, submits_wait: bool, polls_wait: bool) -> None:
    """Count a pause in force, once per tick, or end it if no batch would: none is left, or all are paused.

    Args:
        services: the process's clients and settings.
        now: Unix seconds.
        submits_wait: whether any batch waits to be submitted.
        polls_wait: whether any batch waits to be polled.

    Raises:
        StorageError: DynamoDB failed.
    """
    pause = services.budget.controls().pause
    if pause is None or (pause.until is not None and now >= pause.until):
        return
    if _is_over(services, pause, now, submits_wait=submits_wait, polls_wait=polls_wait):
        services.budget.lift(Permit(pause), "")
        logger.info("pause over", reason=pause.reason)
        return
    logger.warning("calls are paused", reason=pause.reason, code=pause.code, since=iso_time(pause.since))
    count(METRIC_OF_REASON[pause.reason])
    if pause.reason is not PauseReason.OUTAGE or now - pause.since >= OUTAGE_SECONDS:
        count("Paused")


def _is_over(services: Services, pause: Pause, now: float, *, submits_wait: bool, polls_wait: bool) -> bool:
    if pause.reason is PauseReason.OUTAGE and not submits_wait:
        return True  # The next submit shows whether it still lasts.
    if pause.reason in UNPAID or _may_submit(services, now):
        return False
    if pause.reason is PauseReason.TOKEN_REFUSED and polls_wait and _waits_soon(services, now, DueKind.POLL):
        return False
    return _free_call_succeeds(services, pause, now)


def _free_call_succeeds(services: Services, pause: Pause, now: float) -> bool:
    """Whether the call that costs nothing, as the pause's probe, shows that API and token are good again.

    A token of the rate budget is taken before the probe is claimed, because a probe without one would be lost.
    """
    budget = services.budget
    may_probe = now >= pause.next_probe and budget.permit_check(now) and budget.claim_probe(pause, now) is not None
    return may_probe and services.api.check_token() is TokenState.GOOD


def _may_submit(services: Services, now: float) -> bool:
    """Whether a batch waits that may be submitted soon, and so will probe the pause: users may have paused all."""
    if services.budget.controls().stack.held_since:
        return False
    return any(_waits_soon(services, now, work) for work in (DueKind.FIRST, DueKind.SUBMIT))


def _waits_soon(services: Services, now: float, work: DueKind) -> bool:
    """Whether one of the next batches is of the stack's account: those of another account never probe this pause."""
    found = services.ledger.due(work, now + SOON_SECONDS, MAX_PROBES_EXAMINED)[0]
    jobs = (readable_job(services, job_id) for job_id in dict.fromkeys(due.job_id for due in found))
    return any(job is not None and not other_account(services, job) for job in jobs)
