"""What must stand in two languages, or in the code and for people, says the same in both."""

import ast
import inspect
import json
import re
from dataclasses import replace

import pytest

from bench.billed import BY_SIZE
from dropbatch.cli.cloudflare import DEFAULT_BASE_URL
from dropbatch.core.formats.base import API_BODY_LIMIT
from dropbatch.core.models import MODEL_ID, find_model, is_model, max_records_per_reply
from dropbatch.core.names import INBOX, MAX_PATH_BYTES, job_control
from dropbatch.core.plan import FIRST_BATCH_RECORDS, StackLimits
from dropbatch.core.read.cut import MAX_BYTES_WITHOUT_BATCH, WRAPPER_BYTES
from dropbatch.core.read.unpack import MAX_RATIO, MAX_ZSTD_WINDOW_BYTES, RATIO_FROM_BYTES
from functions.poll.commands import MAX_HELD_SECONDS
from functions.poll.divide import MAX_ISOLATION_SUBMITS, MAX_PIECES
from functions.poll.end import MANIFEST_BATCHES
from functions.poll.tick import MAX_IDLE_VISITS
from functions.submit.handler import FAILED_AGAIN_SECONDS
from functions.submit.upload import MAX_EVENT_AGE_SECONDS
from local.template import defaults, properties, template
from local.workers_ai import Behaviour
from local.workers_ai import worker as stand_in
from shared.ledger.due import LIFE_SECONDS
from shared.models import MAX_JOB_SECONDS, Submission
from shared.observability import (
    METRICS,
    LoggingBatchProcessor,
    batch_log_fields,
    count_broken_law,
    report_stuck,
)
from shared.retry import CLAIMS_BEFORE_ALARM, MAX_CLAIMS, MAX_SECONDS_TO_ACCEPTANCE
from shared.settings import MAX_CALLS
from shared.spool import MAX_REPLY_BYTES
from shared.workers_ai import error_codes
from shared.workers_ai.error_codes import METRIC_OF_CLASS, ErrorClass
from tests.support.doubles.ledger_items import BATCH, JOB
from tests.support.shipped import ROOT, SHIPPED

WORKER = (ROOT / "worker/src/index.ts").read_text("utf-8")
DAY = 86_400
PARAMETERS = template()["Parameters"]
LIMITS = re.sub(r"\s+", " ", (ROOT / "docs/limits.md").read_text("utf-8"))
MOST_RECORDS, MOST_BYTES = PARAMETERS["MaxRequestsPerBatch"], PARAMETERS["MaxBatchBytes"]
SAID = (
    f"| request body | under {API_BODY_LIMIT:,} bytes |",
    f"| one record | {API_BODY_LIMIT - WRAPPER_BYTES - 1:,} bytes;",
    (
        f"four batches of a job have up to {FIRST_BATCH_RECORDS} each, the next four up to "
        f"{2 * FIRST_BATCH_RECORDS:,},"
    ),
    f"`MaxRequestsPerBatch` ({MOST_RECORDS['Default']:,}; at most {MOST_RECORDS['MaxValue']:,})",
    f"`MaxBatchBytes` ({MOST_BYTES['Default']:,}; at most {MOST_BYTES['MaxValue']:,})",
    f"{max_records_per_reply(find_model('@cf/baai/bge-m3')):,} for embeddings",
    f"{max_records_per_reply(find_model('@cf/meta/m2m100-1.2b')):,} for translation",
    f"{max_records_per_reply(find_model('@cf/nobody/nothing')):,} for a model that",
    f"| one reply of the API | {MAX_REPLY_BYTES:,} bytes |",
    f"is {defaults()['ApiCallsPerMinute']} by default and at most {MAX_CALLS}.",
    f"Through a Worker it may be {PARAMETERS['ApiCallsPerMinute']['MaxValue']:,} ",
    f"each tick visits {MAX_IDLE_VISITS} to",
    f"divided into up to {MAX_PIECES} pieces",
    f"at most {MAX_ISOLATION_SUBMITS:,} submits per job",
    f"over {RATIO_FROM_BYTES >> 20} MB and over {MAX_RATIO:,} times their size",
    f"zstd windows above {MAX_ZSTD_WINDOW_BYTES >> 20} MB",
    f"within {MAX_BYTES_WITHOUT_BATCH >> 30} GB of content",
    f"at most {MAX_PATH_BYTES} bytes below `inbox/`",
    f"listed in `manifest.json` | {MANIFEST_BATCHES:,};",
    f"ends `expired` {MAX_SECONDS_TO_ACCEPTANCE // DAY} days after its turn",
    f"`BatchDeadlineHours` ({defaults()['BatchDeadlineHours']})",
    (
        f"an alarm after {CLAIMS_BEFORE_ALARM} attempts; "
        f"{MAX_CLAIMS - CLAIMS_BEFORE_ALARM} hours later"
    ),
    f"| a paused job | is cancelled after {MAX_HELD_SECONDS // DAY} days |",
    f"| a job | ends after {MAX_JOB_SECONDS // DAY} days at the latest",
    f"deleted after {LIFE_SECONDS // DAY} days |",
    f"older than {MAX_EVENT_AGE_SECONDS // DAY} days |",
)
"""What docs/limits.md says, with the numbers of the code and the template."""


def test_page_of_limits_has_numbers_of_code(subtests):
    for words in SAID:
        with subtests.test(words):
            assert words in LIMITS


def test_users_machine_knows_defaults_of_template():
    given = StackLimits()
    assert (str(given.max_requests), str(given.max_bytes)) == (
        defaults()["MaxRequestsPerBatch"],
        defaults()["MaxBatchBytes"],
    )
    assert (given.transport, given.default_model) == (
        defaults()["Transport"],
        defaults()["DefaultModel"],
    )
    assert defaults()["WorkersAiBaseUrl"] == DEFAULT_BASE_URL


def test_largest_body_is_one_everywhere():
    assert MOST_BYTES["MaxValue"] == API_BODY_LIMIT - 1
    assert Behaviour().max_payload == stand_in.MAX_BODY_BYTES == API_BODY_LIMIT
    assert f"MAX_BODY_BYTES = {API_BODY_LIMIT:_};" in WORKER
    assert f"MAX_REPLY_CHARACTERS = {stand_in.MAX_REPLY_CHARACTERS:_};" in WORKER


@pytest.mark.parametrize(
    "model", ["@cf/a/b", "@hf/A-1/b_2.c", "@cf/a", "@xx/a/b", "@cf/a/b/c", "@cf/ä/b", "a/@cf/a/b"]
)
def test_model_ids_are_one_language(model):
    (in_worker,) = re.findall(r"^const MODEL = /(.+)/;$", WORKER, re.MULTILINE)
    in_template = PARAMETERS["DefaultModel"]["AllowedPattern"]

    found = [
        bool(re.search(in_worker.replace(r"\/", "/"), f"/run/{model}")),
        bool(re.search(in_template, model)),
    ]
    assert found == [is_model(model)] * 2
    assert stand_in._MODEL.pattern == "/run/(" + MODEL_ID.pattern.removeprefix("(?!.{201})") + ")"


def test_bucket_announces_prefixes_of_names():
    queues = properties("Bucket")["NotificationConfiguration"]["QueueConfigurations"]
    announced = [one["Filter"]["S3Key"]["Rules"][0]["Value"] for one in queues]

    assert announced[0] == INBOX
    assert job_control("").startswith(announced[1])


def test_failed_message_waits_as_its_queue_says():
    assert properties("UploadQueue")["VisibilityTimeout"] == FAILED_AGAIN_SECONDS


def test_table_of_replies_has_each_code_and_its_class():
    """In docs/reliability.md, codes of one class share a row."""
    text = (ROOT / "docs/reliability.md").read_text("utf-8")
    rows = text.split("## How each error code is handled")[1].split("\n\n")[2].splitlines()[2:]
    told = [[int(code) for code in re.findall(r"\b\d{3,5}\b", row.split("|")[1])] for row in rows]
    codes = error_codes._CODES

    assert {code for row in told for code in row} >= codes.keys()
    for row in told:
        assert len({codes[code] for code in row if code in codes}) <= 1, row


def test_sizes_that_costs_are_counted_with_exist():
    assert [name for module, name in BY_SIZE if not hasattr(module, name)] == []


WITHOUT_A_JOB = {
    *("not an upload", "missing event not noted", "events of a model not known"),
    *("known reply not noted", "queue of events not removed", "event refused: too old"),
    *("upload deleted before its job was created", "no job id left for an upload"),
    *("calls are paused", "pause over", "models have as many batches outstanding as they may"),
    *("message failed", "completion time not remembered", "completion times not read"),
    *("control item deleted, because it cannot be read", "stack controlled"),
    *("unknown command for the stack", "stack's command not read", "no control object"),
    *("next tick not anticipated", "no token can be read", "denied upload has no job"),
    *("command not read", "events not set up", "item of an id not readable", "events not pulled"),
    *("events not expected", "events of a model"),
    *("control item of events deleted, because it cannot be read", "queue not reached"),
}
"""Lines about what is no job, or not yet."""


def log_calls():
    """Every call of `logger.something(…)` in what is shipped, and where it stands."""
    for path in SHIPPED:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            function = getattr(node, "func", None)
            is_log = getattr(getattr(function, "value", None), "id", "") == "logger"
            if is_log and function.attr != "inject_lambda_context":
                yield f"{path.stem}:{node.lineno}", node


def test_every_line_names_its_job():
    calls, nameless = list(log_calls()), {}
    assert len(calls) > 40
    for place, call in calls:
        given = {keyword.arg for keyword in call.keywords}
        spread = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
        (message,) = [ast.literal_eval(argument) for argument in call.args]
        if not (message in WITHOUT_A_JOB or "job_id" in given or spread):
            nameless[place] = message
        assert all("batch_log_fields" in one or one == "named" for one in spread), place
    assert nameless == {}


def test_log_line_has_latest_request_id():
    named = {"job_id": JOB.job_id, "number": BATCH.number}
    sent = replace(BATCH, submission=Submission("second", 2, 2.0))

    assert batch_log_fields(BATCH) == named
    assert batch_log_fields(sent) == named | {"request_id": "second"}


def test_metric_is_counted_and_on_dashboard():
    sources = "".join(path.read_text() for path in SHIPPED if path.stem != "observability")
    sources += inspect.getsource(count_broken_law) + inspect.getsource(report_stuck)
    sources += inspect.getsource(LoggingBatchProcessor)
    body = template()["Resources"]["StackDashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
    seen = set(re.findall(r'"Dropbatch", "(\w+)"', body))

    assert {name for name in METRICS if f'"{name}"' not in sources} == set()
    assert seen == set(METRICS)
    assert json.loads(body)["widgets"]


def test_every_refusal_is_counted_as_something():
    assert set(METRIC_OF_CLASS) == set(ErrorClass)
    assert set(METRIC_OF_CLASS.values()) <= set(METRICS)
