"""`put` sends files at the same time: how many, and what becomes of the others if one fails."""

import threading
from types import SimpleNamespace

import pytest

from dropbatch.cli import put as sending
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
