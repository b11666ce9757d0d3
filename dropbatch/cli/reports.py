"""What a job may have been billed for twice, and the reports of validations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dropbatch.cli.exits import in_options

if TYPE_CHECKING:
    from collections.abc import Iterator


def billed_again(manifest: dict[str, Any]) -> Iterator[str]:
    """What a finished job may have been billed for without an answer, a line each."""
    if submits := manifest.get("unknowable_submits"):
        yield f"submits of unknown outcome: {submits:,}, which may be billed twice"
    if submits := manifest.get("doubtful_submits"):
        yield (
            f"submits that an error does not prove refused: {submits:,}, which may be billed twice"
        )
    if batches := (manifest.get("cost") or {}).get("uncollected_batches"):
        yield f"accepted submits whose answer was not collected: {batches:,}, which are billed"


def validation_lines(report: dict[str, Any]) -> Iterator[str]:
    """A validation's report as text."""
    if error := report.get("error"):
        yield f"{error['code']}: {in_options(error['message'])}"
        return
    yield f"format    {report['format']}"
    yield f"model     {report['model'] or 'none'}"
    yield f"records   {report['records']:,} in {report['bytes']:,} bytes"
    yield f"batches   {report['batches']:,}, about {report['calls']:,} calls"
    yield f"estimate  {_estimate(report['estimate'])}"
    if longest := report["longest"]:
        where = f", line {longest['line']:,}" if longest["line"] else ""
        yield f"longest   {longest['bytes']:,} bytes{where}"
    for warning in report["warnings"]:
        yield f"warning   {warning}"
    if report["repeated"]:
        yield f"repeated  {report['repeated']:,} references"
    yield f"bad       {report['bad']:,}"
    for bad in report["bad_first"]:
        where = f"line {bad['line']:,}" if bad["line"] else f"record {bad['id']:,}"
        yield f"  {where}: {bad['code']}: {bad['message']}"


def _estimate(estimate: dict[str, Any]) -> str:
    """Tokens and cost."""
    parts = [
        f"{estimate[name]:,} {name.replace('_', ' ')}"
        for name in ("input_tokens", "output_tokens")
        if estimate[name] is not None
    ]
    if not parts:
        return "none: there is nothing to send"
    cost = estimate["cost"]
    price = (
        f"${cost['amount']} at the prices of {cost['priced_at']}"
        if cost
        else "the model's price is unknown"
    )
    return ", ".join([*parts, price])
