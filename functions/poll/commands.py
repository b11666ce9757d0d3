"""Control: users' and operators' commands, each in an object under `control/`.

`control/jobs/<job_id>` holds `run`, `pause`, `cancel` or `cancel now`; `control/stack` holds `run`
or `pause`. The object is the command; an event only reports that there is something to read. So an
event may arrive twice, late or never. The function reads the object, writes the ledger, and reads
again until nothing has changed in between. Each visit of a job and each tick read the object too. A
function that dies before its one write has done nothing; one that dies after it has done
everything.

The ledger holds the version of the object that was carried out last. Deleting an object changes
nothing.
"""

from __future__ import annotations

from dropbatch.core import names
from functions.poll.contain import readable_job
from shared.errors import StorageError
from shared.job_control import COMMAND_TRIES, PAUSE, RUN, cancelled, read_command
from shared.job_status import iso_time
from shared.models import CANCEL, DueKind, Job
from shared.observability import count, logger
from shared.pacing.breaker import UNPAID, Pause, PauseReason, Permit, StackControl
from shared.pacing.waits import MAX_HELD_SECONDS, is_of_account
from shared.services import Services
from shared.workers_ai.client import TokenState


def end_long_hold(services: Services, job: Job) -> Job:
    """Cancel a job that has been paused for too long; return the job as it is afterwards."""
    control, now = job.control, services.now()
    if control is None or not control.held_since or now - control.held_since < MAX_HELD_SECONDS:
        return job
    logger.warning("job cancelled: paused for 30 days", job_id=job.job_id)
    return services.ledger.note_control(job, cancelled(control, CANCEL)) or job


def follow_stack_control(services: Services) -> None:
    """Carry out the command for the whole stack.

    `run` also ends a pause that Dropbatch began itself, before the command is noted: a function
    that dies in between leaves it to the next. If the reason persists, the next call pauses again.
    """
    for _ in range(COMMAND_TRIES):
        stack = services.budget.controls().stack
        command = read_command(services, names.STACK_CONTROL, stack.version)
        if command is None:
            return
        held_since = stack.held_since
        if command.word == PAUSE:
            held_since = held_since or services.now()
        elif command.word == RUN:
            held_since, now = 0.0, services.now()
            if pause := services.budget.controls().pause_in_force(now):
                services.budget.lift(Permit(pause), "")
        else:
            logger.warning("unknown command for the stack", command=command.word[:20])
        services.budget.note_stack(StackControl(command.version, held_since))
        logger.info("stack controlled", command=command.word[:20])
    raise StorageError(f"{names.STACK_CONTROL} changed {COMMAND_TRIES} times while it was read")


def watch_stack_control(services: Services) -> None:
    """Carry out the stack's command in a tick: its event may be late, or S3 fail."""
    try:
        follow_stack_control(services)
    except StorageError:
        logger.exception("stack's command not read")
        count("Errors")


# ── pauses that Dropbatch began itself ────────────────────────────────────────────────────────────
# Each is counted for its alarm, and ended even if no batch may be submitted to probe it.

METRIC_OF_REASON = {
    PauseReason.TOKEN_REFUSED: "TokenRefused",
    **dict.fromkeys(UNPAID, "QuotaSpent"),
    PauseReason.OUTAGE: "Outage",
}
"""The metric that counts the ticks of a pause."""
OUTAGE_SECONDS = 600.0  # After which an outage raises the alarm that others raise at once
SOON_SECONDS = 600.0  # In which a batch is due that may be submitted; a held one is not
MAX_PROBES_EXAMINED = 20  # Batches of which one has to be of the stack's account


def watch_pause(services: Services, now: float, *, submits_wait: bool, polls_wait: bool) -> None:
    """Count a pause in force, once per tick, or end it if no batch would."""
    controls = services.budget.controls()
    pause = controls.pause_in_force(now)
    if pause is None:
        return
    kinds = [] if controls.stack.held_since else [DueKind.FIRST, DueKind.SUBMIT]
    if pause.reason is PauseReason.TOKEN_REFUSED and polls_wait:
        kinds.append(DueKind.POLL)
    if _is_over(services, pause, now, kinds, submits_wait=submits_wait):
        services.budget.lift(Permit(pause), "")
        logger.info("pause over", reason=pause.reason)
        return
    since = iso_time(pause.since)
    logger.warning("calls are paused", reason=pause.reason, code=pause.code, since=since)
    count(METRIC_OF_REASON[pause.reason])
    if pause.reason is not PauseReason.OUTAGE or now - pause.since >= OUTAGE_SECONDS:
        count("Paused")


def _is_over(
    services: Services, pause: Pause, now: float, probing: list[DueKind], *, submits_wait: bool
) -> bool:
    """Whether a pause is over, as far as no batch of the kinds that may probe it will show that."""
    if pause.reason is PauseReason.OUTAGE and not submits_wait:
        return True  # The next submit shows whether it still lasts.
    if pause.reason in UNPAID or any(_waits_soon(services, work, now) for work in probing):
        return False
    may_probe = now >= pause.next_probe and services.budget.permit_check(now)
    if not may_probe or services.budget.claim_probe(pause, now) is None:
        return False
    return services.api.check_token() is TokenState.GOOD


def _waits_soon(services: Services, work: DueKind, now: float) -> bool:
    """Whether one of the next batches is of the stack's account: others make no call."""
    dues = services.ledger.due(work, now + SOON_SECONDS, MAX_PROBES_EXAMINED)[0]
    job_ids = dict.fromkeys(due.job_id for due in dues)
    jobs = (readable_job(services, job_id) for job_id in job_ids)
    return any(job is not None and is_of_account(services, job) for job in jobs)
