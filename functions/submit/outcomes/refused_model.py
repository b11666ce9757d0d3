"""A model that an account may not use: its batches go to the other accounts, and the job ends once all refuse it.

The note of a refusal is written before anything that follows from it. So a function that dies in between has the
batch's next try go to another account.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from functions.submit.outcomes.unproven import end
from shared.aws.attribute_values import attribute
from shared.aws.queues import SubmitMessage, VisitMessage
from shared.models import ErrorDetail
from shared.pacing.controls import control_key
from shared.workers_ai.error_codes import model_error_message
from shared.workers_ai.other_account import other_account

if TYPE_CHECKING:
    from collections.abc import Mapping

    from functions.submit.outcomes.unproven import UnprovenSubmit
    from shared.bootstrap import Services
    from shared.models import Job

REFUSED_MODEL_SECONDS = 3_600.0
"""Seconds for which an account that refused a model gets no batch of it, if another account may take it."""
APART_SECONDS = 60.0
"""Seconds by which the clocks of two functions may differ."""


class Refusing(NamedTuple):
    """By account, the code with which it refused a model; and whether all did that a job's batches may go to."""

    codes: Mapping[str, int]
    is_all: bool


def refusing(services: Services, job: Job) -> Refusing:
    """The accounts that are not asked for a job's model, because they refused it.

    Nothing is read for a stack whose tokens are of one account. If all refused it, those are asked again that did so
    before the job came: somebody may have changed that.
    """
    accounts = {one.account for one in services.budget.senders(other_account(services, job))}
    if len(accounts) == 1:
        return Refusing({}, is_all=False)
    now, notes = services.now(), {account: _note(services, account, job.plan.model) for account in accounts}
    refused = {account: code for account, (at, code) in notes.items() if now - at < REFUSED_MODEL_SECONDS}
    if len(refused) == len(accounts):
        since = job.created_at - APART_SECONDS
        refused = {account: code for account, (at, code) in notes.items() if at >= since}
    return Refusing(refused, is_all=len(refused) == len(accounts))


def refuse_model(submit: UnprovenSubmit, code: int) -> None:
    """Send a batch whose model an account refused to another one; end it and its job if all did.

    Raises:
        StorageError: DynamoDB failed.
    """
    services, batch, now = submit.services, submit.batch, submit.services.now()
    if len({one.account for one in services.budget.senders("")}) > 1 and (job := services.ledger.job(batch.job_id)):
        noted = {"at": now, "code": code, "ttl": int(now + REFUSED_MODEL_SECONDS)}
        key = _key(submit.permit.sender.account, job.plan.model)
        services.budget.call("put_item", Item={**key, **{name: attribute(value) for name, value in noted.items()}})
        if (found := refusing(services, job)).codes and not found.is_all:
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


def _note(services: Services, account: str, model: str) -> tuple[float, int]:
    """When an account refused a model last, Unix seconds, and the code; 0: never."""
    item = services.budget.get(_key(account, model)) or {}
    return float(item.get("at", {"N": "0"})["N"]), int(item.get("code", {"N": "0"})["N"])


def _key(account: str, model: str) -> dict[str, dict[str, str]]:
    return control_key(f"REFUSED#{account}#{model}")
