"""Two runs at once, and steps before a POST that fail."""

import json
from contextlib import contextmanager

import functions.submit.handler
from tests.support.translations import M2M, greetings

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
    world.run("a.jsonl", greetings(3), model=M2M)

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
    world.run("a.jsonl", greetings(3), model=M2M)

    assert written[0].endswith("/status.json")
    assert len(world.manifests()) == 1
    assert (world.status()["state"], world.status()["counts"]["succeeded"]) == ("completed", 3)
