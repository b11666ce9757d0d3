"""The local AWS: MiniStack, with three things it gets wrong put right. Has an environment of its own.

Knows nothing of Dropbatch; what MiniStack merely lacks (alarms, lifecycle, time to live) is not added here.
"""

from __future__ import annotations

import json
from typing import Any

from ministack import app
from ministack.core import iam_actions
from ministack.services import s3

_BATCH_ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}

_get_object = s3._get_object  # noqa: SLF001 - there is no public name to wrap
_extract_iam_action = iam_actions.extract_iam_action
_request_tag_context = iam_actions.request_tag_context


def _get_object_in_ranges(
    bucket: str, key: str, headers: dict[str, str], query: dict[str, list[str]] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Answer a part of a version when a part is asked for; MiniStack sends the whole of it."""
    status, answered, body = _get_object(bucket, key, headers, query)
    asked = headers.get("range", "")
    if not (asked and query and "versionId" in query and status == 200):
        return status, answered, body
    part = s3._parse_range(asked, len(body))  # noqa: SLF001
    if part is None:
        return 416, {"Content-Type": "application/xml", "Content-Range": f"bytes */{len(body)}"}, b""
    first, last = part
    # A checksum of the whole would not fit the part, and the SDK would refuse it.
    kept = {name: value for name, value in answered.items() if not name.lower().startswith("x-amz-checksum-")}
    kept["Content-Length"] = str(last + 1 - first)
    kept["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
    return 206, kept, body[first : last + 1]


def _extract_iam_action_of_batches(*request: Any) -> str | None:  # noqa: ANN401 - handed on as it comes
    """Judge a batch of messages by the permission for one, as AWS does; MiniStack wants one of its own."""
    action: str | None = _extract_iam_action(*request)
    return _BATCH_ACTIONS.get(action or "", action)


def _request_context(service: str, action: str, body: bytes, params: dict[str, Any]) -> dict[str, Any]:
    """Tell policies the source and the kind of events, as AWS does; one call tells of one kind here."""
    context: dict[str, Any] = _request_tag_context(service, action, body, params)
    if action == "events:PutEvents":
        entry = json.loads(body)["Entries"][0]
        context |= {"events:source": entry["Source"], "events:detail-type": entry["DetailType"]}
    return context


if __name__ == "__main__":
    s3._get_object = _get_object_in_ranges  # noqa: SLF001
    iam_actions.extract_iam_action = _extract_iam_action_of_batches
    iam_actions.request_tag_context = _request_context
    app.main()
