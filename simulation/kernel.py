"""The clock and the tasks of a simulated world: what runs, in which order, and what dies.

Each invocation of a function is a greenlet, and so is each thread that it starts. A task gives way
only in `wait` and `sleep_until_done`, which every simulated call uses, so one seed gives one order.
Knows nothing about AWS.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any, TypeVar

from greenlet import GreenletExit, getcurrent, greenlet

T = TypeVar("T")


class DiedError(BaseException):
    """The process of a task was killed."""


@dataclass(eq=False)
class Life:
    """What dies together: an invocation and its threads."""

    name: str
    """For traces."""
    owner: Any
    """What the tasks belong to, for simulated services."""
    killed: Callable[[], None]
    """Called when it is killed."""
    over: bool = False
    """Whether it has ended, or was killed."""
    calls: int = 0
    """How many simulated calls it has made."""
    tasks: list["Task"] = field(default_factory=list)
    """Its tasks that have not ended."""


class Task(greenlet):  # type: ignore[misc] # greenlet has no types.
    """One thread of simulated execution.

    Attributes:
        called_at, place: when its present call began, and how many moments of all calls there had
        been.
        notes: of whoever watches it.
    """

    life: Life
    called_at: float
    place: int
    notes: dict[Any, Any]


class Kernel:
    """The clock, what is to happen on it, and the seed's decisions.

    Attributes:
        now: Unix seconds.
        task: the one that runs.
        random: every decision of the world comes from here.
    """

    def __init__(self, seed: int, start: float) -> None:
        self.now = start
        self.task: Task | None = None
        self.random = Random(seed)
        self._agenda: list[tuple[float, int, Task | Callable[[], None]]] = []
        self._order = count()
        self._lives: set[Life] = set()
        self._hub = getcurrent()
        self._until = start
        self._is_done: Callable[[], bool] = _never

    # ── tasks ─────────────────────────────────────────────────────────────────────────────────────

    def at(self, moment: float, happening: Callable[[], None]) -> None:
        """Have something happen at a moment; it must not wait."""
        heappush(self._agenda, (moment, next(self._order), happening))

    def begin(self, life: Life, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except DiedError:
                pass  # Killed: nobody learns of it.
            finally:
                self._leave(task)

        task = Task(run, self._hub)
        task.life, task.called_at, task.place, task.notes = life, self.now, 0, {}
        life.tasks.append(task)
        self._lives.add(life)
        heappush(self._agenda, (self.now, next(self._order), task))

    def life(self) -> Life | None:
        """The life of the running task; None outside of tasks."""
        task = self.task
        return None if task is None else task.life

    def wait(self, seconds: float) -> None:
        """Let simulated time pass for the running task; outside of tasks no time passes."""
        task = self.task
        if task is None:
            return
        if task.life.over:
            raise DiedError
        moment = self.now + max(seconds, 0)
        is_next = not self._agenda or moment < self._agenda[0][0]
        if is_next and moment <= self._until and not self._is_done():
            self.now = moment  # Nothing else happens meanwhile.
            return
        heappush(self._agenda, (moment, next(self._order), task))
        self._give_way(task)

    def kill(self, life: Life) -> None:
        """End a life: its tasks never run again, but for cleanup that calls no service."""
        if life.over:
            return
        life.over = True
        self.at(self.now, lambda: self._reap(life))

    def close(self) -> None:
        for life in list(self._lives):
            life.over = True
            self._end(life)

    def _reap(self, life: Life) -> None:
        life.killed()
        self._end(life)

    def _end(self, life: Life) -> None:
        for task in list(life.tasks):
            if task.gr_frame is None:  # It has never run.
                self._leave(task)
                task.throw(GreenletExit)
            else:
                self._run(task, task.throw, DiedError)

    def _leave(self, task: Task) -> None:
        task.life.tasks.remove(task)
        if not task.life.tasks:
            self._lives.remove(task.life)

    def _give_way(self, task: Task) -> None:
        self._hub.switch()
        if task.life.over:
            raise DiedError

    # ── running ───────────────────────────────────────────────────────────────────────────────────

    def run(self, until: float, done: Callable[[], bool] | None = None) -> None:
        """Let everything happen until a moment, or until `done` says so."""
        agenda = self._agenda
        self._until, self._is_done = until, done or _never
        while agenda and agenda[0][0] <= until:
            if self._is_done():
                return
            moment, _, what = heappop(agenda)
            self.now = max(self.now, moment)
            if isinstance(what, Task):
                if not what.dead:
                    self._run(what, what.switch)
            else:
                what()
        if not self._is_done():
            self.now = max(self.now, until)

    def _run(self, task: Task, go: Callable[..., Any], *given: Any) -> None:
        """Let a task run until it gives way."""
        self.task = task
        try:
            go(*given)
        finally:
            self.task = None

    # ── threads ───────────────────────────────────────────────────────────────────────────────────

    def submit(
        self, pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any, **named: Any
    ) -> Future[T]:
        """Run work as a thread of a pool would, in place of `ThreadPoolExecutor.submit`."""
        future: _Awaited[T] = _Awaited(self)
        threads = _threads(pool)
        life = self.life()
        assert life is not None, "a thread pool outside of an invocation"

        def run() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    result = work(*arguments, **named)
                except Exception as error:  # noqa: BLE001 - raised where the result is read
                    future.set_exception(error)
                else:
                    future.set_result(result)
            threads.running -= 1
            self._next_thread(pool, life)
            future.wake()
            threads.wake(self)

        threads.waiting.append((future, run))
        self._next_thread(pool, life)
        return future

    def shut_down(
        self, pool: ThreadPoolExecutor, *, wait: bool = True, cancel_futures: bool = False
    ) -> None:
        """End a pool, in place of `ThreadPoolExecutor.shutdown`."""
        threads = _threads(pool)
        if cancel_futures:
            for future, _ in threads.waiting:
                future.cancel()
            threads.waiting.clear()
        task = self.task
        while wait and (threads.running or threads.waiting) and task is not None:
            if task.life.over:
                raise DiedError
            threads.waiters.append(task)
            self._give_way(task)

    def _next_thread(self, pool: ThreadPoolExecutor, life: Life) -> None:
        threads = _threads(pool)
        while threads.waiting and threads.running < pool._max_workers:  # noqa: SLF001 - it stands for the pool
            threads.running += 1
            self.begin(life, threads.waiting.pop(0)[1])

    def resume(self, task: Task) -> None:
        """Let a task that waits for another go on now."""
        heappush(self._agenda, (self.now, next(self._order), task))

    def sleep_until_done(self, future: Future[Any], waiters: list[Task]) -> None:
        """Block the running task until a future is done."""
        task = self.task
        while not future.done() and task is not None:
            if task.life.over:
                raise DiedError
            waiters.append(task)
            self._give_way(task)


def _never() -> bool:
    return False


class _Threads:
    def __init__(self) -> None:
        self.running = 0
        self.waiting: list[tuple[Future[Any], Callable[[], None]]] = []
        self.waiters: list[Task] = []

    def wake(self, kernel: Kernel) -> None:
        waiters, self.waiters = self.waiters, []
        for task in waiters:
            kernel.resume(task)


def _threads(pool: ThreadPoolExecutor) -> _Threads:
    found = pool.__dict__.get("_simulated")
    if found is None:
        found = pool.__dict__["_simulated"] = _Threads()
    assert isinstance(found, _Threads)
    return found


class _Awaited(Future[T]):
    """A future whose readers wait in simulated time."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self._kernel = kernel
        self._tasks: list[Task] = []

    def result(self, timeout: float | None = None) -> T:
        self._kernel.sleep_until_done(self, self._tasks)
        return super().result(timeout)

    def wake(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            self._kernel.resume(task)
