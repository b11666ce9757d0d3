"""LiteLLM's file and batch calls against `dropbatch serve`: prints how many answers came back."""

import asyncio
import json
import os
import sys
import time

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # Otherwise it asks the network for prices.

import litellm

OVER = {"completed", "failed", "expired", "cancelled"}
SECONDS = 120


async def main(url: str, model: str) -> None:
    """Run one batch to its end."""
    server = {"custom_llm_provider": "openai", "api_base": url, "api_key": "none"}
    bodies = [
        {"model": model, "messages": [{"role": "user", "content": f"Hello {n}"}]} for n in range(3)
    ]
    lines = [
        {"custom_id": f"r{n}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        for n, body in enumerate(bodies)
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    file = litellm.create_file(file=("july.jsonl", content), purpose="batch", **server)
    batch = litellm.create_batch(
        completion_window="24h",
        endpoint="/v1/chat/completions",
        input_file_id=file.id,
        metadata={"a": "b"},
        **server,
    )
    until = time.monotonic() + SECONDS
    while batch.status not in OVER and time.monotonic() < until:
        await asyncio.sleep(1)
        batch = await litellm.aretrieve_batch(batch_id=batch.id, **server)
    listed = await litellm.alist_batches(limit=5, **server)
    answers = await litellm.afile_content(file_id=batch.output_file_id, **server)
    litellm.file_delete(file_id=file.id, **server)
    counted = {
        batch.status: len(answers.content.splitlines()),
        "listed": sum(one.id == batch.id for one in listed.data),
        "tokens": batch.usage.total_tokens > 0,
    }
    print(json.dumps(counted))


asyncio.run(main(*sys.argv[1:]))
