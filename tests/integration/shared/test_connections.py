"""The client of the API against servers that misbehave below HTTP, on real sockets."""

import contextlib
import socket
import ssl
import threading
import time
from dataclasses import replace

import httpx
import pytest

from shared.workers_ai import client as module
from shared.workers_ai.client import TokenState, WorkersAI, http_client
from shared.workers_ai.replies import Accepted, OutcomeUnknown, Rejected
from shared.workers_ai.transports import Credentials, rest
from tests.support.web_server import tls_of_localhost

MODEL = "@cf/baai/bge-small-en-v1.5"
BODY = b'{"requests":[{"text":"a"}]}'
ANSWER = b'{"success":true,"result":{"status":"queued","request_id":"id-1"}}'
REPLY = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
    len(ANSWER),
    ANSWER,
)
FAR = 30.0
"""Seconds that no test lasts, unless what it tests does not work."""


class Server:
    """Listens; each connection is served by a given function in a thread of its own."""

    def __init__(self, serve):
        self.serve = serve
        self.connections = 0
        self.requests = 0
        self.closing = threading.Event()
        self.listening = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self.listening.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        with connection, contextlib.suppress(OSError):
            self.serve(self, connection)

    def read_request(self, connection):
        """One request with the body of these tests; False at the connection's end."""
        taken = b""
        while BODY not in taken and b'"request_id"' not in taken:
            if not (more := connection.recv(65536)):
                return False
            taken += more
        self.requests += 1
        return True

    def client(self):
        base = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        return WorkersAI(http_client(), rest(base, "account"), lambda fresh: Credentials("token"))


@pytest.fixture
def serving():
    servers = []

    def begin(serve):
        servers.append(Server(serve))
        return servers[-1]

    yield begin
    for server in servers:
        server.closing.set()
        server.listening.close()


def submit(api, seconds=FAR):
    with api.submit(MODEL, BODY, seconds) as reply:
        return reply


def test_submit_never_reuses_old_connection(serving):
    """After Lambda froze the process, the connection is still open here, and gone over there."""

    def serve_once_then_drop(server, connection):
        if server.read_request(connection):
            connection.sendall(REPLY)
        # and closes without an answer: nobody can know whether it was carried out
        server.read_request(connection)

    server = serving(serve_once_then_drop)
    api = server.client()

    assert [submit(api), submit(api)] == [Accepted("id-1")] * 2
    assert (server.connections, server.requests) == (2, 2)


def silent(server, connection):
    server.read_request(connection)
    server.closing.wait(FAR)


def dribble_a_head(server, connection):
    server.read_request(connection)
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    for number in range(int(FAR / 0.02)):
        connection.sendall(b"x-%d: y\r\n" % number)
        time.sleep(0.02)


def stop_in_the_body(server, connection):
    server.read_request(connection)
    connection.sendall(REPLY[:-10])
    server.closing.wait(FAR)


@pytest.mark.parametrize("serve", [silent, dribble_a_head, stop_in_the_body])
def test_post_over_tls_ends_at_its_deadline_too(serving, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "READ_SECONDS", FAR)
    at_server, authority = tls_of_localhost(tmp_path)

    def serve_tls(server, connection):
        with at_server.wrap_socket(connection, server_side=True) as wrapped:
            serve(server, wrapped)

    server = serving(serve_tls)
    api = server.client()
    at_client = ssl.create_default_context(cafile=authority)
    api.http = http_client(httpx.HTTPTransport(verify=at_client))
    address = api.transport.run_url.replace("http://127.0.0.1", "https://localhost")
    api.transport = replace(api.transport, run_url=address)
    began = time.monotonic()

    assert isinstance(submit(api, seconds=0.5), OutcomeUnknown)

    assert server.requests == 1
    assert time.monotonic() - began < FAR / 2


@pytest.mark.parametrize("serve", [silent, dribble_a_head, stop_in_the_body])
def test_post_ends_at_its_deadline(serving, serve, monkeypatch):
    monkeypatch.setattr(module, "READ_SECONDS", FAR)
    api = serving(serve).client()
    began = time.monotonic()

    assert isinstance(submit(api, seconds=0.3), OutcomeUnknown)

    assert time.monotonic() - began < FAR / 2


def test_server_that_reads_nothing_cannot_hold_post(serving):
    api = serving(lambda server, _: server.closing.wait(FAR)).client()
    began = time.monotonic()

    with api.submit(MODEL, bytes(64 << 20), 0.3) as reply:
        assert isinstance(reply, OutcomeUnknown)

    assert time.monotonic() - began < FAR / 2


def test_token_check_ends_at_its_deadline(serving, monkeypatch):
    monkeypatch.setattr(module, "TOKEN_CHECK_SECONDS", 0.3)
    api = serving(silent).client()
    began = time.monotonic()

    assert api.check_token() is TokenState.UNKNOWN

    assert time.monotonic() - began < FAR / 2


def test_what_connects_after_its_deadline_is_not_sent(serving, monkeypatch):
    server = serving(silent)
    connect = socket.create_connection

    def slowly(*arguments, **named):
        time.sleep(0.4)
        return connect(*arguments, **named)

    monkeypatch.setattr(socket, "create_connection", slowly)

    assert submit(server.client(), seconds=0.3) == Rejected(
        0, None, "no connection: ConnectTimeout"
    )
    assert server.requests == 0


def test_nothing_is_sent_when_no_time_is_left(serving):
    server = serving(silent)

    assert submit(server.client(), seconds=0.0) == Rejected(0, None, "no time left to send it")
    assert server.connections == 0
