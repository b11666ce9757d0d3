"""`make docs`: writes the tables of the documents that are made from the code and the template."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dropbatch.core.formats.conversion.members import (
    LEFT_OUT,
    LENGTHS,
    NESTED,
    ONLY_VALUES,
    REFUSED,
    RENAMED,
    RESPONSES_NAMES,
)
from dropbatch.core.models import catalog, find_model
from dropbatch.core.requests import Limits, content, schema_named
from local.template import template

DOCS = Path(__file__).parents[1] / "docs"


def _named(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def fates() -> str:
    """What becomes of each member that has no counterpart, or another name."""
    bad = [f"`{name}` other than `{_json(value)}`" for name, (value, _) in ONLY_VALUES.items()]
    bad += [f"`{name}`" for name in REFUSED]
    renamed = {f"`{old}`": f"`{new}`" for old, new in RENAMED.items()}
    for outer, names in NESTED.items():
        renamed |= {f"`{outer}.{old}`": f"`{new}`" for old, new in names.items()}
        renamed[f"`{outer}.*`"] = "the member itself"
    for old, new in RESPONSES_NAMES.items():
        renamed[f"`{old}`, for models of the Responses API"] = f"`{new}`"
    rows = [
        f"| {_named(LEFT_OUT)} | not sent |",
        f"| {', '.join(bad)} | `bad_record`; the message says why |",
        f"| {_named(LENGTHS)} | not sent if it is the model's own length; another one is `bad_record` |",  # noqa: E501
        *_by_fate(renamed),
    ]
    return "\n".join(["| in the record | in the request |", "|---|---|", *rows]) + "\n"


def _by_fate(fates: dict[str, str]) -> list[str]:
    """A row for each fate, with all members that share it."""
    members: dict[str, list[str]] = {}
    for name, fate in fates.items():
        members.setdefault(fate, []).append(name)
    return [f"| {', '.join(names)} | {fate} |" for fate, names in members.items()]


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value).replace("'", '"')


def ranges() -> str:
    models = {
        name: [one.id for one in catalog().models if find_model(one.id).schema == name]
        for name in content()["schemas"]
    }
    names = [name for name in models if models[name] and schema_named(name).limits]
    limits = {name: schema_named(name).limits for name in names}
    members = list(dict.fromkeys(member for name in names for member in limits[name]))
    rows = [f"| `{name}` | {', '.join(f'`{model}`' for model in models[name])} |" for name in names]
    head = ["| schema | models |", "|---|---|", *rows, ""]
    table = [
        f"| member | {' | '.join(f'`{name}`' for name in names)} |",
        "|---" * (len(names) + 1) + "|",
    ]
    for member in members:
        cells = [_range(limits[name].get(member)) for name in names]
        table.append(f"| `{member}` | {' | '.join(cells)} |")
    return "\n".join([*head, *table]) + "\n"


def efforts() -> str:
    rows = ["| model | reasoning efforts | sent as another one |", "|---|---|---|"]
    for model in catalog().models:
        if model.efforts is not None:
            sent = ", ".join(f"{old} as {new}" for old, new in model.efforts.aliases.items())
            values = ", ".join(model.efforts.values) or "none: leave it out"
            rows.append(f"| `{model.id}` | {values} | {sent} |")
    return "\n".join(rows) + "\n"


def _range(limits: Limits | None) -> str:
    if limits is None:
        return ""
    if limits.words is not None:
        return ", ".join(limits.words)
    if limits.least is None:
        return "integer" if limits.whole else "number"
    if limits.most is None:
        return f"{limits.least} or more"
    return f"{limits.least} to {limits.most}"


def members() -> str:
    return f"{fates()}\n{ranges()}\n{efforts()}"


def parameters() -> str:
    rows = ["| parameter | default | meaning |", "| --- | --- | --- |"]
    for name, about in template()["Parameters"].items():
        default = about.get("Default")
        shown = "none" if default is None else f"`{default}`" if default != "" else "empty"
        meaning = PAGE_NAME.sub(r"([\1](\1))", about["Description"].strip())
        rows.append(f"| `{name}` | {shown} | {meaning}{_bounds(about)} |")
    return "\n".join(rows) + "\n"


def _bounds(about: dict[str, Any]) -> str:
    if "MaxValue" in about:
        return f" {about['MinValue']:,} to {about['MaxValue']:,}."
    allowed = about.get("AllowedValues")
    return f" One of {', '.join(f'`{one}`' for one in allowed)}." if allowed else ""


PAGE_NAME = re.compile(r"\(docs/([a-z-]+\.md)\)")
TABLES = {"formats.md": ("members", members), "configuration.md": ("parameters", parameters)}
"""Each page's marker, and what stands between it and its end."""


def page(name: str) -> str:
    """A page with its table written anew."""
    marker, made = TABLES[name]
    begin, end = f"<!-- {marker} -->\n", f"<!-- end of {marker} -->\n"
    before, _, rest = (DOCS / name).read_text("utf-8").partition(begin)
    return f"{before}{begin}\n{made()}\n{end}{rest.partition(end)[2]}"


if __name__ == "__main__":
    for each in TABLES:
        (DOCS / each).write_text(page(each), "utf-8")
