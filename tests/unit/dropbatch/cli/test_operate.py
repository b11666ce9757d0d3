"""Verbs of operators, the list of models, and what is gone."""

import json
import re

import pytest
from click.testing import CliRunner

from dropbatch.cli.main import GONE, cli
from dropbatch.cli.operate import redrive_queues
from dropbatch.client.stack import Stack
from dropbatch.core.models import catalog
from tests.support.shipped import ROOT

VERBS = list(cli.commands.items())


class Queues:
    """Queues by URL. As SQS documents, a short poll asks some of its servers only."""

    def __init__(self, **messages):
        self.messages = messages

    def __call__(self, service):
        return self

    def receive_message(self, QueueUrl, MaxNumberOfMessages, WaitTimeSeconds=0):  # noqa: N803 - boto3's names
        waiting = self.messages.setdefault(QueueUrl, []) if WaitTimeSeconds else []
        found = [{"Body": body, "ReceiptHandle": body} for body in waiting[:MaxNumberOfMessages]]
        return {"Messages": found} if found else {}

    def send_message(self, QueueUrl, MessageBody):  # noqa: N803
        self.messages.setdefault(QueueUrl, []).append(MessageBody)

    def delete_message(self, QueueUrl, ReceiptHandle):  # noqa: N803
        self.messages[QueueUrl].remove(ReceiptHandle)


OUTPUTS = {"PollQueueUrl": "poll", "PollDeadLetterQueueUrl": "dead", "DeadLetterQueueUrl": "x"}


def test_every_dead_letter_is_found():
    letters = [f"letter {number}" for number in range(12)]
    queues = Queues(dead=list(letters))

    moved = redrive_queues(Stack("s", "b", OUTPUTS, queues))

    assert moved == {"Poll": (12, 0)}
    assert queues.messages == {"dead": [], "poll": letters}


def test_ticks_that_could_not_start_are_deleted():
    """Sent to the poll queue, each would fail there and come back."""
    queues = Queues(dead=["{}", "letter", "{}"])

    moved = redrive_queues(Stack("s", "b", OUTPUTS, queues))

    assert moved == {"Poll": (1, 2)}
    assert queues.messages == {"dead": [], "poll": ["letter"]}


@pytest.mark.parametrize("verb", GONE)
def test_verb_that_is_gone_is_refused_with_the_way_out(verb):
    done = CliRunner().invoke(cli, [verb, "x"])

    assert (done.exit_code, GONE[verb] in done.stderr) == (2, True)
    assert f"  {verb} " not in CliRunner().invoke(cli, ["--help"]).stdout


@pytest.mark.parametrize(
    ("arguments", "way_out"),
    [
        ("models --refresh", "the option task"),
        ("doctor --probe", "make try"),
        ("get x --so-far", "status has the counts"),
        ("get x --as npy", "numpy.save"),
    ],
)
def test_option_that_is_gone_is_refused_with_the_way_out(arguments, way_out):
    done = CliRunner().invoke(cli, arguments.split())
    assert (done.exit_code, way_out in done.stderr) == (2, True)


def test_page_lists_verbs_as_they_help():
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    listed = re.findall(r"^\| `([a-z]+)` \| (.+) \|$", page, re.MULTILINE)

    helped = [(name, " ".join(verb.help.partition("\n\n")[0].split())) for name, verb in VERBS]
    assert [(name, text) for name, text in listed if name in cli.commands] == helped


def lines(*arguments):
    result = CliRunner().invoke(cli, ["models", *arguments])
    assert result.exit_code == 0
    assert result.stderr.startswith(f"Facts of {catalog().read_on}, ")
    return result.stdout.splitlines()


def test_all_lists_models_without_batches():
    reranker = "@cf/baai/bge-reranker-base"
    assert not [line for line in lines() if line.startswith(reranker)]
    (line,) = [line for line in lines("--all") if line.startswith(reranker)]
    assert line.endswith("no batches")


def test_json_has_efforts_and_cached_price():
    shown = {one["id"]: one for one in map(json.loads, lines("--json"))}
    kimi = shown["@cf/moonshotai/kimi-k2.6"]
    assert (kimi["efforts"], kimi["cached_price"], kimi["context"]) == (
        ["high", "none"],
        "0.160",
        262_144,
    )
    assert kimi["read_on"] == catalog().read_on
    assert "0E" not in str(shown)
