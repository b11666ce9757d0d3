"""Budgets on tables of their own."""

import boto3
import moto
import pytest

from local.template import properties
from shared.pacing.budget import Budget


@pytest.fixture(scope="module")
def dynamodb():
    with moto.mock_aws(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield boto3.client("dynamodb", region_name="eu-west-1")


@pytest.fixture
def budget_of(dynamodb):
    """Makes a budget on a table of its own."""
    wanted = properties("Table")
    made = []

    def make(calls=200):
        name = f"table-{len(made)}"
        made.append(name)
        keys = ("BillingMode", "AttributeDefinitions", "KeySchema", "GlobalSecondaryIndexes")
        dynamodb.create_table(TableName=name, **{key: wanted[key] for key in keys})
        return Budget(dynamodb, name, calls)

    yield make
    for name in made:
        dynamodb.delete_table(TableName=name)


@pytest.fixture
def budget(budget_of):
    return budget_of()
