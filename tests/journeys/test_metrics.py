"""What a run leaves in the log.

Metrics that add up to what happened, and lines that name their batch.
"""

import io
import json
from collections import defaultdict

import pytest

from local.workers_ai import Fault
from shared.observability import METRICS, logger, metrics
from tests.support.translations import M2M, greetings


class Log:
    """The functions' standard output, as CloudWatch Logs would get it."""

    def __init__(self, capsys, stream):
        self.capsys, self.stream, self.printed = capsys, stream, ""

    def metrics(self):
        """Every value of every metric, from all the lines that hold metrics."""
        self.printed += self.capsys.readouterr().out
        values = defaultdict(list)
        for line in self.printed.splitlines():
            told = json.loads(line)
            (directive,) = told["_aws"]["CloudWatchMetrics"]
            assert directive["Namespace"] == "Dropbatch"
            assert directive["Dimensions"] == [["service"]]
            for metric in directive["Metrics"]:
                assert metric["Unit"] == METRICS[metric["Name"]]
                values[metric["Name"]] += told[metric["Name"]]
        return values

    def sums(self):
        return {name: sum(values) for name, values in self.metrics().items()}

    def lines(self):
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def log(capsys, monkeypatch):
    stream = io.StringIO()
    (handler,) = logger.handlers
    metrics.clear_metrics()  # A test before, whose process "died", may have left some.
    monkeypatch.setattr(handler, "stream", stream)
    return Log(capsys, stream)


def test_metrics_add_up_to_what_happened(start, log):
    world = start(MAX_REQUESTS_PER_BATCH=2)
    world.run(
        "a.jsonl", "".join(json.dumps(one) + "\n" for one in greetings(6)) + "nonsense\n", model=M2M
    )

    sums = log.sums()

    assert {
        name: sums[name]
        for name in ("Uploads", "RecordsIn", "BatchesCut", "BatchesAccepted", "BatchesDone")
    } == {
        "Uploads": 1,
        "RecordsIn": 7,
        "BatchesCut": 4,
        "BatchesAccepted": 3,
        "BatchesDone": 4,
    }
    assert (sums["RecordsSucceeded"], sums["RecordsUnreadable"]) == (6, 1)
    assert not {"RecordsRefused", "RecordsUnanswered"} & set(sums)
    assert (sums["JobsCompleted"], sums.get("JobsFailed", 0)) == (1, 0)
    assert sums["SubmitCalls"] == 3
    assert sums["PollCalls"] >= 3
    assert sums["Ticks"] == world.ticks
    assert sums["TokensUsed"] == (world.manifest()["usage"]["total_tokens"] or 0)


def test_failing_message_is_logged_and_counted(world, log):
    body = '{"do":"dance","job_id":"20261121T043000Z-5f3a9c1e"}'
    world.sqs.send_message(QueueUrl=world.queues["SubmitQueue"], MessageBody=body)
    world.sqs.send_message(
        QueueUrl=world.queues["UploadQueue"], MessageBody='{"key":"inbox/secret.jsonl"}'
    )

    world.deliver("SubmitQueue")
    world.deliver("UploadQueue")

    first, second = [line for line in log.lines() if line["message"] == "message failed"]
    assert first["asked"] == body
    assert "secret" not in json.dumps(second)
    assert log.sums()["Errors"] == len(world.refused) == 2


def test_failed_records_are_counted_by_fault(start, api, log):
    world = start(MAX_REQUESTS_PER_BATCH=10, AMBIGUOUS_SUBMIT="fail")
    api.inject(Fault(kind="item_fails", items=(1,), code=5001, times=1))
    world.run(
        "a.jsonl", "".join(json.dumps(one) + "\n" for one in greetings(3)) + "[]\n", model=M2M
    )
    api.inject(Fault(kind="accept_then_reset", times=1))
    world.run("b.jsonl", greetings(2), model=M2M)

    sums = log.sums()

    assert {name: sums[name] for name in sums if name.startswith("Records")} == {
        "RecordsIn": 6,
        "RecordsSucceeded": 2,
        "RecordsUnreadable": 1,
        "RecordsRefused": 1,
        "RecordsUnanswered": 2,
    }
    told = [line["failed"] for line in log.lines() if line["message"] == "batch done"]
    assert told == [{"inference_failed": 1, "not_an_object": 1}, {"submit_unknown": 2}]
