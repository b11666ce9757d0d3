"""A finished job on one page, made from its manifest and the first of its failures.

The page loads nothing and has no script: its only style sheet is inline, and its
Content-Security-Policy allows that by its hash. All text from outside is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from typing import Any

import msgspec

from dropbatch.client.download import blocks_of
from dropbatch.client.job import Job
from dropbatch.client.records import lines_of
from dropbatch.core.formats.base import NULL, begins, compact

MAX_ERRORS_BYTES = 16_000_000  # What is read of a larger job.
MAX_GROUPS, MAX_EXAMPLES, MAX_LINES = 50, 3, 8
MAX_EXAMPLE_CHARACTERS, MAX_GROUP_CHARACTERS = 300, 500

STYLE = files("dropbatch.client").joinpath("report.css").read_text().strip()
_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; base-uri 'none'; form-action 'none'"


def report(job: Job) -> bytes:
    """The page of a finished job.

    Raises:
        NotFound: the job is not over.
    """
    manifest = job.manifest()
    return job_page(manifest, failures_of(job, manifest))


class _Error(msgspec.Struct):
    code: str
    message: str


class _Failed(msgspec.Struct):
    """A line of errors.jsonl; the request may hold numbers that cannot be read."""

    error: _Error
    line: int | None = None
    request: msgspec.Raw = NULL


_decode = msgspec.json.Decoder(_Failed).decode


@dataclass
class Group:
    """Failures of one code and message."""

    records: int = 0
    lines: list[int] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)


@dataclass
class Failures:
    """Failed records by code and message; `others` are those of further groups."""

    groups: dict[tuple[str, str], Group] = field(default_factory=dict)
    others: int = 0
    complete: bool = True

    def add(self, line: bytes) -> None:
        """A line of errors.jsonl."""
        failed = _decode(line)
        key = (failed.error.code, _general(failed.error.message))
        if key not in self.groups and len(self.groups) >= MAX_GROUPS:
            self.others += 1
            return
        group = self.groups.setdefault(key, Group())
        group.records += 1
        if failed.line is not None and len(group.lines) < MAX_LINES:
            group.lines.append(failed.line)
        if len(group.examples) < MAX_EXAMPLES:
            group.examples.append(_example(failed.request))


def failures_of(job: Job, manifest: Mapping[str, Any], most: int = MAX_ERRORS_BYTES) -> Failures:
    """The failures of a job that is over, or the first of them."""
    errors = next((file for file in manifest["files"] if file["kind"] == "errors"), None)
    return failures_in(blocks_of(job, errors) if errors else (), most)


def failures_in(blocks: Iterable[bytes], most: int = MAX_ERRORS_BYTES) -> Failures:
    """Group the failures of errors.jsonl, or those of about its first bytes."""
    found, read = Failures(), 0
    for line in lines_of(blocks):
        if read >= most:
            found.complete = False
            break
        found.add(line)
        read += len(line)
    return found


def _general(message: str) -> str:
    """A message without the line number, which differs from record to record."""
    head, separator, rest = message.partition(": ")
    is_numbered = separator and head.startswith("Line ") and head[5:].isdigit()
    return (rest if is_numbered else message)[:MAX_GROUP_CHARACTERS]


def _example(request: msgspec.Raw) -> str:
    text = compact(request).decode(errors="replace")
    if begins(request, b'"'):
        text = msgspec.json.decode(request, type=str)
    return text if len(text) <= MAX_EXAMPLE_CHARACTERS else f"{text[:MAX_EXAMPLE_CHARACTERS]}…"


def job_page(manifest: dict[str, Any], failures: Failures) -> bytes:
    """The page of a manifest and its failures."""
    path = manifest["source"]["key"].removeprefix("inbox/")
    ran = f"{_time(manifest['created_at'])} to {_time(manifest['completed_at'])} UTC"
    body = [
        f"<h1>{escape(path)}</h1>",
        f'<p class="soft">Job <code>{escape(manifest["job_id"])}</code>, {escape(ran)}</p>',
        f"<p>{_sentence(manifest)}</p>",
        *_facts(manifest),
        *_failures(failures, manifest["counts"]["failed"]),
        *(f"<p>{escape(line)}.</p>" for line in billed_again(manifest)),
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="referrer" content="no-referrer"><meta name="robots" content="noindex">'
        f"<title>{escape(path)}: {escape(manifest['state'])}</title>"
        f"<style>{STYLE}</style></head><body>\n"
    )
    return (head + "\n".join(body) + "\n</body></html>\n").encode(errors="replace")


def _sentence(manifest: dict[str, Any]) -> str:
    counts, model, error = manifest["counts"], manifest["model"], manifest["error"]
    total = counts["total"] or 0
    ran = f"{total:,} record{'' if total == 1 else 's'}"
    ran += f" for <code>{escape(model)}</code>" if model else ""
    if error:
        why = f"<code>{escape(error['code'])}</code>: {escape(error['message'])}"
        return f'<b class="bad">Failed</b>: {ran}. {why}'
    tone = "good" if manifest["state"] == "completed" and not counts["failed"] else "warn"
    failed = f"{counts['failed']:,} failed" if counts["failed"] else "none failed"
    state = escape(manifest["state"].capitalize())
    return f'<b class="{tone}">{state}</b>: {ran}, {counts["succeeded"]:,} answered, {failed}.'


def _time(at: str) -> str:
    return at.replace("T", " ").removesuffix("Z")


def _facts(manifest: dict[str, Any]) -> list[str]:
    tokens, notes = manifest["usage"]["total_tokens"], []
    entries = [("tokens", "not reported" if tokens is None else f"{tokens:,}")]
    if cut_off := manifest.get("incomplete"):
        entries.insert(0, ("answers cut off", f"{cut_off:,}"))
    if cost := manifest.get("cost"):
        about = "about " if cost["estimated"] else ""
        entries.append(("cost", f"{about}${cost['amount']}"))
        notes = [f'<p class="soft">Cost at the prices of {escape(cost["priced_at"])}.</p>']
    boxes = (f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in entries)
    return [f"<dl>{''.join(boxes)}</dl>", *notes]


def _failures(failures: Failures, failed: int) -> list[str]:
    if not failed:
        return []
    body = ["<h2>Failures</h2>"]
    if not failures.complete:
        seen = sum(group.records for group in failures.groups.values()) + failures.others
        said = f"Grouped from the first {seen:,} of {failed:,} failures"
        body.append(f'<p class="soft">{said}; errors.jsonl has all of them.</p>')
    ordered = sorted(failures.groups.items(), key=lambda item: -item[1].records)
    body += [_group(code, message, group) for (code, message), group in ordered]
    if failures.others:
        body.append(f"<p>{failures.others:,} failures of other kinds are in errors.jsonl.</p>")
    return body


def _group(code: str, message: str, group: Group) -> str:
    more = " …" if group.records > len(group.lines) else ""
    lines = f"Lines {', '.join(f'{line:,}' for line in group.lines)}{more}"
    examples = "".join(f"<pre>{escape(example)}</pre>" for example in group.examples)
    said = f"<b>{group.records:,}</b> <code>{escape(code)}</code> {escape(message)}"
    where = f'<p class="soft">{lines if group.lines else "Examples"}:</p>'
    return f"<details open><summary>{said}</summary>{where}{examples}</details>"


def billed_again(manifest: dict[str, Any]) -> Iterator[str]:
    """What a finished job may have been billed for without an answer, a line each."""
    if submits := manifest.get("unknowable_submits"):
        yield f"submits of unknown outcome: {submits:,}, which may be billed twice"
    if batches := (manifest.get("cost") or {}).get("uncollected_batches"):
        yield f"accepted submits whose answer was not collected: {batches:,}, which are billed"
