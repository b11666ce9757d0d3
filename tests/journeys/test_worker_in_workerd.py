"""Whole jobs over the real Worker in workerd.

Behind whose AI binding the local Workers AI answers. Needs Node.js.
"""

import json
import subprocess
import sys
import urllib.request

import httpx
import pytest

from local import worker as real
from local.processes import ROOT, LocalAwsError, bare_environment, free_port
from local.workers_ai import Behaviour, Fault, WorkersAI, expected_result
from local.workers_ai import worker as stand_in
from local.workers_ai.codes import KNOWN
from local.workers_ai.edge import PREFIX
from tests.support.aws.resources import ACCOUNT, WAYS
from tests.support.translations import M2M, greetings

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (real.WORKER / real.INSTALLED).exists(),
        reason="needs Node.js 20: `make test-slow` installs worker/ with it",
    ),
]


class Upstream:
    """The local Workers AI in a process of its own: workerd calls it over a socket."""

    def __init__(self):
        switches = ["--switches", '{"embedder":"hash","latency":0}']
        command = [sys.executable, "-m", "local.workers_ai", *switches]
        self.process = subprocess.Popen(
            command, cwd=ROOT, env=bare_environment(), stdout=subprocess.PIPE, text=True
        )
        self.url = self.process.stdout.readline().strip().removesuffix(PREFIX)

    def local(self, path, method="GET", body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.url}/_local/{path}", data, method=method)
        ) as reply:
            return json.load(reply)

    def inject(self, **fault):
        self.local("faults", "POST", fault)


@pytest.fixture(scope="module")
def upstream():
    running = Upstream()
    yield running
    running.process.terminate()
    running.process.communicate()


class Worker:
    """The Worker in workerd, on one port for as long as the module runs."""

    def __init__(self, folder, base_url, *, raw):
        self.folder, self.base_url, self.raw = folder, base_url, raw
        for tries_left in (2, 1, 0):
            self.port = free_port()
            try:
                self.start()
                break
            except LocalAwsError:  # Somebody else has taken the port since.
                if not tries_left:
                    raise

    def start(self):
        self.service = real.start(
            self.folder, self.port, self.base_url, ACCOUNT, "local-token", raw=self.raw
        )

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def post(self, body, secret=real.LOCAL_SECRET):
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.post(
            f"{self.url}/run/{M2M}", content=body, headers=headers, timeout=30, trust_env=False
        )


@pytest.fixture(scope="module", params=["raw", "older"])
def workerd(request, upstream, tmp_path_factory):
    """The Worker behind an AI binding with raw responses, and behind one without."""
    raw = request.param == "raw"
    running = Worker(tmp_path_factory.mktemp("worker"), f"{upstream.url}/client/v4", raw=raw)
    yield running
    running.service.stop()


@pytest.fixture
def bill(upstream):
    """Gives the batches that Workers AI accepted during the test."""
    before = len(upstream.local("accepted"))
    yield lambda: upstream.local("accepted")[before:]
    upstream.local("faults", "DELETE")


@pytest.fixture
def world_over(start, workerd):
    """Starts a Dropbatch whose batches go over the Worker."""

    def begin(secret=real.LOCAL_SECRET, **settings):
        world = start(
            httpx.HTTPTransport(), **{**WAYS["worker"], "WORKER_URL": workerd.url, **settings}
        )
        world.secrets.put_secret_value(SecretId="token", SecretString=secret)
        return world

    return begin


def answered(world, count):
    return [line.get("result") for line in world.lines()] == [
        expected_result(M2M, one) for one in greetings(count)
    ]


def test_job_is_answered_and_billed_once(world_over, bill):
    world = world_over(MAX_REQUESTS_PER_BATCH=3)
    world.run("a.jsonl", greetings(7), model=M2M)
    assert answered(world, 7)
    assert [one["count"] for one in bill()] == [3, 3, 1]


def test_wrong_secret_pauses_everything(world_over, bill):
    world = world_over(secret="wrong")
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver_all()
    world.pass_time(10)
    world.tick()
    assert world.status()["waiting_for"]["code"] == "token_refused"
    assert bill() == []
    world.secrets.put_secret_value(SecretId="token", SecretString=real.LOCAL_SECRET)
    world.settle(minutes=10)
    assert answered(world, 2)


def test_nothing_is_lost_while_worker_is_down(world_over, workerd, bill):
    world = world_over()
    workerd.service.stop()
    world.upload_records("a.jsonl", greetings(2), model=M2M)
    world.deliver_all()
    world.tick()
    assert bill() == []
    workerd.start()
    world.settle()
    assert answered(world, 2)
    assert len(bill()) == 1


def test_only_old_binding_gets_pieces(world_over, workerd, upstream, bill):
    world = world_over()
    upstream.inject(kind="giant", factor=800_000)
    world.run("a.jsonl", greetings(4), model=M2M, minutes=120)
    assert world.manifest()["counts"]["succeeded"] == 4
    assert len(bill()) == (1 if workerd.raw else 1 + 4)


@pytest.mark.parametrize("kind", ["html", "bare", "reset", "accept_then_html", "accept_then_reset"])
def test_codeless_error_is_unknown_outcome(world_over, workerd, upstream, bill, kind):
    world = world_over()
    upstream.inject(kind=kind, on="submit")
    world.run("a.jsonl", greetings(2), model=M2M)
    assert answered(world, 2)
    refused = kind == "bare" and workerd.raw  # a 4xx, whose status only a raw response has
    assert world.manifest()["batches"][0]["unknowable_submits"] == (not refused)
    assert len(bill()) == 1 + kind.startswith("accept")


SENT = json.dumps({"requests": greetings(1)}).encode()


@pytest.fixture
def stand_in_reply(workerd):
    """Gives the reply of the stand-in to a body."""

    def reply(body, *faults, **switches):
        api = WorkersAI(
            Behaviour(embedder="hash", raw_response=workerd.raw, **switches), faults=faults
        )
        return stand_in.handle(
            api, "POST", f"/run/{M2M}", {"authorization": "Bearer local-token"}, body
        )

    return reply


@pytest.mark.parametrize("code", sorted(KNOWN))
@pytest.mark.parametrize("envelope", [True, False])
def test_stand_in_gives_each_error_as_worker_does(
    workerd, upstream, stand_in_reply, bill, code, envelope
):
    upstream.local("behaviour", "PUT", {"envelope": envelope})
    upstream.inject(kind=str(code))
    reply = workerd.post(SENT)
    upstream.local("behaviour", "PUT", {"envelope": True})
    copy = stand_in_reply(SENT, Fault(kind=str(code)), envelope=envelope)
    assert (copy.status, json.loads(copy.body)) == (reply.status_code, reply.json())
    assert dict(copy.headers).get("retry-after") == reply.headers.get("retry-after")


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b'{"requests":{}}', b'{"request_id":7}', b'{"requests":[]}']
)
def test_stand_in_refuses_body_as_worker_does(workerd, stand_in_reply, body):
    reply, copy = workerd.post(body), stand_in_reply(body)
    assert (copy.status, json.loads(copy.body)) == (reply.status_code, reply.json())


def test_workers_own_tests_and_types_pass():
    for script in ("check", "test"):
        done = subprocess.run(
            ["npm", "run", script], cwd=real.WORKER, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
