"""Watches a pause in force.

Counts it for its alarm, and ends it even if no batch may be submitted to probe it.
"""

from __future__ import annotations

from dataclasses import dataclass

from functions.poll.due import readable_job
from shared.job_status import iso_time
from shared.models import DueKind
from shared.observability import count, logger
from shared.pacing.account import is_of_account
from shared.pacing.breaker import UNPAID, Pause, PauseReason, Permit
from shared.services import Services
from shared.workers_ai.error_codes import TokenState

METRIC_OF_REASON = {
    PauseReason.TOKEN_REFUSED: "TokenRefused",
    **dict.fromkeys(UNPAID, "QuotaSpent"),
    PauseReason.OUTAGE: "Outage",
}
"""The metric that counts the ticks of a pause."""
OUTAGE_SECONDS = 600.0
"""Seconds after which an outage raises the alarm of pauses; every other pause raises it at once."""


SOON_SECONDS = 600.0
"""Seconds within which a batch is due that may be submitted; a paused job's is due in a day."""
MAX_PROBES_EXAMINED = 20
"""Batches of which one has to be of the stack's account, or the free call probes."""


def watch_pause(services: Services, now: float, *, submits_wait: bool, polls_wait: bool) -> None:
    """Count a pause in force, once per tick, or end it if no batch would."""
    controls = services.budget.controls()
    pause = controls.pause_in_force(now)
    if pause is None:
        return
    watched = _Watched(services, pause, now, may_submit=not controls.stack.held_since)
    if watched.is_over(submits_wait=submits_wait, polls_wait=polls_wait):
        services.budget.lift(Permit(pause), "")
        logger.info("pause over", reason=pause.reason)
        return
    since = iso_time(pause.since)
    logger.warning("calls are paused", reason=pause.reason, code=pause.code, since=since)
    count(METRIC_OF_REASON[pause.reason])
    if pause.reason is not PauseReason.OUTAGE or now - pause.since >= OUTAGE_SECONDS:
        count("Paused")


@dataclass(frozen=True, slots=True)
class _Watched:
    """A pause in force; `may_submit`: no operator has paused all submits."""

    services: Services
    pause: Pause
    now: float
    may_submit: bool

    def is_over(self, *, submits_wait: bool, polls_wait: bool) -> bool:
        """Whether it is over, as far as no batch will show that."""
        pause = self.pause
        if pause.reason is PauseReason.OUTAGE and not submits_wait:
            return True  # The next submit shows whether it still lasts.
        if pause.reason in UNPAID or self._may_submit():
            return False
        of_token = pause.reason is PauseReason.TOKEN_REFUSED
        if of_token and polls_wait and self._waits_soon(DueKind.POLL):
            return False
        return self._free_call_succeeds()

    def _free_call_succeeds(self) -> bool:
        """Whether the free call, as the pause's probe, is answered well."""
        budget, pause, now = self.services.budget, self.pause, self.now
        may_probe = now >= pause.next_probe and budget.permit_check(now)
        if not may_probe or budget.claim_probe(pause, now) is None:
            return False
        return self.services.api.check_token() is TokenState.GOOD

    def _may_submit(self) -> bool:
        """Whether a batch waits that may be submitted soon, and so will probe it."""
        kinds = (DueKind.FIRST, DueKind.SUBMIT) if self.may_submit else ()
        return any(self._waits_soon(work) for work in kinds)

    def _waits_soon(self, work: DueKind) -> bool:
        """Whether one of the next batches is of the stack's account: others make no call."""
        services = self.services
        dues = services.ledger.due(work, self.now + SOON_SECONDS, MAX_PROBES_EXAMINED)[0]
        jobs = (
            readable_job(services, job_id) for job_id in dict.fromkeys(due.job_id for due in dues)
        )
        return any(job is not None and is_of_account(services, job) for job in jobs)
