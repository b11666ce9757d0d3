"""Mutation tests: each condition of the code is broken in turn, and an everyday test must fail.

The coverage of the everyday tests shows which of them reach the line of a defect, and how long each
takes. They are run with that defect, the most telling first, until one fails. Each defect has its
own process: its module is changed when it is imported, and no file is changed. A defect that
survives needs a reason in `tests/mutants/reasons.toml`.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import pytest

from tests.mutants.defects import Mutant, all_mutants, begin, load_libraries, reasons
from tests.mutants.reach import Reach

HANGS_AFTER = 60
"""Seconds after which a test under a defect counts as failed."""
MAX_SECONDS = 800
"""Of all tests of a defect."""
OPTIONS = (
    *("-o", "addopts=", "--import-mode=importlib", "--allow-unix-socket"),
    *("--allow-hosts=127.0.0.1,::1", f"--timeout={HANGS_AFTER}", "-x", "-q"),
    *("-p", "no:cacheprovider", "-p", "no:xdist"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


def run_tests(tests: list[str], log: Path) -> int:
    """Run tests in this process, a new one; return pytest's status."""
    os.setsid()
    with log.open("wb") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
    chosen = log.with_suffix(".tests")
    chosen.write_text("".join(f"{test}\n" for test in tests))
    return pytest.main([*OPTIONS, f"@{chosen}"])


def run(mutants: list[Mutant]) -> None:
    """Run the tests of each of these defects, on every processor; print each outcome."""
    left, at_work = list(reversed(mutants)), dict[int, tuple[Mutant, float]]()
    with tempfile.TemporaryDirectory() as folder:
        while left or at_work:
            while left and len(at_work) < (os.cpu_count() or 1):
                mutant = left.pop()
                if mutant.tests:
                    log = Path(folder) / f"{len(left)}.log"
                    process = begin(mutant, partial(run_tests, mutant.tests, log))
                    at_work[process] = mutant, time.monotonic() + MAX_SECONDS
                else:
                    mutant.outcome = "not reached"
            for process, (mutant, ends) in list(at_work.items()):
                ended, status = os.waitpid(process, os.WNOHANG)
                if not ended and time.monotonic() > ends:
                    os.killpg(process, signal.SIGKILL)
                    ended, status = os.waitpid(process, 0)
                if ended:
                    del at_work[process]
                    mutant.outcome = _outcome(mutant, status)
                    print(f"{mutant.outcome}: {mutant.name}", flush=True)
            time.sleep(0.05)


def _outcome(mutant: Mutant, status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    if code in {pytest.ExitCode.USAGE_ERROR, pytest.ExitCode.NO_TESTS_COLLECTED}:
        raise SystemExit(
            f"The tests of {mutant.name} could not be run; is the coverage of "
            "this tree? `make mutants`"
        )
    return "survived" if code == pytest.ExitCode.OK else "noticed"


def main() -> int:
    """Run the chosen defects."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", help="parts of names of defects; default: all")
    parser.add_argument("--list", action="store_true", help="only list the defects")
    also = "a file of tests that the coverage does not have"
    parser.add_argument("--also", action="append", default=[], help=also)
    alone = "run only the tests of --also; needs no coverage"
    parser.add_argument("--alone", action="store_true", help=alone)
    wanted = parser.parse_args()
    chosen = [
        one
        for one in all_mutants()
        if not wanted.only or any(part in one.name for part in wanted.only)
    ]
    if wanted.list:
        print("\n".join(one.name for one in chosen))
        return 0
    load_libraries()
    reach = None if wanted.alone else Reach()
    for one in chosen:
        found = reach.tests(one.path, one.mutation.line) if reach else []
        one.tests = [*wanted.also, *found]
    began = time.monotonic()
    run(chosen)
    noticed, known = {one.name for one in chosen if one.outcome == "noticed"}, reasons()
    survivors = [one.name for one in chosen if one.name not in noticed | known.keys()]
    idle = sorted(known.keys() & noticed)
    seconds = time.monotonic() - began
    print(f"{len(chosen)} defects in {seconds:.0f} s, {len(noticed)} noticed", end="; ")
    print(f"{len(survivors)} survive without a reason:", *survivors, sep="\n")
    if idle:
        print("Reasons for what does not survive:", *idle, sep="\n")
    return 1 if survivors or idle else 0


if __name__ == "__main__":
    sys.exit(main())
