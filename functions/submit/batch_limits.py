"""How many records a batch may have, by its model and its number. Knows no service.

An answer can be far larger than its request: the API answers a whole batch in one reply, which has to be stored and
joined. What counts is what a typical answer of the task takes. Single replies may still be larger;
`shared.spool.MAX_REPLY_BYTES` says what becomes of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.models import SplitPlan

REPLY_TARGET_BYTES = 200_000_000
"""Bytes that a typical reply stays within, however many requests a batch may have."""
WORKER_REPLY_TARGET_BYTES = 12_000_000
"""The same with the transport `worker`: a Worker has 128 MB of memory and holds a reply several times over."""

_EMBEDDINGS, _TRANSLATION, _GENERATION, _UNKNOWN = 24_000, 8_000, 20_000, 400_000
"""Bytes of an answer: 1,024 numbers in full precision; some pages of text; a long text with its reasoning and wrapping;
and for models that are not listed, enough for half a minute of speech."""

ANSWER_BYTES: tuple[tuple[str, int], ...] = (
    ("@cf/baai/bge-", _EMBEDDINGS),
    ("@cf/meta/m2m100-", _TRANSLATION),
    ("@cf/meta/llama-", _GENERATION),
    ("@cf/qwen/qwen", _GENERATION),
    ("@cf/google/gemma-", _GENERATION),
    ("@cf/aisingapore/gemma-", _GENERATION),
    ("@cf/openai/gpt-oss-", _GENERATION),
    ("@cf/moonshotai/kimi-", _GENERATION),
    ("@cf/deepseek-ai/deepseek-", _GENERATION),
)
"""Models that take batches, by how their ids begin; the first that fits counts."""


def records_per_reply(model: str, transport: str = "rest") -> int:
    """Maximum number of records in a batch of a model, whatever the operator allows."""
    answer = next((size for prefix, size in ANSWER_BYTES if model.startswith(prefix)), _UNKNOWN)
    return (WORKER_REPLY_TARGET_BYTES if transport == "worker" else REPLY_TARGET_BYTES) // answer


FIRST_BATCH_RECORDS = 500
"""Records in the first batches of a job: a small job is quick, and a first error costs little."""
BATCHES_PER_DOUBLING = 4
"""Batches of one size before the size doubles. Never change it: jobs that are being split must go on cutting alike."""


def max_records(plan: SplitPlan, number: int) -> int:
    """Records that one batch of a job may have; depends on the plan and the batch's number alone.

    The first four batches have up to `first_requests` records, the next four twice as many, and so on up to
    `max_requests`. A plan that was pinned before batches grew has no `first_requests`; its batches keep their size.
    """
    if not plan.first_requests:
        return plan.max_requests
    doublings = min(number // BATCHES_PER_DOUBLING, 30)
    return min(plan.first_requests << doublings, plan.max_requests)
