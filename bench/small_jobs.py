"""`python -m bench.small_jobs`: how soon a job of 1 to 250 records is over; writes its page.

In a simulated world at AWS's latencies, the script that a user would write takes turns with it.
"""

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.billed import Found, as_slow_as_aws, billed
from bench.cost import COLD_SECONDS, PRICES, memory_of, share_of
from bench.meter import API_WAITS, FUNCTIONS, behaviour_of
from bench.timing import grid, write_page
from local.aws import LOCAL_ACCOUNT
from simulation import Awkward
from tests.simulation.cloudflare.events import Events
from tests.simulation.services.api import Http, is_of_queues
from tests.simulation.worlds.world import World, simulated
from tests.support.aws.resources import TOKEN

WRITTEN = Path(__file__).with_suffix(".md")
MODEL = "@cf/baai/bge-m3"
API = f"https://api.cloudflare.com/client/v4/accounts/{LOCAL_ACCOUNT}"
URL = f"{API}/ai/run/{MODEL}?queueRequest=true"
SIZES = (1, 10, 50, 100, 250)
"""Records of the jobs, in turn."""
OWN_CPU, QUEUE_SECONDS = 0.00025, 0.2
"""Seconds of a processor a call, by `bench.cost`; of a call of Cloudflare Queues, assumed."""
SCRIPT, SCRIPT_SECONDS = "ScriptFunction", 2.0
"""And seconds between two of its polls."""
LATENCIES = (2.0, 10.0, 60.0)
"""Medians of what the API takes for a batch; lognormal, sigma 0.5."""
WARMING, JOBS, GAP, SEEDS = 8, 100, 97.0, range(40)
"""Jobs of a warm stack and seconds between them; worlds of an idle one."""
AN_HOUR, SAMPLE = 1_000, 200
"""Jobs an hour whose cost is counted, and how many of them are run."""
POLLS, EVENTS = Events(is_on=False), Events()
Rows = list[tuple[float, int]]
"""Seconds without the API's own, and calls of the API."""
Requests = list[dict[str, Any]]


@contextmanager
def measured(seed: int, latency: float, events: Events) -> Iterator[World]:
    """A world as slow as AWS in which the first tick was, and the next is far away."""
    plain = Awkward(cold_start_seconds=0.0)
    with simulated(
        seed, plain, events.behaviour(behaviour_of(latency)), **events.settings()
    ) as world:
        as_slow_as_aws(world, 1)
        slow, computing = world.on_answer.pop(), OWN_CPU / share_of(memory_of("submit"))
        world.on_answer.append(lambda url, *rest: None if is_of_queues(url) else slow(url, *rest))
        world.calls.seconds["queues"] = (QUEUE_SECONDS, QUEUE_SECONDS)
        for name, (least, most) in world.calls.seconds.items():
            world.calls.seconds[name] = (least + computing, most + computing)
        for function in world.functions.values():
            function.handler = _with_start(world, function.handler)
        http = Http(world.calls, world.api, world.on_call, world.on_answer)
        world.add_function(SCRIPT, lambda event, _: _script(world, http, event), timeout=900.0)
        world.run(65, lambda: world.functions["PollFunction"].invocations == 1)
        world.run(5)
        yield world


def _with_start(world: World, handler: Callable[..., Any]) -> Callable[..., Any]:
    seen: list[Any] = []

    def handle(event: dict[str, Any], context: Any) -> Any:
        if not any(one is context.process for one in seen):
            seen.append(context.process)
            world.kernel.wait(COLD_SECONDS)
        return handler(event, context)

    return handle


def _script(world: World, http: Http, event: dict[str, Any]) -> None:
    """Submit a batch and poll until it is answered, as a script in a user's own process does."""

    def call(body: dict[str, Any]) -> dict[str, Any]:
        headers, content = {"Authorization": f"Bearer {TOKEN}"}, json.dumps(body).encode()
        with http.stream("POST", URL, headers=headers, content=content) as reply:
            found: dict[str, Any] = json.loads(b"".join(reply.iter_bytes()))["result"]
            return found

    request_id = call({"requests": event["requests"]})["request_id"]
    while "responses" not in event:
        world.kernel.wait(SCRIPT_SECONDS)
        event |= call({"request_id": request_id})


def run_script(world: World, requests: Requests) -> tuple[float, int]:
    event: dict[str, Any] = {"requests": requests}
    began, before = world.kernel.now, len(world.call_times)
    world.functions[SCRIPT].invoke(event, lambda _: None)
    world.run(3_600, lambda: "responses" in event)
    return _own(world, began), len(world.call_times) - before


def run_job(world: World, name: str, requests: Requests) -> tuple[float, int]:
    """One job, from its drop to its manifest."""
    began, before = world.kernel.now, len(world.call_times)
    upload = world.upload(name, [json.dumps(one) for one in requests], model=MODEL)
    world.run(3_600, lambda: world.result(upload, "manifest.json") is not None)
    return _own(world, began), len(world.call_times) - before


def _own(world: World, began: float) -> float:
    """Seconds until now, without those of the API: from the POST until its answers are there."""
    batch = world.api.accepted[-1]
    ready = max(batch["completes_at"], batch["time"] + API_WAITS["submit"])
    return float(world.kernel.now - began - (ready - batch["time"]) - API_WAITS["finished"])


def requests_of(number: int, name: str) -> Requests:
    return [{"text": f"{name} record {one}"} for one in range(SIZES[number % len(SIZES)])]


def warm(latency: float, events: Events) -> tuple[Rows, Rows]:
    """Jobs, and runs of the script, that take turns on a stack that knows the model."""
    ours, script = Rows(), Rows()
    with measured(1, latency, events) as world:
        for number in range(WARMING + JOBS):
            requests = requests_of(number, f"{number}")
            ours.append(run_job(world, f"{number}.jsonl", requests))
            world.run(GAP)
            script.append(run_script(world, requests))
            world.run(GAP)
    return ours[WARMING:], script[WARMING:]


def idle(latency: float, events: Events) -> Rows:
    """The first job of stacks that have only ticked, one in each world."""
    rows = Rows()
    for seed in SEEDS:
        with measured(seed, latency, events) as world:
            rows.append(run_job(world, "a.jsonl", requests_of(seed, f"first {seed}")))
    return rows


def an_hour(events: Events) -> tuple[float, float]:
    """Dollars, and calls of the API, for each of many jobs an hour on one stack."""
    found = Found()
    with measured(1, LATENCIES[1], events) as world, billed(world, found):
        for number in range(SAMPLE):
            lines = [json.dumps(one) for one in requests_of(number, f"{number}")]
            world.upload(f"{number}.jsonl", lines, model=MODEL)
            world.run(3_600 / AN_HOUR)
        assert world.settle(3_600)
    for name in FUNCTIONS:
        found.used["Lambda GB-s"] += found.seconds[name] * memory_of(name) / 1024  # type: ignore[assignment]
    dollars = sum(price * found.used[name] for name, price in PRICES.items())
    return dollars / SAMPLE, found.used["API calls"] / SAMPLE


def _cells(rows: Rows) -> list[str]:
    ordered = sorted(seconds for seconds, _ in rows)
    late, calls = ordered[int(0.95 * (len(ordered) - 1))], statistics.fmean(one for _, one in rows)
    return [f"{statistics.median(ordered):.1f} s", f"{late:.1f} s", f"{calls:.1f}"]


def _rows() -> Iterator[list[str]]:
    for latency in LATENCIES:
        for events, name in ((POLLS, "polls"), (EVENTS, "events")):
            rows = (*warm(latency, events), idle(latency, events))
            yield [f"{latency:.0f} s, {name}", *(cell for one in rows for cell in _cells(one))]


def main() -> None:
    head = ["API", "job", "95 %", "calls", "script", "95 %", "calls", "idle", "95 %", "calls"]
    (polls, calls), (told, told_calls) = an_hour(POLLS), an_hour(EVENTS)
    cost = (
        f"A job of {AN_HOUR:,} an hour, answered after {LATENCIES[1]:.0f} s, is billed ${polls:.6f}"
        f" and makes {calls:.1f} calls; with events ${told:.6f} and {told_calls:.1f}."
    )
    figures = grid(head, list(_rows())) + "\n\n" + cost
    write_page(WRITTEN, "python -m bench.small_jobs", figures=figures)


if __name__ == "__main__":
    main()
