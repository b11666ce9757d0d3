"""Worlds as the only judge of defects: `python -m tests.simulation.mutants shared/ledger` prints what finds each.

Each defect of `make mutants` whose name contains an argument gets SECONDS (300) of one processor. A world that breaks a
law, that fails or that does not end has found the defect.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from local.template import powertools_variables
from tests.mutants.__main__ import HEAVY, Changed, Mutant, all_mutants

if TYPE_CHECKING:
    from collections.abc import Sequence

HANGS_AFTER = 8
"""Seconds of the processor after which a world counts as one that does not end."""


def say(text: str) -> None:
    """Print a line now, also if the process is about to end."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def is_found(mutant: Mutant, seconds: float, known: Sequence[Any] = ()) -> bool:
    """Search with a defect, in a process that has imported nothing of what is judged; return whether it is found."""
    sys.meta_path.insert(0, Changed(mutant))
    search = importlib.import_module("tests.simulation.explore.search").Search(known=known)

    def hangs(*_: object) -> None:
        search.law = "does not end"
        say(f"{mutant.name}: {search}, {time.process_time():.1f} s")
        os._exit(0)

    signal.signal(signal.SIGVTALRM, hangs)
    search.run(seconds, lambda: signal.setitimer(signal.ITIMER_VIRTUAL, HANGS_AFTER))
    say(f"{mutant.name}: {search}, {time.process_time():.1f} s")
    return bool(search.law)


def main(wanted: list[str]) -> int:
    """Try the defects one after the other; print how many were found."""
    os.environ |= powertools_variables()
    for name in HEAVY:
        importlib.import_module(name)
    seconds, told = float(os.environ.get("SECONDS", "300")), Counter[bool]()
    for mutant in all_mutants():
        if not any(part in mutant.name for part in wanted):
            continue
        if not (process := os.fork()):
            os._exit(not is_found(mutant, seconds))
        told[os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0] += 1
    say(f"{told[True]} of {told.total()} defects were found")
    return int(told[False] > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
