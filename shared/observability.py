"""The logger and the metrics of both functions. Only ids, states, codes and numbers: no prompt, no answer, no token."""

from __future__ import annotations

import warnings

from aws_lambda_powertools import Logger, Metrics

logger = Logger()
metrics = Metrics()

# An invocation that has nothing to count is no news.
warnings.filterwarnings("ignore", "No application metrics to publish*")
