"""The two ways to reach the batch API: the address, the headers and the limits of each.

`rest` is Cloudflare's REST API, through an AI Gateway if one is named. `worker` is the Worker of
`worker/`, which calls Workers AI through its AI binding. Replies and errors of both are the same
data, see `shared.workers_ai.replies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dropbatch.core.errors import ONE_A_STACK, holds_several
from shared.settings import Settings

NO_TOKEN = "The secret holds no token."  # noqa: S105 - no token
"""What is said of a secret without a value, or with one that is no token."""


class Credentials(NamedTuple):
    """What calls carry: the API token or the Worker's secret, and a gateway's own token."""

    token: str
    gateway_token: str = ""

    def fault(self) -> str:
        """Why no header can hold them, empty if one can: that must not look like a lost POST."""
        if holds_several(self.token):
            return ONE_A_STACK
        given = (self.token, self.gateway_token) if self.gateway_token else (self.token,)
        is_sent = all(one and one.isascii() and one.isprintable() for one in given)
        return "" if is_sent and " " not in self.gateway_token else NO_TOKEN


@dataclass(frozen=True, slots=True)
class Transport:
    """One way to the API of one account."""

    run_url: str  # to which the model id is added
    check_url: str  # of the free call that shows whether the token is valid
    headers: Mapping[str, str] = field(default_factory=dict)
    account_url: str = ""  # of the account's other APIs, if this transport has any

    def url(self, model: str) -> str:
        """Address of a model's submits and polls."""
        return f"{self.run_url}{model}?queueRequest=true"

    def request_headers(self, credentials: Credentials) -> dict[str, str]:
        """Headers of a submit or a poll."""
        gateway = credentials.gateway_token
        authorized = {"cf-aig-authorization": f"Bearer {gateway}"} if gateway else {}
        return {**self.check_headers(credentials), **authorized, **self.headers}

    @staticmethod
    def check_headers(credentials: Credentials) -> dict[str, str]:
        """Headers of the free call."""
        return {"authorization": f"Bearer {credentials.token}", "content-type": "application/json"}


GATEWAY_HEADERS = {"cf-aig-skip-cache": "true", "cf-aig-max-attempts": "1"}
"""All polls of a batch have one body, so a cached reply would be outdated; no second submit."""


def rest(base_url: str, account: str, gateway_id: str = "") -> Transport:
    """The REST API: its address up to `/client/v4`, the account, an AI Gateway's name if any."""
    account_url = f"{base_url}/accounts/{account}"
    headers = {"cf-aig-gateway-id": gateway_id, **GATEWAY_HEADERS} if gateway_id else {}
    return Transport(
        f"{account_url}/ai/run/", f"{account_url}/ai/models/search?per_page=1", headers, account_url
    )


def worker(url: str) -> Transport:
    """The Worker in front of the AI binding, at its address."""
    return Transport(f"{url}/run/", f"{url}/check")


def transport_of(settings: Settings) -> Transport:
    """The transport that an operator chose."""
    if settings.transport == "worker":
        return worker(settings.worker_url)
    return rest(
        settings.workers_ai_base_url, settings.cloudflare_account_id, settings.ai_gateway_id
    )
