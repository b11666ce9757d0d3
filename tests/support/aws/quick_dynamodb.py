"""DynamoDB's reads and writes, answered by the simulated table: moto takes ten times as long.

moto has the tables themselves, which begin and end with its mock, but none of their items. The
simulated table is compared with moto, call by call: `tests/simulation/services`.
"""

from __future__ import annotations

from threading import Lock
from typing import Any

from botocore.exceptions import ClientError
from moto.core.utils import camelcase_to_underscores
from moto.dynamodb.models import dynamodb_backends
from moto.dynamodb.responses import DynamoHandler

from simulation.kernel import Kernel
from simulation.services.awkward import Awkward
from simulation.services.calls import Calls
from simulation.services.dynamodb import DynamoDB
from tests.support.aws.resources import AWS_ACCOUNT, REGION, TABLE, ledger_table

OPERATIONS = {
    operation: camelcase_to_underscores(operation)
    for operation in ("BatchGetItem", "DeleteItem", "GetItem", "PutItem", "Query", "UpdateItem")
}
_lock = Lock()


def stored(name: str = TABLE, region: str = REGION) -> DynamoDB | None:
    """What takes the place of a table's items."""
    table = dynamodb_backends[AWS_ACCOUNT][region].tables.get(name)
    if table is None or [index.name for index in table.global_indexes] != ["due"]:
        return None
    found: DynamoDB | None = vars(table).get("simulated")
    if found is None:
        made = DynamoDB(Calls(Kernel(1, 0.0), Awkward()), ledger_table(name))
        found = vars(table).setdefault("simulated", made)  # Unless another thread was quicker.
    return found


def answer(client: Any, operation: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
    """DynamoDB's answer to a call, without its metadata; None if moto is to answer.

    Raises:
        ClientError: DynamoDB rejects the call.
    """
    if operation == "CreateTable":
        return _create_table(client, arguments)
    named = arguments.get("TableName") or next(iter(arguments["RequestItems"]))
    table = stored(named, client.meta.region_name)
    if table is None:
        return None
    with _lock:
        if operation == "Scan":
            return {
                "Items": [table.items[key] for key in sorted(table.items)][: arguments.get("Limit")]
            }
        try:
            found: dict[str, Any] = getattr(table, OPERATIONS[operation])(**arguments)
        except ClientError as error:
            raise client.exceptions.from_code(error.response["Error"]["Code"])(
                error.response, operation
            ) from None
    return found


def _create_table(client: Any, arguments: dict[str, Any]) -> dict[str, Any]:
    """Create a table as moto does, without the description of it."""
    handler = DynamoHandler()
    handler.current_account, handler.region, handler.body = (
        AWS_ACCOUNT,
        client.meta.region_name,
        arguments,
    )
    handler.create_table()
    return {}


def put(item: dict[str, Any]) -> None:
    """Store an item where no call is made for it."""
    table = stored()
    assert table is not None
    table.put_item(TableName=TABLE, Item=item)
