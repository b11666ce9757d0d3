"""What is shown: progress, names of files, messages."""

import ast
import io
import os
import re
import sys
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.cli import put as sending
from dropbatch.cli.context import emit, note, said
from dropbatch.cli.put import validation_lines
from dropbatch.client import progress
from dropbatch.client.upload import PART_BYTES
from dropbatch.client.validate import validate
from dropbatch.errors import Error, NoStack, NotFound, NotOver, Taken
from tests.support.shipped import ROOT

NAME = "20261121T093000Z-5f3a9c1e"
RUNNING = {
    "state": "in_progress",
    "counts": {"total": 20_000, "succeeded": 7_500, "failed": 12},
    "fraction_done": 0.3756,
    "pending": {"batches": 4},
    "waiting_for": None,
}


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def on_terminal(monkeypatch, columns, lines=24):
    monkeypatch.setattr(
        progress.shutil, "get_terminal_size", lambda: os.terminal_size((columns, lines))
    )
    return progress.Progress(io.StringIO(), on_terminal=True)


@pytest.mark.parametrize("width", [26, 39, 71, 72, 79, 199])
@pytest.mark.parametrize("state", ["in_progress", "completed"])
def test_line_of_any_width_has_state_records_failures(width, state):
    failed = {"total": 1_678, "succeeded": 500, "failed": 1_178}
    lines = progress.describe(NAME, RUNNING | {"state": state, "counts": failed}, width, 65.0)

    assert max(map(len, lines)) <= width
    said = "  ".join(lines)
    assert state in said
    assert "1,178 failed" in said
    assert "1,678 of 1,678 records" in said


def test_what_job_waits_for_is_whole_on_narrow_terminal():
    message = (
        "Cloudflare rejects the API token. Put a good one in the secret; the next call tries it."
    )
    waiting = {"code": "token_refused", "message": message}
    lines = progress.describe(NAME, RUNNING | {"waiting_for": waiting}, 39)

    assert max(map(len, lines)) <= 39
    assert f"waiting: token_refused: {message}" in " ".join(map(str.strip, lines))


def done(succeeded, **more):
    return RUNNING | {"counts": {"total": 20_000, "succeeded": succeeded, "failed": 12}} | more


SPEEDS = [
    (10, done(8_500, fraction_done=0.4256), "about 2 min left  100/s"),
    (60, done(7_506), "6/min"),
    (60, done(19_988, state="completed"), "60 s  4 batches pending"),
]


@pytest.mark.parametrize(("seconds", "status", "says"), SPEEDS)
def test_rate_is_from_when_job_was_first_shown(monkeypatch, clock, seconds, status, says):
    shown = on_terminal(monkeypatch, 200)
    shown.show({NAME: RUNNING})
    clock[0] += seconds
    shown.show({NAME: status})

    assert f"  {says}" in shown.out.getvalue().splitlines()[-2]


def test_pipe_gets_line_for_each_change(clock):
    shown = progress.Progress(io.StringIO(), on_terminal=False)
    for seconds in range(0, 62, 2):
        clock[0] = 100.0 + seconds
        shown.show({NAME: RUNNING})
        shown.redraw()
    shown.show({NAME: RUNNING | {"state": "completed"}})

    lines = shown.out.getvalue().splitlines()
    assert len(lines) == 4  # At once, after 30 and 60 seconds, and the end.
    assert "\x1b" not in shown.out.getvalue()
    assert lines[-1].startswith(f"{NAME}  completed")


DURATIONS = {0.4: "0 s", 99: "99 s", 120: "2 min", 12_000: "3 h 20 min", 190_000: "2 d 4 h"}


def test_durations_are_written_as_people_say_them():
    assert {seconds: progress.duration(seconds) for seconds in DURATIONS} == DURATIONS


@pytest.mark.parametrize(("lines", "shown"), [(3, 2), (24, 6)])
def test_many_jobs_have_one_line_for_all(monkeypatch, lines, shown):
    progress_ = on_terminal(monkeypatch, 200, lines)
    counts = {"succeeded": 6_228, "failed": 12}
    total = {"state": "312 over, 3 failed", "fraction_done": 0.624, "counts": counts}

    progress_.show({f"reviews/{number}.jsonl": RUNNING for number in range(5)}, total)

    drawn = progress_.out.getvalue().splitlines()[:-1]
    assert drawn[0].startswith(
        "all jobs  312 over, 3 failed  [#########.......]  62%  6,240 records  12 failed"
    )
    assert len(drawn) == min(shown, lines - 1)


def test_notebook_cell_is_replaced(monkeypatch):
    """Text below the cell, one display that is updated, as IPython's kernel shows it."""
    cells = []
    shown = SimpleNamespace(update=lambda data, raw: cells.append(data["text/plain"]))
    display = SimpleNamespace(display=lambda _data, raw, display_id: shown)
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(
        sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel, display=display)
    )
    monkeypatch.setitem(sys.modules, "IPython.display", display)

    watched = progress.shown_to_user()
    watched.show({NAME: RUNNING})
    watched.show({NAME: RUNNING | {"state": "completed", "fraction_done": 1.0}})

    assert ["in_progress" in cells[0], "100%" in cells[1], len(cells)] == [True, True, 2]


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (79, "0a6bd716  in_progress  [########........]  50%  151 of 302 records  2 failed"),
        (49, "0a6bd716  in_progress  151 of 302 records"),
    ],
)
def test_narrow_line_has_a_short_id_and_then_no_bar(width, line):
    counts = {"total": 302, "succeeded": 149, "failed": 2}
    status = {"state": "in_progress", "fraction_done": 0.5, "counts": counts}
    assert progress.describe("20261127T234619Z-0a6bd716", status, width)[0] == line
    one = {"state": "completed", "counts": {"total": 1, "succeeded": 1}}
    assert "1 of 1 record " in progress.describe("x", one, None, 3.0)[0]


COMMAND_LINE = re.compile(r"(?<![\w`-])--[a-z]|(?<!\w)-o\b|`dropbatch (?!doctor`)")
IN_COMMANDS = ("cli/", "serve/app.py")
"""What only commands use."""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (NoStack("There is no stack."), "There is no stack. (--stack or DROPBATCH_STACK names it)"),
        (NotOver("It is not over."), "It is not over. (`dropbatch wait JOB` waits)"),
        (Taken("x exists."), "x exists. (-o names another place, --force replaces what is there)"),
        (NotFound("There is none."), "There is none."),
    ],
)
def test_command_line_has_hints_for_kinds_of_errors(error, says):
    assert said(error) == says


COST = "7 input tokens, 0 output tokens, $0.00000008 at the prices of"


@pytest.mark.parametrize(
    ("records", "model", "says"),
    [
        ([{"text": "x"}], "@cf/baai/bge-m3", COST),
        ([{"text": "x"}], "@cf/some/model", "tokens, the model's price is unknown"),
        ([], "@cf/baai/bge-m3", "none: there is nothing to send"),
    ],
)
def test_estimate_says_what_is_unknown(records, model, says):
    report = validate(records, None, {"model": model, "task": "embeddings"})
    (line,) = [one for one in validation_lines(report) if "estimate " in one]
    assert says in line


def strings(path):
    """A module's strings that are no docstrings, each with its line."""
    nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
    texts = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    constants = [node for node in nodes if isinstance(node, ast.Constant) and id(node) not in texts]
    return [(node.lineno, node.value) for node in constants if isinstance(node.value, str)]


def test_library_does_not_name_options():
    folder = ROOT / "dropbatch"
    modules = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*.py"))]
    found = [
        f"{name}:{line}: {text}"
        for name in modules
        if not name.startswith(IN_COMMANDS)
        for line, text in strings(folder / name)
        if COMMAND_LINE.search(text)
    ]
    assert found == []


SMALL, LARGE = 10, PART_BYTES


class File:
    """A file that takes a moment to send."""

    existed = in_place = False
    stack = SimpleNamespace(bucket="bucket")
    lock, at_once = threading.Lock(), set()

    def __init__(self, number, size=SMALL, error=None):
        self.key = self.source = f"inbox/{number:02}.jsonl"
        self.size, self.error, self.all_there = size, error, None

    def send(self, advance):
        with self.lock:
            self.at_once.add(self.key)
            seen = len(self.at_once)
        if self.all_there and seen <= sending.FILES_AT_ONCE:
            self.all_there.wait()
        with self.lock:
            self.at_once.discard(self.key)
        advance(self.size)
        if self.error:
            raise self.error
        return SimpleNamespace(path=self.key, id="id", uploaded=None, seen=seen)

    def close(self):
        pass


@pytest.fixture
def send(monkeypatch):
    monkeypatch.setattr(sending, "emit", lambda *_: None)
    return lambda files: sending.Sending(File.stack, files, {}).send(files)


def test_eight_files_are_sent_at_once(send):
    files, all_there = [File(number) for number in range(20)], threading.Barrier(8, timeout=10)
    for file in files[:8]:
        file.all_there = all_there

    jobs = send(files)

    assert [job.path for job in jobs] == [file.key for file in files]
    assert max(job.seen for job in jobs) == 8


def test_large_files_are_sent_one_after_another(send):
    """The parts of each are sent at once: two would take twice the memory."""
    assert {job.seen for job in send([File(number, LARGE) for number in range(10)])} == {1}


def test_nothing_more_is_sent_after_a_failure(send, capsys):
    files = [File(number, error=Error("no room") if number == 3 else None) for number in range(200)]

    with pytest.raises(Error, match="no room"):
        send(files)

    says = capsys.readouterr().err
    assert says.startswith("Uploaded: inbox/00.jsonl, ")
    assert "Not uploaded, or not confirmed: inbox/03.jsonl, " in says
    assert "The same command with --skip-existing sends what is missing." in says


HOSTILE = "a\x1b[31mred\x1b]0;title\x07\n2026  completed\x9b2J\u202egpj.exe\u2028\ud800"
SHOWN = r"a\x1b[31mred\x1b]0;title\x07\n2026  completed\x9b2J\u202egpj.exe\u2028\ud800"


def test_what_would_command_a_terminal_is_written_out():
    assert progress.printable(HOSTILE) == SHOWN


@pytest.mark.parametrize(
    "text", ["Résumés 100%.jsonl", "年度/レビュー", "👩‍👩‍👧 x", "foto 3", "क्\u200dष"]
)
def test_names_of_the_world_stay(text):
    assert progress.printable(text) == text


@given(st.text(), st.integers(1, 100))
def test_cut_text_fits(text, width):
    for one in (progress.cut(text, width), progress.shortened(text, width)):
        assert progress.columns_of(one) <= width
    assert text.startswith(progress.cut(text, width))


def test_every_way_to_print_is_safe(monkeypatch, capsys):
    monkeypatch.setattr("dropbatch.cli.context.is_json", lambda: False)
    emit({}, HOSTILE)
    note(f"\n{HOSTILE}")
    waiting = {"state": HOSTILE, "waiting_for": {"code": "x", "message": HOSTILE}}

    for width in (None, 40):
        assert not any(
            "\x1b" in line or "\n" in line for line in progress.describe(HOSTILE, waiting, width)
        )
    out, err = capsys.readouterr()
    assert (out, err) == (f"{SHOWN}\n", f"\n{SHOWN}\n")
