"""`python -m bench.small_jobs`: how soon a job of 1 to 250 records is over; writes its page.

The functions run in a simulated world at AWS's latencies, each start of a process and each call's
computing included. In the same world, on the same API, the script that a user would write instead
takes turns with them.
"""

import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.billed import Found, as_slow_as_aws, billed
from bench.cost import COLD_SECONDS, PRICES, memory_of, share_of
from bench.meter import API_WAITS, FUNCTIONS
from bench.timing import grid, written_by
from local.aws import LOCAL_ACCOUNT
from local.workers_ai import Behaviour
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
PHASES = (
    "S3's event, and an invocation begins",
    "job, batch and claim, up to the POST",
    "from the API's answer to the poll",
    "answers, files and manifest",
)
MARK = "<!-- figures -->\n\n"
Rows = list[tuple[float, int]]
"""Seconds without the API's own, and calls of the API."""
Requests = list[dict[str, Any]]


@contextmanager
def measured(seed: int, latency: float, events: Events) -> Iterator[World]:
    """A world as slow as AWS in which the first tick was, and the next is far away."""
    behaviour = Behaviour(
        embedder="hash", latency=latency, latency_kind="lognormal", latency_spread=0.5
    )
    plain = Awkward(cold_start_seconds=0.0)
    with simulated(seed, plain, events.behaviour(behaviour), **events.settings()) as world:
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
    """One run of the script."""
    event: dict[str, Any] = {"requests": requests}
    began, before = world.kernel.now, len(world.call_times)
    world.functions[SCRIPT].invoke(event, lambda _: None)
    world.run(3_600, lambda: "responses" in event)
    posted, ready = _api_had_it(world)
    own = world.kernel.now - began - (ready - posted) - API_WAITS["finished"]
    return own, len(world.call_times) - before


def run_job(world: World, name: str, requests: Requests) -> tuple[float, int, list[Any]]:
    """One job, from its drop to its manifest; seconds and calls of AWS by phase."""
    taken: list[tuple[float, str, str]] = []
    call = world.calls._pass  # noqa: SLF001 - where each call of AWS begins

    def note(operation: str) -> None:
        if life := world.kernel.life():
            taken.append((world.kernel.now, life.owner.name, operation))

    def noted(life: Any, operation: str) -> None:
        note(operation)
        call(life, operation)

    def asked(path: str, *_: object) -> None:
        note("queues" if is_of_queues(path) else "api")

    world.calls._pass = noted  # type: ignore[method-assign] # noqa: SLF001
    world.on_call.append(asked)
    began, before = world.kernel.now, len(world.call_times)
    upload = world.upload(name, [json.dumps(one) for one in requests], model=MODEL)
    world.run(3_600, lambda: world.result(upload, "manifest.json") is not None)
    world.calls._pass = call  # type: ignore[method-assign] # noqa: SLF001
    world.on_call.remove(asked)
    (posted, ready), over = _api_had_it(world), world.kernel.now
    first = min(at for at, owner, _ in taken if owner.startswith("Submit"))
    polled = max(at for at, owner, name in taken if owner.startswith("Poll") and name == "api")
    spans = [(began, first), (first, posted), (ready, polled), (polled, over)]
    seconds = [end - begin for begin, end in spans]
    seconds[-1] -= API_WAITS["finished"]
    calls = [
        Counter(name.partition(".")[0] for at, _, name in taken if begin <= at < end)
        for begin, end in spans
    ]
    return float(sum(seconds)), len(world.call_times) - before, [seconds, calls]


def _api_had_it(world: World) -> tuple[float, float]:
    """When the POST reached the API; when its answers existed, and it had replied."""
    batch = world.api.accepted[-1]
    return batch["time"], max(batch["completes_at"], batch["time"] + API_WAITS["submit"])


def requests_of(number: int, name: str) -> Requests:
    """The records of a job."""
    return [{"text": f"{name} record {one}"} for one in range(SIZES[number % len(SIZES)])]


def warm(latency: float, events: Events) -> tuple[Rows, Rows, list[Any]]:
    """Jobs, and runs of the script, that take turns on a stack that knows the model."""
    ours, script, spent = Rows(), Rows(), []
    with measured(1, latency, events) as world:
        for number in range(WARMING + JOBS):
            requests = requests_of(number, f"{number}")
            own, calls, phases = run_job(world, f"{number}.jsonl", requests)
            ours.append((own, calls))
            spent.append(phases)
            world.run(GAP)
            script.append(run_script(world, requests))
            world.run(GAP)
    return ours[WARMING:], script[WARMING:], spent[WARMING:]


def idle(latency: float, events: Events) -> Rows:
    """The first job of stacks that have only ticked, one in each world."""
    rows = Rows()
    for seed in SEEDS:
        with measured(seed, latency, events) as world:
            rows.append(run_job(world, "a.jsonl", requests_of(seed, f"first {seed}"))[:2])
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
            ours, script, _ = warm(latency, events)
            cells = [*_cells(ours), *_cells(script), *_cells(idle(latency, events))]
            yield [f"{latency:.0f} s, {name}", *cells]


def _phase_rows() -> Iterator[list[str]]:
    *_, spent = warm(LATENCIES[0], POLLS)
    for number, phase in enumerate(PHASES):
        seconds = statistics.median(seconds[number] for seconds, _ in spent)
        calls = [
            f"{statistics.fmean(calls[number][service] for _, calls in spent):.0f}"
            for service in ("s3", "dynamodb", "sqs")
        ]
        yield [phase, f"{seconds:.2f} s", *calls]


def main() -> None:
    """Measure and write."""
    head = ["API", "job", "95 %", "calls", "script", "95 %", "calls", "idle", "95 %", "calls"]
    (polls, calls), (told, told_calls) = an_hour(POLLS), an_hour(EVENTS)
    prose, mark, _ = WRITTEN.read_text().partition(MARK)
    cost = (
        f"A job of {AN_HOUR:,} an hour, answered after {LATENCIES[1]:.0f} s, is billed ${polls:.6f}"
        f" and makes {calls:.1f} calls; with events ${told:.6f} and {told_calls:.1f}."
    )
    phases = grid(["", "seconds", "S3", "DynamoDB", "SQS"], list(_phase_rows()))
    written = written_by("python -m bench.small_jobs")
    text = "\n\n".join([prose + mark + written, grid(head, list(_rows())), phases, cost]) + "\n"
    WRITTEN.write_text(text)


if __name__ == "__main__":
    main()
