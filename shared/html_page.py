"""Self-contained HTML pages. Pure: data in, bytes out.

A page loads nothing and has no script. Its only style sheet is inline, and the
Content-Security-Policy allows it by its hash. All text from outside is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

HTML_TYPE = "text/html; charset=utf-8"

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
"""A cell of at least this length holds an id or a digest."""

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
        '<meta name="robots" '
        f'content="noindex"><title>{escape(title)}</title><style>{STYLE}</style></head><body>\n'
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
    """A table of texts and numbers; numbers are aligned to the right."""
    found = [list(row) for row in rows]
    right = [
        bool(found) and isinstance(found[0][index], int | float) for index in range(len(header))
    ]

    def cells(row: Sequence[object], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if right[i] else ''}>{_cell(cell)}</{tag}>"
            for i, cell in enumerate(row)
        )

    head = f"<tr>{cells(header, 'th')}</tr>"
    lines = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in found)
    text = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        "<div "
        f'class="scroll"><table>{text}<thead>{head}</thead><tbody>{lines}</tbody></table></div>'
    )


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    text = escape(str(value))
    return f"<code>{text}</code>" if len(text) >= MIN_CODE_CHARACTERS else text
