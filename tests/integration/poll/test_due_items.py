"""Due items on moto: one that DynamoDB does not hand out delays no other."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from functions.poll import due
from functions.poll.due import load
from shared.errors import StorageError
from shared.ledger import DueEntry, Ledger
from tests.support.doubles.ledger_items import BATCH, JOB, T

GOOD, BAD = replace(JOB, job_id="good"), replace(JOB, job_id="bad")


@pytest.fixture
def services(table, monkeypatch):
    """Two jobs with a due batch each; DynamoDB refuses to read one of the jobs."""
    ledger = Ledger(table, "table")
    for job in (GOOD, BAD):
        ledger.create_job(job)
        ledger.create_batch(replace(BATCH, job_id=job.job_id))
    real = ledger.job

    def job_or_error(job_id):
        if job_id == "bad":
            raise StorageError("throttled")
        return real(job_id)

    monkeypatch.setattr(ledger, "job", job_or_error)
    monkeypatch.setattr(due, "count", lambda _: None)
    return SimpleNamespace(ledger=ledger, now=lambda: T)


def test_job_that_is_not_handed_out_delays_no_other(services):
    dues = [DueEntry(job.job_id, BATCH.number, T) for job in (BAD, GOOD)]

    assert [one.job for one in load(services, dues)] == [GOOD]

    assert services.ledger.batch("bad", BATCH.number).claims == 1
    assert services.ledger.batch("bad", BATCH.number).due_at > T
