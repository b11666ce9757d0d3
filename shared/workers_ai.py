"""The client of Cloudflare's Asynchronous Batch API. The only module that knows HTTP; decides nothing.

A submit is never tried again here: the API has no idempotency key, so a second POST is a second bill. Replies are
data: `Accepted`, `Answer`, `Pending`, `Refused`, `Failed` or `Lost`. The client is tolerant where the API is unknown:
any 2xx, bodies with or without the envelope, both shapes of a completed batch, unknown status words.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from shared.errors import StorageError
from shared.replies import Answer, read_answer
from shared.spool import LARGEST_REPLY, TooManyBytesError, spooled
from shared.surrogates import without_lone_surrogates

if TYPE_CHECKING:
    import mmap
    from collections.abc import Callable, Generator, Iterator

CONNECT_SECONDS, WRITE_SECONDS, POOL_SECONDS = 5.0, 30.0, 5.0
READ_SECONDS = 45.0
"""The longest silence within a reply."""
TOKEN_CHECK_SECONDS = 10.0
"""The longest the free call may take that checks the token: it may come after a submit."""
PIECE = 256 << 10
"""Bytes of a body that are sent at a time."""
LONGEST_WORDS = 500
"""Characters of the API's words that are kept."""

_FAILED_WORDS = frozenset({"failed", "error", "errored", "cancelled", "canceled"})


@dataclass(frozen=True, slots=True)
class Accepted:
    """The API took the batch."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pending:
    """Not finished; `status` is the API's own word, empty where it gave none."""

    status: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Surely not done: an HTTP refusal, or no connection at all (status 0).

    Attributes:
        status: HTTP status.
        code: the body's first code.
        message: the body's words, cut.
        retry_after: seconds to wait, where the reply said it.
        enveloped: whether the body was the API's own JSON.
    """

    status: int
    code: int | None
    message: str
    retry_after: float | None = None
    enveloped: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The API says that the batch as a whole failed after acceptance."""

    code: int | None
    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Nobody can know what the API did: the reply broke off or is not the API's."""

    reason: str


Reply = Accepted | Answer | Pending | Refused | Failed | Lost


class _Body(msgspec.Struct):
    """Every key of any known reply, with or without the envelope; arrays and results stay bytes."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    success: Any = None
    errors: Any = None
    error: Any = None
    responses: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    results: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    request_id: Any = None
    status: Any = None
    message: Any = None
    code: Any = None
    internalCode: Any = None  # noqa: N815 - the API's own name


_decode = msgspec.json.Decoder(_Body).decode


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
    def ask(self, model: str, request_id: str, seconds: float) -> Iterator[Reply]:
        """Ask after a batch; a large answer lies on disk until the context ends."""
        with self._post(model, msgspec.json.encode({"request_id": request_id}), seconds, submitting=False) as reply:
            yield reply

    def token_is_good(self) -> bool:
        """Whether the API takes the token for this account, by a call that costs nothing."""
        try:
            token = self.token(False)  # noqa: FBT003 - the token's one question
            if not _can_be_sent(token):
                return False
            with _cut_off_at(time.monotonic() + TOKEN_CHECK_SECONDS) as trace:
                answer = self.http.get(
                    f"{self.base}/models/search?per_page=1",
                    headers=_headers(token),
                    extensions={"trace": trace},
                )
        except (StorageError, httpx.HTTPError):
            return False
        return answer.status_code == HTTPStatus.OK

    @contextlib.contextmanager
    def _post(self, model: str, body: bytes, seconds: float, *, submitting: bool) -> Iterator[Reply]:
        deadline = time.monotonic() + seconds
        try:
            token = self.token(False)  # noqa: FBT003 - the token's one question
        except StorageError as error:
            yield Refused(0, None, f"no token: {error}")
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
            yield Refused(HTTPStatus.UNAUTHORIZED, None, "The secret holds no token.")
            return
        left = deadline - time.monotonic()
        if left <= 0:
            yield Refused(0, None, "no time left to send it")
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
                yield Refused(0, None, f"no connection: {type(error).__name__}")
                return
            except (httpx.HTTPError, TimeoutError) as error:
                yield Lost(type(error).__name__)
                return
            except TooManyBytesError:
                yield Failed(None, f"its answer has over {LARGEST_REPLY:,} bytes, more than Dropbatch can hold")
                return
            yield understand(response.status_code, response.headers.get("retry-after"), content, submitting=submitting)


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
    for start in range(0, len(body), PIECE):
        if time.monotonic() > deadline:
            raise TimeoutError
        yield body[start : start + PIECE]


def _headers(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", "content-type": "application/json"}


def _can_be_sent(token: str) -> bool:
    """Whether it can stand in a header at all: what cannot is no token, and must not look like a lost POST."""
    return bool(token) and token.isascii() and token.isprintable() and " " not in token


def _is_token_refused(reply: Reply) -> bool:
    return isinstance(reply, Refused) and reply.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}


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

    return spooled(chunks(), kept, LARGEST_REPLY)


def understand(status: int, retry_after: str | None, content: bytes | mmap.mmap, *, submitting: bool) -> Reply:
    """Turn a complete HTTP reply into what it says.

    Args:
        status: HTTP status.
        retry_after: the header of that name.
        content: the whole body.
        submitting: whether it answers a submit; only then a `request_id` means acceptance.
    """
    seconds = _number(retry_after)
    wait = None if seconds is None else float(seconds)
    good = HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES
    if good and (answer := _answer_in(content)):
        return answer
    try:
        content, outer, inner = _decoded(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _no_answer(status, wait, None)
    if not good or outer.success is False:
        return _no_answer(status, wait, outer)
    code, message = _problem(outer)
    if answer := _answer_in(content):
        return answer  # mended
    word = inner.status.lower() if isinstance(inner.status, str) else ""
    if word in _FAILED_WORDS:
        return Failed(*_problem(inner if inner is not outer and _problem(inner) != (None, "") else outer))
    if code is not None and not word and not inner.request_id:
        return Refused(status, code, message, wait, enveloped=True)
    if not submitting:
        return Pending(word[:32])
    if isinstance(inner.request_id, str) and inner.request_id:
        return Accepted(inner.request_id)
    return Lost(f"HTTP {status} with neither request_id nor results")


def _no_answer(status: int, wait: float | None, body: _Body | None) -> Reply:
    """A reply that carries nothing out: surely refused, unless it is not the API that speaks."""
    code, message = _problem(body) if body else (None, f"HTTP {status} without the API's JSON")
    enveloped = body is not None and (code is not None or body.success is False)
    if not enveloped and not HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Lost(f"HTTP {status} with a body that is not the API's JSON")
    return Refused(status, code, message, wait, enveloped=body is not None)


def _answer_in(content: bytes | mmap.mmap) -> Answer | None:
    """A completed batch's results, if that is what it is: looked for first, since such replies are the large ones."""
    try:
        return read_answer(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # whatever it is, it is looked at more closely


def _decoded(content: bytes | mmap.mmap) -> tuple[bytes | mmap.mmap, _Body, _Body]:
    """The body with and without its envelope, and the bytes they were read from.

    Half of a surrogate pair, as a text cut by UTF-16 units ends in, is JSON, but no text: it becomes U+FFFD.
    """
    try:
        outer = _decode(content)
    except msgspec.DecodeError:
        content = without_lone_surrogates(content)
        outer = _decode(content)
    return content, outer, _unwrapped(outer)


def _unwrapped(outer: _Body) -> _Body:
    """The body without its envelope; bare bodies are their own."""
    if not _begins(outer.result, b"{") or _begins(outer.responses, b"[") or _begins(outer.results, b"["):
        return outer
    return _decode(outer.result)  # type: ignore[arg-type]  # a Raw is bytes to msgspec


def _begins(raw: msgspec.Raw | msgspec.UnsetType, with_byte: bytes) -> bool:
    return raw is not msgspec.UNSET and bytes(memoryview(raw)[:1]) == with_byte


def _problem(body: _Body) -> tuple[int | None, str]:
    """The first code and words of a body that tells of a failure; their places vary."""
    found: list[Any] = body.errors if isinstance(body.errors, list) else []
    candidates = [
        *found,
        body.error,
        {"code": body.code, "internalCode": body.internalCode, "message": body.message},
    ]
    for candidate in candidates:
        if isinstance(candidate, str) and candidate:
            return None, candidate[:LONGEST_WORDS]
        if not isinstance(candidate, dict):
            continue
        code = candidate.get("code") if candidate.get("code") is not None else candidate.get("internalCode")
        if code is not None or candidate.get("message"):
            return _number(code), str(candidate.get("message") or "")[:LONGEST_WORDS]
    return None, ""


def _number(told: object) -> int | None:
    """A code or a number of seconds, given as a number or in digits; None for anything else."""
    if isinstance(told, int):
        return told
    return int(told) if isinstance(told, str) and re.fullmatch("[0-9]{1,9}", told) else None
