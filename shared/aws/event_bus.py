"""Notices: an EventBridge event for each job that is over, sent at least once.

A job is `finalizing`, and due again, until EventBridge has accepted its notice; only then does the
ledger end it. A notice that EventBridge refuses for good is given up after some minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from shared.aws.client_errors import storage_errors
from shared.errors import RefusedError, StorageError

if TYPE_CHECKING:
    from mypy_boto3_events import EventBridgeClient

SOURCE = "dropbatch"
DETAIL_TYPE = "Batch Job State Change"
LASTING = {
    *("AccessDeniedException", "ResourceNotFoundException", "ValidationException"),
    *("NotAuthorizedForSourceException", "NotAuthorizedForDetailTypeException"),
    "KMSAccessDeniedException",
}
"""EventBridge's codes for a notice that it will refuse again: a policy, a bus or a key."""


class EventBus:
    """The account's default event bus."""

    def __init__(self, client: Callable[[], EventBridgeClient]) -> None:
        """Take what creates the client: that takes 40 ms, and most invocations end no job."""
        self.client = client

    def publish_job_over(self, detail: dict[str, Any], at: float) -> None:
        """Announce that a job is over, perhaps twice; `StorageError`: it must be sent again."""
        entry = {
            "Source": SOURCE,
            "DetailType": DETAIL_TYPE,
            "Detail": msgspec.json.encode(detail).decode(),
            "Time": datetime.fromtimestamp(at, UTC),
        }
        with storage_errors("EventBridge put_events", LASTING):
            answer = self.client().put_events(Entries=[entry])  # type: ignore[list-item]
        if answer["FailedEntryCount"]:
            refused = answer["Entries"][0]
            code, said = refused.get("ErrorCode", ""), refused.get("ErrorMessage", "")
            if code in LASTING:
                raise RefusedError("EventBridge put_events", code, said)
            raise StorageError(f"EventBridge refused a notice: {code} {said}")
