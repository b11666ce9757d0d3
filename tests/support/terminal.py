"""Programs in processes of their own: `dropbatch`, and one in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dropbatch.cli.main import main
from tests.support.shipped import ROOT


def run_alone(
    *arguments: object, home: Path | str = "/nowhere", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `dropbatch`, which knows of AWS only what these variables and this home folder say."""
    command = [sys.executable, "-m", "dropbatch", *map(str, arguments)]
    return subprocess.run(
        command, env=_known(home) | environment, capture_output=True, text=True, check=False
    )


def run_forked(
    *arguments: object, home: Path | str = "/nowhere", **environment: str
) -> subprocess.CompletedProcess[str]:
    """As `run_alone`, in a fork of this process, which need not import the command line again."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # As in `journeys/forks.py`.
            child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
                known = _known(home)
                os.environ.clear()
                os.environ.update(known | environment)
                sys.argv = ["dropbatch", *map(str, arguments)]
                main()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
            except BaseException:  # noqa: BLE001 - as Python ends with one
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(
            list(map(str, arguments)), code, out.read().decode(), err.read().decode()
        )


def _known(home: Path | str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "AWS_EC2_METADATA_DISABLED": "true",
        "DROPBATCH_LOCAL": "/nowhere",
    }


def converse(
    command: Sequence[str],
    answer: Callable[[str], str | None],
    folder: Path,
    environment: Mapping[str, str],
    seconds: float = 60.0,
    quiet: float = 0.3,
) -> tuple[int, str]:
    """Run a program in a pseudo-terminal and answer its questions.

    Args:
        command: program and arguments.
        answer: gets each line on which the program waits, and returns what is typed before Enter;
            None: nothing yet.
        folder: where the program runs.
        environment: all its variables.
        seconds: after which the program is killed.
        quiet: seconds without output after which it counts as waiting.

    Returns:
        The exit code, and everything that the terminal showed.

    Raises:
        TimeoutError: it has not ended by then; the message is what the terminal showed.
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(command[0], list(command), dict(environment))
    shown, answered, ends = "", 0, time.monotonic() + seconds
    try:
        while time.monotonic() < ends:
            if select.select([terminal], [], [], quiet)[0]:
                try:
                    shown += os.read(terminal, 65_536).decode(errors="replace")
                except OSError:  # The program has closed the terminal.
                    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown
                continue
            line = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", shown[answered:]).splitlines()[-1:]
            if line and line[0].strip() and (typed := answer(line[0].strip())) is not None:
                answered = len(shown)
                os.write(terminal, f"{typed}\n".encode())
    except BaseException:
        _kill(pid)
        raise
    finally:
        os.close(terminal)
    _kill(pid)
    raise TimeoutError(shown)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
