"""AWS in memory for tests.

Functions, queues, a table and a bucket on one clock, where a seed decides what happens.

`README.md` beside this file shows how to use it, and what is simulated.
"""

from simulation.account import Account
from simulation.kernel import DiedError
from simulation.seeds import first_difference, seeds
from simulation.services.awkward import Awkward
from simulation.services.expressions import NotSimulatedError
from simulation.services.sqs import Queue
from simulation.services.table import Table, TableIndex

__all__ = [
    "Account",
    "Awkward",
    "DiedError",
    "NotSimulatedError",
    "Queue",
    "Table",
    "TableIndex",
    "first_difference",
    "seeds",
]
