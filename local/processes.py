"""Processes in the background.

Started once, found again by a file, and stopped with all their children. A process is identified by
its id and start time, so that only processes started here are ever stopped.
"""

import fcntl
import hashlib
import json
import os
import platform
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).resolve().parent.parent
OWN_PORTS = 20_000, 32_000
LAST_LINES = 30
"""Lines of a log that are shown."""
START_SECONDS = 30
"""A service takes about a second to start; a busy machine takes longer."""
STOP_SECONDS = 5.0
"""Seconds to wait after each of the two signals."""
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
VARIABLES = (
    *("HOME", "LANG", "LC_ALL", "PATH", "PYENV_VERSION"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "TMPDIR", "TZ"),
)
"""What any program needs."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this one started: their exit status must be read, or they stay as zombies."""


class LocalAwsError(Exception):
    """Something failed; the message is for the user."""


@dataclass(frozen=True)
class Service:
    """A program that runs in the background for the stack of a folder."""

    name: str
    state: Path
    sources: tuple[str, ...] = ()
    """Files and folders, relative to the project: it is restarted when one of them changes."""

    @property
    def file(self) -> Path:
        """Identifies its process."""
        return self.state / f"{self.name}.pid.json"

    @property
    def log(self) -> Path:
        return self.state / "logs" / f"{self.name}.log"

    def running(self) -> dict[str, Any] | None:
        """The content of its file if it still runs, else None."""
        try:
            service: dict[str, Any] = json.loads(self.file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return service if start_time(service["pid"]) == service["born"] else None

    def is_current(self, port: int, peer: str = "") -> bool:
        """Whether it runs with these settings and the current sources; if not, it is stopped."""
        service, wanted = self.running(), self._wanted(port, peer)
        if service and service.items() >= wanted.items():
            return True
        self.stop()
        return False

    def _wanted(self, port: int, peer: str) -> dict[str, Any]:
        return {"port": port, "code": fingerprint(*self.sources), "peer": peer}

    def start(
        self,
        command: list[str],
        environment: Mapping[str, str],
        port: int,
        health: str = "",
        peer: str = "",
    ) -> None:
        """Start it in its own session and wait until it answers on its port.

        `health` is a path to request; without one, accepting a connection is enough. `peer` is the
        address of another service that it uses.
        """
        if _answers(port, ""):
            raise LocalAwsError(
                f"Port {port} is in use by a program that was not started here; set "
                "LOCAL_PORT to use another."
            )
        with self.log.open("wb") as output, _spawned(command, environment, output) as process:
            _children[process.pid] = process
            about = {"pid": process.pid, "born": start_time(process.pid)}
            self.file.write_text(json.dumps(about | self._wanted(port, peer)))
        deadline = time.monotonic() + START_SECONDS
        # Another program may be answering.
        while not _answers(port, health) or process.poll() is not None:
            if process.poll() is not None:
                self.file.unlink()
                self._fail("stopped right after its start")
            if time.monotonic() > deadline:
                self.stop()
                self._fail(f"did not answer within {START_SECONDS} s")
            time.sleep(0.05)

    def _fail(self, how: str) -> None:
        raise LocalAwsError(f"{self.name} {how}.\n{last_lines(self.log)}")

    def stop(self) -> bool:
        """Stop it with all its children; return whether it ran."""
        service = self.running()
        self.file.unlink(missing_ok=True)
        if service is None:
            return False
        pid = service["pid"]
        for sent in (signal.SIGTERM, signal.SIGKILL):
            _kill(pid, sent)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline:
                if pid in _children:
                    _children[pid].poll()
                if start_time(pid) != service["born"]:
                    _kill(pid, signal.SIGKILL)  # The leader has ended; kill its children.
                    if child := _children.pop(pid, None):
                        child.wait()
                    return True
                time.sleep(0.05)
        raise LocalAwsError(f"{self.name} (process {pid}) does not stop.")


def _kill(group: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


@contextmanager
def _spawned(
    command: list[str], environment: Mapping[str, str], output: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """A program in its own session, in the project's root; an error here ends all of it."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    except BaseException:
        _kill(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _answers(port: int, health: str) -> bool:
    with suppress(OSError):
        if health:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=2).close()
        else:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
        return True
    return False


def run(command: list[str], environment: Mapping[str, str], log: Path) -> int:
    """Run a program to its end with its output in a log; return its exit code."""
    with log.open("wb") as output, _spawned(command, environment, output) as process:
        return process.wait()


def fingerprint(*sources: str) -> str:
    """A digest of files and folders, relative to the project."""
    digest = hashlib.sha256(f"{sys.version}{platform.machine()}".encode())
    for source in sources:
        path = ROOT / source
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()


def start_time(pid: int) -> str | None:
    """When a process began, which distinguishes it from a later one with the same id."""
    if Path("/proc/self").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    ps = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    told = subprocess.run(ps, capture_output=True, text=True, check=False).stdout
    state, _, began = told.strip().partition(" ")
    return began.strip() if began and not state.startswith("Z") else None


def last_lines(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
    return "\n".join([f"--- the last lines of {log.relative_to(ROOT)}:", *lines])


def bare_environment() -> dict[str, str]:
    """The variables that any program needs, without the user's own AWS settings."""
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """Hold a lock across all processes, waiting for it if necessary."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def stopped_at_end(stop: Callable[[], object], said: bytes = b"") -> Iterator[None]:
    """Call `stop` first, for what a killed run left, and at the end or a first signal.

    At a signal something is said on standard error; later signals are ignored.
    """

    def ignore_signals() -> None:
        for ending in ENDINGS:
            signal.signal(ending, signal.SIG_IGN)

    def end(number: int, _frame: object) -> None:
        ignore_signals()
        os.write(2, said)  # A print may have been interrupted.
        raise SystemExit(128 + number)

    for ending in ENDINGS:
        signal.signal(ending, end)
    stop()
    try:
        yield
    finally:
        ignore_signals()
        stop()


def free_port() -> int:
    """A port that is free, as are the next two, below those that systems give to programs."""
    while True:
        port = random.SystemRandom().randrange(*OWN_PORTS, 3)  # Test processes seed `random` alike.
        with ExitStack() as stack, suppress(OSError):
            for one in range(port, port + 3):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", one))
            return port
