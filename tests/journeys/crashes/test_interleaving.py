"""Between two calls of one invocation another runs whole.

Simulated worlds try every such order of calls (tests/simulation/explore); here is the one that costs money.
"""

import json
from contextlib import contextmanager

import functions.submit.handler
from tests.support.translations import M2M, greetings


def submit_again(world):
    """The batch's message comes once more while the first invocation is at work."""
    role, world.permissions.role = world.permissions.role, ""
    try:
        (batch,) = (item for item in world.items() if item["sk"]["S"] == "BATCH#00000000")
        message = {"do": "submit", "job_id": batch["job_id"]["S"], "number": "00000000"}
        world.sqs.send_message(QueueUrl=world.queues["SubmitQueue"], MessageBody=json.dumps(message))
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

    monkeypatch.setattr(type(services.api), "submit", lambda _, *arguments, **named: slow(*arguments, **named))
    world.upload_records("a.jsonl", greetings(3), model=M2M)

    world.settle()

    assert len(posts) == len(api.accepted) == 1
    assert world.manifest()["batches"][0]["unknowable_submits"] == 0
