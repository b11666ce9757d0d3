"""The local AWS: MiniStack with four corrections. It runs in its own environment.

It knows nothing of Dropbatch. What MiniStack lacks (alarms, lifecycle, time to live) is not added.
"""

import json
from typing import Any

from ministack import app
from ministack.core import iam_actions, iam_evaluator
from ministack.services import s3

_BATCH_ACTIONS = {
    "sqs:SendMessageBatch": "sqs:SendMessage",
    "sqs:DeleteMessageBatch": "sqs:DeleteMessage",
    "sqs:ChangeMessageVisibilityBatch": "sqs:ChangeMessageVisibility",
}

_get_object = s3._get_object  # noqa: SLF001 - private: MiniStack has no public name for it
_extract_iam_action = iam_actions.extract_iam_action
_request_tag_context = iam_actions.request_tag_context


def _get_object_in_ranges(
    bucket: str, key: str, headers: dict[str, str], query: dict[str, list[str]] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Answer a ranged read of a version with the range; MiniStack sends the whole object."""
    status, answered, body = _get_object(bucket, key, headers, query)
    wanted = headers.get("range", "")
    if not (wanted and query and "versionId" in query and status == 200):
        return status, answered, body
    part = s3._parse_range(wanted, len(body))  # noqa: SLF001
    if part is None:
        return (
            416,
            {"Content-Type": "application/xml", "Content-Range": f"bytes */{len(body)}"},
            b"",
        )
    first, last = part
    # The SDK would compare a checksum of the whole object with the range, and fail.
    kept = {
        name: value
        for name, value in answered.items()
        if not name.lower().startswith("x-amz-checksum-")
    }
    kept["Content-Length"] = str(last + 1 - first)
    kept["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
    return 206, kept, body[first : last + 1]


def _extract_iam_action_of_batches(*request: Any) -> str | None:
    """Check a batch of messages against the permission for one message, as AWS does."""
    action: str | None = _extract_iam_action(*request)
    return _BATCH_ACTIONS.get(action or "", action)


def _request_context(
    service: str, action: str, body: bytes, params: dict[str, Any]
) -> dict[str, Any]:
    """Pass the source and the type of events to policies, as AWS does."""
    context: dict[str, Any] = _request_tag_context(service, action, body, params)
    if action == "events:PutEvents":
        entry = json.loads(body)["Entries"][0]
        context |= {"events:source": entry["Source"], "events:detail-type": entry["DetailType"]}
    return context


def _pin_origin_with_tls(source_ip: str, _secure: bool) -> None:  # noqa: FBT001 - called by position
    """Tell policies that each request came over TLS."""
    iam_evaluator.pin_request_origin(source_ip, secure_transport=True)


if __name__ == "__main__":
    app.pin_request_origin = _pin_origin_with_tls
    s3._get_object = _get_object_in_ranges  # noqa: SLF001
    iam_actions.extract_iam_action = _extract_iam_action_of_batches
    iam_actions.request_tag_context = _request_context
    app.main()
