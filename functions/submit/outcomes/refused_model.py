"""A model that an account may not use: its batches go to the other accounts, and the job ends once all refuse it.

The note of a refusal is written before anything that follows from it. So a function that dies in between has the
batch's next try go to another account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions.submit.outcomes.unproven import end
from shared.aws.queues import SubmitMessage, VisitMessage
from shared.models import ErrorDetail
from shared.workers_ai.error_codes import model_error_message
from shared.workers_ai.refused_models import accounts_of, note_refused_model, refusing

if TYPE_CHECKING:
    from functions.submit.outcomes.unproven import UnprovenSubmit


def refuse_model(submit: UnprovenSubmit, code: int) -> None:
    """Send a batch whose model an account refused to another one; end it and its job if all did.

    Raises:
        StorageError: DynamoDB failed.
    """
    services, batch, now = submit.services, submit.batch, submit.services.now()
    job, asked = services.ledger.job(batch.job_id), submit.permit.sender.account
    # The secret may have changed since: what counts is who is left.
    if job and accounts_of(services, job) - {asked}:
        note_refused_model(services, asked, job.plan.model, code)
        if not refusing(services, job).is_all:
            if services.ledger.refuse(batch, now):
                services.queues.send(SubmitMessage(batch.job_id, batch.number))
            return
    end_for_model(submit, code)


def end_for_model(submit: UnprovenSubmit, code: int) -> None:
    """End a batch and its job, because no account may use the model."""
    services, batch, job = submit.services, submit.batch, submit.job
    words = model_error_message(job.plan.model, code)
    end(services, batch, ErrorDetail("rejected", words))
    if services.ledger.fail_job(job, ErrorDetail("unknown_model", words), services.now()):
        services.queues.send(VisitMessage(job.job_id))
