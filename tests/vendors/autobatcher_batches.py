"""Doubleword's autobatcher against `dropbatch serve`: prints what single calls were answered."""

import asyncio
import json
import sys

from autobatcher import BatchOpenAI
from loguru import logger
from openai import BadRequestError


def of(url: str, window: str | None) -> BatchOpenAI:
    """A client that batches what is called within half a second."""
    return BatchOpenAI(
        api_key="none",
        base_url=url,
        batch_window_seconds=0.5,
        poll_interval_seconds=1.0,
        completion_window=window,
    )


async def main(url: str, embedder: str, responder: str) -> None:
    """Call three endpoints, two times each; then one without a window of 24 hours."""
    client = of(url, "24h")
    hello = [{"role": "user", "content": "Hello"}]
    calls = {
        "chat": lambda: client.chat.completions.create(model="gpt-4o", messages=hello),
        "embeddings": lambda: client.embeddings.create(model=embedder, input="Hello"),
        "responses": lambda: client.responses.create(model=responder, input="Hello"),
    }
    names = list(calls) * 2
    answers = await asyncio.gather(*(calls[name]() for name in names))
    answered = zip(names, answers, strict=True)
    kinds = sorted({f"{name}: {type(one).__name__}" for name, one in answered})
    await client.close()
    single = of(url, None)
    try:
        await single.chat.completions.create(model="gpt-4o", messages=hello)
    except BadRequestError as error:
        kinds.append("completion_window" if "completion_window" in str(error) else str(error))
    await single.close()
    print(json.dumps(kinds))


logger.disable("autobatcher")
asyncio.run(main(*sys.argv[1:]))
