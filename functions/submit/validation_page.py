"""A validation's report page. Pure: the report in, bytes out."""

from __future__ import annotations

from html import escape
from typing import Any

from shared.html_page import facts, page, table


def validation_page(report: dict[str, Any]) -> bytes:
    """The page of a validation.

    Args:
        report: content of report.json.
    """
    path, error = report["path"], report["error"]
    body = [
        f"<h1>{escape(path)}</h1>",
        ('<p class="soft">Validation: nothing was sent to Workers AI.</p>'),
    ]
    if error:
        body.append(
            f'<p><b class="bad">Failed</b>: <code>{escape(error["code"])}</code>: '
            f"{escape(error['message'])}</p>"
        )
        return page(f"{path}: failed", body)
    body += [f"<p>{_sentence(report)}</p>", facts(_facts(report))]
    body += [f'<p class="warn">{escape(warning)}</p>' for warning in report["warnings"]]
    if report["repeated"]:
        body.append(
            f"<p>{report['repeated']:,} records have the same reference as an earlier record.</p>"
        )
    if report["bad"]:
        bad = [
            (one["line"] or one["id"], one["code"], one["message"]) for one in report["bad_first"]
        ]
        column = "line" if report["bad_first"][0]["line"] else "record"
        body += [f"<h2>The first {len(bad):,} of {report['bad']:,} bad records</h2>"]
        body.append(table([column, "code", "message"], bad))
    return page(f"{path}: {report['bad']:,} bad records", body)


def _sentence(report: dict[str, Any]) -> str:
    tone, bad = ("warn", f"{report['bad']:,} bad") if report["bad"] else ("good", "none bad")
    model = f" for <code>{escape(report['model'])}</code>" if report["model"] else ""
    return f'<b class="{tone}">{report["records"]:,} records</b>{model}, {bad}.'


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    estimate, longest = report["estimate"], report["longest"]
    entries = [
        ("format", str(report["format"])),
        ("bytes", f"{report['bytes']:,}"),
        ("batches", f"{report['batches']:,}"),
        ("calls, about", f"{report['calls']:,}"),
    ]
    if longest:
        entries.append(("longest record", f"{longest['bytes']:,} bytes"))
    entries += [
        (f"{name.replace('_', ' ')}, about", f"{estimate[name]:,}")
        for name in ("input_tokens", "output_tokens")
        if estimate[name] is not None
    ]
    if cost := estimate["cost"]:
        entries.append((f"cost, about (prices of {cost['priced_at']})", f"${cost['amount']}"))
    return entries
