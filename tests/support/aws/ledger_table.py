"""The ledger's table as the template describes it, for the simulated DynamoDB."""

from __future__ import annotations

from functools import cache

from local.template import properties
from simulation import Table
from tests.support.aws.resources import TABLE


@cache
def ledger_table(name: str = TABLE) -> Table:
    """Its description; the template is read when it is first needed."""
    return Table.described(name, properties("Table"))
