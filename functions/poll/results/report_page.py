"""A job's report page: a sentence, facts, charts as inline SVG, failures, files.

Pure: data in, bytes out.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from functions.poll.results.report_data import CURVE_STEPS, upper_edge
from shared.html_page import facts, page, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from functions.poll.results.report_data import Failures, Timeline

# ── charts ────────────────────────────────────────────────────────────────────────────────────────

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 760, 220, 60, 28, 34
MAX_BAR_WIDTH, MAX_LABELS = 120, 7


def timeline_picture(timeline: Timeline, begin: str, end: str) -> str:
    """A chart of how many batches were submitted and collected so far, over time."""
    curves = (("submitted", timeline.submitted), ("collected", timeline.collected))
    most = max(sum(columns) for _, columns in curves) or 1
    paths, legend = [], []
    for index, (name, columns) in enumerate(curves):
        so_far, points = 0, [f"{LEFT},{_y(0, most)}"]
        for step, added in enumerate(columns, 1):
            so_far += added
            points.append(f"{LEFT + (WIDTH - LEFT) * step / CURVE_STEPS:.1f},{_y(so_far, most)}")
        paths.append(f'<polyline class="l{index}" points="{" ".join(points)}"/>')
        x = LEFT + 12 + 220 * index
        legend.append(
            f'<line class="l{index}" x1="{x}" x2="{x + 24}" y1="20" y2="20"/><text '
            f'x="{x + 30}" y="24">{name}</text>'
        )
    said = f"Batches over time, from {begin} to {end}: {most} submitted at most."
    return _svg(said, [*_axes(most, begin, end), *paths, *legend])


def histogram_picture(timeline: Timeline) -> str:
    """A histogram of the seconds from a batch's acceptance to its answer."""
    bins = timeline.seconds_to_answer
    first, last = min(bins), max(bins)
    most, width = max(bins.values()), min((WIDTH - LEFT) / (last - first + 1), MAX_BAR_WIDTH)
    shapes = []
    for number in range(first, last + 1):
        x, y = LEFT + width * (number - first), _y(bins[number], most)
        size = f'width="{max(width - 2, 1):.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
        shapes.append(f'<rect class="f0" x="{x + 1:.1f}" y="{y}" {size}/>')
        if (last - number) % (1 + (last - first) // MAX_LABELS) == 0:
            label = f"{upper_edge(number):,.0f} s"
            shapes.append(
                f'<text x="{x + width:.1f}" y="{HEIGHT - 8}" text-anchor="end">{label}</text>'
            )
    return _svg(
        f"Seconds from submit to answer: {sum(bins.values())} batches.",
        [*_axes(most, "", ""), *shapes],
    )


def _y(value: float, most: float) -> float:
    return round(HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / most, 1)


def _axes(most: int, begin: str, end: str) -> list[str]:
    floor = HEIGHT - BOTTOM
    return [
        f'<line class="axis" x1="{LEFT}" x2="{WIDTH}" y1="{floor}" y2="{floor}"/>',
        f'<text x="{LEFT - 6}" y="{TOP + 8}" text-anchor="end">{most:,}</text>',
        f'<text x="{LEFT - 6}" y="{floor}" text-anchor="end">0</text>',
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{escape(begin)}</text>',
        f'<text x="{WIDTH}" y="{HEIGHT - 8}" text-anchor="end">{escape(end)}</text>',
    ]


def _svg(said: str, shapes: Iterable[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(said)}">{"".join(shapes)}</svg>'
    )


# ── a job's page ──────────────────────────────────────────────────────────────────────────────────


def job_page(
    manifest: dict[str, Any],
    timeline: Timeline,
    failures: Failures,
    ambiguous: Sequence[dict[str, Any]],
) -> bytes:
    """The page of a job that is over.

    Args:
        manifest: the job's.
        timeline: of its batches.
        failures: of its records.
        ambiguous: batches with submits of unknown or doubtful outcome: `number`, `requests`,
            `ambiguous` (how many such submits), `request_id`.
    """
    path = manifest["source"]["key"].removeprefix("inbox/")
    ran = f"{_time(manifest['created_at'])} to {_time(manifest['completed_at'])} UTC"
    body = [
        f"<h1>{escape(path)}</h1>",
        f'<p class="soft">Job <code>{escape(manifest["job_id"])}</code>, {ran}</p>',
        f"<p>{sentence(manifest)}</p>",
        facts(_facts(manifest)),
    ]
    if manifest.get("cost"):
        body.append(
            f'<p class="soft">Cost at the prices of {escape(manifest["cost"]["priced_at"])}.</p>'
        )
    if any(timeline.submitted):
        body += [
            "<h2>Batches over time</h2>",
            timeline_picture(
                timeline, _time(manifest["created_at"]), _time(manifest["completed_at"])
            ),
        ]
        if not timeline.complete:
            body.append('<p class="soft">Only the first batches are shown.</p>')
    if timeline.seconds_to_answer:
        body += ["<h2>Seconds from submit to answer</h2>", histogram_picture(timeline)]
    body += _failures(failures, manifest["counts"]["failed"])
    body += _billed_again(manifest, ambiguous)
    body += [
        "<h2>Files</h2>",
        table(
            ["file", "bytes", "lines", "SHA-256"],
            [(f["name"], f["bytes"], f["lines"], f["sha256"]) for f in manifest["files"]],
        )
        if manifest["files"]
        else "<p>None.</p>",
    ]
    return page(f"{path}: {manifest['state']}", body)


def _billed_again(manifest: dict[str, Any], ambiguous: Sequence[dict[str, Any]]) -> list[str]:
    """What may be billed twice, or is billed without an answer."""
    lines = []
    if submits := manifest.get("doubtful_submits"):
        lines.append(f"Submits answered with an error that does not prove a refusal: {submits:,}.")
    if batches := (manifest.get("cost") or {}).get("uncollected_batches"):
        lines.append(
            f"Accepted submits whose answer was not collected, estimated in the cost: {batches:,}."
        )
    body = ["<h2>May be billed twice</h2>"] if ambiguous or lines else []
    if ambiguous:
        body += [
            (
                "<p>The batch was sent, but no request_id was recorded: whether it was "
                "accepted is unknown.</p>"
            ),
            table(
                ["batch", "records", "ambiguous submits", "request_id"],
                [(b["number"], b["requests"], b["ambiguous"], b["request_id"]) for b in ambiguous],
            ),
        ]
    return body + [f"<p>{line}</p>" for line in lines]


def sentence(manifest: dict[str, Any]) -> str:
    """What ran and how it ended, as HTML."""
    counts, model, error = manifest["counts"], manifest["model"], manifest["error"]
    total = counts["total"] or 0
    ran = f"{total:,} record{'' if total == 1 else 's'}" + (
        f" for <code>{escape(model)}</code>" if model else ""
    )
    if error:
        return (
            f'<b class="bad">Failed</b>: {ran}. <code>{escape(error["code"])}</code>: '
            f"{escape(error['message'])}"
        )
    tone = "good" if manifest["state"] == "completed" and not counts["failed"] else "warn"
    failed = f"{counts['failed']:,} failed" if counts["failed"] else "none failed"
    state = escape(manifest["state"].capitalize())
    return f'<b class="{tone}">{state}</b>: {ran}, {counts["succeeded"]:,} answered, {failed}.'


def _time(at: str) -> str:
    """A time of the manifest, without the letters of ISO 8601."""
    return escape(at.replace("T", " ").removesuffix("Z"))


def _facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    usage, cost = manifest["usage"], manifest.get("cost")
    entries = [
        ("records", f"{manifest['counts']['total'] or 0:,}"),
        ("answered", f"{manifest['counts']['succeeded']:,}"),
        ("failed", f"{manifest['counts']['failed']:,}"),
        (
            "tokens",
            "not reported" if usage["total_tokens"] is None else f"{usage['total_tokens']:,}",
        ),
    ]
    if cost:
        about = "about " if cost["estimated"] else ""
        entries.append(("cost", f"{about}${cost['amount']}"))
    return entries


def _failures(failures: Failures, failed: int) -> list[str]:
    if not failed:
        return []
    body = ["<h2>Failures</h2>"]
    if not failures.complete:
        seen = sum(group.records for group in failures.groups.values()) + failures.others
        body.append(
            f'<p class="soft">Grouped from the first {seen:,} of {failed:,} failures; '
            "errors.jsonl has all of them.</p>"
        )
    ordered = sorted(failures.groups.items(), key=lambda item: -item[1].records)
    for (code, message), group in ordered:
        lines = ", ".join(f"{line:,}" for line in group.lines) + (
            " …" if group.records > len(group.lines) else ""
        )
        examples = "".join(f"<pre>{escape(example)}</pre>" for example in group.examples)
        body.append(
            f"<details open><summary><b>{group.records:,}</b> <code>{escape(code)}</code> "
            f"{escape(message)}</summary>"
            "<p "
            f'class="soft">{f"Lines {lines}" if group.lines else "Examples"}:</p>{examples}</details>'
        )
    if failures.others:
        body.append(f"<p>{failures.others:,} failures of other kinds are in errors.jsonl.</p>")
    return body
