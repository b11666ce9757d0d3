"""The check of an API token: calls of Cloudflare's API that are free.

Redirects are not followed: the token goes to one host only.
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

from dropbatch.core.errors import ONE_A_STACK, first_error, holds_several
from dropbatch.errors import Error, UsageError

TIMEOUT_SECONDS = 60.0
USER_AGENT = "dropbatch"
"""Not urllib's own: Cloudflare's Browser Integrity Check refuses that (403, "error code: 1010")."""
MAX_REPLY_BYTES = 1 << 20
DEFAULT_BASE_URL = "https://api.cloudflare.com/client/v4"
HERE = {"127.0.0.1", "localhost"}
_REFUSALS = {400, 401, 403, 404}
"""Statuses that are about the token or the account; others, but 200, are not."""


@dataclass(frozen=True)
class Reply:
    """One reply: its status, and its body if that is a JSON object."""

    status: int
    body: dict[str, Any]

    @property
    def code(self) -> int | None:
        """The first error's code."""
        return first_error(self.body)[0]

    @property
    def message(self) -> str:
        """The first error's message."""
        return first_error(self.body)[1]

    @property
    def result(self) -> Any:
        """The envelope's `result`; None if there is none."""
        return self.body.get("result")

    def __str__(self) -> str:
        return f"HTTP {self.status}, code {self.code}"


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect: it would send the token to another host."""


@dataclass(frozen=True)
class Api:
    """One account: the base URL such as `DEFAULT_BASE_URL`, its 32 digits, and a token."""

    base_url: str
    account: str
    token: str = field(repr=False)

    def get(self, path: str) -> Reply:
        """GET a path below the base URL."""
        return self.call("GET", path)

    def call(self, method: str, path: str) -> Reply:
        """Call a path below the base URL; `Error` if no reply arrived."""
        url = f"{self.base_url.rstrip('/')}{path}"
        headers = {"User-Agent": USER_AGENT, "Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(url, None, headers, method=method)  # noqa: S310 - checked
        is_secure = request.type == "https"
        if not is_secure and request.host.partition(":")[0] not in HERE:
            raise UsageError(f"{url}: a token is sent over https only.")
        try:
            secure = [urllib.request.HTTPSHandler(context=_trust())] if is_secure else []
            opener = urllib.request.build_opener(_NoRedirects, *secure)
            with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
                return _reply(answer.status, answer)
        except urllib.error.HTTPError as error:
            with error:
                return _reply(error.code, error)
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise Error(f"{request.host} cannot be reached: {reason}") from error


def _trust() -> ssl.SSLContext:
    """Certificates that this machine or boto3 trusts: Python.org's Python on a Mac knows none."""
    from dropbatch.client.aws import trusted_bundles

    context = ssl.create_default_context()
    # Python 3.13 sets it. boto3 does not, and many proxies' certificates do not meet it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    for bundle in trusted_bundles():
        folder = Path(bundle).is_dir()
        try:
            context.load_verify_locations(None if folder else bundle, bundle if folder else None)
        except OSError as error:
            message = f"The certificates of AWS_CA_BUNDLE or REQUESTS_CA_BUNDLE, {bundle}: {error}"
            raise Error(message) from error
    return context


def _reply(status: int, answer: Any) -> Reply:
    try:
        body = json.loads(answer.read(MAX_REPLY_BYTES))
    except ValueError:
        body = None
    return Reply(status, body if isinstance(body, dict) else {})


def _is_active(verified: Reply) -> bool:
    """Whether a token can be used: one that has ended is verified, too."""
    told = verified.result if isinstance(verified.result, dict) else {}
    return verified.status == HTTPStatus.OK and told.get("status") not in {"disabled", "expired"}


def check_token(api: Api) -> str:
    """List one model; return what is wrong with the token and how to fix it, empty if nothing is.

    Only a submit, which is billed, would prove that it may run models.

    Raises:
        Error: no reply arrived, or one that says nothing about the token.
    """
    if not api.token or api.token != api.token.strip():
        return "The token is empty, or has a space or a line break before or after it."
    if holds_several(api.token):
        return ONE_A_STACK
    listed = _telling(api.get(f"/accounts/{api.account}/ai/models/search?per_page=1"))
    if listed.status == HTTPStatus.OK:
        return ""
    paths = ("/user/tokens/verify", f"/accounts/{api.account}/tokens/verify")
    verified = [api.get(path) for path in paths]
    if any(map(_is_active, verified)):
        return (
            f"The token is valid but may not use Workers AI in account {api.account} ({listed}). "
            'Give it "Workers AI - Read" and "Workers AI - Edit" for that account, or correct the '
            "account id."
        )
    for one in verified:
        _telling(one)
    return f"Cloudflare does not accept this token ({listed}). Create a new one."


def _telling(reply: Reply) -> Reply:
    if reply.status not in {HTTPStatus.OK, *_REFUSALS}:
        raise Error(f"Cloudflare cannot check the token now ({reply}). Try again later.")
    return reply
