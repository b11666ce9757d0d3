"""The HTTP client of Cloudflare's Asynchronous Batch API. The only module that knows HTTP.

It never retries a submit: the API has no idempotency key, so a second POST is a second bill. It
returns replies as data (`shared.workers_ai.replies`). How the API is reached:
`shared.workers_ai.transports`.
"""

from __future__ import annotations

import contextlib
import mmap
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterator
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx
import msgspec

from shared.errors import StorageError
from shared.services import Services
from shared.spool import MAX_REPLY_BYTES, TooLargeError, spool
from shared.workers_ai.error_codes import (
    ErrorClass,
    classify_poll_error,
    classify_submit_error,
    classify_with_valid_token,
)
from shared.workers_ai.replies import (
    LARGEST_BATCH,
    OutcomeUnknown,
    Rejected,
    Reply,
    parse_beginning,
    parse_reply,
    says_success,
)
from shared.workers_ai.transports import Credentials, Transport

CONNECT_SECONDS, WRITE_SECONDS, POOL_SECONDS = 5.0, 30.0, 5.0
READ_SECONDS = 45.0
"""Maximum silence within a reply."""
TOKEN_CHECK_SECONDS = 10.0
"""Maximum duration of the free call, which may follow a submit in the same invocation."""
SENT_CHUNK_BYTES = 256 << 10
"""Bytes of a request body sent at a time."""


MAX_FETCHED_BYTES = 1_000_000
"""Maximum bytes of a reply of another API, such as a hundred queues."""


NOTHING_FETCHED = 0, b""
"""A status and a body, of a call of another API without a reply."""


class _Read(NamedTuple):
    """A reply, and its body, or the beginning of one that is too large."""

    response: httpx.Response
    content: bytes | mmap.mmap
    is_whole: bool = True


class TokenState(StrEnum):
    """Whether the API accepts the token."""

    GOOD = "good"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    """No reply, or not the API's; or the secret has changed and the new token was not tried yet."""


class WorkersAI:
    """The API for one account."""

    def __init__(
        self, http: httpx.Client, transport: Transport, credentials: Callable[[bool], Credentials]
    ) -> None:
        """Take a client without redirects and retries, and what reads the secrets (True: anew)."""
        self.http = http
        self.transport = transport
        self.credentials = credentials

    def submit(
        self, model: str, body: bytes, seconds: float, sent: int = LARGEST_BATCH
    ) -> contextlib.AbstractContextManager[Reply]:
        """Submit `sent` requests with one POST; a second only if its token was refused."""
        return self._post(model, body, seconds, partial(parse_reply, submitting=True, sent=sent))

    def poll(
        self, model: str, request_id: str, seconds: float, sent: int = LARGEST_BATCH
    ) -> contextlib.AbstractContextManager[Reply]:
        """Poll a batch of `sent` requests."""
        body = msgspec.json.encode({"request_id": request_id})
        return self._post(model, body, seconds, partial(parse_reply, submitting=False, sent=sent))

    def fetch(
        self,
        method: str,
        path: str,
        body: bytes | None,
        seconds: float,
        most: int = MAX_FETCHED_BYTES,
    ) -> tuple[int, bytes]:
        """Make one call of another API of the account, such as Queues; it is not repeated."""
        try:
            credentials = self.credentials(False)  # noqa: FBT003 - its only argument
        except StorageError:
            return NOTHING_FETCHED
        if not self.transport.account_url or credentials.fault():
            return NOTHING_FETCHED
        url = f"{self.transport.account_url}{path}"
        headers, deadline = self.transport.check_headers(credentials), time.monotonic() + seconds
        try:
            with contextlib.ExitStack() as stack:
                read = self._call(stack, method, url, headers, body or b"", deadline, most)
                if not read.is_whole:
                    return NOTHING_FETCHED
                return read.response.status_code, bytes(read.content)
        except (httpx.HTTPError, TimeoutError):
            return NOTHING_FETCHED

    def check_token(self) -> TokenState:
        """Whether the token is valid, according to a free call."""
        deadline = time.monotonic() + TOKEN_CHECK_SECONDS
        try:
            credentials = self.credentials(False)  # noqa: FBT003 - its only argument
        except StorageError:
            return TokenState.UNKNOWN
        state = self._state_of(credentials, deadline)
        if state is TokenState.REFUSED and self._changed(credentials):
            return TokenState.UNKNOWN
        return state

    def _state_of(self, credentials: Credentials, deadline: float) -> TokenState:
        if credentials.fault():
            return TokenState.REFUSED
        url, headers = self.transport.check_url, self.transport.check_headers(credentials)
        try:
            with contextlib.ExitStack() as stack:
                read = self._call(stack, "GET", url, headers, b"", deadline)
                status = read.response.status_code
                if status == HTTPStatus.OK:
                    is_good = read.is_whole and says_success(read.content)
                    return TokenState.GOOD if is_good else TokenState.UNKNOWN
                reply = parse_reply(status, None, read.content, submitting=False)
        except (httpx.HTTPError, TimeoutError):
            return TokenState.UNKNOWN
        if not isinstance(reply, Rejected):
            return TokenState.UNKNOWN
        verdict = classify_submit_error(reply)
        refused = verdict is ErrorClass.ACCOUNT or (
            reply.enveloped and verdict is ErrorClass.CHECK_TOKEN
        )
        return TokenState.REFUSED if refused else TokenState.UNKNOWN

    @contextlib.contextmanager
    def _post(
        self, model: str, body: bytes, seconds: float, parse: Callable[..., Reply]
    ) -> Iterator[Reply]:
        deadline = time.monotonic() + seconds
        try:
            credentials = self.credentials(False)  # noqa: FBT003 - its only argument
        except StorageError as error:
            yield Rejected(0, None, f"no token: {error}")
            return
        with self._exchange(model, body, credentials, deadline, parse) as reply:
            changed = self._changed(credentials) if _is_token_refused(reply) else None
            if changed is None:
                yield reply
                return
        with self._exchange(model, body, changed, deadline, parse) as reply:
            yield reply

    def _changed(self, refused: Credentials) -> Credentials | None:
        """The secrets, read again, if they differ from the refused ones."""
        try:
            credentials = self.credentials(True)  # noqa: FBT003
        except StorageError:
            return None
        return credentials if credentials != refused else None

    @contextlib.contextmanager
    def _exchange(
        self,
        model: str,
        body: bytes,
        credentials: Credentials,
        deadline: float,
        parse: Callable[..., Reply],
    ) -> Iterator[Reply]:
        if fault := credentials.fault():
            yield Rejected(HTTPStatus.UNAUTHORIZED, None, fault)
            return
        if time.monotonic() >= deadline:
            yield Rejected(0, None, "no time left to send it")
            return
        url, headers = self.transport.url(model), self.transport.request_headers(credentials)
        with contextlib.ExitStack() as stack:
            try:
                read = self._call(stack, "POST", url, headers, body, deadline)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
                yield Rejected(0, None, f"no connection: {type(error).__name__}")
                return
            except (httpx.HTTPError, TimeoutError) as error:
                yield OutcomeUnknown(type(error).__name__)
                return
            status, wait = read.response.status_code, read.response.headers.get("retry-after")
            if read.is_whole:
                yield parse(status, wait, read.content)
            else:
                yield parse_beginning(status, wait, bytes(read.content), MAX_REPLY_BYTES)

    def _call(
        self,
        stack: contextlib.ExitStack,
        method: str,
        url: str,
        headers: dict[str, str],
        body: bytes,
        deadline: float,
        most: int | None = None,
    ) -> _Read:
        """One request, and its reply, read to its end or to `most` bytes."""
        # Not the body itself: httpx's response and its stream form a reference cycle that holds
        # the request. The garbage collector does not run for a few large objects, so ten submits
        # would occupy 100 MB.
        content = _in_pieces(body, deadline)
        stack.callback(content.close)
        with _cut_off_at(deadline) as trace:
            request = self.http.stream(
                method,
                url,
                content=content,
                headers={**headers, "content-length": str(len(body))},
                timeout=_timeout(deadline - time.monotonic()),
                extensions={"trace": trace},
            )
            response = stack.enter_context(request)
            chunks = _chunks(response, deadline)
            try:
                return _Read(response, spool(chunks, stack, most or MAX_REPLY_BYTES))
            except TooLargeError as error:
                return _Read(response, error.args[0], is_whole=False)


def _timeout(seconds: float) -> httpx.Timeout:
    """What httpx bounds of a call that may take so long: each silence within it."""
    return httpx.Timeout(
        connect=CONNECT_SECONDS,
        write=WRITE_SECONDS,
        read=min(seconds, READ_SECONDS),
        pool=POOL_SECONDS,
    )


@contextlib.contextmanager
def _cut_off_at(deadline: float) -> Iterator[Callable[[str, dict[str, Any]], None]]:
    """End a request at its deadline: httpx's own timeouts bound single reads and writes only.

    A timer shuts the request's socket down, and the blocked call returns. Yields the function for
    httpcore's `trace`, which reports the socket; the request must open its own connection.
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
                # SSLSocket's own would pull TLS from under a read
                socket.socket.shutdown(one, socket.SHUT_RDWR)

    timer = threading.Timer(deadline - time.monotonic(), shut_down)
    timer.daemon = True
    timer.start()
    try:
        yield trace
    finally:
        timer.cancel()


def _in_pieces(body: bytes, deadline: float) -> Generator[bytes, None, None]:
    for start in range(0, len(body), SENT_CHUNK_BYTES):
        if time.monotonic() > deadline:
            raise TimeoutError
        yield body[start : start + SENT_CHUNK_BYTES]


def _is_token_refused(reply: Reply) -> bool:
    return isinstance(reply, Rejected) and reply.status in {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
    }


def classify_rejection(services: Services, reply: Rejected, *, polling: bool) -> ErrorClass:
    """What an error reply to a batch's call means; never `ErrorClass.CHECK_TOKEN`."""
    verdict = classify_poll_error(reply) if polling else classify_submit_error(reply)
    if verdict is not ErrorClass.CHECK_TOKEN:
        return verdict
    match token_state(services):
        case TokenState.GOOD:
            return classify_with_valid_token(reply, polling=polling)
        case TokenState.REFUSED:
            return ErrorClass.ACCOUNT
        case _:
            return ErrorClass.TRY_LATER


def token_state(services: Services) -> TokenState | None:
    """Whether the token may use the account, by the free call; None if there is no call left."""
    if not services.budget.permit_check(services.now()):
        return None
    return services.api.check_token()


def http_client(transport: httpx.BaseTransport | None = None) -> httpx.Client:
    """An HTTP client without redirects, retries, the environment's proxies, open connections.

    Lambda freezes a process between two calls: a request on a connection that died meanwhile would
    get no answer, and a submit without an answer may be billed twice.
    """
    return httpx.Client(
        transport=transport,
        follow_redirects=False,
        trust_env=False,
        headers={"user-agent": "dropbatch", "accept-encoding": "identity"},
        limits=httpx.Limits(max_connections=32, max_keepalive_connections=0),
    )


def _chunks(response: httpx.Response, deadline: float) -> Iterator[bytes]:
    for chunk in response.iter_bytes():
        if time.monotonic() > deadline:
            raise TimeoutError
        yield chunk
