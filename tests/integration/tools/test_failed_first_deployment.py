"""What a failed first deployment leaves behind.

The table, protected as it is, which the next `make deploy` deletes.
"""

import boto3
import pytest
from moto import mock_aws

from tools import deploy

SAVED = {"region": "us-east-1"}
TABLE = "dropbatch-Table-1"


@pytest.fixture
def table():
    with mock_aws():
        client = boto3.client("dynamodb", "us-east-1")
        client.create_table(
            TableName=TABLE,
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "pk", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
            DeletionProtectionEnabled=True,
        )
        yield client


def test_empty_protected_table_is_deleted(table):
    deploy._delete_empty_table(SAVED, TABLE)

    assert table.list_tables()["TableNames"] == []


def test_table_that_holds_anything_stays(table):
    table.put_item(TableName=TABLE, Item={"pk": {"S": "JOB#1"}})

    deploy._delete_empty_table(SAVED, TABLE)

    assert table.describe_table(TableName=TABLE)["Table"]["DeletionProtectionEnabled"]


def test_table_that_rollback_deleted_is_not_error(table):
    deploy._delete_empty_table(SAVED, "dropbatch-Table-2")
