"""The queue and its subscriptions.

Made once, found again, corrected, left alone where they are not ours, removed.
"""

import httpx
import pytest

from shared.errors import StorageError
from shared.events import set_up
from shared.events.control_item import Subscription
from shared.events.set_up import OF_WORKER, TAKEN, remove, subscribe, subscription_name
from shared.pacing.budget import Free
from shared.workers_ai.queues_api import (
    CONSUMER,
    EVENTS,
    QUEUE_SETTINGS,
    NoCallLeftError,
    QueuesRefusedError,
)
from tests.support.doubles.api_client import refusal
from tests.support.doubles.ledger_items import T

M3 = "@cf/baai/bge-m3"
M2M = "@cf/meta/m2m100-1.2b"
DAY, HOUR = 86_400.0, 3_600.0
FIRST = [
    "GET /queues",
    "POST /queues",
    "GET /queues/q1/consumers",
    "POST /queues/q1/consumers",
    "POST /event_subscriptions/subscriptions",
]
"""The calls of the first submit of a stack."""


def made(cloudflare):
    """What exists: names of queues, types of consumers.

    And by model the queue that its events go to.
    """
    return (
        [one["queue_name"] for one in cloudflare.queues.values()],
        [one["type"] for found in cloudflare.consumers.values() for one in found],
        {
            one["source"]["model_name"]: one["destination"]["queue_id"]
            for one in cloudflare.subscriptions.values()
        },
    )


WHOLE = (["dropbatch-q"], ["http_pull"], {M3: "q1"})


def test_first_submit_makes_queue_and_subscription(stack):
    subscribe(stack.services, M3)

    assert stack.cloudflare.calls == FIRST
    assert made(stack.cloudflare) == WHOLE
    (queue,), ((consumer,),) = stack.cloudflare.queues.values(), stack.cloudflare.consumers.values()
    assert queue["settings"] == QUEUE_SETTINGS
    assert consumer["settings"] == CONSUMER["settings"]
    (subscription,) = stack.cloudflare.subscriptions.values()
    assert subscription["events"] == list(EVENTS)
    assert (stack.state.queue_id, stack.state.subscriptions[M3].id) == ("q1", "s3")


def test_later_submits_call_nothing(stack):
    subscribe(stack.services, M3)
    for _ in range(2):
        stack.clock += 61
        subscribe(stack.services, M3)
    stack.restart()
    subscribe(stack.services, M3)

    assert stack.cloudflare.calls == FIRST


def test_other_model_is_only_subscribed(stack):
    subscribe(stack.services, M3)
    subscribe(stack.services, M2M)

    assert stack.cloudflare.calls[5:] == ["POST /event_subscriptions/subscriptions"]
    assert made(stack.cloudflare)[2] == {M3: "q1", M2M: "q1"}


@pytest.mark.parametrize("calls", range(1, 6))
def test_death_at_any_call_leaves_one_of_each(stack, monkeypatch, calls):
    """The function dies after a call; the next one finds what is there."""

    def die(method, path):
        if len(stack.cloudflare.calls) > calls:
            raise KeyboardInterrupt

    stack.cloudflare.refuses = die
    if calls < 5:
        with pytest.raises(KeyboardInterrupt):
            subscribe(stack.services, M3)
    else:  # It dies before the last write.
        monkeypatch.setattr(type(stack.services.events.item), "note_subscription", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            subscribe(stack.services, M3)
        monkeypatch.undo()
    stack.cloudflare.refuses = lambda method, path: None
    stack.restart()
    subscribe(stack.services, M3)
    assert len(stack.cloudflare.calls) <= calls + 1, "another one may be at it"

    stack.clock += 61
    subscribe(stack.services, M3)

    assert made(stack.cloudflare) == WHOLE
    assert stack.state.subscriptions[M3].id == "s3"


def test_two_functions_at_once_make_one_queue(stack):
    """The second one has the claim's time over.

    And everything is made between its look and its call.
    """
    cloudflare, services = stack.cloudflare, stack.services

    def meanwhile(method, path):
        if (
            f"{method} {path}" in {"POST /queues", "POST /queues/q1/consumers"}
            and not meanwhile.done
        ):
            meanwhile.done = True
            stack.clock += 16
            stack.restart()
            cloudflare.refuses = lambda method, path: None
            subscribe(services, M3)
            stack.clock -= 16

    meanwhile.done = False
    cloudflare.refuses = meanwhile
    subscribe(services, M3)

    assert made(cloudflare) == WHOLE
    assert stack.state.subscriptions[M3].id == "s3"


def test_claim_keeps_others_away(stack):
    """For five seconds at most."""
    stack.services.events.item.claim(T, T + 10)
    subscribe(stack.services, M3)
    assert stack.cloudflare.calls == []
    assert stack.clock == T + 5


def while_another_sets_up(stack, model):
    """Subscribe to a model while another function makes the queue and subscribes to one.

    Which takes a second.
    """
    item = stack.services.events.item
    item.claim(T, T + 10)

    def sleep(seconds):
        stack.pass_time(seconds)
        if stack.clock == T + 1:
            item.change({"queue_id": "q1", "made_at": T})
            item.note_subscription(model, Subscription("s", T + 1))

    stack.services.sleep = sleep
    subscribe(stack.services, M3)
    assert stack.clock == T + 1
    return stack.cloudflare.calls


def test_other_submit_waits_for_set_up(stack):
    """Else its batch would have no events."""
    assert while_another_sets_up(stack, M3) == []


def test_model_is_subscribed_after_the_set_up_of_another(stack):
    assert while_another_sets_up(stack, M2M) == ["POST /event_subscriptions/subscriptions"]


@pytest.mark.parametrize("status", [401, 403, 404, 405])
def test_refusal_lasts_a_day(stack, status):
    stack.cloudflare.refuses = lambda method, path: httpx.Response(status, json=refusal(10000))
    subscribe(stack.services, M3)
    stack.clock += DAY - 1
    stack.restart()
    subscribe(stack.services, M3)
    assert len(stack.cloudflare.calls) == 1
    assert stack.state.refusal == f"{status}: 10000 words"

    stack.clock += 1
    stack.restart()
    stack.cloudflare.refuses = lambda method, path: None
    subscribe(stack.services, M3)
    assert made(stack.cloudflare) == WHOLE
    assert stack.state.refusal == ""


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500, json=refusal(10013)),
        httpx.Response(429, json=refusal(971)),
        httpx.ReadTimeout("words"),
    ],
)
def test_failure_lasts_an_hour(stack, answer):
    def fail(method, path):
        if isinstance(answer, Exception):
            raise answer
        return answer

    stack.cloudflare.refuses = fail
    subscribe(stack.services, M3)
    assert len(stack.cloudflare.calls) == 1

    stack.clock += HOUR
    stack.cloudflare.refuses = lambda method, path: None
    subscribe(stack.services, M3)
    assert made(stack.cloudflare) == WHOLE


def test_page_lasts_a_day(stack):
    stack.cloudflare.refuses = lambda method, path: httpx.Response(200, content=b"<html>")
    subscribe(stack.services, M3)
    assert stack.state.refused_until == T + DAY


def test_set_up_takes_five_seconds_at_most(stack):
    def slow(method, path):
        stack.clock += 3

    stack.cloudflare.refuses = slow
    subscribe(stack.services, M3)

    assert len(stack.cloudflare.calls) == 2
    assert stack.state.refusal == "no answer: no time left"


def test_failed_subscription_is_tried_after_an_hour(stack):
    def fail(method, path):
        return httpx.Response(500, json=refusal(10013)) if path.startswith("/event") else None

    stack.cloudflare.refuses = fail
    subscribe(stack.services, M3)
    stack.clock += HOUR - 1
    subscribe(stack.services, M3)
    assert stack.cloudflare.calls == FIRST
    assert stack.state.subscriptions[M3].problem == "500: 10013 words"

    stack.clock += 1
    stack.restart()
    stack.cloudflare.refuses = lambda method, path: None
    subscribe(stack.services, M3)
    assert made(stack.cloudflare) == WHOLE


def test_failed_subscription_is_tried_again_however_many_models_are_known(stack, monkeypatch):
    monkeypatch.setattr(set_up, "MAX_MODELS", 1)
    stack.services.events.item.change({M3: {"again_at": T, "problem": "500"}})
    subscribe(stack.services, M3)
    assert made(stack.cloudflare) == WHOLE


def test_subscription_to_another_queue_is_not_touched(stack):
    theirs = {
        "id": "x",
        "name": "mine",
        "source": {"type": "workersAi.model", "model_name": M3},
        "destination": {"type": "queues.queue", "queue_id": "other"},
    }
    stack.cloudflare.subscriptions["x"] = theirs
    subscribe(stack.services, M3)

    assert stack.cloudflare.subscriptions == {"x": theirs}
    assert stack.state.subscriptions[M3].problem == f"409: {TAKEN}"


def test_consumer_of_worker_is_not_replaced(stack):
    subscribe(stack.services, M3)
    stack.cloudflare.consumers["q1"] = [{"consumer_id": "w", "type": "worker", "settings": {}}]
    stack.services.events.item.change({"queue_id": ""})
    stack.restart()

    subscribe(stack.services, M3)

    assert stack.cloudflare.consumers["q1"][0]["type"] == "worker"
    assert stack.state.refusal == f"200: {OF_WORKER}"


def test_different_settings_are_corrected(stack):
    stack.cloudflare.queues["q"] = {
        "queue_id": "q",
        "queue_name": "dropbatch-q",
        "settings": {"message_retention_period": 345_600, "delivery_delay": 0},
    }
    stack.cloudflare.consumers["q"] = [
        {"consumer_id": "c", "type": "http_pull", "settings": {"max_retries": 3}}
    ]

    subscribe(stack.services, M3)

    assert stack.cloudflare.queues["q"]["settings"] == QUEUE_SETTINGS
    assert stack.cloudflare.consumers["q"] == [{"consumer_id": "c", **CONSUMER}]


def test_queue_that_was_deleted_gets_models_anew(stack):
    """The old subscription, which leads nowhere, is ours by its name."""
    subscribe(stack.services, M3)
    stack.cloudflare.queues.clear()
    stack.services.events.item.change({"queue_id": ""})
    stack.clock += 5
    stack.restart()

    subscribe(stack.services, M3)

    (queue_id,) = stack.cloudflare.queues
    assert made(stack.cloudflare)[2] == {M3: queue_id}
    assert stack.state.queue_id == queue_id


def test_unreadable_item_is_made_anew(stack):
    stack.services.events.item.change({"queue_id": 5, M3: "no map"})
    subscribe(stack.services, M3)
    assert made(stack.cloudflare) == WHOLE


def test_table_that_fails_stops_no_submit(stack, monkeypatch):
    def fail(*_, **__):
        raise StorageError("DynamoDB: 500")

    monkeypatch.setattr(type(stack.services.events.item), "state", fail)
    subscribe(stack.services, M3)
    assert stack.cloudflare.calls == []


def test_without_calls_left_next_submit_sets_up(stack):
    left = [1]
    stack.budget.permit_check = lambda now, calls=1: calls <= left[0]
    subscribe(stack.services, M3)
    assert stack.cloudflare.calls == []
    left[0] = 6
    subscribe(stack.services, M3)
    assert made(stack.cloudflare) == WHOLE


def calls_left(stack, calls):
    """Let the rate budget have so many calls; return how many are left."""
    left = [calls]

    def permit_check(now, calls=1):
        if left[0] < calls:
            return False
        left[0] -= calls
        return True

    stack.budget.permit_check = permit_check
    return left


def found_by_both(stack):
    """Another function makes each thing just before this one does.

    More calls than a set-up takes as a rule.
    """
    answers = iter(
        [[], None, [{"queue_name": "dropbatch-q", "queue_id": "q9"}], [], None, [CONSUMER]]
    )

    def refuse(method, _path):
        answer = next(answers, "")
        taken = httpx.Response(409, json=refusal(11009))
        return (
            taken
            if answer is None
            else None
            if answer == ""
            else httpx.Response(200, json={"result": answer})
        )

    stack.cloudflare.refuses = refuse


def test_each_call_beyond_the_usual_takes_a_token(stack):
    found_by_both(stack)
    left = calls_left(stack, 10)
    subscribe(stack.services, M3)
    assert len(stack.cloudflare.calls) == 7
    assert left == [3]


def test_without_calls_left_set_up_is_no_refusal(stack):
    found_by_both(stack)
    calls_left(stack, 6)
    subscribe(stack.services, M3)
    assert len(stack.cloudflare.calls) == 6
    assert (stack.state.refused_until, stack.state.busy_until, stack.state.refusal) == (
        0.0,
        0.0,
        "",
    )
    stack.clock += 61
    stack.cloudflare.refuses = lambda method, path: None
    calls_left(stack, 6)
    subscribe(stack.services, M3)
    assert M3 in stack.state.subscriptions


def test_in_a_pause_nothing_is_set_up(stack):
    """A token that may run no model now would be refused here for a day."""
    stack.budget.free = lambda now, senders=(): Free(first=1, paused=True)
    subscribe(stack.services, M3)
    assert stack.cloudflare.calls == []
    stack.budget.free = lambda now, senders=(): Free()
    subscribe(stack.services, M3)
    assert made(stack.cloudflare) == WHOLE


def test_removal_waits_for_calls(stack):
    subscribe(stack.services, M3)
    next_at = began = stack.clock

    def permit_check(now, calls=1):
        nonlocal next_at
        if now < next_at:
            return False
        next_at = now + 4
        return True

    stack.budget.permit_check = permit_check
    remove(stack.services, stack.services.events)
    assert stack.cloudflare.queues == {}
    assert stack.clock == began + 12, "four calls"


def test_removal_without_calls_ends(stack):
    subscribe(stack.services, M3)
    stack.budget.permit_check = lambda now, calls=1: False
    with pytest.raises(NoCallLeftError):
        remove(stack.services, stack.services.events)
    assert made(stack.cloudflare) == WHOLE


def test_removal_leaves_what_is_not_ours(stack):
    subscribe(stack.services, M3)
    theirs = {"id": "x", "name": "n", "destination": {"queue_id": "other"}}
    stack.cloudflare.subscriptions["x"] = theirs

    remove(stack.services, stack.services.events)
    remove(stack.services, stack.services.events)

    assert stack.cloudflare.queues == {}
    assert stack.cloudflare.subscriptions == {"x": theirs}


def test_removal_takes_subscriptions_first(stack):
    subscribe(stack.services, M3)
    stack.cloudflare.refuses = lambda method, path: (
        httpx.Response(403, json=refusal(10000)) if method == "DELETE" else None
    )
    with pytest.raises(QueuesRefusedError):
        remove(stack.services, stack.services.events)
    assert made(stack.cloudflare) == WHOLE
    assert stack.cloudflare.calls[-1] == "DELETE /event_subscriptions/subscriptions/s3"


def test_names_of_subscriptions_differ_by_model():
    assert subscription_name("q", M3) != subscription_name("q", M2M)
