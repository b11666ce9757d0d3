"""Lambda: functions, their processes, and what invokes them: queues and schedules."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from simulation.kernel import Life
from simulation.services.calls import Calls
from simulation.services.sqs import Message, Queue

POLL_SECONDS = (0.005, 0.05)
"""How long a message waits for one of Lambda's pollers."""
THROTTLED_SECONDS = 5.0
"""How long a message waits after the function had no room."""
APART_SECONDS = 1e-6
"""No two invocations begin at the very same time."""


@dataclass(slots=True)
class Process:
    """A process of a function; a later invocation may find it as an earlier one left it."""

    state: Any
    """What the function's `build` made when the process began."""
    version: int
    """Of the function, which a deployment replaces."""


@dataclass(slots=True)
class Invocation:
    """One call of a function; also the context that it gets."""

    name: str
    process: Process
    ends: float
    calls: Calls
    dies_at: int = 0
    """The number of the simulated call at which it dies; 0: at none."""
    clock_behind: float = 0.0
    """Seconds by which its clock is behind that of the services."""
    memory_limit_in_mb: int = 512
    aws_request_id: str = "11111111-2222-3333-4444-555555555555"

    @property
    def function_name(self) -> str:
        return self.name.rpartition("-")[0]

    @property
    def invoked_function_arn(self) -> str:
        return f"arn:aws:lambda:eu-west-1:123456789012:function:{self.function_name}"

    def get_remaining_time_in_millis(self) -> int:
        return max(int((self.ends - self.calls.now()) * 1000), 0)


@dataclass(slots=True)
class Function:
    """A function.

    Attributes:
        handler: called with an event and a context, an `Invocation`.
        most: invocations at the same time.
        build: called when a process begins; what it returns is the process's `state`.
        errors: what its invocations raised, which no handler should.
    """

    name: str
    handler: Callable[[dict[str, Any], Any], Any]
    timeout: float
    most: int
    calls: Calls
    build: Callable[[], Any]
    running: int = 0
    invocations: int = 0
    throttles: int = 0
    deaths: int = 0
    version: int = 1
    idle: list[Process] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def invoke(self, event: dict[str, Any], ended: Callable[[set[str] | None], None]) -> bool:
        """Begin an invocation, unless there is no room."""
        if self.running >= self.most:
            self.throttles += 1
            return False
        self.running += 1
        self.invocations += 1
        kernel, random, awkward = self.calls.kernel, self.calls.random, self.calls.awkward
        is_cold = not self.idle
        if is_cold:
            process = Process(self.build(), self.version)
            delay = random.uniform(0, awkward.cold_start_seconds)
        else:
            process = self.idle.pop(random.randrange(len(self.idle)))
            delay = self.invocations % 97 * APART_SECONDS
        name = f"{self.name}-{self.invocations}"
        invocation = Invocation(name, process, kernel.now + delay + self.timeout, self.calls)
        if awkward.death and random.random() < awkward.death:
            invocation.dies_at = int(random.expovariate(1 / 20)) + 1
        if awkward.clock_behind_seconds:
            invocation.clock_behind = random.uniform(0, awkward.clock_behind_seconds)
        life = Life(name, invocation, lambda: self._end_dead(ended))

        def work() -> None:
            failed = None
            try:
                kernel.wait(delay)
                answer = self.handler(event, invocation) or {}
                failed = {one["itemIdentifier"] for one in answer.get("batchItemFailures", [])}
            except Exception as error:  # noqa: BLE001 - a failed invocation is one of Lambda's outcomes
                self.errors.append(error)
            life.over = True
            self.running -= 1
            if process.version == self.version:
                self.idle.append(process)
            ended(failed)

        kernel.begin(life, work)
        kernel.at(invocation.ends, lambda: kernel.kill(life))
        return True

    def replace_processes(self) -> None:
        """A new version is deployed: what runs ends, and the next invocations get new processes."""
        self.version += 1
        self.idle.clear()

    def _end_dead(self, ended: Callable[[set[str] | None], None]) -> None:
        """Its process has died: nothing of it is used again."""
        self.deaths += 1
        self.running -= 1
        ended(None)


class EventSource:
    """A queue that calls a function, one message an invocation."""

    def __init__(self, queue: Queue, function: Function, most: int, calls: Calls) -> None:
        self.queue = queue
        self.function = function
        self.most = most
        self.calls = calls
        self.running = 0

    def wake(self, at: float) -> None:
        """A message becomes visible at this time."""
        self.calls.kernel.at(at + self.calls.random.uniform(*POLL_SECONDS), self._poll)

    def _poll(self) -> None:
        while self.running < self.most:
            message = self.queue.receive(self.calls.now(), self.calls.random)
            if message is None:
                return
            self.wake(message.visible_at)
            self._deliver(message)
            if self.calls.random.random() < self.calls.awkward.delivered_twice:
                self.queue.show(message, self.calls.now() + self.calls.random.uniform(0, 0.3))
                self.wake(message.visible_at)

    def _deliver(self, message: Message) -> None:
        receipt = message.receipt

        def ended(failed: set[str] | None) -> None:
            self.running -= 1
            if failed is not None and message.id not in failed and message.receipt == receipt:
                self.queue.delete(message.id, self.calls.now())
            self.wake(self.calls.now())

        record = {
            "messageId": message.id,
            "receiptHandle": receipt,
            "body": message.body,
            "attributes": {
                "ApproximateReceiveCount": str(message.received),
                "SentTimestamp": str(int(1_000 * message.sent_at)),
                "ApproximateFirstReceiveTimestamp": str(int(1_000 * message.first_at)),
            },
            "messageAttributes": {},
            "eventSource": "aws:sqs",
            "eventSourceARN": f"arn:aws:sqs:eu-west-1:123456789012:{self.queue.name}",
            "awsRegion": "eu-west-1",
        }
        self.running += 1
        if not self.function.invoke({"Records": [record]}, ended):
            self.running -= 1
            self.queue.show(message, self.calls.now() + THROTTLED_SECONDS)
            self.wake(message.visible_at)


class Schedule:
    """A rule of EventBridge that invokes a function again and again, each so many seconds."""

    def __init__(self, function: Function, seconds: float, first: float, calls: Calls) -> None:
        """Invoke it for the first time at `first`, Unix seconds."""
        self.function = function
        self.seconds = seconds
        self.calls = calls
        calls.kernel.at(first, self._invoke)

    def _invoke(self) -> None:
        self.function.invoke({}, lambda _: None)
        self.calls.kernel.at(self.calls.now() + self.seconds, self._invoke)
