"""`doctor --probe` against the local Workers AI: every reading of what nobody outside knows is told right."""

import json

import httpx
import pytest

from dropbatch.cli import probe as module
from dropbatch.cli.cloudflare import Api, Reply
from dropbatch.cli.probe import Prober, lines
from dropbatch.errors import Error
from local.workers_ai import Behaviour, WorkersAI, transport
from local.workers_ai.behaviour import SwitchError, behaviour_like, switches

MODEL = "@cf/baai/bge-small-en-v1.5"
ACCOUNT = "0123456789abcdef0123456789abcdef"
BASE = "https://api.cloudflare.com/client/v4"


class Played(Api):
    """The local Workers AI in this process, in place of a connection."""

    def __init__(self, client, base_url=BASE, account=ACCOUNT, token="local-token"):
        super().__init__(base_url, account, token)
        object.__setattr__(self, "client", client)

    def __replace__(self, **changes):
        return Played(self.client, **({"account": self.account, "token": self.token} | changes))

    def send(self, method, url, body, headers):
        if self.token:
            headers = {"Authorization": f"Bearer {self.token}", **headers}
        answer = self.client.request(method, url, content=body, headers={"Accept-Encoding": "identity", **headers})
        try:
            decoded = json.loads(answer.content)
        except ValueError:
            decoded = None
        return Reply(answer.status_code, {k.lower(): v for k, v in answer.headers.items()}, decoded)


@pytest.fixture
def probe(monkeypatch):
    monkeypatch.setattr("dropbatch.cli.probe.replace", lambda api, **changes: api.__replace__(**changes))

    def run(*assignments):
        now = [1_000_000.0]
        behaviour = Behaviour(embedder="hash", latency=5.0).changed_by_text(*assignments)
        run.api = api = WorkersAI(behaviour, now=lambda: now[0])
        client = httpx.Client(transport=transport(api))

        def sleep(seconds):
            now[0] += seconds

        worker = Played(client, "https://dropbatch.example.workers.dev") if run.has_worker else None
        return Prober(Played(client), MODEL, None, worker, lambda _: None, sleep, lambda: now[0]).run()

    run.has_worker = False

    return run


def test_defaults_of_local_workers_ai_are_found(probe):
    found = probe()

    assert found["facts"] == {
        "queued": True,
        "seconds_to_ready": pytest.approx(6.6, abs=2),
        "usage": True,
        "every_record_answered": True,
        "in_order": found["facts"]["in_order"],
        "reference_returned": True,
        "events": {"queued": 1.0, "succeeded": 1.0},
    }
    defaults = {name: json.loads(default) for name, default, *_ in switches()}
    told = {name: value for name, value in found["like"].items() if name != "shapes"}
    assert {name: defaults[name] for name in told} == told


@pytest.mark.parametrize(
    "assignments",
    [
        "route_pair=true",
        "compress=true",
        "submit_status=202",
        "submit_model=false",
        "request_id_form=req",
        "empty_requests=accept",
        "strict_reference=true",
        "unqueueable_status=405",
        "pending_status=202",
        "pending_model=true",
        "pending_empty=true",
        "queued_word=pending",
        "running_word=processing",
        "unknown_id_status=400",
        "unknown_id_code=7003",
        "unknown_id_message=gone",
        "unknown_model_code=7000",
        "answers_per_batch=1",
        "model_must_match=false",
        "missing_reference=absent",
        "nested_result=true",
        "completed_status=completed",
        "bad_token=403/9109",
        "malformed_token=400/6003",
        "validation=fail_later",
        "echo_references=false",
        "queues_refused=403/10000",
        "queues_refused=page",
        "pulls_count=false",
        "subscription_names=full",
        "event_names=short",
        "event_names=without_cf",
        "event_ids=bare",
        "event_bodies=text",
        "event_bodies=object",
        *(f"validation=fail_later batch_failure={kind}" for kind in ("envelope", "error", "failed")),
        *(
            f"fault_rates.item_fails=1 item_error={form}"
            for form in ("object", "message", "string", "errors", "text", "none")
        ),
    ],
)
def test_each_reading_is_reported_correctly(probe, assignments):
    name, _, value = assignments.split()[-1].partition("=")

    found = probe(*assignments.split())

    assert str(found["like"][name]).lower() == value


@pytest.mark.parametrize(("shape", "usage"), [("A", True), ("B", False), ("B", True)])
def test_both_shapes_are_distinguished(probe, shape, usage):
    found = probe(f"shapes.*={shape}", f"shape_b_usage={str(usage).lower()}")

    assert found["like"]["shapes"] == {"*": shape}
    assert found["facts"]["usage"] is usage
    assert found["facts"]["every_record_answered"]
    assert found["facts"]["reference_returned"]


def test_batch_that_never_ends_is_given_up(probe):
    assert probe("latency=100000")["facts"]["timed_out"] is True


def test_delay_of_events_is_measured(probe):
    assert probe("event_delays.queued=2", "event_delays.succeeded=0.5")["facts"]["events"] == {
        "queued": 2.0,
        "succeeded": 0.5,
    }


def test_events_that_never_come_are_given_up(probe):
    assert probe("event_delay=1000")["facts"]["events"] == "none within 120 s"


@pytest.mark.parametrize(
    ("assignment", "told"),
    [("queues_refused=403/10000", "no queue: 403/10000"), ("fault_rates.queues:7003=1", "no queue: 404/7003")],
)
def test_events_that_may_not_be_had_are_said(probe, assignment, told):
    assert probe(assignment)["facts"]["events"] == told


def test_queue_and_subscription_are_deleted_again(probe):
    probe()

    assert probe.api.queues == []
    assert probe.api.calls["subscriptions"] == {"200": 2}


def test_refused_token_ends_probe_first(probe):
    with pytest.raises(Error, match="does not accept this token"):
        probe("tokens=another")


def test_file_holds_no_token_no_account_and_no_text(probe):
    text = json.dumps(probe())

    assert "local-token" not in text
    assert ACCOUNT not in text
    assert '"one"' not in text


def test_what_was_found_can_be_played(probe):
    given = ("submit_status=202", "shapes.*=B", "answers_per_batch=1", "unknown_id_status=400", "pending_empty=true")
    found = probe(*given)

    played = behaviour_like(json.dumps(found).encode(), Behaviour())

    wanted = Behaviour().changed_by_text(*given)
    for name in ("submit_status", "shapes", "answers_per_batch", "unknown_id_status", "pending_empty"):
        assert getattr(played, name) == getattr(wanted, name)


def test_answer_that_no_switch_can_play_is_left_out():
    probe = {"version": 1, "like": {"bad_token": "418/1", "no_such_switch": 1, "submit_status": 202}}

    played = behaviour_like(json.dumps(probe).encode(), Behaviour())

    assert (played.bad_token, played.submit_status) == (Behaviour().bad_token, 202)


def test_something_else_is_not_probe():
    with pytest.raises(SwitchError, match="probe"):
        behaviour_like(b"[]", Behaviour())


def test_every_answer_is_line(probe):
    found = probe()

    assert len(list(lines(found))) == len(found["facts"]) + len(found["like"])


@pytest.mark.parametrize(("limit", "refused"), [(0, 0), (100, 20)])
def test_limit_of_a_workers_binding_is_measured(probe, monkeypatch, limit, refused):
    """What is found is what the local Workers AI was told to do."""
    monkeypatch.setattr(module, "MOST_CALLS", 200)
    monkeypatch.setattr(module, "TOGETHER", 1)
    probe.has_worker = True

    found = probe(f"binding_limit={limit}")

    measured = found["facts"]["binding"]
    assert (measured["refused"], measured["calls"]) == (refused, 120 if limit else 200)
    assert measured["first_refused_after"] == (limit or None)
    assert found["like"]["binding_limit"] == limit
