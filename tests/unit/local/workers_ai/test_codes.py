"""The tables of error codes agree: the functions', the local Workers AI's and the Worker's."""

from local.workers_ai.codes import KNOWN
from local.workers_ai.worker import STATUSES
from shared.workers_ai import error_codes


def test_local_api_can_return_every_code_that_functions_know():
    assert error_codes._CODES.keys() <= KNOWN.keys()


def test_worker_restores_status_that_api_has():
    assert len(STATUSES) > 20
    assert {code: KNOWN[code].status for code in STATUSES} == STATUSES
