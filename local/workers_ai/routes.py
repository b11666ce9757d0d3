"""Every address of the local Workers AI: its own routes, AI Gateway's, the Worker's, and the REST API's."""

from collections.abc import Mapping

from local.workers_ai import admin, worker
from local.workers_ai.api import WorkersAI
from local.workers_ai.gateway import Gateway
from local.workers_ai.reply import Reply


class Routes:
    """One API and everything in front of it."""

    def __init__(self, api: WorkersAI) -> None:
        self._api = api
        self._gateway = Gateway(api)

    def handle(self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Answer one request; the arguments are those of `WorkersAI.handle`."""
        if path.startswith(admin.PREFIX):
            return admin.handle(self._api, method, path, body)
        if path.startswith(worker.PREFIXES):
            return worker.handle(self._api, method, path, headers, body)
        if path.startswith("/v1/"):
            return self._gateway.handle(method, path, query, headers, body)
        return self._api.handle(method, path, query, headers, body)
