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
from dropbatch.core.names import FINAL_JOB_STATES
from shared.errors import StorageError
from shared.job_control import COMMAND_TRIES, PAUSE, RUN, cancelled, read_command
from shared.models import CANCEL, Job
from shared.observability import count, logger
from shared.pacing.breaker import Permit, StackControl
from shared.pacing.waits import MAX_HELD_SECONDS
from shared.services import Services


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


def is_open(job: Job | None) -> bool:
    """Whether there is a job that is not over."""
    return job is not None and job.state not in FINAL_JOB_STATES
