"""Which accounts refused a model: a note of each in the table, which holds for an hour."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shared.aws.attribute_values import attribute
from shared.pacing.controls import control_key
from shared.workers_ai.other_account import other_account

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    accounts = accounts_of(services, job)
    if len(accounts) == 1:
        return Refusing({}, is_all=False)
    now, notes = services.now(), {account: _note(services, account, job.plan.model) for account in accounts}
    refused = {account: code for account, (at, code) in notes.items() if now - at < REFUSED_MODEL_SECONDS}
    if len(refused) == len(accounts):
        since = job.created_at - APART_SECONDS
        refused = {account: code for account, (at, code) in notes.items() if at >= since}
    return Refusing(refused, is_all=len(refused) == len(accounts))


def accounts_of(services: Services, job: Job) -> set[str]:
    """The accounts that a job's batches may go to; empty text: the stack's."""
    return {one.account for one in services.budget.senders(other_account(services, job))}


def note_refused_model(services: Services, account: str, model: str, code: int) -> None:
    """Note that an account refused a model, with this code.

    Raises:
        StorageError: DynamoDB failed.
    """
    now = services.now()
    noted = {"at": now, "code": code, "ttl": int(now + REFUSED_MODEL_SECONDS)}
    wired = {name: attribute(value) for name, value in noted.items()}
    services.budget.call("put_item", Item={**_key(account, model), **wired})


def _note(services: Services, account: str, model: str) -> tuple[float, int]:
    """When an account refused a model last, Unix seconds, and the code; 0: never."""
    item = services.budget.get(_key(account, model)) or {}
    return float(item.get("at", {"N": "0"})["N"]), int(item.get("code", {"N": "0"})["N"])


def _key(account: str, model: str) -> dict[str, dict[str, str]]:
    return control_key(f"REFUSED#{account}#{model}")
