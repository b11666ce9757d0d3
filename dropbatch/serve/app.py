"""The server: routes, the key, bounds, and threads for calls that block.

Handlers never block. Short calls and transfers have threads of their own, so that no request waits
for another's upload; a client that reads or writes slowly holds no thread, only a block in memory.
"""

from __future__ import annotations

import hmac
import logging
import re
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import anyio
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dropbatch.client.stack import Stack
from dropbatch.core.formats.openai import BATCH_ENDPOINTS
from dropbatch.core.models import catalog
from dropbatch.errors import Error, UsageError
from dropbatch.serve import objects
from dropbatch.serve.batches import Batches, NewBatch
from dropbatch.serve.files import MAX_FILE_BYTES, Files
from dropbatch.serve.objects import ApiError, model_object, no_such, of_library, wrong
from dropbatch.serve.results import Results
from dropbatch.serve.store import Store

logger = logging.getLogger(__name__)

MAX_JSON_BYTES = 64 << 10
MAX_FORM_BYTES = MAX_FILE_BYTES + (1 << 20)
FORM_LIMITS = {"max_fields": 20, "max_part_size": 4_096}
"""Of the form that uploads a file: fields, and bytes of one."""
IDLE_SECONDS = 120.0
"""Seconds without a byte after which a body is given up."""
MAX_BATCHES, MAX_FILES = 100, 10_000
DEFAULT_BATCHES = 20
"""Entries in one answer, as OpenAI's document bounds them."""
MAX_REQUESTS = 1_000
"""Connections and requests at the same time; above these, one is answered 503."""
CALL_THREADS, TRANSFER_THREADS = 32, 32
PREFIXES = ("/v1", "/openai", "/openai/v1")
"""What paths begin with: OpenAI's, and Azure's two."""
HEALTH = "/health"
SINGLE_CALLS = tuple(one.removeprefix("/v1") for one in BATCH_ENDPOINTS)
BATCHES_ONLY = (
    "This server takes batches only. Write such requests in a file, upload it (POST /v1/files) and "
    'POST /v1/batches; or make batches of single calls with autobatcher and completion_window="24h"'
    "; or use Cloudflare's https://api.cloudflare.com/client/v4/accounts/<account id>/ai/v1."
)
MAX_HEADER_BYTES = 64 << 10
BACKLOG = 512
SHUTDOWN_SECONDS = 1
"""Seconds that answers under way are given when the server is stopped."""
_LIMIT = re.compile(r"[0-9]{1,9}")
_LOOPBACK = re.compile(r"(?:127\.0\.0\.1|localhost|\[::1\])(?::\d+)?")
_WORDS = {"", "v1", "openai", "files", "batches", "content", "cancel", "models", "health"}
_MAX_PARTS = 8


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens, so that whoever connects from now on is served.

    Raises:
        UsageError: the address is wrong or in use.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, *_, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        message = f"{host}:{port} cannot be listened on: {error.strerror}. Choose another --port."
        raise UsageError(message) from error


def base_url(listening: socket.socket) -> str:
    """What programs take as OPENAI_BASE_URL."""
    host, port, *_ = listening.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def make_server(stack: Stack, key: str, model: str = "") -> uvicorn.Server:
    """A server; run it with `run(sockets=[listen(...)])`. An empty `key` asks for none."""
    # It quotes what is wrong in a form.
    logging.getLogger("python_multipart").setLevel(logging.ERROR)
    return uvicorn.Server(
        uvicorn.Config(
            _make_app(stack, key, model),
            http="h11",  # It bounds the size of headers.
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            limit_concurrency=MAX_REQUESTS,
            ws="none",
            lifespan="off",
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            access_log=False,
            log_level="warning",
            server_header=False,
        )
    )


def _make_app(stack: Stack, key: str, model: str) -> Starlette:
    api = _Api(Store(stack), model)
    calls = (
        ("/files", api.create_file, "POST"),
        ("/files", api.list_files, "GET"),
        ("/files/{id}", api.retrieve_file, "GET"),
        ("/files/{id}", api.delete_file, "DELETE"),
        ("/files/{id}/content", api.file_content, "GET"),
        ("/batches", api.create_batch, "POST"),
        ("/batches", api.list_batches, "GET"),
        ("/batches/{id}", api.of_batch(api.batches.retrieve), "GET"),
        ("/batches/{id}/cancel", api.of_batch(api.batches.cancel), "POST"),
        ("/models", api.list_models, "GET"),
        ("/models/{id:path}", api.retrieve_model, "GET"),
    )
    routes = [
        Route(prefix + path, call, methods=[method])
        for prefix, (path, call, method) in product(PREFIXES, calls)
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
    """Checks each request before anything reads it, logs it, and answers one that breaks.

    Starlette's own way to do so breaks the connection.
    """

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app, self._key = app, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._error(Request(scope)) if scope["type"] == "http" else None
        status, begun = 0, time.monotonic()

        async def send_on(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            await send(message)

        try:
            await (_answer_error(error) if error else self._app)(scope, receive, send_on)
        except Exception:
            if status:
                raise
            logger.exception("request failed")
            answer = _answer_error(ApiError(500, "The server had an error. Its log says more."))
            await answer(scope, receive, send_on)
        finally:
            seconds, shown = time.monotonic() - begun, _shown(scope.get("path", ""))
            logger.info("%s %s %d %.3f s", scope.get("method"), shown, status, seconds)

    def _error(self, request: Request) -> ApiError | None:
        headers = request.headers
        if request.url.path == HEALTH:
            return None
        if not self._key:
            # A page in a browser must not reach this API: it has an Origin, and a host of its own.
            if "origin" not in headers and _LOOPBACK.fullmatch(headers.get("host", "")):
                return None
            message = "Without a key, only programs on this machine may call."
            return ApiError(403, message, None, "forbidden")
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            given = headers.get("api-key", "")  # Azure's
        if hmac.compare_digest(given.strip().encode("latin-1", "replace"), self._key.encode()):
            return None
        message = "Incorrect API key provided: it is not this server's DROPBATCH_API_KEY."
        return ApiError(401, message, None, "invalid_api_key")


def _shown(path: str) -> str:
    """A path for the log: what is neither a word of this API nor an id of ours may be anything."""
    parts = path.split("/")[:_MAX_PARTS]
    return "/".join(one if one in _WORDS or objects.is_any(one) else "…" for one in parts)


async def _health(_: Request) -> Response:
    return _answer({"status": "ok"})


class _Form(MultiPartParser):
    """The form that uploads a file. One without its last boundary is cut off, and is none."""

    def __init__(self, request: Request) -> None:
        body = self._whole(_body(request, MAX_FORM_BYTES))
        super().__init__(request.headers, body, **FORM_LIMITS)
        self._has_ended = False

    def on_end(self) -> None:
        self._has_ended = True

    async def _whole(self, body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
        async for chunk in body:
            yield chunk
        if not self._has_ended:
            raise MultiPartException("It does not end.")


def _threads(most: int) -> Callable[..., Awaitable[Any]]:
    """What calls a function on a thread of its own; so many at the same time."""
    return partial(anyio.to_thread.run_sync, limiter=anyio.CapacityLimiter(most))


class _Api:
    def __init__(self, store: Store, model: str) -> None:
        self._stack = store.stack
        self._files = Files(store)
        self.batches = Batches(store, self._files, model)
        self._results = Results(self.batches)
        self._call = _threads(CALL_THREADS)
        self._transfer = _threads(TRANSFER_THREADS)

    def _holder(self, file_id: str) -> Files | Results:
        return self._results if objects.batch_of_result(file_id) else self._files

    async def create_file(self, request: Request) -> Response:
        try:
            form = await _Form(request).parse()
        except (MultiPartException, KeyError) as error:
            message = f"The body must be multipart/form-data with purpose and file: {error}"
            raise ApiError(400, message) from error
        try:
            return _answer(await self._transfer(self._files.create, form))
        finally:
            await form.close()

    async def list_files(self, request: Request) -> Response:
        after, limit = _page(request, MAX_FILES, MAX_FILES)
        if request.query_params.get("order", "desc") != "desc":
            raise wrong("order", "It must be desc: files are listed newest first.")
        if request.query_params.get("purpose", "batch") != "batch":
            return _answer_page([], more=False)  # Results are found by their batches.
        entries, more = await self._call(self._files.page, after, limit)
        return _answer_page(entries, more=more)

    async def retrieve_file(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        return _answer(await self._transfer(self._holder(file_id).retrieve, file_id))

    async def file_content(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        blocks = await self._call(self._holder(file_id).blocks, file_id)
        return StreamingResponse(self._stream(blocks), media_type="application/octet-stream")

    async def _stream(self, blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
        while (block := await self._transfer(next, blocks, b"")) != b"":
            yield block

    async def delete_file(self, request: Request) -> Response:
        file_id = request.path_params["id"]
        await self._call(self._holder(file_id).delete, file_id)
        return _answer({"id": file_id, "object": "file", "deleted": True})

    async def create_batch(self, request: Request) -> Response:
        body = b"".join([chunk async for chunk in _body(request, MAX_JSON_BYTES)])
        try:
            asked = msgspec.json.decode(body, type=NewBatch)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"The body must be a JSON object: {error}") from error
        # OpenAI's SDKs count how often they have sent a request.
        again = request.headers.get("x-stainless-retry-count", "0") != "0"
        return _answer(await self._transfer(partial(self.batches.create, asked, again=again)))

    async def list_batches(self, request: Request) -> Response:
        page = _page(request, DEFAULT_BATCHES, MAX_BATCHES)
        entries, more = await self._call(self.batches.page, *page)
        return _answer_page(entries, more=more)

    def of_batch(self, function: Callable[[str], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            return _answer(await self._call(function, request.path_params["id"]))

        return answer

    async def list_models(self, _: Request) -> Response:
        found = [model_object(model.id) for model in catalog().models if model.batch]
        return _answer({"object": "list", "data": found})

    async def retrieve_model(self, request: Request) -> Response:
        model = catalog().find(request.path_params["id"])
        if not model.batch:
            raise no_such("Model", request.path_params["id"], "model")
        return _answer(model_object(model.id))


async def _body(request: Request, most: int) -> AsyncGenerator[bytes]:
    """A request's body, chunk by chunk; `ApiError` if it is too large, or pauses for too long."""
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
            message = f"Nothing of the body came for {IDLE_SECONDS:.0f} seconds."
            raise ApiError(408, message, None, "timeout") from error
        if chunk is None:
            return
        size += len(chunk)
        if size > most:
            raise too_large
        yield chunk


def _page(request: Request, default: int, most: int) -> tuple[str, int]:
    """Which page of a list is asked for: the id before it, and how many entries."""
    given = request.query_params.get("limit", str(default))
    if not _LIMIT.fullmatch(given) or not 1 <= int(given) <= most:
        raise wrong("limit", f"It must be a number from 1 to {most:,}.")
    return request.query_params.get("after", ""), int(given)


def _answer(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def _answer_page(entries: list[dict[str, Any]], *, more: bool) -> Response:
    ids = [entry["id"] for entry in entries]
    first, last = (ids[0], ids[-1]) if ids else ("", "")
    ends = {"first_id": first, "last_id": last, "has_more": more}
    return _answer({"object": "list", "data": entries, **ends})


def _answer_error(error: ApiError) -> Response:
    return _answer(error.body(), error.status)


def _not_found(request: Request, _: Exception) -> Response:
    path = request.scope["path"]
    if request.method == "POST" and path.endswith(SINGLE_CALLS):
        return _answer_error(ApiError(400, BATCHES_ONLY, None, "batches_only"))
    message = f"Invalid URL ({request.method} {path[:200]})"
    return _answer_error(ApiError(404, message, None, "unknown_url"))
