"""Reads result lines with curator's own readers; prints how many records each of them took.

Runs in `.local/curator`, which has none of the project's packages. Its argument is the expected results of
tests/files/foreign; it ends with the first line that curator cannot read, or reads as something else.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # It would download the map, which no test should.
os.environ["TELEMETRY_ENABLED"] = "false"

from bespokelabs.curator.llm.prompt_formatter import PromptFormatter
from bespokelabs.curator.request_processor.batch.anthropic_batch_request_processor import AnthropicBatchRequestProcessor
from bespokelabs.curator.request_processor.batch.gemini_batch_request_processor import GeminiBatchRequestProcessor
from bespokelabs.curator.request_processor.batch.openai_batch_request_processor import OpenAIBatchRequestProcessor
from bespokelabs.curator.request_processor.config import BatchRequestProcessorConfig
from bespokelabs.curator.types.generic_batch import GenericBatch, GenericBatchRequestCounts
from bespokelabs.curator.types.generic_request import GenericRequest

READERS = {
    "openai": OpenAIBatchRequestProcessor,
    "anthropic": AnthropicBatchRequestProcessor,
    "gemini": GeminiBatchRequestProcessor,
}
NOW = datetime.now(UTC)
COUNTS = GenericBatchRequestCounts(total=1, failed=0, succeeded=1, raw_request_counts_object={})
BATCH = GenericBatch(
    request_file="",
    id="a",
    created_at=NOW,
    finished_at=NOW,
    status="finished",
    api_key_suffix="",
    request_counts=COUNTS,
    raw_status="completed",
    raw_batch={},
)
REQUEST = GenericRequest(model="gpt-4o-mini", messages=[], original_row={}, original_row_idx=0)


class _NoCost:
    def cost(self, **_: object) -> float:
        return 0.0


def reader(format_: str) -> Any:  # curator has no types
    """curator's reader of a format, without the client that its constructor makes."""
    made = READERS[format_].__new__(READERS[format_])
    made.config = BatchRequestProcessorConfig(model="gpt-4o-mini")
    made.prompt_formatter = PromptFormatter("gpt-4o-mini", str)
    made._cost_processor = _NoCost()
    return made


def is_for_curator(format_: str, record: dict[str, Any]) -> bool:
    """Whether a line answers a request that curator makes: a chat, and of Gemini's one without a key."""
    line = record["line"]
    if format_ == "gemini":
        return "key" not in line and "embedding" not in (line.get("response") or {})
    body = (line["response"] or {}).get("body", {}) if format_ == "openai" else {}
    return body.get("object", "chat.completion") == "chat.completion"


def main(expected: Path) -> None:
    """Print how many answers and failures each reader read, as JSON."""
    read: Counter[str] = Counter()
    for name, one in json.loads(expected.read_text("utf-8")).items():
        format_ = one["format"]
        if format_ not in READERS:
            continue
        for number, record in enumerate(one["records"], 1):
            if not is_for_curator(format_, record):
                continue
            try:
                found = reader(format_).parse_api_specific_response(record["line"], REQUEST, BATCH)
            except Exception as error:
                raise SystemExit(f"{name}:{number}: {error!r}") from error
            succeeded = "request" in record
            if (found.response_message is not None) != succeeded or bool(found.response_errors) == succeeded:
                raise SystemExit(f"{name}:{number}: {found}")
            if succeeded and ("Bad." not in found.response_message or not found.token_usage.input):
                raise SystemExit(f"{name}:{number}: {found}")
            read[f"{format_} {'answers' if succeeded else 'failures'}"] += 1
    print(json.dumps(read, indent=1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
