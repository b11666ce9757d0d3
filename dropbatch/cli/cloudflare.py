"""The part of Cloudflare's API that the doctor calls.

Redirects are not followed; the token goes to one host only.
"""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from dropbatch.core.api_tokens import ONE_A_STACK, holds_several
from dropbatch.core.errors import first_error
from dropbatch.errors import Error, UsageError

TIMEOUT_SECONDS = 60.0
USER_AGENT = "dropbatch"
"""Not urllib's own: Cloudflare's Browser Integrity Check refuses that (403, "error code: 1010")."""
MAX_REPLY_BYTES = 64 << 20
"""The public list of models has 20 MB, with their schemas."""
DEFAULT_BASE_URL = "https://api.cloudflare.com/client/v4"
_REFUSALS = {400, 401, 403, 404}
"""Statuses that are about the token or the account; others, but 200, are not."""


@dataclass(frozen=True)
class Reply:
    """One reply.

    Attributes:
        status: the HTTP status.
        headers: by name in lower case.
        body: decoded JSON; None for anything else.
    """

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def code(self) -> int | None:
        """The first error's code."""
        return first_error(self.body)[0] if isinstance(self.body, dict) else None

    @property
    def message(self) -> str:
        """The first error's message."""
        return first_error(self.body)[1] if isinstance(self.body, dict) else ""

    @property
    def result(self) -> Any:  # noqa: ANN401 - JSON
        """The envelope's `result`, or the body if there is no envelope."""
        if isinstance(self.body, dict) and "success" in self.body and "result" in self.body:
            return self.body["result"]
        return self.body


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - urllib's
        """Follow no redirect: it would send the token to another host."""


@dataclass(frozen=True)
class Api:
    """One account.

    Attributes:
        base_url: such as https://api.cloudflare.com/client/v4.
        account: 32 hexadecimal digits.
        token: sent in the header Authorization; empty for none.
    """

    base_url: str
    account: str
    token: str = field(repr=False)

    def get(self, path: str) -> Reply:
        """GET a path below the base URL."""
        return self.send("GET", f"{self.base_url}{path}", None, {})

    def call(self, method: str, path: str, body: object = None) -> Reply:
        """Call a path below the base URL, with a JSON body if there is one."""
        sent = None if body is None else json.dumps(body).encode()
        return self.send(
            method,
            f"{self.base_url}{path}",
            sent,
            {"Content-Type": "application/json"} if sent else {},
        )

    def run(
        self, model: str, body: dict[str, Any], *, query: str = "?queueRequest=true", **headers: str
    ) -> Reply:
        """POST to a model."""
        url = f"{self.base_url}/accounts/{self.account}/ai/run/{model}{query}"
        return self.send(
            "POST", url, json.dumps(body).encode(), {"Content-Type": "application/json", **headers}
        )

    def send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> Reply:
        """Send one request.

        Raises:
            Error: no reply arrived.
        """
        headers = {"User-Agent": USER_AGENT, **headers}
        if self.token:
            headers = {"Authorization": f"Bearer {self.token}", **headers}
        request = urllib.request.Request(url, body, headers, method=method)  # noqa: S310 - checked below
        if request.type != "https" and request.host.partition(":")[0] not in {
            "127.0.0.1",
            "localhost",
        }:
            raise UsageError(f"{url}: a token is sent over https only.")
        try:
            secure = (
                urllib.request.HTTPSHandler(context=_trust())
                if request.type == "https"
                else _NoRedirects
            )
            with urllib.request.build_opener(_NoRedirects, secure).open(
                request, timeout=TIMEOUT_SECONDS
            ) as answer:
                return _reply(answer.status, answer.headers, answer.read(MAX_REPLY_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error.code, error.headers, error.read(MAX_REPLY_BYTES))
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise Error(f"{request.host} cannot be reached: {reason}") from error


def _trust() -> ssl.SSLContext:
    """Certificates that this machine or boto3 trusts.

    Python.org's Python on a Mac knows none, a proxy has its own.

    Raises:
        Error: a file that a variable names cannot be read.
    """
    from dropbatch.client.aws import trusted_bundles

    context = ssl.create_default_context()
    # Python 3.13 sets it. boto3 does not, and many proxies' certificates do not meet it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for bundle in trusted_bundles():
        folder = Path(bundle).is_dir()
        try:
            context.load_verify_locations(None if folder else bundle, bundle if folder else None)
        except OSError as error:
            raise Error(
                f"The certificates of AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE, {bundle}: {error}"
            ) from error
    return context


def _reply(status: int, headers: Any, body: bytes) -> Reply:  # noqa: ANN401 - urllib's
    named = {name.lower(): value for name, value in headers.items()}
    if named.get("content-encoding") == "gzip":
        import gzip

        body = gzip.decompress(body)
    try:
        return Reply(status, named, json.loads(body))
    except ValueError:
        return Reply(status, named, None)


def _is_active(verified: Reply) -> bool:
    """Whether a token that was verified can still be used.

    Cloudflare also verifies one that has ended.
    """
    ended = isinstance(verified.result, dict) and verified.result.get("status") in {
        "disabled",
        "expired",
    }
    return verified.status == HTTPStatus.OK and not ended


def api_of(base_url: str, account: str, token: str) -> Api:
    """The API as a token calls it; `base_url` perhaps with a slash at its end."""
    return Api(base_url.rstrip("/"), account, token)


def check_token(api: Api) -> str:
    """List one model, which is free.

    Return what is wrong with the token and how to fix it, empty if nothing is.

    Success proves that the token is valid and may read Workers AI in this account. Only a submit,
    which is billed, would prove that it may run models.

    Raises:
        Error: no reply arrived, or one that says nothing about the token.
    """
    if not api.token or api.token != api.token.strip():
        return "The token is empty, or has a space or a line break before or after it."
    if holds_several(api.token):
        return ONE_A_STACK
    reply = api.get(f"/accounts/{api.account}/ai/models/search?per_page=1")
    if reply.status == HTTPStatus.OK:
        return ""
    _must_tell(reply)
    said = f"HTTP {reply.status}, code {reply.code}"
    verified = [
        api.get(path) for path in ("/user/tokens/verify", f"/accounts/{api.account}/tokens/verify")
    ]
    if any(map(_is_active, verified)):
        return (
            f"The token is valid but may not use Workers AI in account {api.account} "
            f"({said}). Give it "
            '"Workers AI - Read" and "Workers AI - Edit" for that account, or correct the '
            "account id."
        )
    for one in verified:
        _must_tell(one)
    return f"Cloudflare does not accept this token ({said}). Create a new one."


def _must_tell(reply: Reply) -> None:
    """Check that a reply says something about the token.

    Raises:
        Error: it does not.
    """
    if reply.status not in {HTTPStatus.OK, *_REFUSALS}:
        said = f"HTTP {reply.status}, code {reply.code}"
        raise Error(f"Cloudflare cannot check the token now ({said}). Try again later.")
