"""The mail about a failed job.

What EventBridge makes of the job's event for the topic, whatever the event holds.
"""

import json
import re
from functools import reduce

import pytest

from local.template import properties
from tests.support.aws.resources import BUCKET


def at(event, path):
    """A value in an event by its JSON path, of member names alone."""
    return reduce(lambda value, name: value[name], path.removeprefix("$.").split("."), event)


def delivered(target, event):
    """The text that EventBridge delivers to a target.

    It must be JSON, else EventBridge drops the event.

    A part of the event is delivered as it is. Values in a transformer's template are inserted
    without escaping.
    """
    if path := target.get("InputPath"):
        return json.dumps(at(event, path))
    transformer = target["InputTransformer"]
    values = {name: at(event, path) for name, path in transformer["InputPathsMap"].items()}
    return re.sub(r"<(\w+)>", lambda found: str(values[found[1]]), transformer["InputTemplate"])


@pytest.mark.parametrize(
    "name", ["plain", 'a "quoted" name', "back\\slash", 'both \\" <code>', "ende\n", "日本"]
)
def test_mail_survives_any_key_and_message(world, name):
    model = f'x{name}y"\\' if name.isascii() and name.isprintable() else 'x"\\'
    world.upload(f"{name}.jsonl", '{"text":"y"}\n', model=model)
    world.settle()
    (event,) = world.notices()
    (target,) = properties("FailedJobRule")["Targets"]

    mail = json.loads(delivered(target, event))

    assert mail["source"] == {
        **world.manifest()["source"],
        "bucket": BUCKET,
        "key": f"inbox/{name}.jsonl",
    }
    assert mail["job_id"] == world.manifest()["job_id"]
    assert mail["error"] == world.manifest()["error"]
    assert mail["error"]["code"] == "bad_model"
    assert '"' in mail["error"]["message"]
