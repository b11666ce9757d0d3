"""The logger and the metrics of both functions. Only ids, states, codes and numbers: no prompt, no answer, no token.

Metrics go to CloudWatch as lines of the log (embedded metric format), one for each invocation, under one dimension: the
stack. What names a job, a batch or a model belongs in the log, never in a dimension: each value would be billed as a
metric of its own. Traces need nothing here: Lambda's own segments tell the times, and every log line names its trace.
"""

from __future__ import annotations

import warnings
from threading import Lock
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger, Metrics
from aws_lambda_powertools.utilities.batch import BatchProcessor, EventType

if TYPE_CHECKING:
    from types import TracebackType

    from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

    from shared.models import Batch

logger = Logger()
metrics = Metrics()
_measuring = Lock()

# An invocation that has nothing to count is no news.
warnings.filterwarnings("ignore", "No application metrics to publish*")

METRICS = {
    # What flows through, in the order it flows.
    "Uploads": "Count",
    "RecordsIn": "Count",
    "BatchesCut": "Count",
    "BatchesAccepted": "Count",
    "BatchesHalved": "Count",
    "BatchesDone": "Count",
    "RecordsSucceeded": "Count",
    "RecordsUnreadable": "Count",
    "RecordsRefused": "Count",
    "RecordsUnanswered": "Count",
    "TokensUsed": "Count",
    "JobsCompleted": "Count",
    "JobsFailed": "Count",
    # Calls of the API, and what it had against them.
    "SubmitCalls": "Count",
    "PollCalls": "Count",
    "ApiThrottles": "Count",
    "ApiRefusals": "Count",
    "ApiErrors": "Count",
    # What each tick sees.
    "Ticks": "Count",
    "BatchesWaiting": "Count",
    "BatchesOutstanding": "Count",
    "TokenRefused": "Count",
    "QuotaSpent": "Count",
    "Outage": "Count",
    # Levels: their maximum tells, of the budget the minimum.
    "RateBudgetLeft": "Count",
    "OldestPendingAge": "Seconds",
    "OldestJobAge": "Seconds",
    # What somebody should look at.
    "AmbiguousSubmits": "Count",
    "StuckItems": "Count",
    "LawsBroken": "Count",
    "Errors": "Count",
}
"""Every metric there is, with its unit."""


def count(name: str, value: float = 1) -> None:
    """Add to one of the metrics. Batches are worked on in threads, and Powertools' metrics know no threads."""
    with _measuring:
        metrics.add_metric(name, METRICS[name], value)


def batch_log_fields(batch: Batch) -> dict[str, Any]:
    """What every log line about a batch names: job, number, and the API's own id where it has given one."""
    named = {"job_id": batch.job_id, "number": batch.number}
    if batch.submissions and batch.submissions[-1].request_id:
        named["request_id"] = batch.submissions[-1].request_id
    return named


class LoggingBatchProcessor(BatchProcessor):
    """SQS messages, each apart from the others; one that fails is logged, counted and comes again."""

    def __init__(self) -> None:
        """A function whose every message failed has still done its work: it must not look broken."""
        super().__init__(event_type=EventType.SQS, raise_on_entire_batch_failure=False)

    def failure_handler(
        self,
        record: SQSRecord,
        exception: tuple[type[BaseException] | None, BaseException | None, TracebackType | None],
    ) -> tuple[str, str, Any]:
        """Powertools would say nothing, and the dead-letter queue only an hour later."""
        asked = record.body if record.body.startswith('{"do":') else None  # S3's would name the user's files.
        logger.error("message not worked on", message_id=record.message_id, asked=asked, exc_info=exception[1])
        count("Errors")
        return super().failure_handler(record, exception)
