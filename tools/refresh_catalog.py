"""`make refresh-catalog FROM=FILE`.

Brings the catalogue that is shipped up to date with Cloudflare's list of models.

FILE is what the API answers to `GET /accounts/<account>/ai/models/search?per_page=1000`. Nothing is
written unless the whole list can be believed. Read what changed before you commit it: where the
list and Cloudflare's guides disagree, the guides are usually right.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from dropbatch.core.models import Catalog
from tools.catalog_reader import CatalogError, changes, merged, read_list

if TYPE_CHECKING:
    from collections.abc import Iterable

FILE = Path(__file__).parents[1] / "dropbatch/core/models.json"


def refreshed(written: bytes, content: bytes, day: str) -> tuple[bytes, list[str]]:
    """The file with the facts of a list, and what changed.

    Raises:
        CatalogError: the list cannot be believed.
    """
    before = msgspec.json.decode(written, type=Catalog)
    models = merged(before.models, read_list(content, before.models, day))
    after = msgspec.structs.replace(before, read_on=day, models=models)
    return text_of(after).encode(), changes(before.models, models)


def text_of(written: Catalog) -> str:
    """The catalogue as its file has it: one line a family, and a model."""
    sources = ",\n".join(
        f"    {_json(name)}: {_json(source)}" for name, source in written.sources.items()
    )
    return (
        f'{{\n  "read_on": {_json(written.read_on)},\n  "sources": {{\n{sources}\n  }},\n'
        f'  "families": {_rows(written.families)},\n  "models": {_rows(written.models)}\n}}\n'
    )


def _json(value: object) -> str:
    return msgspec.json.format(msgspec.json.encode(value), indent=0).decode()


def _rows(values: Iterable[object]) -> str:
    return "[\n" + ",\n".join(f"    {_json(one)}" for one in values) + "\n  ]"


def main(arguments: list[str]) -> int:
    """Bring the file up to date, and print what changed."""
    if len(arguments) != 1:
        print(
            "Give the file with Cloudflare's list of models: make refresh-catalog FROM=models.json",
            file=sys.stderr,
        )
        return 2
    try:
        written, lines = refreshed(
            FILE.read_bytes(), Path(arguments[0]).read_bytes(), f"{datetime.now(UTC):%Y-%m-%d}"
        )
    except (CatalogError, OSError) as error:
        print(f"Nothing was changed. {error}", file=sys.stderr)
        return 1
    FILE.write_bytes(written)
    print("\n".join(lines) or "Nothing differs but the day.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
