"""The example's state machine, as far as it can be judged without a program that executes it.

(tests/other_aws does).
"""

import json
import re

import pytest

from tests.support.shipped import ROOT

STATES = json.loads((ROOT / "examples/step-functions.asl.json").read_text("utf-8"))["States"]
WAITING = [
    name for name, state in STATES.items() if "waitForTaskToken" in state.get("Resource", "")
]
PAGE = (ROOT / "docs/pipelines.md").read_text("utf-8")


def test_each_state_is_reached():
    named = set(
        re.findall(
            r'"(?:StartAt|Next|Default)": "([^"]+)"', json.dumps({"StartAt": "Drop", **STATES})
        )
    )

    assert named == set(STATES)


@pytest.mark.parametrize("name", WAITING)
def test_state_waits_with_its_token_as_the_page_says(name):
    state = STATES[name]

    assert state["Parameters"]["Metadata"]["task-token.$"] == "$$.Task.Token"
    assert state["Parameters"]["MetadataDirective"] == "REPLACE", (
        "otherwise S3 ignores the metadata"
    )
    assert f"`HeartbeatSeconds` of {state['HeartbeatSeconds']}" in PAGE
    assert "Retry" not in state, "it would drop the file again"
    assert state["Catch"]


def test_two_states_wait():
    assert WAITING == ["Drop", "TryAgain"]
