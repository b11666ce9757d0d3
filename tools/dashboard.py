"""The stack's dashboard as a picture: `make dashboard` runs jobs on a local stack and draws docs/dashboard.png.

    python -m tools.dashboard run     run jobs with faults on a separate stack for minutes; write the measurements
    python -m tools.dashboard draw    draw the measurements, widget by widget, as template.yaml lays them out

The local AWS extracts no metrics from log lines and evaluates no alarms. So the metrics are read from the functions'
logs, in the form that CloudWatch receives, and alarms are evaluated here by their thresholds. SQS's metrics are sampled
every two seconds; the age of the oldest message is the time since its queue was last seen empty.
"""

from __future__ import annotations

import json
import math
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / ".local/picture/measured.json"
PICTURE = ROOT / "docs/dashboard.png"
MODEL = "@cf/baai/bge-small-en-v1.5"
MINUTES = 12.0
BIN = 30
"""Seconds per point; the dashboard's own 60 would give a short run only a few points."""

Series = dict[str, list[tuple[float, float]]]
"""Times and values by metric and dimension; the keys are made by `key`."""


def key(namespace: str, name: str, dimension: str) -> str:
    """A metric's name in a `Series`."""
    return f"{namespace} {name} {dimension}"


# ------------------------------------------------------------------------------------------------------------
# The run
# ------------------------------------------------------------------------------------------------------------


def run() -> None:
    """Deploy a stack, run jobs with faults on it, and write the measurements."""
    from local import aws  # noqa: PLC0415 - drawing happens in an environment without boto3

    home = aws.Home(MEASURED.parent)
    parameters = "MaxRequestsPerBatch=100 ApiCallsPerMinute=120"
    stack = aws.up({"LOCAL_PORT": str(aws.free_port()), "LOCAL_PARAMETERS": parameters}, home)
    try:
        port = int(stack["endpoint_url"].rpartition(":")[2])
        began = time.time()
        seen: Series = defaultdict(list)
        over = threading.Event()
        looking = threading.Thread(target=_look_at_queues, args=(aws.client("sqs", port), seen, over), daemon=True)
        looking.start()
        _work(aws.client("s3", port), stack, began)
        over.set()
        looking.join()
        _read_logs(aws.client("logs", port), aws.client("cloudformation", port), seen)
        watch = aws.client("cloudwatch", port)
        (dashboard,) = watch.list_dashboards()["DashboardEntries"]
        body = json.loads(watch.get_dashboard(DashboardName=dashboard["DashboardName"])["DashboardBody"])
        alarms = [alarm for page in watch.get_paginator("describe_alarms").paginate() for alarm in page["MetricAlarms"]]
        measured = {"began": began, "ended": time.time(), "widgets": body["widgets"], "alarms": alarms, "series": seen}
        MEASURED.write_text(json.dumps(measured, default=str))
    finally:
        aws.down(home)


def _work(s3: Any, stack: dict[str, str], began: float) -> None:  # noqa: ANN401 - boto3 makes its clients at run time
    """Run jobs of several sizes, with bad lines, a lack of capacity, a refused token and a file of unknown format."""
    local = stack["workers_ai_base_url"].removesuffix("/client/v4") + "/_local/"

    def call(path: str, method: str, body: object) -> None:
        request = urllib.request.Request(local + path, json.dumps(body).encode(), method=method)  # noqa: S310 - loopback
        urllib.request.urlopen(request).close()  # noqa: S310

    def drop(name: str, records: int) -> None:
        lines = [json.dumps({"text": f"{name} number {number}"}) for number in range(records)]
        lines[5::97] = ["not JSON"] * len(lines[5::97])
        s3.put_object(Bucket=stack["bucket"], Key=f"inbox/{MODEL}/{name}.jsonl", Body="\n".join(lines).encode())

    steps: list[tuple[float, Callable[[], object]]] = [
        (0, lambda: call("behaviour", "PUT", {"embedder": "hash", "latency": 40.0, "latency_kind": "lognormal"})),
        (1, lambda: drop("monday", 6_000)),
        (60, lambda: drop("tuesday", 800)),
        (115, lambda: call("faults", "POST", {"kind": "3040", "on": "submit", "times": 2})),
        (120, lambda: drop("wednesday", 2_000)),
        (235, lambda: call("faults", "POST", {"kind": "5006", "contains": 'thursday number 150"', "times": 0})),
        (240, lambda: drop("thursday", 400)),
        (360, lambda: s3.put_object(Bucket=stack["bucket"], Key=f"inbox/{MODEL}/photo.png", Body=b"\x89PNG\r\n\x1a\n")),
        (420, lambda: drop("friday", 1_500)),
        (540, lambda: call("behaviour", "PUT", {"tokens": ["rotated"]})),
        (550, lambda: drop("saturday", 1_200)),
        (630, lambda: call("behaviour", "PUT", {"tokens": ["local-token"]})),
    ]
    for after, step in steps:
        time.sleep(max(began + after - time.time(), 0))
        step()
    time.sleep(max(began + 60 * MINUTES - time.time(), 0))


def _look_at_queues(sqs: Any, seen: Series, over: threading.Event) -> None:  # noqa: ANN401
    empty: dict[str, float] = defaultdict(time.time)
    while not over.wait(2):
        now = time.time()
        for url in sqs.list_queues()["QueueUrls"]:
            name = url.rpartition("/")[2]
            wanted = ["ApproximateNumberOfMessages"]
            waiting = int(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=wanted)["Attributes"][wanted[0]])
            if not waiting:
                empty[name] = now
            seen[key("AWS/SQS", "ApproximateNumberOfMessagesVisible", name)].append((now, waiting))
            seen[key("AWS/SQS", "ApproximateAgeOfOldestMessage", name)].append((now, now - empty[name]))


def _read_logs(logs: Any, formation: Any, seen: Series) -> None:  # noqa: ANN401
    """Read the functions' metrics from their logs, and Lambda's metrics from its reports."""
    resources = formation.describe_stack_resources(StackName="dropbatch")["StackResources"]
    names = {one["LogicalResourceId"]: one["PhysicalResourceId"] for one in resources}
    for prefix in ("Submit", "Poll"):
        function = names[f"{prefix}Function"]
        pages = logs.get_paginator("filter_log_events").paginate(logGroupName=names[f"{prefix}Logs"])
        for event in (event for page in pages for event in page["events"]):
            at, message = event["timestamp"] / 1000, event["message"]
            if message.startswith('{"_aws"'):
                line = json.loads(message)
                for metric in line["_aws"]["CloudWatchMetrics"][0]["Metrics"]:
                    seen[key("Dropbatch", metric["Name"], line["service"])] += [(at, v) for v in line[metric["Name"]]]
            elif message.startswith("REPORT"):
                fields = message.split("\t")
                duration = next(field for field in fields if field.startswith("Duration: ")).split()[1]
                failed = any(field.startswith("Status: ") for field in fields)
                for name, value in (("Invocations", 1), ("Errors", failed), ("Throttles", 0), ("Duration", duration)):
                    seen[key("AWS/Lambda", name, function)].append((at, float(value)))


# ------------------------------------------------------------------------------------------------------------
# The picture
# ------------------------------------------------------------------------------------------------------------

COLOURS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd")
INK, PAPER, LINE = "#16191f", "#ffffff", "#d5dbdb"
UNIT_X, UNIT_Y = 0.62, 0.50
"""Inches of one cell of the dashboard's grid, which has 24 columns."""


def statistic(values: list[float], wanted: str) -> float:
    """A statistic of values, by CloudWatch's name for it."""
    if wanted.startswith("p"):
        return sorted(values)[min(math.ceil(float(wanted[1:]) / 100 * len(values)), len(values)) - 1]
    statistics: dict[str, Callable[[list[float]], float]] = {
        "Sum": sum,
        "Maximum": max,
        "Minimum": min,
        "Average": fmean,
    }
    return statistics[wanted](values)


def points(series: list[tuple[float, float]], wanted: str, began: float, ended: float) -> list[tuple[float, float]]:
    """A series in bins of `BIN` seconds: minutes since the beginning, and the statistic; empty bins are left out."""
    bins = defaultdict(list)
    for at, value in series:
        if began <= at <= ended:
            bins[int((at - began) // BIN)].append(value)
    return [(number * BIN / 60, statistic(values, wanted)) for number, values in sorted(bins.items())]


def is_raised(alarm: dict[str, Any], series: Series, ended: float) -> bool:
    """Whether an alarm is raised at the end of the run."""
    found = series.get(key(alarm["Namespace"], alarm["MetricName"], alarm["Dimensions"][0]["Value"]), [])
    judged = []
    for period in range(alarm["EvaluationPeriods"]):
        until = ended - period * alarm["Period"]
        values = [value for at, value in found if until - alarm["Period"] < at <= until]
        if not values:
            judged.append(alarm["TreatMissingData"] != "notBreaching")  # `missing` notifies as INSUFFICIENT_DATA.
            continue
        value = statistic(values, alarm["Statistic"])
        above = alarm["ComparisonOperator"] == "GreaterThanThreshold"
        judged.append(value > alarm["Threshold"] if above else value < alarm["Threshold"])
    return all(judged)


def draw() -> None:
    """Draw every widget."""
    import matplotlib as mpl  # noqa: PLC0415 - installed in its own environment

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    plt.rcParams |= {"font.size": 8, "font.family": "DejaVu Sans", "text.color": INK, "axes.edgecolor": LINE}
    measured = json.loads(MEASURED.read_text())
    rows = max(widget["y"] + widget["height"] for widget in measured["widgets"])
    footer = 0.35
    width, height = 24 * UNIT_X, rows * UNIT_Y + footer
    figure = plt.figure(figsize=(width, height), facecolor="#f2f3f3")
    for widget in measured["widgets"]:
        left, top = widget["x"] * UNIT_X + 0.06, widget["y"] * UNIT_Y + 0.06
        wide, high = widget["width"] * UNIT_X - 0.12, widget["height"] * UNIT_Y - 0.12
        place = (left / width, 1 - (top + high) / height, wide / width, high / height)
        panel = figure.add_axes(place, facecolor=PAPER, xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        panel.text(0.10 / wide, 1 - 0.22 / high, widget["properties"]["title"], fontsize=10, fontweight="bold")
        if widget["type"] == "alarm":
            _draw_alarms(panel, measured, wide)
        else:
            inside = (left + 0.62, height - top - high + 0.62, wide - 0.80, high - 0.98)
            fractions = (inside[0] / width, inside[1] / height, inside[2] / width, inside[3] / height)
            _draw_metrics(figure.add_axes(fractions), widget["properties"], measured)
    when = datetime.fromtimestamp(measured["began"], UTC)
    figure.text(
        0.006,
        0.10 / height,
        f"A run on the local stack, {when:%Y-%m-%d %H:%M} UTC: points of {BIN} s, minutes since the first upload. "
        "The token was refused from minute 9 to 10.5 on purpose.",
        fontsize=8,
        color="#545b64",
    )
    figure.savefig(PICTURE, dpi=88)
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


def _draw_alarms(panel: Any, measured: dict[str, Any], wide: float) -> None:  # noqa: ANN401 - matplotlib's axes
    by_arn = {alarm["AlarmArn"]: alarm for alarm in measured["alarms"]}
    chosen = [by_arn[arn] for arn in panel_alarms(measured)]
    columns = 6
    for number, alarm in enumerate(chosen):
        name = alarm["AlarmName"].split("-")[1].removesuffix("Alarm")
        raised = is_raised(alarm, measured["series"], measured["ended"])
        x, y = number % columns, number // columns
        step = 0.21
        panel.text(
            0.10 / wide + x / columns,
            0.62 - y * step,
            f"{'ALARM' if raised else 'OK':^5}",
            fontsize=7,
            fontweight="bold",
            family="DejaVu Sans Mono",
            color=PAPER,
            va="center",
            bbox={"boxstyle": "round,pad=0.25", "facecolor": "#d13212" if raised else "#1d8102", "edgecolor": "none"},
        )
        panel.text(0.56 / wide + x / columns, 0.62 - y * step, name, va="center")


def panel_alarms(measured: dict[str, Any]) -> list[str]:
    """The ARNs that the dashboard's alarm widget names."""
    (widget,) = [widget for widget in measured["widgets"] if widget["type"] == "alarm"]
    arns: list[str] = widget["properties"]["alarms"]
    return arns


def _draw_metrics(axes: Any, properties: dict[str, Any], measured: dict[str, Any]) -> None:  # noqa: ANN401
    began, ended = measured["began"], measured["ended"]
    for number, (namespace, name, _, dimension, options) in enumerate(properties["metrics"]):
        wanted = options.get("stat", properties["stat"])
        found = points(measured["series"].get(key(namespace, name, dimension), []), wanted, began, ended)
        if wanted == "Sum" and found:  # A missing count is 0.
            known = dict(found)
            found = [(step * BIN / 60, known.get(step * BIN / 60, 0)) for step in range(int((ended - began) // BIN))]
        colour = options.get("color", COLOURS[number % len(COLOURS)])
        style = {"linewidth": 1.4, "markersize": 2.2, "marker": "o", "color": colour}
        axes.plot([x for x, _ in found], [y for _, y in found], label=options["label"], **style)
    axes.set_xlim(0, (ended - began) / 60)
    highest = max((y for line in axes.lines for y in line.get_ydata()), default=0)
    top = max(highest, 1)
    axes.set_ylim(-0.02 * top, 1.1 * top)
    axes.yaxis.set_major_locator(_ticks())
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 0 else "")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f} min")
    axes.tick_params(length=0, labelsize=7, colors="#545b64")
    axes.grid(visible=True, color="#eaeded", linewidth=0.8)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.legend(
        loc="upper left",
        bbox_to_anchor=(-0.08, -0.14),
        ncols=len(properties["metrics"]),
        frameon=False,
        fontsize=7.5,
        handlelength=1.0,
        handletextpad=0.4,
        columnspacing=1.1,
        borderpad=0,
    )


def _ticks() -> Any:  # noqa: ANN401
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    return MaxNLocator(nbins=4, integer=True)


if __name__ == "__main__":
    {"run": run, "draw": draw}[sys.argv[1]]()
