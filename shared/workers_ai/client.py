"""The client of Cloudflare's Asynchronous Batch API. The only module that knows HTTP; decides nothing.

A submit is never tried again here: the API has no idempotency key, so a second POST is a second bill. Replies are
data, see `shared.workers_ai.replies`.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from shared.errors import StorageError
from shared.spool import MAX_REPLY_BYTES, TooLargeError, spool
from shared.workers_ai.error_codes import ErrorClass, classify_error
from shared.workers_ai.replies import Failed, OutcomeUnknown, Rejected, Reply, parse_reply, says_success

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Generator, Iterator

CONNECT_SECONDS, WRITE_SECONDS, POOL_SECONDS = 5.0, 30.0, 5.0
READ_SECONDS = 45.0
"""The longest silence within a reply."""
TOKEN_CHECK_SECONDS = 10.0
"""The longest the free call may take that checks the token: it may come after a submit."""
CHUNK_BYTES = 256 << 10
"""Bytes of a body that are sent at a time."""


class TokenState(StrEnum):
    """What the API says of the token."""

    GOOD = "good"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """No answer, or none of the API's own; or the secret holds another token by now, not tried yet."""


class WorkersAI:
    """The API for one account."""

    def __init__(self, http: httpx.Client, base_url: str, account: str, token: Callable[[bool], str]) -> None:
        """Use a ready HTTP client (see `http_client`).

        Args:
            http: client without redirects and retries.
            base_url: up to and including `/client/v4`.
            account: account id.
            token: gives the API token; asked with True it reads the secret anew.
        """
        self.http = http
        self.base = f"{base_url}/accounts/{account}/ai"
        self.token = token

    @contextlib.contextmanager
    def submit(self, model: str, body: bytes, seconds: float) -> Iterator[Reply]:
        """Submit a batch: one POST; another only if that was surely refused for its token and the secret has changed.

        Args:
            model: model id.
            body: the exact body.
            seconds: until when the reply must have been read.
        """
        with self._post(model, body, seconds, submitting=True) as reply:
            yield reply

    @contextlib.contextmanager
    def poll(self, model: str, request_id: str, seconds: float) -> Iterator[Reply]:
        """Ask after a batch; a large answer lies on disk until the context ends."""
        with self._post(model, msgspec.json.encode({"request_id": request_id}), seconds, submitting=False) as reply:
            yield reply

    def check_token(self) -> TokenState:
        """What the API says of the token, by a call that costs nothing; takes about `TOKEN_CHECK_SECONDS` at most."""
        deadline = time.monotonic() + TOKEN_CHECK_SECONDS
        try:
            token = self.token(False)  # noqa: FBT003 - the token's one question
        except StorageError:
            return TokenState.UNKNOWN
        state = self._state_of(token, deadline)
        if state is TokenState.REFUSED and self._changed_token(token):
            return TokenState.UNKNOWN
        return state

    def _state_of(self, token: str, deadline: float) -> TokenState:
        if not _can_be_sent(token):
            return TokenState.REFUSED
        url = f"{self.base}/models/search?per_page=1"
        try:
            with (
                contextlib.ExitStack() as kept,
                _cut_off_at(deadline) as trace,
                self.http.stream("GET", url, headers=_headers(token), extensions={"trace": trace}) as response,
            ):
                status = response.status_code
                content = _read(response, kept, deadline)
                if status == HTTPStatus.OK:
                    return TokenState.GOOD if says_success(content) else TokenState.UNKNOWN
                reply = parse_reply(status, None, content, submitting=False)
        except (httpx.HTTPError, TimeoutError, TooLargeError):
            return TokenState.UNKNOWN
        if not isinstance(reply, Rejected):
            return TokenState.UNKNOWN
        verdict = classify_error(reply.status, reply.code, reply.message, enveloped=reply.enveloped)
        refused = verdict is ErrorClass.ACCOUNT or (reply.enveloped and verdict is ErrorClass.CHECK_TOKEN)
        return TokenState.REFUSED if refused else TokenState.UNKNOWN

    @contextlib.contextmanager
    def _post(self, model: str, body: bytes, seconds: float, *, submitting: bool) -> Iterator[Reply]:
        deadline = time.monotonic() + seconds
        try:
            token = self.token(False)  # noqa: FBT003 - the token's one question
        except StorageError as error:
            yield Rejected(0, None, f"no token: {error}")
            return
        with self._exchange(model, body, token, deadline, submitting=submitting) as reply:
            changed = self._changed_token(token) if _is_token_refused(reply) else None
            if changed is None:
                yield reply
                return
        with self._exchange(model, body, changed, deadline, submitting=submitting) as reply:
            yield reply

    def _changed_token(self, refused: str) -> str | None:
        """The secret's token, read anew, if it is another than the refused one."""
        try:
            token = self.token(True)  # noqa: FBT003
        except StorageError:
            return None
        return token if token != refused else None

    @contextlib.contextmanager
    def _exchange(self, model: str, body: bytes, token: str, deadline: float, *, submitting: bool) -> Iterator[Reply]:
        """One POST and its reply."""
        if not _can_be_sent(token):
            yield Rejected(HTTPStatus.UNAUTHORIZED, None, "The secret holds no token.")
            return
        left = deadline - time.monotonic()
        if left <= 0:
            yield Rejected(0, None, "no time left to send it")
            return
        timeout = httpx.Timeout(
            connect=CONNECT_SECONDS, write=WRITE_SECONDS, read=min(left, READ_SECONDS), pool=POOL_SECONDS
        )
        with contextlib.ExitStack() as kept:
            # Not the body itself: httpx's response and its stream hold each other, and with them the request, until
            # the collector of cycles comes by, which a few large objects do not wake. Ten submits would be 100 MB.
            content_sent = _in_pieces(body, deadline)
            kept.callback(content_sent.close)
            try:
                with _cut_off_at(deadline) as trace:
                    response = kept.enter_context(
                        self.http.stream(
                            "POST",
                            f"{self.base}/run/{model}?queueRequest=true",
                            content=content_sent,
                            headers={**_headers(token), "content-length": str(len(body))},
                            timeout=timeout,
                            extensions={"trace": trace},
                        )
                    )
                    content = _read(response, kept, deadline)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                yield Rejected(0, None, f"no connection: {type(error).__name__}")
                return
            except (httpx.HTTPError, TimeoutError) as error:
                yield OutcomeUnknown(type(error).__name__)
                return
            except TooLargeError:
                yield Failed(None, f"its answer has over {MAX_REPLY_BYTES:,} bytes, more than Dropbatch can hold")
                return
            yield parse_reply(response.status_code, response.headers.get("retry-after"), content, submitting=submitting)


@contextlib.contextmanager
def _cut_off_at(deadline: float) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """End a request at its deadline, whatever it is doing: httpx's timeouts bound single reads and writes only.

    A timer shuts the request's socket down, so that the blocked call returns. Gives the function for httpcore's
    `trace` extension, which learns the socket; the request must open its own connection.
    """
    sockets: list[socket.socket] = []

    def trace(event: str, info: dict[str, Any]) -> None:
        if event in {"connection.connect_tcp.complete", "connection.start_tls.complete"}:
            stream = info["return_value"]
            sockets.append(stream.get_extra_info("socket"))
            if time.monotonic() >= deadline:
                stream.close()
                raise httpx.ConnectTimeout("the deadline passed before anything was sent")

    def shut_down() -> None:
        for one in sockets[-1:]:
            with contextlib.suppress(OSError):  # closed already
                socket.socket.shutdown(one, socket.SHUT_RDWR)  # SSLSocket's own would pull TLS from under a read

    timer = threading.Timer(deadline - time.monotonic(), shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield trace
    finally:
        timer.cancel()


def _in_pieces(body: bytes, deadline: float) -> Generator[bytes, None, None]:
    for start in range(0, len(body), CHUNK_BYTES):
        if time.monotonic() > deadline:
            raise TimeoutError
        yield body[start : start + CHUNK_BYTES]


def _headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


def _can_be_sent(token: str) -> bool:
    """Whether it can stand in a header at all: what cannot is no token, and must not look like a lost POST."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def _is_token_refused(reply: Reply) -> bool:
    return isinstance(reply, Rejected) and reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


def http_client(transport: httpx.BaseTransport | None = None) -> httpx.Client:
    """An HTTP client that neither follows redirects nor retries, and takes nothing from the environment.

    It keeps no connection. Lambda freezes a process between two calls, for which no clock is certain to account: a
    request on a connection that died meanwhile would get no answer, and a submit without one may be billed twice.
    """
    return httpx.Client(
        transport=transport,
        follow_redirects=False,
        trust_env=False,
        headers={"user-agent": "dropbatch", "accept-encoding": "identity"},
        timeout=httpx.Timeout(connect=CONNECT_SECONDS, write=WRITE_SECONDS, read=60.0, pool=POOL_SECONDS),
        limits=httpx.Limits(max_connections=32, max_keepalive_connections=0),
    )


def _read(response: httpx.Response, kept: contextlib.ExitStack, deadline: float) -> bytes | mmap.mmap:
    """Read a body to its end.

    Raises:
        TimeoutError: the deadline passed.
        TooManyBytesError: no reply may be as large.
    """

    def chunks() -> Iterator[bytes]:
        for chunk in response.iter_bytes():
            if time.monotonic() > deadline:
                raise TimeoutError
            yield chunk

    return spool(chunks(), kept, MAX_REPLY_BYTES)
