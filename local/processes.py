"""Processes in the background.

Started once, found again by a file, and stopped with all their children.

A process is identified by its id and start time, so that only processes started here are ever
stopped.
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
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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

_children: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this one started: their exit status must be read, or they stay as zombies."""


class LocalAwsError(Exception):
    """Something failed; the message is for the user."""


@dataclass(frozen=True)
class Service:
    """A program that runs in the background for one stack.

    Attributes:
        name: the name of its log and of its file.
        state: the stack's folder.
        sources: files and folders, relative to the project; the service is restarted when one of
            them changes.
    """

    name: str
    state: Path
    sources: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Identifies its process."""
        return self.state / f"{self.name}.pid.json"

    @property
    def log(self) -> Path:
        """Its output."""
        return self.state / "logs" / f"{self.name}.log"

    def running(self) -> dict[str, Any] | None:
        """The content of its file if it still runs, else None."""
        try:
            service: dict[str, Any] = json.loads(self.file.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        return service if start_time(service["pid"]) == service["born"] else None

    def is_current(self, port: int, peer: str = "") -> bool:
        """Whether it runs with these settings and the current sources."""
        service = self.running()
        wanted = {"port": port, "code": fingerprint(*self.sources), "peer": peer}
        if service and service.items() >= wanted.items():
            return True
        self.stop()
        return False

    def start(
        self,
        command: list[str],
        environment: Mapping[str, str],
        port: int,
        health: str = "",
        peer: str = "",
    ) -> None:
        """Start it in its own session and wait until it answers.

        Args:
            command: program and arguments.
            environment: all its variables.
            port: where it will listen.
            health: path to request; empty: accepting a connection is enough.
            peer: the address of another service that it uses.
        """
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                raise LocalAwsError(
                    f"Port {port} is in use by a program that was not started here; set "
                    "LOCAL_PORT to use another."
                )
        code = fingerprint(*self.sources)
        with self.log.open("wb") as output, signals_held():
            process = _spawn(command, environment, output)
            _children[process.pid] = process
            service = {
                "pid": process.pid,
                "born": start_time(process.pid),
                "port": port,
                "code": code,
                "peer": peer,
            }
            self.file.write_text(json.dumps(service))
        deadline = time.monotonic() + START_SECONDS
        # another program may be answering
        while not _answers(port, health) or process.poll() is not None:
            if process.poll() is not None:
                self.file.unlink()
                raise LocalAwsError(
                    f"{self.name} stopped right after its start.\n{last_lines(self.log)}"
                )
            if time.monotonic() > deadline:
                self.stop()
                raise LocalAwsError(
                    f"{self.name} did not answer within {START_SECONDS} s.\n{last_lines(self.log)}"
                )
            time.sleep(0.05)

    def stop(self) -> bool:
        """Stop it with all its children; return whether it ran."""
        service = self.running()
        self.file.unlink(missing_ok=True)
        if service is None:
            return False
        pid = service["pid"]
        for sent in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(pid, sent)
            deadline = time.monotonic() + STOP_SECONDS
            while time.monotonic() < deadline:
                if pid in _children:
                    _children[pid].poll()
                if start_time(pid) != service["born"]:
                    # The leader has ended; kill its children.
                    with suppress(ProcessLookupError, PermissionError):
                        os.killpg(pid, signal.SIGKILL)
                    if child := _children.pop(pid, None):
                        child.wait()
                    return True
                time.sleep(0.05)
        raise LocalAwsError(f"{self.name} (process {pid}) does not stop.")


def _spawn(
    command: list[str], environment: Mapping[str, str], output: IO[bytes], *inherited: int
) -> subprocess.Popen[bytes]:
    """Start a program in its own session, from the project's root."""
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        pass_fds=inherited,
    )


def _answers(port: int, health: str) -> bool:
    with suppress(OSError):
        if health:
            urllib.request.urlopen(f"http://127.0.0.1:{port}{health}", timeout=2).close()
        else:
            socket.create_connection(("127.0.0.1", port), timeout=2).close()
        return True
    return False


def run(command: list[str], environment: Mapping[str, str], log: Path, lock: int) -> int:
    """Run a program to its end with its output in a log; return its exit code.

    The program holds the lock too: if this process is killed, the next one waits until the program
    has ended. If this process is interrupted, the program and all its children are killed.

    Args:
        command: program and arguments.
        environment: all its variables.
        log: receives its output.
        lock: file descriptor of a lock.
    """
    with log.open("wb") as output:
        process = None
        try:
            with signals_held():
                process = _spawn(command, environment, output, lock)
            return process.wait()
        except BaseException:
            if process is not None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            raise


def fingerprint(*sources: str) -> str:
    """A digest of files and folders, relative to the project."""
    digest = hashlib.sha256(f"{sys.version}{platform.machine()}".encode())
    for source in sources:
        path = ROOT / source
        files = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                content = file.read_bytes()
                digest.update(f"{file.relative_to(ROOT)} {len(content)}\n".encode())
                digest.update(content)
    return digest.hexdigest()


def start_time(pid: int) -> str | None:
    """When a process began, which distinguishes it from a later one with the same id."""
    stat = Path(f"/proc/{pid}/stat")
    if Path("/proc/self").exists():
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] == "Z" else fields[19]
    ps = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    state, _, began = ps.stdout.strip().partition(" ")
    return began.strip() if began and not state.startswith("Z") else None


def last_lines(log: Path) -> str:
    """The end of a log, with its name."""
    lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:] if log.exists() else []
    return "\n".join([f"--- the last lines of {log.relative_to(ROOT)}:", *lines])


def bare_environment() -> dict[str, str]:
    """The variables that any program needs, without the user's own AWS settings."""
    names = (
        "HOME",
        "LANG",
        "LC_ALL",
        "PATH",
        "PYENV_VERSION",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "TMPDIR",
        "TZ",
    )
    return {name: os.environ[name] for name in names if name in os.environ}


@contextmanager
def locked(file: Path) -> Iterator[int]:
    """Hold a lock across all processes, waiting for it if necessary; yield its file descriptor."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


@contextmanager
def signals_held() -> Iterator[None]:
    """Delay signals that end this process until one just started is recorded in its file."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Signals are delivered to the main thread only.
        return
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda sent, _: received.append(sent)) for number in ENDINGS
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for sent in received:
            signal.raise_signal(sent)


@contextmanager
def stopped_at_end(stop: Callable[[], object], said: bytes = b"") -> Iterator[None]:
    """Call `stop` first, for what a killed run left, and at the end or a first signal.

    Later signals are ignored.

    Args:
        stop: stops all that was started.
        said: for standard error, at a signal.
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
    """A port that is free now, as are the next two.

    For a local AWS, its local Workers AI and its fault proxy.

    They are below the range from which systems assign ports, so that no program started meanwhile
    gets one of them.
    """
    while True:
        port = random.SystemRandom().randrange(*OWN_PORTS, 3)  # Test processes seed `random` alike.
        with (
            socket.socket() as first,
            socket.socket() as second,
            socket.socket() as third,
            suppress(OSError),
        ):
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 1))
            third.bind(("127.0.0.1", port + 2))
            return port
