"""What is logged and measured, read from the source.

No line without a name, no metric that nobody sees.
"""

import ast
import inspect
import json
import re
from dataclasses import replace

from local.template import template
from shared.models import Submission
from shared.observability import (
    METRICS,
    LoggingBatchProcessor,
    batch_log_fields,
    count_broken_law,
    report_stuck,
)
from shared.workers_ai.error_codes import METRIC_OF_CLASS, ErrorClass
from tests.support.doubles.ledger_items import BATCH, JOB
from tests.support.shipped import SHIPPED

WITHOUT_A_JOB = {
    "not an upload",
    "missing event not noted",
    "events of a model not known",
    "known reply not noted",
    "queue of events not removed",
    "event refused: too old",
    "upload deleted before its job was created",
    "no job id left for an upload",
    "calls are paused",
    "pause over",
    "models have as many batches outstanding as they may",
    "message failed",
    "completion time not remembered",
    "completion times not read",
    "control item deleted, because it cannot be read",
    "stack controlled",
    "unknown command for the stack",
    "stack's command not read",
    "no control object",
    "next tick not anticipated",
    "no token can be read",
    "denied upload has no job",
    "command not read",
    "events not set up",
    "item of an id not readable",
    "events not pulled",
    "events not expected",
    "events of a model",
    "control item of events deleted, because it cannot be read",
    "queue not reached",
}
"""Lines about what is no job, or not yet."""


def log_calls():
    """Every call of `logger.something(…)` in what is shipped, and where it stands."""
    for path in SHIPPED:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            match node:
                case ast.Call(ast.Attribute(ast.Name("logger"), method)) if (
                    method != "inject_lambda_context"
                ):
                    yield f"{path.stem}:{node.lineno}", node


def test_every_line_names_its_job():
    nameless = {}
    for place, call in log_calls():
        given = {keyword.arg for keyword in call.keywords}
        spread = [ast.unparse(keyword.value) for keyword in call.keywords if keyword.arg is None]
        (message,) = [ast.literal_eval(argument) for argument in call.args]
        if not (message in WITHOUT_A_JOB or "job_id" in given or spread):
            nameless[place] = message
        assert all("batch_log_fields" in one or one == "named" for one in spread), place
    assert nameless == {}


def test_call_of_log_is_found():
    assert len(list(log_calls())) > 40


def test_log_line_has_latest_request_id():
    submission = Submission("second", 2, 2.0)
    named = {"job_id": JOB.job_id, "number": BATCH.number}

    assert batch_log_fields(BATCH) == named
    assert batch_log_fields(replace(BATCH, submission=submission)) == {
        **named,
        "request_id": "second",
    }


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
