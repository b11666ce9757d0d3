"""The server: a socket that listens, and uvicorn on it."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

import uvicorn

from dropbatch.errors import UsageError
from dropbatch.openai_api.app import make_app

if TYPE_CHECKING:
    from dropbatch.client.stack import Stack

MAX_HEADER_BYTES = 64 << 10
BACKLOG = 512
SHUTDOWN_SECONDS = 1
"""Seconds that answers under way are given when the server is stopped."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, so that whoever connects from now on is served.

    Raises:
        UsageError: the address is wrong or in use.
    """
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise UsageError(
            f"{host}:{port} cannot be listened on: {error.strerror}. Choose another --port."
        ) from error


def base_url(listening: socket.socket) -> str:
    """What programs take as OPENAI_BASE_URL."""
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def make_server(stack: Stack, key: str, model: str = "") -> uvicorn.Server:
    """A server; run it with `run(sockets=[listen(...)])`.

    Args:
        stack: whose bucket holds everything.
        key: that each request must have; empty for none.
        model: of batches that name none of Workers AI's; empty for the stack's.
    """
    # It quotes what is wrong in a form.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Server(
        uvicorn.Config(
            make_app(stack, key, model),
            http="h11",  # It bounds the size of headers.
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            access_log=False,
            log_level="warning",
            server_header=False,
        )
    )
