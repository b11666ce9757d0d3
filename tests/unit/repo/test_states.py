"""The states of jobs and batches.

The laws, the ledger's docstrings, the diagram and the words of docs/architecture.md say the same.
"""

import inspect
import re

import pytest

from dropbatch.core.names import JobState
from shared.ledger import batches, jobs
from shared.models import BatchState
from tests.simulation.worlds.judges import NEXT_JOB_STATES, NEXT_STATES
from tests.support.shipped import ROOT

MACHINES = {"job": (NEXT_JOB_STATES, JobState, jobs), "batch": (NEXT_STATES, BatchState, batches)}
NAMES = r"((?:`[a-z_]+`(?:, | or )?)+)"


def edges(name):
    """What the laws allow, without writes that leave the state as it is."""
    return {
        (was, to) for was, following in MACHINES[name][0].items() for to in following if was != to
    }


@pytest.fixture(params=MACHINES)
def name(request):
    return request.param


def test_laws_know_every_state(name):
    table, states, _ = MACHINES[name]

    assert table.keys() - {None} == set(states)


def test_diagram_draws_what_laws_allow(name):
    page = (ROOT / "docs/architecture.md").read_text()
    (drawn,) = re.findall(rf'state "{name}" as {name} {{\n(.*?)\n  }}', page, re.DOTALL)
    arrows = re.findall(r"(\S+) --> (\w+)", drawn)

    assert {(None if was == "[*]" else was, to) for was, to in arrows} == edges(name)
    assert len(arrows) == len(set(arrows))


def test_docstrings_of_ledger_say_what_laws_allow(name):
    text = inspect.getsource(MACHINES[name][2])
    said = {
        (was, to)
        for befores, afters in re.findall(rf"{NAMES}(?: back)? to {NAMES}", text)
        for was in re.findall(r"\w+", befores.replace(" or ", " "))
        for to in re.findall(r"\w+", afters.replace(" or ", " "))
    }

    assert said == {(was, to) for was, to in edges(name) if was is not None}


def test_page_explains_every_state(name):
    page = (ROOT / "docs/architecture.md").read_text()
    (row,) = re.findall(rf"^- \*state of a {name}\*: (.*)$", page, re.MULTILINE)

    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(MACHINES[name][1])
