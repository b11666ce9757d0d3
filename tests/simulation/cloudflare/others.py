"""Others in the account: a stack that sends what this one sends, persons in the dashboard."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from local.workers_ai.edge import PREFIX
from tests.support.aws.resources import ACCOUNT

if TYPE_CHECKING:
    from tests.simulation.worlds.world import World

OTHER_TOKEN = "token-of-another-stack"
QUEUES = f"{PREFIX}/accounts/{ACCOUNT}/queues"
SUBSCRIPTIONS = f"{PREFIX}/accounts/{ACCOUNT}/event_subscriptions/subscriptions"
GARBAGE_MESSAGES = 1_000


class OtherStack:
    """Repeats a share of this stack's submits within seconds of them."""

    def __init__(self, world: World, share: float) -> None:
        """Watch the calls of this world."""
        self.world, self.share = world, share
        self.random = Random(f"{world.kernel.random.random()} another stack")
        world.api.switch(tokens=(*world.api.behaviour.tokens, OTHER_TOKEN))
        world.on_call.append(self._watch)

    def _watch(self, path: str, _query: str, body: bytes) -> None:
        if b'"requests"' not in body[:20] or self.random.random() >= self.share:
            return
        self.world.kernel.at(
            self.world.kernel.now + self.random.uniform(0.0, 20.0), lambda: self._send(path, body)
        )

    def _send(self, path: str, body: bytes) -> None:
        headers = {"authorization": f"Bearer {OTHER_TOKEN}"}
        before = len(self.world.api.accepted)
        self.world.api.handle("POST", path, "queueRequest=true", headers, body)
        self.world.foreign_ids.update(one["request_id"] for one in self.world.api.accepted[before:])


def by_hand(world: World, what: str) -> None:
    """A person does something to every queue and subscription of the account."""
    if what == "refuse":
        world.api.switch(queues_refused="" if world.api.behaviour.queues_refused else "403/10000")
        return
    before = world.api.behaviour
    world.api.switch(
        queues_refused="",
        fault_rates={},
        tokens=tuple(dict.fromkeys((*before.tokens, OTHER_TOKEN))),
    )
    if what == "disable":
        for one in call(world, "GET", SUBSCRIPTIONS):
            call(world, "PATCH", f"{SUBSCRIPTIONS}/{one['id']}", {"enabled": False})
    else:
        for queue in call(world, "GET", QUEUES):
            _to_queue(world, what, queue)
    world.api.switch(queues_refused=before.queues_refused, fault_rates=before.fault_rates)


def _to_queue(world: World, what: str, queue: dict[str, Any]) -> None:
    path = f"{QUEUES}/{queue['queue_id']}"
    if what == "delete queue":
        call(world, "DELETE", path)
    elif what == "worker consumer":
        for one in queue["consumers"]:
            call(
                world,
                "PUT",
                f"{path}/consumers/{one['consumer_id']}",
                {"type": "worker", "script_name": "other"},
            )
    elif what == "garbage":
        for start in range(0, GARBAGE_MESSAGES, 100):
            messages = [
                {"body": f"garbage {start + number}", "content_type": "text"}
                for number in range(100)
            ]
            call(world, "POST", f"{path}/messages/batch", {"messages": messages})


def call(world: World, method: str, path: str, body: object = None) -> Any:
    """Call Queues as another stack of the account."""
    headers = {"authorization": f"Bearer {OTHER_TOKEN}"}
    sent = b"" if body is None else msgspec.json.encode(body)
    return msgspec.json.decode(world.api.handle(method, path, "", headers, sent).body)["result"]
