"""The logger and the metrics of both functions. Only ids, states, codes and numbers: no prompt, no answer, no token."""

from __future__ import annotations

import warnings
from threading import Lock

from aws_lambda_powertools import Logger, Metrics

logger = Logger()
metrics = Metrics()
_counting = Lock()

# An invocation that has nothing to count is no news.
warnings.filterwarnings("ignore", "No application metrics to publish*")


def count(name: str, value: float = 1) -> None:
    """Add to one of the metrics. Batches are worked on in threads, and Powertools' metrics know no threads."""
    with _counting:
        metrics.add_metric(name, "Count", value)
