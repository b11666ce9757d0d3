"""Control: users' and operators' commands, each in an object under `control/`.

`control/jobs/<job_id>` holds `run`, `pause`, `cancel` or `cancel now`; `control/stack` holds `run` or `pause`. The
object is the command; an event only reports that there is something to read. So an event may arrive twice, late or
never. The function reads the object, writes the ledger, and reads again until nothing has changed in between. Each
visit of a job and each tick read the object too. A function that dies before its one write has done nothing; one that
dies after it has done everything.

The ledger holds the version of the object that was carried out last. Deleting an object changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dropbatch import names as keys
from dropbatch.names import FINAL_JOB_STATES, JobState
from shared.errors import ObjectNotFoundError, StorageError
from shared.models import CANCEL, CANCEL_NOW, Job, JobControl
from shared.observability import count, logger
from shared.pacing.controls import Permit, StackControl

if TYPE_CHECKING:
    from shared.bootstrap import Services

RUN, PAUSE = "run", "pause"
JOB_COMMANDS = frozenset({RUN, PAUSE, CANCEL, CANCEL_NOW})
MAX_COMMAND_BYTES = 1_024
"""Most bytes of an object that are read; a longer one is not a command."""
MAX_HELD_SECONDS = 30 * 86_400
"""Seconds after which a job that is still paused is cancelled."""
COMMAND_TRIES = 5
"""Times an object is read that changes while its command is carried out."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a control object holds.

    Attributes:
        word: the command; empty if it cannot be read.
        version: of the object.
    """

    word: str
    version: str


def read_command(services: Services, key: str, known: str = "") -> Command | None:
    """Read a control object.

    Args:
        services: the process's clients and settings.
        key: the object's key.
        known: the version that was carried out last.

    Returns:
        None if the object does not exist or is still the known version.

    Raises:
        StorageError: S3 failed.
    """
    info = services.store.head(key)
    if info is None:
        return None
    version = f"{info.version} {info.etag}"  # Without versioning every version is `null`.
    if version == known:
        return None
    body = b""
    if info.size <= MAX_COMMAND_BYTES:
        try:
            body = services.store.get(key)
        except ObjectNotFoundError:
            return None
    word = " ".join(body.decode(errors="replace").lower().split())
    return Command(word, version)


def follow_job_control(services: Services, job_id: str) -> Job | None:
    """Carry out the command for a job, and make an open job due; return the job as it is afterwards.

    Raises:
        StorageError: S3 or DynamoDB failed, or the object kept changing.
    """
    for _ in range(COMMAND_TRIES):
        job = services.ledger.job(job_id)
        if job is None or job.state not in {JobState.SPLITTING, JobState.IN_PROGRESS}:
            return job
        command = read_command(services, keys.job_control(job_id), job.control.version if job.control else "")
        if command is None:
            return job
        control = controlled(job.control or JobControl(), command, services.now())
        # While it is being split, it becomes due when split ends or pauses.
        due_at = services.now() if job.state is JobState.IN_PROGRESS else None
        if services.ledger.note_control(job, control, due_at):
            if command.word in JOB_COMMANDS:
                logger.info("job controlled", job_id=job_id, command=command.word)
            else:
                logger.warning("unknown command", job_id=job_id, command=command.word[:20])
    raise StorageError(f"{keys.job_control(job_id)} changed {COMMAND_TRIES} times while it was read")


def controlled(control: JobControl, command: Command, now: float) -> JobControl:
    """A job's control after a command; a command that is unknown or comes too late is only noted."""
    noted = replace(control, version=command.version)
    match command.word:
        case word if word in {CANCEL, CANCEL_NOW}:
            return noted if control.cancelled in {CANCEL_NOW, word} else cancelled(noted, word)
        case "pause" if not control.held_since and not control.cancelled:
            return replace(noted, held_since=now)
        case "run" if control.held_since:
            return replace(noted, held_since=0.0, resumed_at=now)
        case _:
            return noted


def cancelled(control: JobControl, word: str) -> JobControl:
    """A job's control after it is cancelled, which is final."""
    return replace(control, cancelled=word, held_since=0.0)


def end_long_hold(services: Services, job: Job) -> Job:
    """Cancel a job that has been paused for too long; return the job as it is afterwards."""
    control, now = job.control, services.now()
    if control is None or not control.held_since or now - control.held_since < MAX_HELD_SECONDS:
        return job
    logger.warning("job cancelled: paused for 30 days", job_id=job.job_id)
    return services.ledger.note_control(job, cancelled(control, CANCEL)) or job


def follow_stack_control(services: Services) -> None:
    """Carry out the command for the whole stack.

    `run` also ends a pause that Dropbatch began itself, whichever came first: S3's times have whole seconds, and clocks
    differ. If the reason persists, the next call pauses again. This happens before the command is noted: if the
    function dies in between, the next one ends it again.

    Raises:
        StorageError: S3 or DynamoDB failed, or the object kept changing.
    """
    for _ in range(COMMAND_TRIES):
        controls = services.budget.controls()
        stack = controls.stack
        command = read_command(services, keys.STACK_CONTROL, stack.version)
        if command is None:
            return
        held_since = stack.held_since
        if command.word == PAUSE:
            held_since = held_since or services.now()
        elif command.word == RUN:
            held_since = 0.0
            if controls.pause:
                services.budget.lift(Permit(controls.pause), "")
        else:
            logger.warning("unknown command for the stack", command=command.word[:20])
        services.budget.note_stack(StackControl(command.version, held_since))
        logger.info("stack controlled", command=command.word[:20])
    raise StorageError(f"{keys.STACK_CONTROL} changed {COMMAND_TRIES} times while it was read")


def watch_stack_control(services: Services) -> None:
    """Carry out the stack's command in a tick: its event may be late or lost. A failure of S3 delays no work."""
    try:
        follow_stack_control(services)
    except StorageError:
        logger.exception("stack's command not read")
        count("Errors")


def is_open(job: Job | None) -> bool:
    """Whether there is a job that is not over."""
    return job is not None and job.state not in FINAL_JOB_STATES
