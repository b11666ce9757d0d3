"""The logger and the metrics of both functions: ids, states, codes, numbers; no prompt, no answer.

Metrics reach CloudWatch as log lines (embedded metric format), one per invocation, with one
dimension: the stack. Ids of jobs, batches and models are logged but never a dimension: each value
would be billed as a metric. Traces are Lambda's own segments; every log line names its trace.
"""

from __future__ import annotations

import warnings
from threading import Lock
from types import TracebackType
from typing import Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from shared.errors import UploadDeniedError
from shared.models import Batch
from shared.retry import CLAIMS_BEFORE_ALARM

logger = Logger()
metrics = Metrics()
_measuring = Lock()

# An invocation without metrics is normal.
warnings.filterwarnings("ignore", "No application metrics to publish*")

_COUNTS = (
    # Work, in the order of the data flow.
    *("Uploads", "RecordsIn", "BatchesCut", "BatchesAccepted", "BatchesDivided", "BatchesDone"),
    *("RecordsSucceeded", "RecordsUnreadable", "RecordsRefused", "RecordsUnanswered"),
    *("TokensUsed", "JobsCompleted", "JobsFailed", "JobsCancelled"),
    # Calls to the API, and their errors.
    *("SubmitCalls", "PollCalls", "QueueCalls", "ApiThrottles", "ApiRefusals", "ApiErrors"),
    # Measured at each tick; of the budget, the minimum counts.
    *("Ticks", "BatchesWaiting", "BatchesOutstanding", "Paused", "TokenRefused", "QuotaSpent"),
    *("Outage", "RateBudgetLeft"),
    # What needs attention.
    *("AmbiguousSubmits", "StuckItems", "LawsBroken", "Errors"),
)
_LEVELS = ("OldestPendingAge", "OldestJobAge")
METRICS = dict.fromkeys(_COUNTS, "Count") | dict.fromkeys(_LEVELS, "Seconds")
"""Every metric, with its unit."""


def count(name: str, value: float = 1) -> None:
    """Add to a metric, under a lock: batches are processed in threads.

    Nothing is not counted, but of the budget: CloudWatch bills each hour with a value.
    """
    if value == 0 and name != "RateBudgetLeft":
        return
    with _measuring:
        metrics.add_metric(name, METRICS[name], value)


def count_broken_law() -> None:
    """Count an item that contradicts another or itself: it is stuck too, which has the alarm."""
    count("LawsBroken")
    count("StuckItems")


def batch_log_fields(batch: Batch) -> dict[str, Any]:
    """Fields of every log line about a batch."""
    named = {"job_id": batch.job_id, "number": batch.number}
    if batch.submission and batch.submission.request_id:
        named["request_id"] = batch.submission.request_id
    return named


class LoggingBatchProcessor(BatchProcessor):
    """Processes each SQS message independently: one that fails is logged and delivered again."""

    def __init__(self) -> None:
        super().__init__(event_type=EventType.SQS, raise_on_entire_batch_failure=False)

    def failure_handler(
        self,
        record: SQSRecord,
        exception: tuple[type[BaseException] | None, BaseException | None, TracebackType | None],
    ) -> tuple[str, str, Any]:
        """Log the failure: the dead-letter queue gets the message only an hour later."""
        # It is no error of Dropbatch, and was logged.
        if isinstance(exception[1], UploadDeniedError):
            return super().failure_handler(record, exception)
        # S3's messages name the user's files.
        asked = record.body if record.body.startswith('{"do":') else None
        logger.error(
            "message failed", message_id=record.message_id, asked=asked, exc_info=exception[1]
        )
        count("Errors")
        return super().failure_handler(record, exception)


def report_stuck(claims: int, job_id: str, number: str = "") -> None:
    """Log and count an item that is claimed again and again without progress."""
    if claims > CLAIMS_BEFORE_ALARM:
        logger.error("item keeps failing", job_id=job_id, number=number, claims=claims)
        count("StuckItems")
