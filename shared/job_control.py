"""A user's command for a job, in the object `control/jobs/<job_id>`, carried out in the ledger.

The object is the command: an event only reports that there is something to read. So whoever works
on a job reads it: a visit, and the turn that reads the upload, which obeys what was written before
the job existed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dropbatch.core import names
from dropbatch.core.names import JobState
from shared.errors import ObjectNotFoundError, RefusedError, StorageError
from shared.models import CANCEL, CANCEL_NOW, Job, JobControl
from shared.observability import logger
from shared.services import Services

RUN, PAUSE = "run", "pause"
JOB_COMMANDS = frozenset({RUN, PAUSE, CANCEL, CANCEL_NOW})
MAX_COMMAND_BYTES = 1_024
"""Most bytes of an object that are read; a longer one is not a command."""
COMMAND_TRIES = 5
"""Times an object is read that changes while its command is carried out."""


@dataclass(frozen=True, slots=True)
class Command:
    """What a control object holds: the command, empty if it cannot be read, and its version."""

    word: str
    version: str


def read_command(services: Services, key: str, known: str = "") -> Command | None:
    """A control object's command; None if it is gone, known, or refused: it delays no job."""
    try:
        info = services.store.head(key)
        if info is None:
            return None
        version = f"{info.version} {info.etag}"  # Without versioning every version is `null`.
        if version == known:
            return None
        body = services.store.get(key) if info.size <= MAX_COMMAND_BYTES else b""
    except ObjectNotFoundError:
        return None
    except RefusedError as refusal:  # Not noted: it is carried out once it can be read.
        logger.warning("command not read", key=key, reason=str(refusal))
        return None
    word = " ".join(body.decode(errors="replace").lower().split())
    return Command(word, version)


def follow_job_control(services: Services, job_id: str) -> Job | None:
    """Carry out the command for a job, and make an open job due; return the job afterwards."""
    for _ in range(COMMAND_TRIES):
        job = services.ledger.job(job_id)
        if (
            job is None
            or job.state not in {JobState.SPLITTING, JobState.IN_PROGRESS}
            or obey(services, job) is job
        ):
            return job
    raise StorageError(
        f"{names.job_control(job_id)} changed {COMMAND_TRIES} times while it was read"
    )


def obey(services: Services, job: Job) -> Job | None:
    """Carry out the newest command for an open job; None if something else changed it."""
    command = read_command(
        services, names.job_control(job.job_id), job.control.version if job.control else ""
    )
    if command is None:
        return job
    control = controlled(job.control or JobControl(), command, services.now())
    # While it is being split, it becomes due when the turn or split ends.
    due_at = services.now() if job.state is JobState.IN_PROGRESS else None
    noted = services.ledger.note_control(job, control, due_at)
    if noted and command.word in JOB_COMMANDS:
        logger.info("job controlled", job_id=job.job_id, command=command.word)
    elif noted:
        logger.warning("unknown command", job_id=job.job_id, command=command.word[:20])
    return noted


def controlled(control: JobControl, command: Command, now: float) -> JobControl:
    """A job's control after a command; one that is unknown or too late is only noted."""
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
