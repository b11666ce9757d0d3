"""The report page: one self-contained HTML file. Pure: data in, bytes out.

It fetches nothing and has no script. The only style sheet is inline, named by its hash in the Content-Security-Policy;
charts are inline SVG. All text from outside is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING, Any

from functions.poll.report_data import STEPS, upper_edge

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from functions.poll.report_data import Failures, Timeline

STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--soft:#59636e;--line:#d1d9e0;--back:#fff;--panel:#f6f8fa;--good:#1a7f37;
--bad:#c9252d;--warn:#9a6700;--a:#0969da;--b:#8250df}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;--back:#0d1117;--panel:#151b23;
--good:#3fb950;--bad:#f85149;--warn:#d29922;--a:#4493f8;--b:#ab7df8}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:60rem;padding:1.5rem 1rem 4rem;background:var(--back);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.5rem;line-height:1.25;margin:0 0 .25rem;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:2.25rem 0 .5rem;border-bottom:1px solid var(--line);padding-bottom:.25rem}
p{margin:.5rem 0}.soft{color:var(--soft)}.good{color:var(--good)}.bad{color:var(--bad)}.warn{color:var(--warn)}
code,pre,.mono{font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{overflow-wrap:anywhere}
pre{margin:.35rem 0;padding:.5rem .6rem;background:var(--panel);border:1px solid var(--line);border-radius:6px;
white-space:pre-wrap;overflow-wrap:anywhere}
dl.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(9rem,1fr));gap:.75rem;margin:1rem 0}
dl.facts div{background:var(--panel);border:1px solid var(--line);border-radius:6px;padding:.5rem .7rem}
dt{color:var(--soft);font-size:.85rem}dd{margin:0;font-size:1.15rem;overflow-wrap:anywhere}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.92rem}
th,td{text-align:left;padding:.35rem 1rem .35rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{font-weight:600;color:var(--soft)}td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}
svg{display:block;width:100%;height:auto;margin:.5rem 0}
svg{overflow:visible}svg text{fill:var(--soft);font:12px system-ui,sans-serif}
@media(max-width:600px){svg text{font-size:24px}}
td code{white-space:nowrap}svg .axis{stroke:var(--line)}
.l0{stroke:var(--a)}.l1{stroke:var(--b)}.f0{fill:var(--a)}
.l0,.l1{fill:none;stroke-width:2}.l1{stroke-dasharray:6 3}
details{margin:.4rem 0}summary{cursor:pointer}
@media print{body{max-width:none;padding:0;font-size:11pt}h2{break-after:avoid}tr,details,svg{break-inside:avoid}
details>*{display:block}}
""".strip()

MIN_CODE_CHARACTERS = 30
"""A cell that is as long holds an id or a digest."""

_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


def page(title: str, body: Iterable[str]) -> bytes:
    """A whole page.

    Args:
        title: as text.
        body: HTML.
    """
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f'<meta name="robots" content="noindex"><title>{escape(title)}</title><style>{STYLE}</style></head><body>\n'
    )
    return (head + "\n".join(body) + "\n</body></html>\n").encode(errors="replace")


def facts(entries: Iterable[tuple[str, str]]) -> str:
    """Short facts in boxes: name and value, as text."""
    return (
        '<dl class="facts">'
        + "".join(f"<div><dt>{escape(n)}</dt><dd>{escape(v)}</dd></div>" for n, v in entries)
        + "</dl>"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table of texts and numbers; numbers stand to the right."""
    found = [list(row) for row in rows]
    right = [bool(found) and isinstance(found[0][index], int | float) for index in range(len(header))]

    def cells(row: Sequence[object], tag: str) -> str:
        return "".join(f"<{tag}{' class=n' if right[i] else ''}>{_cell(cell)}</{tag}>" for i, cell in enumerate(row))

    head = f"<tr>{cells(header, 'th')}</tr>"
    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in found)
    text = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="scroll"><table>{text}<thead>{head}</thead><tbody>{lines}</tbody></table></div>'


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    text = escape(str(value))
    return f"<code>{text}</code>" if len(text) >= MIN_CODE_CHARACTERS else text


# ── pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────

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
            points.append(f"{LEFT + (WIDTH - LEFT) * step / STEPS:.1f},{_y(so_far, most)}")
        paths.append(f'<polyline class="l{index}" points="{" ".join(points)}"/>')
        x = LEFT + 12 + 220 * index
        legend.append(
            f'<line class="l{index}" x1="{x}" x2="{x + 24}" y1="20" y2="20"/><text x="{x + 30}" y="24">{name}</text>'
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
            shapes.append(f'<text x="{x + width:.1f}" y="{HEIGHT - 8}" text-anchor="end">{label}</text>')
    return _svg(f"Seconds from submit to answer: {sum(bins.values())} batches.", [*_axes(most, "", ""), *shapes])


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
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(said)}">{"".join(shapes)}</svg>'


# ── a job's page ─────────────────────────────────────────────────────────────────────────────────────────────────────


def job_page(
    manifest: dict[str, Any], timeline: Timeline, failures: Failures, ambiguous: Sequence[dict[str, Any]]
) -> bytes:
    """The page of a job that is over.

    Args:
        manifest: the job's.
        timeline: of its batches.
        failures: of its records.
        ambiguous: batches with submits of unknown outcome: `number`, `requests`, `ambiguous` (how many such submits),
            `request_id`.
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
        body.append(f'<p class="soft">Cost by the prices of {escape(manifest["cost"]["priced_at"])}.</p>')
    if any(timeline.submitted):
        body += [
            "<h2>Batches over time</h2>",
            timeline_picture(timeline, _time(manifest["created_at"]), _time(manifest["completed_at"])),
        ]
        if not timeline.complete:
            body.append('<p class="soft">The first batches; there were more.</p>')
    if timeline.seconds_to_answer:
        body += ["<h2>Seconds from submit to answer</h2>", histogram_picture(timeline)]
    body += _failures(failures, manifest["counts"]["failed"])
    if ambiguous:
        body += [
            "<h2>May be billed twice</h2>",
            "<p>The outcome of these submits is unknown: the batch was sent, and its request_id was not recorded.</p>",
            table(
                ["batch", "records", "ambiguous submits", "request_id"],
                [(b["number"], b["requests"], b["ambiguous"], b["request_id"]) for b in ambiguous],
            ),
        ]
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


def sentence(manifest: dict[str, Any]) -> str:
    """What ran and how it ended, as HTML."""
    counts, model, error = manifest["counts"], manifest["model"], manifest["error"]
    ran = _plural(counts["total"] or 0, "record") + (f" for <code>{escape(model)}</code>" if model else "")
    if error:
        return f'<b class="bad">Failed</b>: {ran}. <code>{escape(error["code"])}</code>: {escape(error["message"])}'
    tone = "good" if manifest["state"] == "completed" and not counts["failed"] else "warn"
    failed = f"{counts['failed']:,} failed" if counts["failed"] else "none failed"
    state = escape(manifest["state"].capitalize())
    return f'<b class="{tone}">{state}</b>: {ran}, {counts["succeeded"]:,} answered, {failed}.'


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _time(at: str) -> str:
    """A time of the manifest, without the letters that ISO 8601 puts in."""
    return escape(at.replace("T", " ").removesuffix("Z"))


def _facts(manifest: dict[str, Any]) -> list[tuple[str, str]]:
    usage, cost = manifest["usage"], manifest.get("cost")
    entries = [
        ("records", f"{manifest['counts']['total'] or 0:,}"),
        ("answered", f"{manifest['counts']['succeeded']:,}"),
        ("failed", f"{manifest['counts']['failed']:,}"),
        ("tokens", "not reported" if usage["total_tokens"] is None else f"{usage['total_tokens']:,}"),
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
            f'<p class="soft">Grouped from the first {seen:,} of {failed:,} failures; errors.jsonl has all.</p>'
        )
    ordered = sorted(failures.groups.items(), key=lambda item: -item[1].records)
    for (code, message), group in ordered:
        lines = ", ".join(f"{line:,}" for line in group.lines) + (" …" if group.records > len(group.lines) else "")
        examples = "".join(f"<pre>{escape(example)}</pre>" for example in group.examples)
        body.append(
            f"<details open><summary><b>{group.records:,}</b> <code>{escape(code)}</code> {escape(message)}</summary>"
            f'<p class="soft">{f"Lines {lines}" if group.lines else "Examples"}:</p>{examples}</details>'
        )
    if failures.others:
        body.append(f"<p>{failures.others:,} failures of other kinds are in errors.jsonl.</p>")
    return body
