"""Submits of which it is not proven whether the API accepted them.

Tried again, or settled as ambiguous.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shared.models import Batch, ErrorDetail, Job
from shared.observability import count
from shared.pacing.breaker import PauseReason, Permit
from shared.pacing.waits import note_failing
from shared.retry import submit_back_off
from shared.workers_ai.error_codes import is_doubtful, is_like_lost

if TYPE_CHECKING:
    from shared.invocation import Invocation
    from shared.services import Services
    from shared.workers_ai.replies import Rejected

MAX_AMBIGUOUS_SUBMITS = 2
"""Submits of one batch with an unknown outcome; the last of them ends the batch."""
MAX_DOUBTS = 2
"""Submits of one batch, between two acceptances, that may have been refused.

One more is of unknown outcome.
"""
UNKNOWN = ErrorDetail(
    "submit_unknown",
    "It is unknown whether Workers AI accepted this request, so it was not sent again.",
)


def end(services: Services, batch: Batch, ending: ErrorDetail, **updates: object) -> Batch | None:
    """End the batch's records without another submit."""
    return services.ledger.end_without_answer(batch, ending, services.now(), **updates)


@dataclass(slots=True)
class UnprovenSubmit:
    """One submit of a batch.

    Attributes:
        invocation: the one that submits, or recovers.
        job: the batch's job.
        batch: as it was read; once claimed, as the claim wrote it.
        permit: the budget's.
    """

    invocation: Invocation
    job: Job
    batch: Batch
    permit: Permit = field(default_factory=Permit)

    @property
    def services(self) -> Services:
        """The process's clients and settings."""
        return self.invocation.services

    def try_later(self, reply: Rejected) -> None:
        """Try the batch later, and count it if the API may have accepted it all the same."""
        services, batch, now = self.services, self.batch, self.services.now()
        like_lost, code = is_like_lost(reply), str(reply.code or reply.status)
        if like_lost and batch.doubts >= MAX_DOUBTS:
            self.end_ambiguous(now, code)
            return
        failing_since = note_failing(services, self.job, batch, reply, polling=False)
        services.ledger.refuse(
            batch,
            now + submit_back_off(batch.refusals),
            refusals=batch.refusals + 1,
            doubtful=batch.doubtful + is_doubtful(reply),
            doubts=batch.doubts + like_lost,
            calls_fail_since=failing_since,
        )

    def end_ambiguous(self, since: float, code: str = "no answer") -> Batch | None:
        """It is unknown whether the API accepted the batch: apply `AmbiguousSubmit`.

        Args:
            since: since when the API has not answered, Unix seconds.
            code: what the API said, for the user.

        Returns:
            The batch as it is then.
        """
        services, batch, now = self.services, self.batch, self.services.now()
        services.budget.pause(PauseReason.OUTAGE, since, code, self.permit)
        count("AmbiguousSubmits")
        times = batch.unknowable + 1
        if services.settings.ambiguous_submit == "fail" or times >= MAX_AMBIGUOUS_SUBMITS:
            return end(services, batch, UNKNOWN, unknowable=times)
        return services.ledger.refuse(batch, now + submit_back_off(0), unknowable=times)
