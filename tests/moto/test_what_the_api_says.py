"""What the API says and what becomes of it: each row of the design's table, on the whole path."""

import json
import time

import pytest

from local.workers_ai import Fault, expected_result
from tests.world import TOKEN

M2M = "@cf/meta/m2m100-1.2b"
BGE = "@cf/baai/bge-small-en-v1.5"


def greetings(count):
    return [
        {"text": f"hello {number}", "target_lang": "es", "external_reference": f"r{number}"} for number in range(count)
    ]


def submits(api):
    return sum(api.calls["submit"].values())


def all_good(world, count):
    lines = world.lines()
    wanted = [expected_result(M2M, record) for record in greetings(count)]
    return [line.get("result") for line in lines] == wanted


def codes(world):
    return [None if line["success"] else line["error"]["code"] for line in world.lines()]


# ── on a submit ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["3040", "3021"])
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
