"""What the API says and what becomes of it: each row of the design's table, on the whole path."""

import json
import time
from contextlib import ExitStack
from itertools import pairwise

import pytest

import functions.submit.split
from local.workers_ai import Fault
from shared.aws.object_store import ObjectStore
from shared.errors import StorageError
from shared.ledger import Ledger
from tests.support.deaths import SUBMIT, Boundaries, mortal_world
from tests.support.resources import TOKEN, WAYS
from tests.support.translations import M2M, all_good, codes, submits

BGE = "@cf/baai/bge-small-en-v1.5"


def only_slowly(values):
    """Parameters that differ from another one only by a row of the table of codes, which unit tests read whole."""
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


SLOW = pytest.mark.slow


NOT_OVER_A_WORKER = (
    # `retry-after`, the HTTP status of an unknown code, and replies that are no JSON stay behind the AI binding.
    "hold_as_long_as_told",
    "id_the_api_lost",
    "goes_on_by_itself[worker-error-40",
    "goes_on_by_itself[worker-redirect",
    "fails_its_whole_job_and_no_other[worker-bare",
    "whatever_the_code[worker-bare",
    "burns_nothing[worker-{'kind': 'bare'",
    # The REST API's own form and its token do not reach the Worker's callers.
    "'envelope': False",
    "until_the_secret_is_changed",
    "changed_in_mid_job",
    "7000_is_believed",
)
"""Parts of the names of tests of what the AI binding keeps from its caller."""


@pytest.fixture(params=["rest", pytest.param("gateway", marks=SLOW), pytest.param("worker", marks=SLOW)])
def way(request):
    """Every row of the table over every transport that can carry it."""
    if request.param == "worker" and any(part in request.node.name for part in NOT_OVER_A_WORKER):
        pytest.skip("the AI binding does not carry this")
    return WAYS[request.param]


def greetings(count):
    return [
        {"text": f"hello {number}", "target_lang": "es", "external_reference": f"r{number}"} for number in range(count)
    ]


# ── on a submit ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["3040", pytest.param("3021", marks=pytest.mark.slow)])
def test_a_model_without_capacity_waits_while_one_batch_of_it_tries(start, api, kind):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind=kind, on="submit", model=M2M, times=6))
    world.upload_records("a.jsonl", greetings(10), model=M2M)
    world.upload_records("b.jsonl", [{"text": "other"}], model=BGE)

    world.settle(minutes=120)

    assert {one["counts"]["failed"] for one in world.manifests().values()} == {0}
    assert len(api.accepted) == 11
    assert submits(api) <= 11 + 6 + 4


def test_too_many_calls_make_every_function_hold_as_long_as_told(world, api):
    api.inject(Fault(kind="971", on="submit", retry_after=120))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    told = time.time()
    world.upload_records("b.jsonl", greetings(3), model=M2M)
    while time.time() < told + 110:
        world.deliver_all()
        world.tick()
        world.pass_time(10)

    assert submits(api) == 1

    world.settle()
    assert len(api.accepted) == 2


def test_a_spent_quota_pauses_submits_until_midnight_and_is_told(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.pass_time(86_400 - time.time() % 86_400 + 20 * 3600)  # 20:00 UTC
    api.inject(Fault(kind="3036", on="submit", nth=2, times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    evening = submits(api)

    world.settle(minutes=10 * 60, until=lambda: time.time() % 86_400 > 23 * 3600)

    waiting = world.status()["waiting_for"]
    assert waiting["code"] == "quota_spent"
    assert waiting["until"].endswith("T00:00:00Z")
    assert submits(api) - evening <= 3 * 2 + 1
    assert world.status()["counts"]["succeeded"] == 1

    api.clear_faults()
    world.settle(minutes=10 * 60)
    assert all_good(world, 3)


def test_a_refused_token_pauses_everything_until_the_secret_is_changed(world, api):
    api.switch(tokens=("new-token",))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    began = time.time()
    world.settle(minutes=180, until=lambda: time.time() > began + 7_200)

    assert world.status()["waiting_for"]["code"] == "token_refused"
    assert submits(api) <= 10 + 110 / 5 + 5

    secret = world.secrets.list_secrets()["SecretList"][0]["ARN"]
    world.secrets.put_secret_value(SecretId=secret, SecretString="new-token")
    world.settle(minutes=30)
    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.refused == []


def test_a_secret_changed_in_mid_job_is_read_at_once(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    world.upload_records("a.jsonl", greetings(1), model=M2M)
    world.settle()
    api.switch(tokens=("new-token",))
    secret = world.secrets.list_secrets()["SecretList"][0]["ARN"]
    world.secrets.put_secret_value(SecretId=secret, SecretString="new-token")
    assert TOKEN != "new-token"

    world.upload_records("b.jsonl", greetings(3), model=M2M)
    world.settle()

    assert api.calls["submit"].get("401", 0) == 1


def test_bad_records_are_found_by_halving_and_only_they_fail(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=64)
    records = greetings(100)
    for bad in (3, 40, 99):
        records[bad]["target_lang"] = 7
    world.upload_records("a.jsonl", records, model=M2M)

    world.settle(minutes=120)

    assert [number for number, code in enumerate(codes(world)) if code] == [3, 40, 99]
    assert set(codes(world)) == {None, "rejected"}
    assert submits(api) <= 3 * (2 * 7 + 1) + 2


def test_a_job_whose_every_lone_record_is_refused_stops_trying(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=64)
    world.upload_records("a.jsonl", [{"text": "x", "target_lang": 7}] * 64, model=M2M)

    world.settle(minutes=240)

    assert set(codes(world)) == {"rejected"}
    assert world.manifest()["state"] == "completed"
    assert submits(api) <= 40
    assert any("Not" in line["error"]["message"] for line in world.lines())


@pytest.mark.parametrize(
    "kind", ["accept_then_reset", "accept_then_close", "accept_then_html", "accept_then_truncate", "accept_then_hang"]
)
def test_a_submit_nobody_can_know_of_is_tried_once_more_and_counted(world, api, kind):
    api.inject(Fault(kind=kind))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 2
    assert world.manifest()["batches"][0]["unknowable_submits"] == 1
    assert world.manifest()["batches"][0]["attempts"] == 2


def test_a_second_unknowable_submit_ends_the_batch(world, api):
    api.inject(Fault(kind="accept_then_reset", times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert codes(world) == ["submit_unknown"] * 3
    assert len(api.accepted) == 2
    assert len(world.lines("retry.jsonl")) == 3


def test_the_owner_can_choose_that_nothing_is_ever_sent_twice(start, api):
    world = start(AMBIGUOUS_SUBMIT="fail")
    api.inject(Fault(kind="accept_then_reset"))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert codes(world) == ["submit_unknown"] * 3
    assert len(api.accepted) == 1


def test_an_outage_does_not_spend_everyones_second_try(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="accept_then_reset", times=4))
    world.upload_records("a.jsonl", greetings(12), model=M2M)

    world.settle(minutes=240)

    assert len(api.accepted) <= 12 + 4
    assert codes(world).count("submit_unknown") <= 2


@pytest.mark.parametrize("kind", ["refuse", "json_500", "10013"])
def test_a_submit_surely_not_taken_is_tried_again_and_billed_once(world, api, kind):
    api.inject(Fault(kind=kind, on="submit", times=3))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


def test_an_answer_that_comes_at_once_is_used(world, api):
    api.inject(Fault(kind="sync_answer"))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert sum(api.calls.get("poll", {}).values()) == 0


# ── on a poll ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "kind", ["html", "reset", "hang", "truncated_json", "truncated_body", "slow_body", "json_500", "refuse"]
)
def test_a_poll_without_an_answer_is_asked_again_and_billed_once(world, api, kind):
    api.inject(Fault(kind=kind, on="poll", times=2))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


@pytest.mark.parametrize("failure", ["envelope", "error", "failed"])
def test_a_batch_that_failed_after_acceptance_is_halved_to_the_bad_record(start, api, failure):
    world = start(MAX_REQUESTS_PER_BATCH=8)
    api.switch(batch_failure=failure)
    api.inject(Fault(kind="batch_fails", contains="hello 5", times=0, code=3030))
    world.upload_records("a.jsonl", greetings(8), model=M2M)

    world.settle(minutes=120)

    assert codes(world) == [None] * 5 + ["rejected"] + [None] * 2


def test_the_same_server_error_five_polls_running_is_a_failed_batch(world, api):
    api.inject(Fault(kind="batch_fails", contains="hello 1", times=0, code=5001, status=500))
    world.upload_records("a.jsonl", greetings(2), model=M2M)

    world.settle(minutes=120)

    assert codes(world) == [None, "rejected"]


def test_a_batch_pending_past_its_deadline_is_submitted_three_times_and_expires(start, api):
    world = start(BATCH_DEADLINE_HOURS=1)
    api.inject(Fault(kind="stuck", times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(minutes=6 * 60)

    assert codes(world) == ["expired"] * 3
    assert len(api.accepted) == 3
    assert len(world.lines("retry.jsonl")) == 3


def test_an_overdue_batch_is_not_submitted_again_where_nothing_may_be_sent_twice(start, api):
    world = start(BATCH_DEADLINE_HOURS=1, AMBIGUOUS_SUBMIT="fail")
    api.inject(Fault(kind="stuck", times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(minutes=6 * 60)

    assert codes(world) == ["expired"] * 3
    assert len(api.accepted) == 1


def test_an_id_the_api_lost_is_submitted_again(world, api):
    api.inject(Fault(kind="error", on="poll", code=10404, status=404, times=12))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert 1 <= len(api.accepted) <= 3


def test_an_id_unknown_only_for_a_moment_is_not_submitted_again(world, api):
    api.inject(Fault(kind="error", on="poll", code=10404, status=404, times=3))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


# ── in the answer ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "switches",
    [
        {"shapes": {"*": "A"}},
        {"shapes": {"*": "B"}},
        {"envelope": False},
        {"submit_status": 202, "pending_status": 202},
        {"pending_empty": True},
        {"empty_array": "responses"},
        {"empty_array": "results", "envelope": False},
        {"queued_word": "waiting", "running_word": "cooking"},
        {"missing_reference": "absent"},
        {"completed_status": "completed"},
        {"compress": True},
        {"error_result": "absent"},
    ],
    ids=str,
)
def test_every_form_of_a_reply_is_understood(world, api, switches):
    api.switch(**switches)
    world.upload_records("a.jsonl", greetings(7), model=M2M)

    world.settle()

    assert all_good(world, 7)


@pytest.mark.parametrize("kind", ["repeated", "foreign", "null_reference"])
def test_odd_items_do_not_disturb_the_others(world, api, kind):
    api.inject(Fault(kind=kind))
    world.upload_records("a.jsonl", greetings(7), model=M2M)

    world.settle()

    assert all_good(world, 7)


def test_items_missing_at_first_are_asked_for_again(world, api):
    api.inject(Fault(kind="missing", items=(1, 3), first=1))
    world.upload_records("a.jsonl", greetings(7), model=M2M)

    world.settle()

    assert all_good(world, 7)
    assert len(api.accepted) == 1


def test_items_missing_for_good_fail_alone(world, api):
    api.inject(Fault(kind="missing", items=(1, 3)))
    world.upload_records("a.jsonl", greetings(5), model=M2M)

    world.settle()

    assert codes(world) == [None, "missing_response", None, "missing_response", None]
    assert [error["request"]["text"] for error in world.lines("errors.jsonl")] == ["hello 1", "hello 3"]


@pytest.mark.parametrize("kind", ["contradicting", "swapped_reference"])
def test_answers_that_contradict_each_other_are_never_guessed_at(world, api, kind):
    api.inject(Fault(kind=kind, items=(1, 3)))
    world.upload_records("a.jsonl", greetings(5), model=M2M)

    world.settle()

    assert codes(world) == [None, "missing_response", None, "missing_response", None]


@pytest.mark.parametrize("form", ["object", "message", "string", "errors", "text", "none"])
def test_a_failed_item_fails_its_record_with_the_apis_words(world, api, form):
    api.switch(item_error=form)
    api.inject(Fault(kind="item_fails", items=(2,), code=5001, message="model says no"))
    world.upload_records("a.jsonl", greetings(4), model=M2M)

    world.settle()

    assert codes(world) == [None, None, "inference_failed", None]
    words = world.lines()[2]["error"]["message"]
    assert "model says no" in words or form == "none"
    assert json.loads(world.read(f"{world.only_folder()}/retry.jsonl"))["text"] == "hello 2"


@pytest.mark.parametrize("code", [3040, 3007, 3008, 3021, 971])
def test_records_the_service_was_short_for_are_tried_again_by_themselves(world, api, code):
    api.inject(Fault(kind="item_fails", items=(1, 3), code=code, first=1))
    world.upload_records("a.jsonl", greetings(5), model=M2M)

    world.settle()

    assert all_good(world, 5)
    assert [one["count"] for one in api.accepted] == [5, 2]
    assert world.manifest()["batches"][0]["attempts"] == 2


def test_records_the_service_stays_short_for_fail_after_two_retries(world, api):
    api.inject(Fault(kind="item_fails", marker="hello 3", code=3040, times=0, share=0))
    world.upload_records("a.jsonl", greetings(5), model=M2M)

    world.settle()

    assert codes(world) == [None, None, None, "inference_failed", None]
    assert "3040" in world.lines()[3]["error"]["message"]
    assert [one["count"] for one in api.accepted] == [5, 1, 1]
    assert world.manifest()["usage"]["total_tokens"] > 0


def test_a_retry_that_is_refused_leaves_the_first_answers(world, api):
    api.inject(Fault(kind="item_fails", items=(1,), code=3040), Fault(kind="5006", on="submit", nth=2, times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert codes(world) == [None, "inference_failed", None]
    assert "3040" in world.lines()[1]["error"]["message"]


# ── each code of the design's table ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "10000", "status": 403},
        {"kind": "error", "status": 401},
        {"kind": "redirect"},
        {"kind": "error", "status": 403},
        *only_slowly({"kind": code, "status": 403} for code in ("9106", "9109", "6003", "3023", "7003")),
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('status')}",
)
def test_a_refused_token_or_account_pauses_everything_and_goes_on_by_itself(world, api, fault):
    api.inject(Fault(on="submit", times=3, **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.tick()
    assert world.status()["waiting_for"]["code"] == "token_refused"

    world.settle(minutes=30)

    assert all_good(world, 3)
    assert submits(api) == 4


@pytest.mark.parametrize(
    "fault",
    [
        *({"kind": code, "status": 400} for code in ("5007", "7000")),
        *only_slowly({"kind": code, "status": 400} for code in ("3042", "5016", "5018", "3041", "5035", "5005")),
        {"kind": "error", "code": 8007, "status": 400, "message": "Model does not support request queuing"},
        {"kind": "bare", "status": 410},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault.get('code', '')}",
)
def test_a_model_that_cannot_be_had_fails_its_whole_job_and_no_other(start, api, fault):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(on="submit", model=M2M, times=0, **fault))
    world.upload_records("a.jsonl", greetings(6), model=M2M)
    world.upload_records("b.jsonl", [{"text": "other"}], model=BGE)

    world.settle()

    told = {one["model"]: (one["state"], (one["error"] or {}).get("code")) for one in world.manifests().values()}
    assert told == {M2M: ("failed", "unknown_model"), BGE: ("completed", None)}
    assert submits(api) == 2


def test_7000_is_believed_of_a_model_only_with_a_good_token(world, api):
    api.switch(tokens=("new-token",))
    api.inject(Fault(kind="7000", on="submit", status=400))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.tick()

    assert world.status()["waiting_for"]["code"] == "token_refused"

    api.switch(tokens=(TOKEN,))
    world.settle(minutes=30)
    assert all_good(world, 3)


@pytest.mark.parametrize(
    "fault",
    [
        {"kind": "5006", "status": 400, "message": "bad"},
        *only_slowly({"kind": code, "status": 400, "message": "bad"} for code in ("5004", "3003", "3006", "8007")),
        {"kind": "bare", "status": 413},
        {"kind": "bare", "status": 400},
    ],
    ids=lambda fault: f"{fault['kind']}-{fault['status']}",
)
def test_a_refused_request_fails_alone_whatever_the_code(world, api, fault):
    api.inject(Fault(on="submit", contains="hello 1", times=0, **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert codes(world) == [None, "rejected", None]


@pytest.mark.parametrize("fault", [{"kind": "bare", "status": 429}, {"kind": "971", "retry_after": 0}], ids=str)
def test_a_429_that_does_not_say_how_long_holds_for_a_minute_and_burns_nothing(world, api, fault):
    api.inject(Fault(on="submit", **fault))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert all_good(world, 3)
    assert submits(api) == 2
    assert world.manifest()["batches"][0]["attempts"] == 1


def test_polls_go_on_while_a_spent_quota_pauses_submits(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="4006", on="submit", nth=2, times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(minutes=10, until=lambda: world.status()["counts"]["succeeded"] == 1)

    assert world.status()["waiting_for"]["code"] == "quota_spent"


def test_a_pause_that_an_operator_deletes_is_over_within_five_minutes(world, api):
    api.inject(Fault(kind="3036", on="submit"))
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver_all()
    world.dynamodb.delete_item(TableName="ledger", Key={"pk": {"S": "CONTROL"}, "sk": {"S": "PAUSE"}})

    world.settle(minutes=7)

    assert all_good(world, 3)


@pytest.mark.faults
def test_records_that_fail_only_together_are_answered_one_by_one(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=128)
    api.inject(Fault(kind="batch_fails", contains="},{", times=0, code=3030))
    world.upload_records("a.jsonl", greetings(128), model=M2M)

    world.settle(minutes=6 * 60)

    assert len(api.accepted) == 1 + 16 + 128
    assert all_good(world, 128)


# ── the one window ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mortal(api):
    """A world in which a function can die; starts as `start` does."""
    with ExitStack() as kept:
        yield lambda **settings: kept.enter_context(mortal_world(api, Boundaries(), **settings))


def die_after_the_submit(world, mode="after"):
    """Upload, and let the function die between the API's yes and the table's."""
    world.upload_records("a.jsonl", greetings(3), model=M2M)
    world.deliver("UploadQueue")
    world.boundaries.strike_first(SUBMIT, mode)
    world.deliver("SubmitQueue", most=1)
    assert world.boundaries.struck == SUBMIT


def message_of_the_batch(world):
    """A message for the first batch, as a duplicate or a tick would send it."""
    (batch,) = [item for item in world.items() if item["sk"]["S"] == "BATCH#00000000"]
    body = {"do": "submit", "job_id": batch["job_id"]["S"], "number": "00000000"}
    world.sqs.send_message(QueueUrl=world.queues["SubmitQueue"], MessageBody=json.dumps(body))
    return float(batch["fence"]["N"])


def test_nobody_tries_a_batch_again_before_its_fence_and_the_next_message_behind_it_does_at_once(mortal, api):
    world = mortal()
    die_after_the_submit(world)
    fence = message_of_the_batch(world)
    while time.time() < fence - 20:
        world.deliver_all()
        world.tick()
        world.pass_time(5)
    assert len(api.accepted) == 1
    assert fence - world.now() < 400

    world.pass_time(fence - world.now())
    message_of_the_batch(world)
    world.deliver("SubmitQueue")

    assert len(api.accepted) == 2, "settled and sent again by the same message"
    world.settle()
    assert all_good(world, 3)
    assert world.manifest()["batches"][0]["unknowable_submits"] == 1


def test_a_function_that_died_before_its_post_costs_no_second_bill(mortal, api):
    world = mortal()
    die_after_the_submit(world, "before")

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1


def test_a_request_id_that_the_table_refuses_is_found_in_its_receipt(world, api, monkeypatch):
    def refuses(*_):
        raise StorageError("the table is away")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "accept", refuses)
        world.upload_records("a.jsonl", greetings(3), model=M2M)
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue")
    assert [key.rpartition("/")[2] for key in world.objects("staging/") if "receipt" in key] == ["receipt-1"]

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.manifest()["batches"][0]["unknowable_submits"] == 0
    assert world.manifest()["batches"][0]["request_id"] == api.accepted[0]["request_id"]


def test_an_answer_at_once_whose_function_died_is_found_and_used(world, api, monkeypatch):
    def refuses(*_):
        raise StorageError("the table is away")

    api.inject(Fault(kind="sync_answer"))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "accept", refuses)
        patch.setattr(ObjectStore, "put_if_absent", once_then_refuse(ObjectStore.put_if_absent))
        world.upload_records("a.jsonl", greetings(3), model=M2M)
        world.deliver("UploadQueue")
        world.deliver("SubmitQueue")

    world.settle()

    assert all_good(world, 3)
    assert len(api.accepted) == 1
    assert world.manifest()["batches"][0]["unknowable_submits"] == 0


def once_then_refuse(real):
    """Receipts are refused: only the raw answer is there to tell of the submit."""

    def put(store, key, body, metadata=None, kind=""):
        if "receipt" in key:
            raise StorageError("S3 is away")
        return real(store, key, body, metadata, kind)

    return put


def test_an_answer_at_once_larger_than_memory_should_hold_is_used(world, api):
    api.inject(Fault(kind="sync_answer"), Fault(kind="giant", items=(1,), factor=60_000))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert [line["success"] for line in world.lines()] == [True] * 3
    assert len(world.read(f"{world.only_folder()}/output.jsonl")) > 1 << 20


@pytest.mark.faults
def test_while_submits_are_unknowable_one_batch_at_a_time_is_tried_backing_off_to_five_minutes(start, api):
    world = start(MAX_REQUESTS_PER_BATCH=1)
    api.inject(Fault(kind="accept_then_reset", times=0))
    world.upload_records("a.jsonl", greetings(40), model=M2M)
    seen = []
    until = world.now() + 3_600
    while world.now() < until:
        world.deliver_all()
        world.tick()
        seen += [world.now()] * (len(api.accepted) - len(seen))
        world.pass_time(20)

    pauses = [later - earlier for earlier, later in pairwise(seen)]
    assert len(seen) <= 6 + 3_600 / 300
    assert max(pauses) <= 420
    assert pauses[-1] >= 270
    assert world.status()["waiting_for"]["code"] == "outage"


def test_of_several_ids_the_first_complete_answer_wins(start, api):
    world = start(BATCH_DEADLINE_HOURS=1)
    api.inject(Fault(kind="stuck", seconds=4_500), Fault(kind="stuck", nth=2, times=0))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle(minutes=120)

    assert all_good(world, 3)
    assert len(api.accepted) == 2
    assert world.manifest()["batches"][0]["attempts"] == 2


def test_an_upload_is_read_on_while_its_last_batch_so_far_is_being_halved(start, api, monkeypatch):
    monkeypatch.setattr(functions.submit.split, "TURN_SECONDS", -1.0)
    world = start(MAX_REQUESTS_PER_BATCH=2)
    records = greetings(5)
    records[1]["target_lang"] = 7
    world.upload_records("a.jsonl", records, model=M2M)
    world.deliver("UploadQueue")
    real = Ledger.create_batch

    def only_one_piece(ledger, batch):
        if len(batch.number) > 8 and any(len(one.number) > 8 for one in ledger.batches(batch.job_id)):
            raise StorageError("the table is away")
        return real(ledger, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "create_batch", only_one_piece)
        world.deliver("SubmitQueue")
        for _ in range(3):
            world.tick()
            world.deliver("PollQueue")
    assert [item["sk"]["S"] for item in world.items() if "." in item["sk"]["S"]] == ["BATCH#00000000.1"]
    (job,) = [item for item in world.items() if item["sk"]["S"] == "META"]
    body = json.dumps({"do": "split", "job_id": job["job_id"]["S"]})
    world.sqs.send_message(QueueUrl=world.queues["UploadQueue"], MessageBody=body)
    refused = len(world.refused)
    world.deliver("UploadQueue")
    assert len(world.refused) == refused

    world.settle()

    assert codes(world) == [None, "rejected", None, None, None]
