"""What rows of tables and lines of text become, for tests."""

from __future__ import annotations

import json
from typing import Any

from dropbatch.core.formats.base import Converted, RecordFault
from dropbatch.core.formats.table import Form, reader_of
from tests.support.converted import target_of

BGE = "@cf/baai/bge-m3"


def convert(
    header: bytes,
    rows: list[bytes],
    model: str = BGE,
    template: str = "",
    defaults: dict[str, Any] | None = None,
    kind: str = "csv",
) -> list[Converted | RecordFault]:
    """What rows become."""
    return reader_of(Form(kind, header), target_of(model, template, defaults)).convert(rows)


def sent(header: bytes, row: bytes, model: str = BGE, template: str = "", **options: Any) -> Any:
    """The request that a row becomes."""
    (converted,) = convert(header, [row], model, template, **options)
    assert isinstance(converted, Converted), converted
    return json.loads(converted.request)
