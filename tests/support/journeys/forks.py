"""Many runs that differ only from some moment on: what comes before that moment runs once.

At such a moment the process forks. The child continues with what is different, to the end; the
parent waits for it and then continues.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import stat
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Forks:
    """The children of one run, and the result of each."""

    def __init__(self) -> None:
        self.results: list[Any] = []
        self.failures: list[str] = []
        """Tracebacks of children that failed."""
        self._to_parent: int | None = None

    def split(self) -> bool:
        """Fork: return true in the child, and false in the parent."""
        from_child, to_parent = os.pipe()
        with warnings.catch_warnings():
            # From 3.12 on Python warns of forks beside threads. pytest-xdist's threads hold nothing
            # that a child needs.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os.close(from_child)
            self._to_parent = to_parent
            # A child lives for a second; a collection copies every page that it shares with its
            # parent.
            gc.disable()
            _own_files()
            return True
        os.close(to_parent)
        try:
            with os.fdopen(from_child, "rb") as pipe:
                told = pipe.read()
        except BaseException:
            os.kill(child, signal.SIGKILL)
            raise
        finally:
            os.waitpid(child, 0)
        result, failure = pickle.loads(told) if told else (None, "the child died")
        if failure:
            self.failures.append(failure)
        else:
            self.results.append(result)
        return False

    def run(self, work: Callable[[], Any]) -> list[Any]:
        """Do the work here and, from each split on, in children, which end with it.

        Return what each child returned.

        Raises:
            AssertionError: a child failed; has its traceback.
        """
        try:
            result, failure = work(), ""
        except BaseException:
            if self._to_parent is None:
                raise
            result, failure = None, traceback.format_exc()
        if self._to_parent is None:
            assert not self.failures, "\n".join(self.failures)
            return self.results
        with os.fdopen(self._to_parent, "wb") as pipe:
            pickle.dump((result, failure), pipe)
        os._exit(0)


def _own_files() -> None:
    """Copy all open files."""
    for number in [int(entry.name) for entry in Path("/dev/fd").iterdir()]:
        try:
            told = os.fstat(number)
            content = os.pread(number, told.st_size, 0) if stat.S_ISREG(told.st_mode) else None
        except OSError:  # The listing's own descriptor, or one that can only be written.
            continue
        if content is None:
            continue
        position = os.lseek(number, 0, os.SEEK_CUR)
        with tempfile.TemporaryFile() as copy:
            copy.write(content)
            copy.flush()
            os.dup2(copy.fileno(), number)
        os.lseek(number, position, os.SEEK_SET)
