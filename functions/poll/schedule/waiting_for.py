"""What a job waits for, as its user sees it, and whether that raises an alarm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dropbatch.core.api_tokens import ONE_A_STACK
from functions.poll.commands import MAX_HELD_SECONDS
from shared.job_status import RESULTS_DENIED, denied_for_status, iso_time
from shared.models import ACCOUNT_CHANGED
from shared.observability import count, logger
from shared.pacing.account import ACCOUNT_CHANGED_SECONDS, account_words, is_of_account
from shared.pacing.controls import PauseReason
from shared.workers_ai.error_codes import advice
from shared.workers_ai.lasting_errors import NOTED_AFTER_SECONDS

if TYPE_CHECKING:
    from shared.models import Job, LastingError
    from shared.pacing.controls import Controls, Pause, Rate
    from shared.services import Services

ALARM_AFTER_SECONDS = 3_600.0
"""Seconds of waiting for something without its own alarm.

After which the alarm for stuck items is raised.
"""
PAUSE_MESSAGES = {
    PauseReason.TOKEN_REFUSED: "Cloudflare refuses the API token or the account. Check the "
    "token's value in Secrets "
    "Manager, its Workers AI permission and the account id; a changed secret is used "
    "within minutes.",
    PauseReason.QUOTA_SPENT: "The account's daily allocation is used up. Submits resume after "
    "00:00 UTC, or sooner on "
    "a paid plan.",
    PauseReason.CREDITS_SPENT: "AI Gateway says that the account has no credits left. Add "
    "credits in Cloudflare's "
    "dashboard; submits resume within minutes.",
    PauseReason.SPEND_LIMIT: "The spend limit of AI Gateway is reached. Raise it in "
    "Cloudflare's dashboard, or wait "
    "for the end of its window; submits resume within minutes.",
    PauseReason.OUTAGE: "The API does not answer submits, or with errors that prove nothing; "
    "Dropbatch tries one batch "
    "at a time.",
}
"""What users see of each kind of pause."""
STACK_MESSAGE = "An operator has paused all jobs. An operator resumes them with `dropbatch resume`."
LASTING_ERROR_SECONDS = 4_500.0
"""Seconds for which a lasting error is reported after its last try.

A batch is tried at least hourly.
"""


TRIED_AGAIN_SECONDS = 120.0
"""Seconds after a rate limit's wait within which the next call is made.

Which waits until a tick or a wake-up.
"""


@dataclass(frozen=True, slots=True)
class Waiting:
    """What a job waits for.

    Attributes:
        code: for programs.
        message: for people: what it is, and what to do.
        until: Unix seconds when it is over or tested again; None: unknown.
        since: Unix seconds of its beginning; None if it has its own alarm.
        said: the API's own words, which may quote a request: never logged.
        shown_from: Unix seconds from when a status shows it: what is over soon is not worth it.
    """

    code: str
    message: str
    until: float | None
    since: float | None = None
    said: str = ""
    shown_from: float = 0.0

    def for_status(self) -> dict[str, Any]:
        """The member `waiting_for` of `status.json`."""
        message = f"{self.message} Its words: {self.said}" if self.said else self.message
        return {"code": self.code, "message": message, "until": iso_time(self.until)}


def waiting_for(services: Services, job: Job) -> Waiting | None:
    """What a job waits for.

    Its user, an operator, a pause, a rate limit, its model, or calls that fail.

    A status does not show all of it yet.

    Raises:
        StorageError: DynamoDB failed.
    """
    now = services.now()
    controls = services.budget.controls(job.plan.model)
    if not is_of_account(services, job):
        return _is_of_other_account(services, job)
    if job.control and job.control.held_since:
        return _job_is_held(job.job_id, job.control.held_since)
    if controls.stack.held_since:
        return Waiting("paused", STACK_MESSAGE, None)
    if denied := denied_for_status(job, now):
        return Waiting(RESULTS_DENIED, denied["message"], None)
    if pause := controls.pause_in_force(now):
        return _paused(pause)
    return _slowed(job, controls, now)


def _slowed(job: Job, controls: Controls, now: float) -> Waiting | None:
    """What a job waits for although nothing is paused.

    A rate limit, its model, or calls that fail.
    """
    wait, lasting_error = controls.model_wait, job.lasting_error
    limited = _rate_limited(controls.rate, now)
    if limited and limited.shown_from <= now:
        return limited
    if wait and wait.until > now:
        words = (
            f"Workers AI has no capacity for {job.plan.model} now (code {wait.code}); "
            "submits resume automatically."
        )
        return Waiting("model_waits", words, wait.until, wait.since or None)
    if job.plan.model in controls.full_models:
        words = (
            f"Workers AI is slow to finish batches of {job.plan.model}: as many as "
            "Dropbatch can poll are outstanding. "
            "Dropbatch submits more when some of them are finished."
        )
        return Waiting("model_busy", words, None)
    if lasting_error and now - lasting_error.at < LASTING_ERROR_SECONDS:
        return _lasting_error(lasting_error)
    return limited


def report_long_wait(waiting: Waiting | None, job_id: str, now: float) -> None:
    """Log and count a job that has waited for over an hour for something without its own alarm."""
    if waiting and waiting.since is not None and now - waiting.since > ALARM_AFTER_SECONDS:
        logger.error(
            "job waits",
            job_id=job_id,
            code=waiting.code,
            since=iso_time(waiting.since),
            advice=waiting.message,
        )
        count("StuckItems")


def _job_is_held(job_id: str, since: float) -> Waiting:
    until = since + MAX_HELD_SECONDS
    words = (
        f"A user paused the job at {iso_time(since)}. Resume it with `dropbatch resume {job_id}`. "
        f"If it is still paused at {iso_time(until)}, it is cancelled."
    )
    return Waiting("paused", words, until)


def _paused(pause: Pause) -> Waiting:
    said = f" (API response: {pause.code}.)" if pause.code else ""
    words = ONE_A_STACK if pause.code == ONE_A_STACK else PAUSE_MESSAGES[pause.reason] + said
    return Waiting(
        pause.reason.value, words, pause.until if pause.reason is PauseReason.QUOTA_SPENT else None
    )


def _is_of_other_account(services: Services, job: Job) -> Waiting:
    words = (
        f"{account_words(services, job)}; no call is made for it. Set CloudflareAccountId back, or "
        "it ends after an hour, with the answers that it has; retry.jsonl has the rest."
    )
    since = job.account_changed_at
    return Waiting(ACCOUNT_CHANGED, words, since + ACCOUNT_CHANGED_SECONDS if since else None)


def _rate_limited(rate: Rate, now: float) -> Waiting | None:
    """The wait that Cloudflare asked for.

    Also between two of them, until a call has shown that there is no third.
    """
    if rate.hold_until <= now - TRIED_AGAIN_SECONDS or not rate.held_since:
        return None
    words = (
        f"Cloudflare has answered 'too many calls' since {iso_time(rate.held_since)}; "
        "every call waits. Check "
        "whether other programs use the same token. Lower ApiCallsPerMinute, or give "
        "Dropbatch its own token."
    )
    until = rate.hold_until if rate.hold_until > now else None
    return Waiting(
        "too_many_calls",
        words,
        until,
        rate.held_since,
        shown_from=rate.held_since + NOTED_AFTER_SECONDS,
    )


def _lasting_error(lasting_error: LastingError) -> Waiting:
    code, calls = ("polls_fail", "polls") if lasting_error.polling else ("submits_fail", "submits")
    if lasting_error.polling and lasting_error.refused:
        code = "polls_refused"
    said = (
        f"answered {calls} of a batch with {lasting_error.code}"
        if lasting_error.code
        else f"not answered {calls} of a batch"
    )
    words = (
        f"Workers AI has {said} since {iso_time(lasting_error.since)}; Dropbatch repeats "
        "them automatically."
    )
    return Waiting(
        code,
        f"{words} {advice(lasting_error.code)}",
        None,
        lasting_error.since,
        lasting_error.message,
    )
