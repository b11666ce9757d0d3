"""The multipart form of an upload, read as a stream: its fields in memory, its file in pieces that the caller takes."""

from __future__ import annotations

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from dropbatch.openai_api.errors import ApiError

MAX_FIELDS = 20
MAX_FIELD_BYTES = 4_096
FILE = "file"


class FileForm:
    """A form of some short fields and one file.

    Attributes:
        fields: by name.
        filename: of the file; None until it begins.
        content: bytes of the file that nobody has taken yet.
    """

    def __init__(self, content_type: str) -> None:
        """Begin a form.

        Args:
            content_type: the request's header.

        Raises:
            ApiError: it is no form.
        """
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary")
        if kind != b"multipart/form-data" or not boundary:
            raise ApiError(400, "The body must be multipart/form-data with the fields purpose and file.")
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        self.content = bytearray()
        self._is_whole = False
        self._parts = 0
        self._header = [bytearray(), bytearray()]
        self._name = ""
        self._field = bytearray()
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin_part,
                    "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                    "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                    "on_header_end": self._end_header,
                    "on_part_data": self._add,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _broken(error) from error

    def feed(self, chunk: bytes) -> None:
        """Read some more of the body.

        Raises:
            ApiError: it is not a form, or has too much in it.
        """
        try:
            self._parser.write(chunk)
        except FormParserError as error:
            raise _broken(error) from error

    def take(self) -> bytearray:
        """The bytes of the file that were read since the last call."""
        taken, self.content = self.content, bytearray()
        return taken

    def check_whole(self) -> None:
        """Check that the body had its end.

        Raises:
            ApiError: it had not.
        """
        if not self._is_whole:
            raise ApiError(400, "The form ends before its last boundary.")

    def _begin_part(self) -> None:
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise ApiError(400, f"A form may have {MAX_FIELDS} fields.")
        self._name = ""

    def _end_header(self) -> None:
        name, value = (bytes(text) for text in self._header)
        self._header = [bytearray(), bytearray()]
        if name.lower() != b"content-disposition":
            return
        _, options = parse_options_header(value)
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name == FILE:
            if self.filename is not None:
                raise ApiError(400, "A form has one file.", FILE)
            self.filename = options.get(b"filename", b"").decode(errors="replace")

    def _add(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self.content += memoryview(data)[start:end]
        elif len(self._field) + end - start > MAX_FIELD_BYTES:
            raise ApiError(400, f"It has more than {MAX_FIELD_BYTES:,} bytes.", self._name[:100])
        else:
            self._field += data[start:end]

    def _end_part(self) -> None:
        if self._name != FILE:
            self.fields[self._name] = self._field.decode(errors="replace")
        self._field = bytearray()

    def _end(self) -> None:
        self._is_whole = True


def _broken(error: FormParserError) -> ApiError:
    return ApiError(400, f"The form cannot be read: {error}")
