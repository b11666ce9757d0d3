"""A reply of the API as data: status, headers and body, and how its connection misbehaves."""

from dataclasses import dataclass, replace
from enum import StrEnum

JSON = ("content-type", "application/json")
HTML = ("content-type", "text/html; charset=UTF-8")
FOREVER = float("inf")

_HTML_PAGE = (
    "<!DOCTYPE html>\n<html>\n<head><title>api.cloudflare.com | {status}: Bad gateway</title></head>\n"
    "<body><h1>Bad gateway</h1><p>Error code {status}</p></body>\n</html>\n"
)


class Cut(StrEnum):
    """How a connection ends instead of delivering a whole reply."""

    REFUSE = "refuse"
    """No connection is made.

    Over a real socket, where the request has been read by then, the same as `RESET`.
    """
    RESET = "reset"
    """The connection is reset before a byte of the reply (or after `cut_after` bytes of its body)."""
    CLOSE = "close"
    """The connection is closed normally, but too early."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One reply. `delay`, `cut` and `pace` are carried out by the server's shell or by the mock transport."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    delay: float = 0.0
    """Seconds before the first byte; infinity hangs."""
    cut: Cut | None = None
    cut_after: int | None = None
    """Bytes of the body that still arrive before `cut`; None cuts before the status line."""
    pace: tuple[int, float] | None = None
    """The body arrives in chunks of this many bytes, with this many seconds before each."""

    def with_headers(self, *headers: tuple[str, str]) -> "Reply":
        """The same reply with more headers."""
        return replace(self, headers=(*self.headers, *headers))


def page(status: int) -> Reply:
    """The HTML page that a gateway sends in place of an answer."""
    return Reply(status=status, headers=(HTML,), body=_HTML_PAGE.format(status=status).encode())
