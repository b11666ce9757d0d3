"""The simulated table answers as DynamoDB Local does.

The same random calls, compared one by one.
"""

import pytest

from simulation.kernel import Kernel
from simulation.services.awkward import Awkward
from simulation.services.calls import Calls
from simulation.services.dynamodb import DynamoDB
from tests.other_aws import dynamodb_local
from tests.simulation.services.random_calls import CALLS, compare, make_table
from tests.support.aws.ledger_table import ledger_table

pytestmark = [pytest.mark.second, pytest.mark.timeout(600)]


@pytest.fixture
def amazons():
    """A client of DynamoDB Local with the template's table."""
    process, url = dynamodb_local.start(dynamodb_local.install())
    client = dynamodb_local.client_of(url)
    make_table(client)
    yield client
    process.terminate()
    process.wait()


def test_table_answers_as_dynamodb_local_does(amazons):
    """Each call has the same answer, in the same pages, or the same error."""
    ours = DynamoDB(Calls(Kernel(1, 0.0), Awkward()), ledger_table())

    outcomes = compare(ours, amazons, CALLS["DynamoDB Local"], exact=True)

    assert len(outcomes) >= 11, "every operation, and the conditional ones with both outcomes"
