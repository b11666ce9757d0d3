"""Connections of the server: who sends no request, or only a part of its header, does not keep others out.

A connection that waits for a request is closed after some seconds. If very many wait, the one that waits longest is
closed at once, so that a new one always finds room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

HEADER_SECONDS = 10.0
"""Seconds in which a request's whole header must come."""
MAX_WAITING = 300
"""Connections without a request that are kept: systems allow a process 1,024 files, or fewer."""


def protocol() -> type[asyncio.Protocol]:
    """What uvicorn makes of each connection of one server. It is h11, which bounds the size of headers."""
    waiting: dict[_Connection, asyncio.TimerHandle] = {}

    class Connection(_Connection):
        def __init__(self, *arguments: Any, **named: Any) -> None:  # noqa: ANN401
            super().__init__(*arguments, **named)
            self.waiting = waiting

    return Connection


class _Connection(H11Protocol):
    """A connection.

    Attributes:
        waiting: those of the server that have no request now, longest first, and when each is closed.
    """

    waiting: dict[_Connection, asyncio.TimerHandle]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Begin to wait for a header, or cease to; one that comes in pieces gains no time."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._stop_waiting()
        elif self not in self.waiting:
            self.waiting[self] = self.loop.call_later(HEADER_SECONDS, self.close)
            if len(self.waiting) > MAX_WAITING:
                next(iter(self.waiting)).close()

    def _stop_waiting(self) -> None:
        if timer := self.waiting.pop(self, None):
            timer.cancel()

    def close(self) -> None:
        """Close it without an answer."""
        self._stop_waiting()
        self.transport.abort()
