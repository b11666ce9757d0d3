"""Notices: an EventBridge event for each job that is over, sent at least once.

Because the ledger waits for it.

There is no separate outbox: a job is `finalizing`, and due again, until EventBridge has accepted
its notice; only then does the ledger end it. If a function dies in between, the same notice is sent
again. A notice that EventBridge refuses for good is given up after some minutes.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from shared.aws.client_errors import storage_errors
from shared.errors import RefusedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mypy_boto3_events import EventBridgeClient

SOURCE = "dropbatch"
DETAIL_TYPE = "Batch Job State Change"
LASTING = frozenset(
    {
        *("AccessDeniedException", "ResourceNotFoundException", "ValidationException"),
        *(
            "NotAuthorizedForSourceException",
            "NotAuthorizedForDetailTypeException",
            "KMSAccessDeniedException",
        ),
    }
)
"""EventBridge's codes for a notice that it will refuse again: a policy, a bus or a key."""


class EventBus:
    """The account's default event bus."""

    def __init__(self, client: Callable[[], EventBridgeClient]) -> None:
        """Take a function that creates the client.

        Most invocations end no job, and creating one takes 40 ms.
        """
        self.client = client

    def publish_job_over(self, detail: dict[str, Any], at: float) -> None:
        """Announce that a job is over.

        Args:
            detail: the event's detail; its `job_id` identifies the job, of which there may be two
                events.
            at: Unix seconds.

        Raises:
            RefusedError: EventBridge refuses the notice, and will until somebody changes something.
            StorageError: EventBridge rejected the call or the connection failed; the notice must be
                sent again.
        """
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
