"""The ledger: jobs and batches in DynamoDB, every transition one conditional write to one item.

Which transitions exist, and under which condition, is defined in this package and nowhere else:
`jobs` and `batches` hold the transitions, `due` the queries of the `due` index and the handling of
items that cannot be read. A transition returns the item as it is afterwards, or None if the item
was not as the caller expected; the caller then stops. Reads that decide anything are consistent;
the index only shows where to look.

The docstring of a transition that changes the state says from which to which; docs/architecture.md
draws them. Only an item that cannot be read for days ends from any state: `due.retire`.
"""

from __future__ import annotations

from shared.aws.dynamodb import ConditionFailedError
from shared.ledger.batches import Batches
from shared.ledger.due import DueEntry, DueItems
from shared.ledger.jobs import Jobs, still_leased

__all__ = ["ConditionFailedError", "DueEntry", "Ledger", "still_leased"]


class Ledger(Jobs, Batches, DueItems):
    """The one table, seen as jobs and batches; no part uses another."""
