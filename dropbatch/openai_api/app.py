"""The HTTP application: routes, authentication, bounds, and threads for calls that block.

Handlers never block. Short calls and transfers have threads of their own, so that no request waits
for another's upload; a client that reads or writes slowly holds no thread, only a part or a block
in memory.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import msgspec
from starlette.applications import Starlette
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from dropbatch.errors import Error
from dropbatch.openai_api import names
from dropbatch.openai_api.batches import Batches, NewBatch
from dropbatch.openai_api.errors import ApiError, of_library
from dropbatch.openai_api.files import MAX_FILE_BYTES, Files
from dropbatch.openai_api.results import Results
from dropbatch.openai_api.store import Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from dropbatch.client.stack import Stack

    Out = TypeVar("Out")

logger = logging.getLogger(__name__)

MAX_JSON_BYTES = 64 << 10
MAX_FORM_BYTES = MAX_FILE_BYTES + (1 << 20)
MAX_FIELDS, MAX_FIELD_BYTES = 20, 4_096
"""Of the form that uploads a file."""
IDLE_SECONDS = 120.0
"""Seconds without a byte after which a body is given up."""
MAX_BATCHES, MAX_FILES = 100, 10_000
DEFAULT_BATCHES = 20
"""Entries in one answer, as OpenAI's document bounds them."""
MAX_REQUESTS = 1_000
"""Requests at the same time; above these, one is answered 503."""
CALL_THREADS, TRANSFER_THREADS = 32, 32
PREFIXES = ("/v1", "/openai", "/openai/v1")
"""What paths begin with: OpenAI's, and Azure's two."""
HEALTH = "/health"
RESENT_SECONDS = 1_800.0
"""Seconds in which an SDK that does not say how long it waits sends a request again.

Most wait 600 for each answer.
"""
MAX_BACK_OFF_SECONDS = 120.0
"""The longest wait of an SDK before it sends a request again, which a proxy may ask for."""
_RETRIES, _WAIT = re.compile(r"[0-9]{1,4}"), re.compile(r"[0-9]{1,6}(\.[0-9]{1,9})?")
_MAX_DIGITS = 10
_MAX_PARTS = 8
_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?")


def make_app(stack: Stack, key: str, model: str = "") -> Starlette:
    """The application over a stack.

    Args:
        stack: whose bucket holds everything.
        key: that each request must have; empty for none, if only this machine can call.
        model: of batches that name none of Workers AI's; empty for the stack's.
    """
    api = _Api(Store(stack), model)
    calls = [
        ("/files", api.create_file, "POST"),
        ("/files", api.list_files, "GET"),
        ("/files/{id}", api.retrieve_file, "GET"),
        ("/files/{id}", api.delete_file, "DELETE"),
        ("/files/{id}/content", api.file_content, "GET"),
        ("/batches", api.create_batch, "POST"),
        ("/batches", api.list_batches, "GET"),
        ("/batches/{id}", api.retrieve_batch, "GET"),
        ("/batches/{id}/cancel", api.cancel_batch, "POST"),
        ("/models", api.list_models, "GET"),
    ]
    routes = [
        Route(prefix + path, call, methods=[method])
        for prefix in PREFIXES
        for path, call, method in calls
    ]
    routes.append(Route(HEALTH, _health, methods=["GET"]))
    for route in routes:
        (route.methods or set()).discard("HEAD")  # It would read a whole file.
    handlers: dict[Any, Any] = {
        ApiError: lambda _, error: _answer_error(error),
        Error: lambda _, error: _answer_error(of_library(error)),
        ClientDisconnect: lambda *_: Response(status_code=400),  # nobody reads it
        404: _not_found,
        405: _not_found,
    }
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    app.add_middleware(_Guard, key=key)
    return app


class _Guard:
    """Checks each request before anything reads it.

    Its key or, without one, that it comes from this machine.

    It also writes a log line for each, and answers one that fails unexpectedly: Starlette's own way
    to do so breaks the connection.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error(Request(scope)) if scope["type"] == "http" else None
        status, begun = 0, time.monotonic()

        async def send_on(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        self._running += 1
        try:
            await (_answer_error(error) if error else self._app)(scope, receive, send_on)
        except Exception:
            if status:
                raise
            logger.exception("request failed")
            answer = _answer_error(ApiError(500, "The server had an error. Its log says more."))
            await answer(scope, receive, send_on)
        finally:
            self._running -= 1
            seconds = time.monotonic() - begun
            logger.info(
                "%s %s %d %.3f s",
                scope.get("method"),
                _shown(scope.get("path", "")),
                status,
                seconds,
            )

    def _error(self, request: Request) -> ApiError | None:
        if self._running >= MAX_REQUESTS:
            return ApiError(
                503,
                f"The server has {MAX_REQUESTS:,} requests. Try again.",
                None,
                "service_unavailable",
            )
        if request.url.path == HEALTH:
            return None
        if not self._key:
            # A browser adds Origin, and names a host of its own choice: a page must not reach this
            # API.
            if "origin" in request.headers or not _LOOPBACK.fullmatch(
                request.headers.get("host", "")
            ):
                return ApiError(
                    403, "Without a key, only programs on this machine may call.", None, "forbidden"
                )
            return None
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = request.headers.get("api-key", "")  # Azure's
        if hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._key.encode()):
            return None
        return ApiError(
            401,
            "Incorrect API key provided: it is not this server's DROPBATCH_API_KEY.",
            None,
            "invalid_api_key",
        )


_WORDS = frozenset(
    {"", "v1", "openai", "files", "batches", "content", "cancel", "models", "health"}
)


def _shown(path: str) -> str:
    """A path for the log: what is neither a word of this API nor an id of ours may be anything."""
    parts = path.split("/")[:_MAX_PARTS]
    return "/".join(one if one in _WORDS or names.is_any(one) else "…" for one in parts)


async def _health(_: Request) -> Response:
    """Whether the server answers; it calls nothing."""
    return _answer({"status": "ok"})


class _Api:
    """The handlers."""

    def __init__(self, store: Store, model: str) -> None:
        self._stack = store.stack
        self._files = Files(store)
        self._batches = Batches(store, self._files, model)
        self._results = Results(self._batches)
        self._calls = anyio.CapacityLimiter(CALL_THREADS)
        self._transfers = anyio.CapacityLimiter(TRANSFER_THREADS)

    async def _call(self, function: Callable[..., Out], *arguments: Any) -> Out:  # noqa: ANN401
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._calls)

    async def _transfer(self, function: Callable[..., Out], *arguments: Any) -> Out:  # noqa: ANN401
        return await anyio.to_thread.run_sync(function, *arguments, limiter=self._transfers)

    # ── files ─────────────────────────────────────────────────────────────────────────────────────

    async def create_file(self, request: Request) -> Response:
        parser = MultiPartParser(
            request.headers,
            _body(request, MAX_FORM_BYTES),
            max_fields=MAX_FIELDS,
            max_part_size=MAX_FIELD_BYTES,
        )
        try:
            form = await parser.parse()
        except (MultiPartException, KeyError) as error:
            raise ApiError(
                400, f"The body must be multipart/form-data with purpose and file: {error}"
            ) from error
        try:
            return _answer(await self._transfer(self._files.create, form))
        finally:
            await form.close()

    async def list_files(self, request: Request) -> Response:
        after, limit = _page(request, MAX_FILES, MAX_FILES)
        order = request.query_params.get("order", "desc")
        if order not in {"asc", "desc"}:
            raise ApiError(400, "It must be asc or desc.", "order", "invalid_value")
        if request.query_params.get("purpose", "batch") != "batch":
            return _answer_page([], more=False)  # Results are found by their batches.
        entries, more = await self._call(
            lambda: self._files.list(after, limit, newest_first=order == "desc")
        )
        return _answer_page(entries, more=more)

    async def retrieve_file(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        if names.batch_of_result(file_id):
            return _answer(await self._transfer(self._results.retrieve, file_id))
        return _answer(await self._call(self._files.retrieve, file_id))

    async def file_content(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        of = self._results if names.batch_of_result(file_id) else self._files
        blocks = await self._call(of.blocks, file_id)
        return StreamingResponse(self._stream(blocks), media_type="application/octet-stream")

    async def _stream(self, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (block := await self._transfer(next, blocks, b"")) != b"":
            yield block

    async def delete_file(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        of = self._results if names.batch_of_result(file_id) else self._files
        await self._call(of.delete, file_id)
        return _answer({"id": file_id, "object": "file", "deleted": True})

    # ── batches ───────────────────────────────────────────────────────────────────────────────────

    async def create_batch(self, request: Request) -> Response:
        body = b"".join([chunk async for chunk in _body(request, MAX_JSON_BYTES)])
        try:
            asked = msgspec.json.decode(body, type=NewBatch)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"The body must be a JSON object: {error}") from error
        within = _resent_within(request)
        return _answer(
            await self._transfer(lambda: self._batches.create(asked, resent_within=within))
        )

    async def list_batches(self, request: Request) -> Response:
        entries, more = await self._call(
            self._batches.list, *_page(request, DEFAULT_BATCHES, MAX_BATCHES)
        )
        return _answer_page(entries, more=more)

    async def retrieve_batch(self, request: Request) -> Response:
        return _answer(await self._call(self._batches.retrieve, request.path_params["id"]))

    async def cancel_batch(self, request: Request) -> Response:
        return _answer(await self._call(self._batches.cancel, request.path_params["id"]))

    # ── models ────────────────────────────────────────────────────────────────────────────────────

    async def list_models(self, _: Request) -> Response:
        catalog = await self._call(lambda: self._stack.catalog)
        found = [
            {"id": model.id, "object": "model", "created": 0, "owned_by": model.id.split("/")[1]}
            for model in catalog.models
            if model.batch
        ]
        return _answer({"object": "list", "data": found})


async def _body(request: Request, most: int) -> AsyncGenerator[bytes]:
    """A request's body, chunk by chunk.

    Raises:
        ApiError: it is too large, or has paused for too long.
    """
    too_large = ApiError(413, f"The body may have {most:,} bytes.", None, "too_large")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise too_large
    size, chunks = 0, request.stream()
    while True:
        try:
            with anyio.fail_after(IDLE_SECONDS):
                chunk = await anext(chunks, None)
        except TimeoutError as error:
            raise ApiError(
                408, f"Nothing of the body came for {IDLE_SECONDS:.0f} seconds.", None, "timeout"
            ) from error
        if chunk is None:
            return
        size += len(chunk)
        if size > most:
            raise too_large
        yield chunk


def _page(request: Request, default: int, most: int) -> tuple[str, int]:
    """Which page of a list is asked for: the id before it, and how many entries.

    Raises:
        ApiError: the limit is out of range.
    """
    given = request.query_params.get("limit", str(default))
    if not (
        given.isascii() and given.isdigit() and len(given) < _MAX_DIGITS and 1 <= int(given) <= most
    ):
        raise ApiError(400, f"It must be a number from 1 to {most:,}.", "limit", "invalid_value")
    return request.query_params.get("after", ""), int(given)


def _resent_within(request: Request) -> float:
    """Seconds before now in which OpenAI's SDK may have sent this request already; 0 if it did not.

    The SDKs count how often they have sent a request again; most say how long they wait for an
    answer.
    """
    retries = request.headers.get("x-stainless-retry-count", "0")
    if retries == "0":
        return 0
    waits = (request.headers.get(f"x-stainless-{name}") for name in ("read-timeout", "timeout"))
    wait = next(filter(None, waits), "")
    if not (_RETRIES.fullmatch(retries) and _WAIT.fullmatch(wait)):
        return RESENT_SECONDS
    return int(retries) * (float(wait) + MAX_BACK_OFF_SECONDS)


def _answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _answer_page(entries: list[dict[str, Any]], *, more: bool) -> Response:
    ids = [entry["id"] for entry in entries]
    first, last = (ids[0], ids[-1]) if ids else ("", "")
    return _answer(
        {"object": "list", "data": entries, "first_id": first, "last_id": last, "has_more": more}
    )


def _answer_error(error: ApiError) -> Response:
    return _answer(error.body(), error.status)


def _not_found(request: Request, _: Exception) -> Response:
    return _answer_error(
        ApiError(
            404,
            f"Invalid URL ({request.method} {request.scope['path'][:200]})",
            None,
            "unknown_url",
        )
    )
