"""Submits that were accepted and whose reply was lost: found by their event, and billed once; or today's policy."""

import json
import re

import pytest

import functions.poll.handler
from dropbatch.core import keys
from local.workers_ai import expected_result
from local.workers_ai.faults import Fault
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError
from shared.events import search
from shared.events.control_item import EventsItem
from shared.ledger import Ledger
from tests.support.journeys.deaths import SUBMIT, Boundaries, mortal_world

BGE = "@cf/baai/bge-small-en-v1.5"
LOST = [
    Fault(kind="accept_then_reset"),
    Fault(kind="accept_then_close"),
    Fault(kind="accept_then_truncate", at=20),
    Fault(kind="accept_then_html"),
    Fault(kind="accept_no_request_id"),
]
MARKER = re.compile(r"~db1\.[A-Za-z0-9_-]{22}")


def texts(count, *, referenced):
    more = [{"external_reference": f"row-{number}"} if referenced else {} for number in range(count)]
    return [{"text": f"text {number}", **more[number]} for number in range(count)]


@pytest.fixture
def on(start):
    """A Dropbatch that uses events."""
    return start(COMPLETION_EVENTS="yes", MAX_REQUESTS_PER_BATCH=20)


def run(world, *, referenced=False, count=50):
    """Drop a file and let it end; return its records and its manifest's batches."""
    records = texts(count, referenced=referenced)
    world.upload_records("a.jsonl", records, model=BGE)
    world.settle(minutes=60 * 30)
    return records, world.manifest()["batches"]


def unmarked(world):
    """Whether no object that a user sees has a marker."""
    return not [key for key in world.objects("results/") if MARKER.search(world.read(key).decode(errors="replace"))]


def waits(world):
    """What the jobs wait for, as their status says."""
    found = [json.loads(world.read(key))["waiting_for"] for key in world.objects() if key.endswith("status.json")]
    return {one["code"] for one in found if one}


@pytest.mark.parametrize("referenced", [False, True])
@pytest.mark.parametrize("fault", LOST, ids=lambda fault: fault.kind)
def test_lost_submit_is_found_and_billed_once(on, api, fault, referenced):
    api.inject(fault)
    records, batches = run(on, referenced=referenced)

    lines = on.lines()
    assert [line["result"] for line in lines] == [expected_result(BGE, record) for record in records]
    assert [line["external_reference"] for line in lines] == [one.get("external_reference") for one in records]
    assert len(api.accepted) == 3
    assert [one["found_submits"] for one in batches] == [1, 0, 0]
    assert [(one["attempts"], one["unknowable_submits"]) for one in batches] == [(1, 0)] * 3
    assert (on.manifest()["found_submits"], on.manifest()["unknowable_submits"]) == (1, 0)
    assert {one["request_id"] for one in batches} == {one["request_id"] for one in api.accepted}
    assert unmarked(on)


def test_every_lost_submit_is_found(on, api):
    api.inject(Fault(kind="accept_then_reset", times=3))
    _, batches = run(on)
    assert len(api.accepted) == 3
    assert [one["found_submits"] for one in batches] == [1, 1, 1]


@pytest.mark.parametrize(
    "switches", [{"echo_references": False}, {"queues_refused": "403/10000"}], ids=["no echo", "no queue"]
)
def test_unrecognized_submit_follows_todays_policy(on, api, switches):
    api.switch(**switches)
    api.inject(Fault(kind="accept_then_reset"))
    _, batches = run(on, count=20)
    assert len(api.accepted) == 2
    assert [(one["found_submits"], one["unknowable_submits"]) for one in batches] == [(0, 1)]
    assert on.manifest()["counts"]["succeeded"] == 20


def test_submit_whose_events_are_lost_follows_todays_policy(on, api):
    api.inject(Fault(kind="accept_then_reset"), Fault(kind="event_lost"))
    _, batches = run(on, count=20)
    assert len(api.accepted) == 2
    assert [(one["found_submits"], one["unknowable_submits"]) for one in batches] == [(0, 1)]


@pytest.mark.parametrize("kind", ["json_500", "accept_then_reset"], ids=["refused", "hidden"])
def test_submit_is_found_though_queue_is_not_read_for_long(on, api, kind):
    """Three pulls fail: for over 20 minutes nobody can know which events came."""
    run(on, count=20)
    api.inject(Fault(kind="accept_then_reset"), Fault(kind=kind, on="queues", contains="messages/pull", times=3))
    on.upload_records("b.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 2)
    assert len(api.accepted) == 2
    assert sorted(one["found_submits"] for one in on.manifests().values()) == [0, 1]


def test_submit_after_a_pull_that_failed_is_found(on, api):
    """For a minute nothing is pulled, and the queue keeps its events."""
    run(on, count=20)
    api.inject(Fault(kind="json_500", on="queues", contains="messages/pull"))
    api.switch(latency=40.0)
    on.upload_records("b.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=600, until=lambda: "json_500" in api.struck)
    api.inject(Fault(kind="accept_then_reset"))
    on.upload_records("c.jsonl", texts(6, referenced=False), model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 3)
    assert len(api.accepted) == 3
    assert sorted(one["found_submits"] for one in on.manifests().values()) == [0, 0, 1]


def test_submit_without_last_event_is_found(on, api):
    """Its orphan is polled as a batch of ours would be."""
    api.inject(Fault(kind="accept_then_reset"), Fault(kind="event_lost", message="succeeded"))
    _, batches = run(on, count=20)
    assert len(api.accepted) == 1
    assert [one["found_submits"] for one in batches] == [1]


def test_submit_is_found_although_its_first_poll_got_an_error_of_a_server(on, api):
    api.inject(Fault(kind="accept_then_reset"), Fault(kind="3030", on="poll", status=500))
    _, batches = run(on, count=20)
    assert len(api.accepted) == 1
    assert [one["found_submits"] for one in batches] == [1]


def test_submit_that_was_not_taken_is_sent_again(on, api):
    api.inject(Fault(kind="reset"))
    _, batches = run(on, count=20)
    assert len(api.accepted) == 1
    assert [(one["found_submits"], one["unknowable_submits"]) for one in batches] == [(0, 1)]


@pytest.mark.parametrize("fails", [False, True])
def test_answer_that_is_given_once_is_kept(on, api, monkeypatch, fails):
    store, failed = ObjectStore.put_if_absent, []

    def fail_once(of, key, *more, **named):
        if fails and "/raw-" in key and not failed:
            failed.append(key)
            raise StorageError("S3: 503")
        return store(of, key, *more, **named)

    monkeypatch.setattr(ObjectStore, "put_if_absent", fail_once)
    api.switch(answers_per_batch=1)
    api.inject(Fault(kind="accept_then_reset"))
    run(on, count=20)

    assert len(failed) == fails
    assert len(api.accepted) == 1
    assert on.manifest()["counts"]["succeeded"] == 20


@pytest.mark.parametrize("write", ["before", "after"])
def test_death_while_submit_is_accepted_loses_no_answer(on, api, monkeypatch, write):
    """The reply is stored by then, and the API gives it once: the next look finds it."""
    api.switch(answers_per_batch=1)
    api.inject(Fault(kind="accept_then_reset"))
    accept, died = Ledger.accept, []

    def die(self, batch, submission, due_at, **updates):
        if "found" in updates and not died:
            died.append(write == "after" and accept(self, batch, submission, due_at, **updates))
            raise StorageError("it dies")
        return accept(self, batch, submission, due_at, **updates)

    monkeypatch.setattr(Ledger, "accept", die)
    _, batches = run(on, count=20)

    assert died
    assert len(api.accepted) == 1
    assert on.manifest()["counts"]["succeeded"] == 20
    assert [one["found_submits"] for one in batches] == [1]


@pytest.mark.parametrize("failing", [(EventsItem, "expect_pull"), (Ledger, "look_for_submit")], ids=lambda one: one[1])
def test_search_begins_although_write_fails_once(on, api, monkeypatch, failing):
    """What was written before is not taken for a search that is not possible."""
    of, name = failing
    write, failed = getattr(of, name), []

    def fail_once(self, *arguments):
        written = write(self, *arguments)
        if not failed:
            failed.append(written)
            raise StorageError("DynamoDB: 500")
        return written

    monkeypatch.setattr(of, name, fail_once)
    api.inject(Fault(kind="accept_then_reset"))
    _, batches = run(on, count=20)
    assert failed
    assert len(api.accepted) == 1
    assert [one["found_submits"] for one in batches] == [1]


def test_two_equal_files_get_their_own_answers(on, api):
    """One reply is lost after the batch was accepted, the other batch was never taken."""
    api.inject(Fault(kind="accept_then_reset"), Fault(kind="reset", nth=2))
    for path in ("a.jsonl", "b.jsonl"):
        on.upload_records(path, texts(5, referenced=True), model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 2)
    assert len(api.accepted) == 2
    assert sorted(one["found_submits"] for one in on.manifests().values()) == [0, 1]


def test_answer_that_is_given_once_is_kept_for_a_larger_batch(on, api, monkeypatch):
    """The search for a batch of one record, which takes longer, asks for the other's id first."""
    look, began = search.look, on.now()

    def late(invocation, job, batch):
        if batch.sendable == 1 or on.now() > began + 120:
            return look(invocation, job, batch)
        return search.Look.WAITS, invocation.services.ledger.postpone(batch, on.now() + 60)

    monkeypatch.setattr(search, "look", late)
    api.switch(answers_per_batch=1)
    api.inject(Fault(kind="accept_then_reset", times=2), Fault(kind="stuck", seconds=600))
    for path, size in (("a.jsonl", 1), ("b.jsonl", 20)):
        on.upload_records(path, texts(size, referenced=True), model=BGE)
    on.settle(minutes=60 * 30, until=lambda: len(on.manifests()) == 2)

    assert len(api.accepted) == 2
    assert [one["counts"]["failed"] for one in on.manifests().values()] == [0, 0]


def test_waiting_job_says_what_is_looked_for(on, api, monkeypatch):
    api.switch(latency=3_000)
    api.inject(Fault(kind="accept_then_reset"))
    on.upload_records("a.jsonl", texts(5, referenced=False), model=BGE)
    seen = set()

    def told():
        status = on.status()["waiting_for"]
        seen.add(status and status["code"])
        return "looking_for_submit" in seen

    on.settle(minutes=600, until=told)
    assert on.status()["waiting_for"]["until"]


def test_cancelled_now_while_looking_ends_at_once(on, api):
    api.switch(latency=30_000)
    api.inject(Fault(kind="accept_then_reset"))
    on.upload_records("a.jsonl", texts(5, referenced=False), model=BGE)
    on.deliver_all()
    on.control(on.job_id(), "cancel now")
    on.settle(minutes=30)
    assert on.manifest()["state"] == "cancelled"
    assert len(api.accepted) == 1


def test_bad_record_is_isolated_whatever_the_marker(on, api):
    """The refusal is repeated once without the marker, because no batch of the model was accepted with one yet."""
    records = texts(20, referenced=False)
    records[7]["text"] = "x" * 40
    api.inject(Fault(kind="5006", contains="x" * 40, times=1_000, on="submit"))
    on.upload_records("a.jsonl", records, model=BGE)
    on.settle(minutes=600)
    assert on.manifest()["counts"] == {"total": 20, "succeeded": 19, "failed": 1}
    assert [json.loads(line)["line"] for line in on.read(f"{on.only_folder()}/errors.jsonl").splitlines()] == [8]
    assert unmarked(on)


def test_model_that_refuses_references_gets_no_markers(on, api):
    api.switch(refuse_reference=["*"])
    run(on)
    assert on.manifest()["counts"]["succeeded"] == 50
    assert on.manifest()["isolation"]["submits"] == 0
    item = next(one for one in on.items() if one["sk"]["S"].startswith("EVENTS#") and BGE in one)
    assert float(item[BGE]["M"]["unmarked_until"]["N"]) > on.now() + 29 * 86_400


@pytest.mark.parametrize("referenced", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_refusal_of_a_marker_costs_no_isolation(on, api, referenced, known):
    """Whatever the model took before: the batch is sent once without it."""
    if known:
        run(on, count=20)
    api.switch(most_reference=20)
    on.upload_records("b.jsonl", texts(40, referenced=referenced), model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 1 + known)
    (last,) = [one for one in on.manifests().values() if one["counts"]["total"] == 40]
    assert (last["counts"]["succeeded"], last["isolation"]["submits"]) == (40, 0)


def test_model_that_took_markers_gets_none_for_an_hour_after_a_refusal(on, api):
    run(on, count=20)
    api.switch(most_reference=20)
    on.upload_records("b.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 2)
    item = next(one for one in on.items() if one["sk"]["S"].startswith("EVENTS#") and BGE in one)
    assert 0 < float(item[BGE]["M"]["unmarked_until"]["N"]) - on.now() <= 3_600


def test_pieces_and_single_records_are_tried_without_marker(on, api):
    """The model refuses markers now and then, and one record is bad: no good record fails."""
    run(on, count=20)
    records = texts(20, referenced=False)
    records[7]["text"] = "x" * 40
    bad = Fault(kind="5006", contains="x" * 40, times=1_000, on="submit")
    api.inject(bad, *(Fault(kind="5006", contains="~db1.", nth=nth, on="submit") for nth in range(2, 40, 2)))
    on.upload_records("b.jsonl", records, model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 2)
    assert sorted(one["counts"]["failed"] for one in on.manifests().values()) == [0, 1]


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("referenced", [False, True])
def test_marker_that_is_shown_shortened_loses_no_answer(on, api, referenced, numbered):
    api.switch(shown_reference=12)
    if not numbered:
        api.inject(Fault(kind="unnumbered", times=0))
    records, _ = run(on, referenced=referenced or not numbered, count=20)
    assert on.manifest()["counts"]["succeeded"] == 20
    assert [line["result"] for line in on.lines()] == [expected_result(BGE, one) for one in records]
    assert len(api.accepted) == 1


def test_record_that_fails_with_marker_is_tried_without(on, api):
    api.inject(Fault(kind="item_fails", code=5006, marker="~db1.", times=0))
    run(on, count=20)
    assert on.manifest()["counts"]["succeeded"] == 20
    assert [one["count"] for one in api.accepted] == [20, 1]


def test_doubtful_submit_is_looked_for_where_events_come(on, api):
    """An error that proves nothing, of a batch that was accepted: no second bill, and no doubt is counted."""
    run(on, count=80)
    on.pass_time(120)
    on.upload_records("b.jsonl", texts(80, referenced=False), model=BGE)
    on.settle(until=lambda: len(on.manifests()) == 2)
    accepted = len(api.accepted)
    api.inject(Fault(kind="accept_then_error", code=10013, status=500))
    on.upload_records("c.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 3)
    assert len(api.accepted) == accepted + 1
    (last,) = [one for one in on.manifests().values() if one["counts"]["total"] == 5]
    assert (last["found_submits"], last["doubtful_submits"], last["unknowable_submits"]) == (1, 0, 0)


def test_submits_that_fail_for_long_are_told_of_although_each_is_looked_for(on, api):
    """Each is answered with a page, which proves nothing."""
    run(on, count=80)
    api.inject(Fault(kind="html", status=409, on="submit", times=1_000))
    on.upload_records("b.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=600, until=lambda: "submits_fail" in waits(on))
    assert len(on.manifests()) == 1


def test_refused_token_is_told_of_while_a_submit_is_looked_for(on, api):
    run(on, count=20)
    api.inject(Fault(kind="accept_then_reset"))
    on.upload_records("b.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=5, until=lambda: any("looking" in item for item in on.items()))
    api.switch(tokens=(), queues_tokens=("local-token",))
    on.settle(minutes=30, until=lambda: "token_refused" in waits(on))
    api.switch(tokens=("local-token",), queues_tokens=())
    on.settle(minutes=60, until=lambda: len(on.manifests()) == 2)
    assert sorted(one["found_submits"] for one in on.manifests().values()) == [0, 1]


def test_batch_without_marker_is_not_sent_because_a_read_failed(on, api, monkeypatch):
    run(on, count=20)
    on.pass_time(600)
    read, failures = EventsItem.state, [StorageError("DynamoDB: 500")] * 3

    def state(self):
        if failures:
            raise failures.pop()
        return read(self)

    monkeypatch.setattr(EventsItem, "state", state)
    api.inject(Fault(kind="accept_then_reset"))
    on.upload_records("b.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=600, until=lambda: len(on.manifests()) == 2)
    assert failures == []
    assert len(api.accepted) == 2


def test_looks_become_rarer_whatever_the_age(on, api):
    """So a function whose clock is behind does not look at once, again and again."""
    api.switch(latency=3_000)
    api.inject(Fault(kind="accept_then_reset"))
    on.upload_records("a.jsonl", texts(5, referenced=False), model=BGE)
    on.settle(minutes=5, until=lambda: "looking" in on.item("BATCH#"))
    batch = on.item("BATCH#")
    batch["looking"]["M"]["looks"] = {"N": "25"}
    on.dynamodb.put_item(TableName="ledger", Item=batch)
    on.pass_time(30)
    on.tick()
    on.deliver("SubmitQueue")

    batch = on.item("BATCH#")
    assert batch["looking"]["M"]["looks"] == {"N": "26"}
    assert float(batch["due_at"]["N"]) - on.now() > 25


def test_answer_that_a_dying_search_left_is_found_with_its_id(api):
    """Another batch's search saw it while this batch's POST was under way; both functions died."""
    with mortal_world(api, Boundaries(), COMPLETION_EVENTS="yes") as world:
        world.upload_records("first.jsonl", texts(1, referenced=False), model=BGE)
        world.settle()  # The queue is there.
        world.upload_records("a.jsonl", texts(5, referenced=False), model=BGE)
        world.deliver("UploadQueue")
        world.boundaries.strike_first(SUBMIT, "after")
        world.deliver("SubmitQueue", most=1)
        accepted = api.accepted[-1]
        (batch,) = [one for one in world.items() if one.get("state") == {"S": "submitting"}]
        world.pass_time(30)
        services = functions.poll.handler.services()
        with services.api.poll(BGE, accepted["request_id"], 5.0, 5) as reply:
            key = keys.raw(batch["job_id"]["S"], batch["number"]["S"], 1, 0)
            services.store.put_if_absent(key, reply.body, {search.REQUEST_ID: accepted["request_id"]})
        world.settle(minutes=600, until=lambda: len(world.manifests()) == 2)

        (told,) = [one for one in world.manifests().values() if one["counts"]["total"] == 5]
        assert len(api.accepted) == 2
        assert [(one["request_id"], one["found_submits"]) for one in told["batches"]] == [(accepted["request_id"], 1)]
        assert told["counts"]["succeeded"] == 5
