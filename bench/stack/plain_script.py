"""What a user would otherwise write: submit all, poll all, join, write.

`bench.stack compare` measures it.

A short asyncio script with httpx and `json`, as good as such scripts are: bodies under the API's
limit, a bounded number of parallel calls, back-off on errors, answers joined by id and written in
order. It keeps its state in memory: if it dies, what it has submitted is billed and lost.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import httpx

RECORDS, BYTES = 5_000, 9_500_000
MAX_PARALLEL = 8
POLL_SECONDS = 10.0


def batches(path: Path) -> list[list[dict[str, Any]]]:
    """The records of a JSON Lines file, in batches that the API accepts."""
    found: list[list[dict[str, Any]]] = [[]]
    size = 0
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if len(found[-1]) == RECORDS or size + len(line) > BYTES:
                found.append([])
                size = 0
            found[-1].append(json.loads(line))
            size += len(line)
    return found


async def call(
    client: httpx.AsyncClient, url: str, body: dict[str, Any], limit: asyncio.Semaphore
) -> dict[str, Any]:
    """Make one call to the API, and retry it while it fails; return its result."""
    wait = 1.0
    while True:
        async with limit:
            try:
                reply = await client.post(url, json=body, params={"queueRequest": "true"})
                if reply.status_code < 300:
                    found: dict[str, Any] = reply.json()["result"]
                    return found
            except httpx.HTTPError as error:
                print(error, file=sys.stderr)
        await asyncio.sleep(wait)
        wait = min(2 * wait, 60.0)


async def answers(
    client: httpx.AsyncClient, url: str, requests: list[Any], limit: asyncio.Semaphore
) -> list[Any]:
    """Submit one batch and poll until it is answered.

    Return its answers, one per record in order.
    """
    request_id = (await call(client, url, {"requests": requests}, limit))["request_id"]
    while True:
        await asyncio.sleep(POLL_SECONDS)
        result = await call(client, url, {"request_id": request_id}, limit)
        if "responses" in result:
            by_id = {item["id"]: item for item in result["responses"]}
            return [by_id[number] for number in range(len(requests))]


async def main(upload: Path, output: Path, url: str, token: str) -> None:
    """Submit, poll, join and write everything."""
    limit = asyncio.Semaphore(MAX_PARALLEL)
    parts = batches(upload)
    async with httpx.AsyncClient(
        headers={"Authorization": f"Bearer {token}"}, timeout=120
    ) as client:
        answered = await asyncio.gather(*(answers(client, url, part, limit) for part in parts))
    number = 0
    with output.open("w", encoding="utf-8") as file:
        for requests, items in zip(parts, answered, strict=True):
            for request, item in zip(requests, items, strict=True):
                line = {
                    **item,
                    "id": number,
                    "external_reference": request.get("external_reference"),
                }
                file.write(json.dumps(line) + "\n")
                number += 1


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]))
