"""`put` of many files: what is sent at the same time, and what a terminal shows of their names."""

import threading
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dropbatch.cli import put as sending
from dropbatch.cli.context import emit, note
from dropbatch.client.progress import columns_of, cut, describe, printable, shortened
from dropbatch.client.threads import at_once
from dropbatch.client.upload import PART_BYTES
from dropbatch.errors import Error

SMALL, LARGE = 10, PART_BYTES


class File:
    """A file that takes a moment to send."""

    existed = in_place = False
    stack = SimpleNamespace(bucket="bucket")
    lock = threading.Lock()

    def __init__(self, number, size=SMALL, error=None):
        self.key = self.source = f"inbox/{number:02}.jsonl"
        self.size, self.error = size, error
        self.at_once, self.all_there = set(), None

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
    files, at_once, all_there = (
        [File(number) for number in range(20)],
        set(),
        threading.Barrier(8, timeout=10),
    )
    for file in files:
        file.at_once = at_once
    for file in files[:8]:
        file.all_there = all_there

    jobs = send(files)

    assert [job.path for job in jobs] == [file.key for file in files]
    assert max(job.seen for job in jobs) == 8


def test_large_files_are_sent_one_after_another(send):
    """The parts of each are sent at once: two would take twice the memory."""
    files, at_once = [File(number, LARGE) for number in range(10)], set()
    for file in files:
        file.at_once = at_once

    assert {job.seen for job in send(files)} == {1}


def test_nothing_more_is_sent_after_a_failure(send, capsys):
    files = [File(number, error=Error("no room") if number == 3 else None) for number in range(200)]

    with pytest.raises(Error, match="no room"):
        send(files)

    says = capsys.readouterr().err
    assert says.startswith("Uploaded: inbox/00.jsonl, ")
    assert "Not uploaded, or not confirmed: inbox/03.jsonl, " in says
    assert "The same command with --skip-existing sends what is missing." in says


def test_error_is_raised_after_the_others_have_ended():
    ended, free = [], threading.Event()

    def call(one):
        if one == 1:
            free.set()
            raise ValueError("one")
        free.wait(5)
        time.sleep(0.01)
        ended.append(one)

    with pytest.raises(ValueError, match="one"):
        list(at_once(call, range(3), 3))
    assert sorted(ended) == [0, 2]


HOSTILE = "a\x1b[31mred\x1b]0;title\x07\n2026  completed\x9b2J\u202egpj.exe\u2028\ud800"
SHOWN = r"a\x1b[31mred\x1b]0;title\x07\n2026  completed\x9b2J\u202egpj.exe\u2028\ud800"


def test_what_would_command_a_terminal_is_written_out():
    assert printable(HOSTILE) == SHOWN


@pytest.mark.parametrize(
    "text", ["Résumés 100%.jsonl", "年度/レビュー", "👩‍👩‍👧 x", "foto 3", "क्\u200dष"]
)
def test_names_of_the_world_stay(text):
    assert printable(text) == text


@given(st.text(), st.integers(1, 100))
def test_cut_text_fits(text, width):
    for one in (cut(text, width), shortened(text, width)):
        assert columns_of(one) <= width
    assert text.startswith(cut(text, width))


def test_every_way_to_print_is_safe(monkeypatch, capsys):
    monkeypatch.setattr("dropbatch.cli.context.is_json", lambda: False)
    emit({}, HOSTILE)
    note(f"\n{HOSTILE}")
    waiting = {"state": HOSTILE, "waiting_for": {"code": "x", "message": HOSTILE}}

    for width in (None, 40):
        assert not any("\x1b" in line or "\n" in line for line in describe(HOSTILE, waiting, width))
    out, err = capsys.readouterr()
    assert (out, err) == (f"{SHOWN}\n", f"\n{SHOWN}\n")
