"""The command line on a terminal."""

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time

import click
import pytest

from dropbatch.cli import follow as following
from dropbatch.cli import main as cli
from dropbatch.client import stack as objects
from dropbatch.client import wait as waiting
from dropbatch.client.job import Job
from dropbatch.core.names import JOB_ID
from tests.support.translations import M2M

GOOD = '{"text":"x","target_lang":"es"}\n'
CTRL_C = b"\x03"


def on_terminal(monkeypatch, *arguments, columns=100, ctrl_c_after=None):
    """Run a command on a terminal; its exit code and what the terminal showed.

    Args:
        monkeypatch: pytest's.
        arguments: of the command.
        columns: the terminal's width.
        ctrl_c_after: press Ctrl-C once this was shown.
    """
    monkeypatch.setattr("sys.argv", ["dropbatch", *map(str, arguments)])
    pid, terminal = pty.fork()
    if pid == 0:
        code = 1
        try:
            # A shell that runs the tests in the background has it ignored.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
            out, err = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            monkeypatch.setattr("sys.stdout", out)
            monkeypatch.setattr("sys.stderr", err)
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        finally:
            os._exit(code)
    shown = b""
    ends = time.perf_counter() + 30
    while time.perf_counter() < ends:
        if not select.select([terminal], [], [], 1)[0]:
            continue
        try:
            shown += os.read(terminal, 65_536)
        except OSError:  # The child has ended.
            break
        if ctrl_c_after is not None and ctrl_c_after in shown:
            os.write(terminal, CTRL_C)
            ctrl_c_after = None
    else:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return os.waitstatus_to_exitcode(status), shown.decode()


def really_sleep(monkeypatch):
    monkeypatch.setattr(
        waiting.time, "sleep", lambda seconds: select.select([], [], [], min(seconds, 0.05))
    )


def show_slowly(_name, held, _size):
    click.echo(f"downloading {held}")
    select.select([], [], [], 0.05)


def test_wait_rewrites_line_until_ctrl_c(command, monkeypatch):
    command.world.upload("july.jsonl", GOOD, model=M2M)
    command.world.deliver_all()
    really_sleep(monkeypatch)

    code, shown = on_terminal(monkeypatch, "wait", "july.jsonl", ctrl_c_after=b"\x1b[1F")

    assert code == 130
    assert "0 of 1 record" in shown
    (job,) = set(JOB_ID.findall(shown))
    assert (
        f"Job {job} continues. `dropbatch wait {job}` waits for it, `dropbatch cancel {job}`"
        in shown
    )
    assert "Traceback" not in shown


def test_ctrl_c_before_job_says_it_goes_on(command, monkeypatch, tmp_path):
    (tmp_path / "july.jsonl").write_text(GOOD)
    really_sleep(monkeypatch)
    monkeypatch.setattr(Job, "resolved", lambda job: click.echo("looking") or job)

    code, shown = on_terminal(
        monkeypatch, "put", tmp_path / "july.jsonl", "--wait", ctrl_c_after=b"looking"
    )

    assert code == 130
    (job,) = set(JOB_ID.findall(shown))
    assert f"Job {job} continues. `dropbatch wait {job}` waits for it" in shown
    assert "Traceback" not in shown


def test_ctrl_c_in_get_leaves_what_next_get_resumes(command, monkeypatch, tmp_path):
    command.world.run("july.jsonl", GOOD * 200, model=M2M)
    whole, deliver = command.world.lines(), following.deliver
    with monkeypatch.context() as slow:
        slow.setattr(objects, "CHUNK_BYTES", 100)
        slow.setattr(
            following, "deliver", lambda job, to, _, **more: deliver(job, to, show_slowly, **more)
        )
        code, shown = on_terminal(
            slow, "get", "july.jsonl", "-o", tmp_path, ctrl_c_after=b"downloading 300"
        )

    assert code == 130
    assert "resumes the download" in shown
    held = (tmp_path / "output.jsonl.part").stat().st_size
    done = command.run("get", "july.jsonl", "-o", tmp_path, "--json")
    assert done.json()[0]["fetched"] == done.json()[0]["bytes"] - held
    assert len((tmp_path / "output.jsonl").read_text().splitlines()) == len(whole)


@pytest.mark.parametrize("columns", [40, 80])
def test_no_line_is_wider_than_terminal(command, monkeypatch, columns):
    command.world.run("july.jsonl", GOOD, model=M2M)

    code, shown = on_terminal(monkeypatch, "wait", "july.jsonl", columns=columns)

    assert code == 0
    assert [line for line in shown.split("\n") if len(line.rstrip("\r\x1b[KJ")) > columns] == []


def test_put_shows_first_request_shortened(command, monkeypatch, tmp_path):
    words = " ".join(f"word{number}" for number in range(90))
    (tmp_path / "a.csv").write_text(f"id,review,author\n7,{words},Ann\n")
    put = ("put", tmp_path / "a.csv", "--model", "@cf/baai/bge-m3", "--template", "About: {review}")

    code, shown = on_terminal(monkeypatch, *put, columns=80)

    assert code == 0
    assert "not sent: author\r\n" in shown
    first = shown.split("first request: ")[1].split("\r\n")[0]
    assert first.startswith('{"text":"About: word0 word1')
    assert " … " in first
    assert first.endswith('word89","external_reference":"7"}')
    assert len(first) < 250
