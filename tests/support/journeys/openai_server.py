"""`dropbatch serve` in a thread of the test's process, and OpenAI's own clients on it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dropbatch.client.stack import Stack
from dropbatch.serve.app import base_url, listen, make_server


@contextmanager
def serving(stack: Stack, key: str = "", model: str = "") -> Iterator[str]:
    """Serve a stack; the context's value is the base URL."""
    server = make_server(stack, key, model)
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield base_url(listening)
        finally:
            server.should_exit = True
            thread.join()


def requests(endpoint: str, *bodies: dict[str, Any]) -> list[dict[str, Any]]:
    """The lines of a batch file."""
    return [
        {"custom_id": f"r{number}", "method": "POST", "url": endpoint, "body": body}
        for number, body in enumerate(bodies)
    ]
