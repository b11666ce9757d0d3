"""Text files: a line is a record, and the model's input.

Answers are written in the native format.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dropbatch.core.formats.base import (
    NULL,
    Converted,
    LineReader,
    RecordFault,
    encode,
    with_defaults,
)
from dropbatch.core.formats.conversion.requests import text_input
from dropbatch.core.formats.template import Template

if TYPE_CHECKING:
    from dropbatch.core.formats.base import Target

COLUMNS = ("text",)
"""What a template may name."""

_BOM = "\ufeff"


class TextReader(LineReader):
    """Turns lines into requests."""

    def __init__(self, target: Target) -> None:
        """Read the template.

        Raises:
            UploadRefused: `bad_options`: the template names a column other than `text`.
        """
        super().__init__(target)
        self._template = Template(target.template, COLUMNS) if target.template else None

    def _convert(self, record: bytes) -> Converted | RecordFault:
        try:
            text = record.decode()
        except UnicodeDecodeError as error:
            message = f"Byte {error.start + 1} of the line is not UTF-8. Save the file as UTF-8."
            return RecordFault("invalid_utf8", message)
        # joined files have them, and the first line of a retry file loses its own
        text = text.removeprefix(_BOM)
        if self._template:
            text = self._template.fill([text])
        return Converted(
            with_defaults(text_input(encode(text), self._target), self._target, NULL), NULL
        )


def text_request(record: bytes) -> bytes:
    """A line as JSON, for `errors.jsonl`: as a row with the one column."""
    return encode({COLUMNS[0]: record.decode(errors="replace").removeprefix(_BOM)})
