"""The ledger's jobs and batches as data. Knows no service."""

from shared.models.batches import (
    Batch,
    Part,
    PartialReply,
    Submission,
    cause_of,
)
from shared.models.common import (
    FINAL_JOB_STATES,
    SCHEMA,
    BatchState,
    Checkpoint,
    DueKind,
    ErrorDetail,
    JobState,
    Usage,
)
from shared.models.jobs import (
    MAX_JOB_SECONDS,
    TOO_OLD_CODE,
    Isolation,
    Job,
    JobTotals,
    LastingError,
    ResultFileProgress,
    SplitPlan,
    Upload,
)

__all__ = [
    "FINAL_JOB_STATES",
    "MAX_JOB_SECONDS",
    "SCHEMA",
    "TOO_OLD_CODE",
    "Batch",
    "BatchState",
    "Checkpoint",
    "DueKind",
    "ErrorDetail",
    "Isolation",
    "Job",
    "JobState",
    "JobTotals",
    "LastingError",
    "Part",
    "PartialReply",
    "ResultFileProgress",
    "SplitPlan",
    "Submission",
    "Upload",
    "Usage",
    "cause_of",
]
