"""Two runs at once, and steps before a POST that fail."""

import json
import time
from contextlib import contextmanager

import pytest

import functions.submit.handler
from local.workers_ai import Behaviour, WorkersAI
from tests.support.journeys.deaths import ASK, SUBMIT, Boundaries, Mode, mortal_world, strike_each
from tests.support.translations import M2M, greetings

# ── between two calls of one invocation another runs whole ────────────────────────────────────────


LONGER_THAN_ANY_CLAIM = 400.0


def all_others_go_on(world):
    """The function sleeps until nothing that it claimed is its own; others do its work."""
    world.pass_time(LONGER_THAN_ANY_CLAIM)
    for _ in range(3):
        world.tick()
        world.deliver_all()


def submit_again(world):
    """The batch's message comes once more while the first invocation is at work."""
    role, world.permissions.role = world.permissions.role, ""
    try:
        (batch,) = (item for item in world.items() if item["sk"]["S"] == "BATCH#00000000")
        message = {"do": "submit", "job_id": batch["job_id"]["S"], "number": "00000000"}
        world.sqs.send_message(
            QueueUrl=world.queues["SubmitQueue"], MessageBody=json.dumps(message)
        )
        world.deliver("SubmitQueue")
    finally:
        world.permissions.role = role


def test_message_during_post_submits_nothing(world, api, monkeypatch):
    services = functions.submit.handler.services()
    submit, posts = services.api.submit, []

    @contextmanager
    def slow(*arguments, **named):
        posts.append(arguments)
        if len(posts) == 1:
            world.pass_time(20)
            submit_again(world)
        with submit(*arguments, **named) as reply:
            yield reply

    monkeypatch.setattr(
        type(services.api), "submit", lambda _, *arguments, **named: slow(*arguments, **named)
    )
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert len(posts) == len(api.accepted) == 1
    assert world.manifest()["batches"][0]["unknowable_submits"] == 0


def test_late_status_does_not_replace_final_one(world, monkeypatch):
    store = type(functions.submit.handler.services().store)
    put, written = store.put, []

    def late(self, key, *arguments, **named):
        written.append(key)
        if len(written) == 1:
            role, world.permissions.role = world.permissions.role, ""
            all_others_go_on(world)
            world.permissions.role = role
        return put(self, key, *arguments, **named)

    monkeypatch.setattr(store, "put", late)
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert written[0].endswith("/status.json")
    assert len(world.manifests()) == 1
    assert (world.status()["state"], world.status()["counts"]["succeeded"]) == ("completed", 3)


# ── A step that fails is tried again soon ─────────────────────────────────────────────────────────


SOON = 13.0
"""Seconds within which the item is due again."""


def run_with(boundaries: Boundaries, queue: str) -> tuple[float, int, int]:
    """A run in which one call before the POST fails.

    Seconds until the item is due again, POSTs, unknown outcomes.

    Some calls need not succeed: then the item is not due again at all.
    """
    api = WorkersAI(Behaviour(embedder="hash", latency=8.0), now=lambda: time.time())  # noqa: PLW0108 - the clock moves
    with mortal_world(api, boundaries) as world:
        world.upload_records("a.jsonl", greetings(1), model=M2M)
        boundaries.watching = False
        real, world.invoke = world.invoke, super(type(world), world).invoke
        world.deliver("UploadQueue")
        if queue == "PollQueue":
            world.deliver("SubmitQueue")
            world.pass_time(20)
        world.invoke = real
        boundaries.passed.clear()
        world.deliver(queue, most=1)
        item = world.item("BATCH#")
        got_through = item["state"]["S"] == ("queued" if queue == "SubmitQueue" else "done")
        waits = 0.0 if got_through else float(item["due_at"]["N"]) - time.time()
        world.settle()
        manifest = world.manifest()
        assert manifest["counts"] == {"total": 1, "succeeded": 1, "failed": 0}
        return waits, len(api.accepted), manifest["batches"][0]["unknowable_submits"]


def calls_before(queue: str, post: str) -> int:
    """How many calls a message makes before its POST."""
    boundaries = Boundaries()
    run_with(boundaries, queue)
    return boundaries.passed.index(post)


@pytest.mark.parametrize(("queue", "post"), [("SubmitQueue", SUBMIT), ("PollQueue", ASK)])
def test_failed_call_before_post_is_due_soon(queue, post):
    strikes: list[tuple[int, Mode]] = [
        (number, "unanswered") for number in range(1, calls_before(queue, post) + 1, 2)
    ]

    found = strike_each(strikes, lambda boundaries: run_with(boundaries, queue))

    assert len(found) >= 3
    assert [one for one in found if one[0] > SOON or one[1:] != (1, 0)] == []
