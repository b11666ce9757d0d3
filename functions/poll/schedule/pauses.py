"""Watches a pause in force.

Counts it for its alarm, and ends it even if no batch may be submitted to probe it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from functions.poll.schedule.due_items import load, readable_job
from shared.job_status import iso_time
from shared.models import FIRST, DueKind
from shared.observability import count, logger
from shared.pacing.controls import UNPAID, PauseReason, Permit
from shared.workers_ai.client import TokenState
from shared.workers_ai.other_account import other_account
from shared.workers_ai.senders import api_of, next_sender

if TYPE_CHECKING:
    from shared.models import Sender
    from shared.pacing.controls import Pause
    from shared.services import Services

METRIC_OF_REASON = {
    PauseReason.TOKEN_REFUSED: "TokenRefused",
    **dict.fromkeys(UNPAID, "QuotaSpent"),
    PauseReason.OUTAGE: "Outage",
}
"""The metric that counts the ticks of a pause."""
OUTAGE_SECONDS = 600.0
"""Seconds after which an outage raises the alarm of pauses; every other pause raises it at once."""


SOON_SECONDS = 600.0
"""Seconds within which a batch is due that may be submitted.

Those of a paused job are due a day later.
"""
MAX_PROBES_EXAMINED = 20
"""Batches of which one has to be of the stack's account.

If none is, the free call probes instead.
"""


def watch_pause(services: Services, now: float, *, submits_wait: bool, polls_wait: bool) -> None:
    """Count each pause in force, once per tick, or end it if no batch would.

    None is left, or all are paused.

    Args:
        services: the process's clients and settings.
        now: Unix seconds.
        submits_wait: whether any batch waits to be submitted.
        polls_wait: whether any batch waits to be polled.

    Raises:
        StorageError: DynamoDB failed.
    """
    # An idle tick reads no secret: what further tokens there are is looked at when there is work
    # for them.
    senders = services.budget.senders("") if submits_wait or polls_wait else (FIRST,)
    reasons = set[PauseReason]()
    is_alarm = False
    for sender, controls in zip(senders, services.budget.controls_of("", senders), strict=True):
        pause = controls.pause_in_force(now)
        if pause is None:
            continue
        watched = _Watched(services, pause, sender, now, len(senders) > 1)
        if watched.is_over(submits_wait=submits_wait, polls_wait=polls_wait):
            services.budget.lift(Permit(pause), "")
            logger.info("pause over", reason=pause.reason, token=pause.token)
            continue
        since = iso_time(pause.since)
        logger.warning(
            "calls are paused", reason=pause.reason, code=pause.code, since=since, token=pause.token
        )
        reasons.add(pause.reason)
        is_alarm = (
            is_alarm
            or pause.reason is not PauseReason.OUTAGE
            or now - pause.since >= OUTAGE_SECONDS
        )
    for metric in sorted({METRIC_OF_REASON[reason] for reason in reasons}):
        count(metric)
    if is_alarm:
        count("Paused")


@dataclass(frozen=True, slots=True)
class _Watched:
    """A pause in force, of one token or of the only one.

    `sender` is who has its line now: the pause may be of a token that was there before, of another
    account.
    """

    services: Services
    pause: Pause
    sender: Sender
    now: float
    has_others: bool

    def is_over(self, *, submits_wait: bool, polls_wait: bool) -> bool:
        """Whether it is over, as far as no batch will show that."""
        pause = self.pause
        if pause.reason is PauseReason.OUTAGE and not submits_wait:
            return True  # The next submit shows whether it still lasts.
        if pause.reason in UNPAID or self._may_submit():
            return False
        if (
            pause.reason is PauseReason.TOKEN_REFUSED
            and polls_wait
            and self._waits_soon(DueKind.POLL)
        ):
            return False
        return self._free_call_succeeds()

    def _free_call_succeeds(self) -> bool:
        """Whether the call that costs nothing, as the pause's probe.

        Shows that API and token are good again.

        A token of the rate budget is taken before the probe is claimed, because a probe without one
        would be lost.
        """
        budget, pause, now = self.services.budget, self.pause, self.now
        may_probe = now >= pause.next_probe and budget.permit_check(now, sender=self.sender)
        if not may_probe or budget.claim_probe(pause, now) is None:
            return False
        return api_of(self.services, self.sender).check_token() is TokenState.GOOD

    def _may_submit(self) -> bool:
        """Whether a batch waits that may be submitted soon, and so will probe it.

        Users may have paused all.
        """
        if self.services.budget.controls().stack.held_since:
            return False
        return any(self._waits_soon(work) for work in (DueKind.FIRST, DueKind.SUBMIT))

    def _waits_soon(self, work: DueKind) -> bool:
        """Whether one of the next batches is of the stack's account.

        Those of another account never probe this pause.

        Where there are several tokens, a batch to poll also has to be this token's.
        """
        services = self.services
        dues = services.ledger.due(work, self.now + SOON_SECONDS, MAX_PROBES_EXAMINED)[0]
        if work is DueKind.POLL and self.has_others:
            found = [
                one
                for one in load(services, dues, until=self.now + SOON_SECONDS)
                if one.batch.pollable
            ]
            return any(next_sender(services, one.job, one.batch) == self.sender for one in found)
        jobs = (
            readable_job(services, job_id) for job_id in dict.fromkeys(due.job_id for due in dues)
        )
        return any(job is not None and not other_account(services, job) for job in jobs)
