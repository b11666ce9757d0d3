"""What is sent of a row of a table, or of an object that is read like one.

Keeps the promise that what is sent is what was meant: the input is what a template or a column's
name says, never what is left; a column that is named like a member of the model's requests goes
into its row's request; users are told what is `unused` before anything is sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from dropbatch.core.errors import UploadRefused
from dropbatch.core.formats.base import (
    NULL,
    BadRecordError,
    Converted,
    Json,
    RecordFault,
    Shape,
    Target,
    Task,
    begins,
    elements_of,
    encode,
    is_json,
    made,
    with_defaults,
    word_of,
)
from dropbatch.core.formats.conversion.members import LEFT_OUT, LENGTHS, ONLY_VALUES, REFUSED
from dropbatch.core.formats.conversion.requests import (
    CHAT_SHAPES,
    Endpoint,
    convert_body,
    convert_members,
    text_input,
)

MESSAGES = "messages"
INPUT_COLUMNS = ("text", "prompt", "input", "question")
"""Columns used as the input if there is no template, after `messages` for chat. A table's only
column is used, whatever its name, unless it is a reference."""

REFERENCE_COLUMNS = ("external_reference", "custom_id", "recordId", "id")
"""Columns used as a row's reference: the first one that exists."""

_NO_MEMBERS = {*LEFT_OUT, *LENGTHS, *ONLY_VALUES, *REFUSED, *INPUT_COLUMNS, MESSAGES} | {
    *("audio", "contexts", "query", "modalities", "external_reference")
}
"""Members that columns do not set: inputs, and what is not sent of other formats either."""
_TEXTS = frozenset({"system", "image", "reasoning_effort"})
"""Members that take text, beside those of a schema."""
_WHOLE = re.compile(r"(-?\d+)\.0+")


class Rows:
    """Makes requests of rows that have these columns.

    Attributes:
        reference: the position of the reference; None without one.
        unused: the names of the columns of which nothing is sent.
    """

    def __init__(self, target: Target, names: Sequence[str], only: int | None = None) -> None:
        """Choose what is sent; or `UploadRefused`: `only`, of the only column, is its position."""
        self._target, self._names = target, names
        self.reference = first_of(names, REFERENCE_COLUMNS)
        self._template = template_of(target, names)
        self._inputs = {} if self._template else _inputs_of(target, names, only)
        used = {self.reference, *self._inputs.values()}
        used |= set(self._template.columns) if self._template else set()
        found = {one: position(names, one) for one in sorted(_members_of(target))}
        self._members = {at: one for one, at in found.items() if at is not None and at not in used}
        used |= self._members.keys()
        self.unused = [one for at, one in enumerate(names) if at not in used and one.strip()]

    def request(self, cells: Sequence[str], raws: Sequence[Json] = ()) -> Converted | RecordFault:
        """The request of a row: of its cells as text, and as JSON if they were written so."""
        reference = self.reference_of(cells, raws)
        try:
            request = self._request(cells, raws)
        except BadRecordError as error:
            return RecordFault(error.code, error.message, reference)
        return Converted(with_defaults(request, self._target, reference), reference)

    def reference_of(self, cells: Sequence[str], raws: Sequence[Json] = ()) -> msgspec.Raw:
        """A row's reference as JSON."""
        if self.reference is None or self.reference >= len(cells):
            return NULL
        if raws:
            return msgspec.Raw(bytes(raws[self.reference]))
        return text_reference_of(cells[self.reference])

    def _request(self, cells: Sequence[str], raws: Sequence[Json]) -> dict[str, msgspec.Raw]:
        members = {
            name: msgspec.Raw(bytes(raws[at])) if raws else self._typed(name, cells[at])
            for at, name in self._members.items()
            if cells[at]
        }
        system, image = members.pop("system", None), members.pop("image", None)
        target = replace(self._target, system=word_of(system)) if system else self._target
        self._check_filled(cells)
        inputs = {name: cells[at] for name, at in self._inputs.items()}
        if "query" in inputs:
            ranked = {"query": made(inputs["query"]), "contexts": _texts(inputs["contexts"])}
            return ranked | convert_members(members, target, "row")
        if MESSAGES in inputs:
            return _chat(msgspec.Raw(inputs[MESSAGES].encode()), members, target)
        text = self._template.fill(cells) if self._template else inputs["text"]
        if image:
            parts = [{"type": "text", "text": text}, {"type": "image_url", "image_url": image}]
            return _chat(made([{"role": "user", "content": parts}]), members, target)
        attached = [cells[at] for at in self._template.attached] if self._template else []
        request = text_input(text, target, attached)
        return request | convert_members(members, target, "row") if members else request

    def _check_filled(self, cells: Sequence[str]) -> None:
        """Check that the cells of the input are not empty."""
        if self._template and self._template.is_blank(cells):
            raise BadRecordError("template", "All cells that it names are empty in this row.")
        for at in self._template.attached if self._template else self._inputs.values():
            if not cells[at]:
                raise BadRecordError(self._names[at], "The cell is empty.")

    def _typed(self, name: str, cell: str) -> msgspec.Raw:
        """A member's value as its model takes it, of a cell that is text."""
        may_be_text = name in self._target.schema.strings and not cell.startswith("[")
        if may_be_text or name in _TEXTS:
            return made(cell)
        written = _WHOLE.sub(r"\1", cell.strip())
        written = written.lower() if written.lower() in {"true", "false"} else written
        return msgspec.Raw(written.encode()) if is_json(written.encode()) else made(cell)


def _inputs_of(target: Target, names: Sequence[str], only: int | None) -> dict[str, int]:
    """The positions of a row's texts: `query` and `contexts`, `messages`, or `text`."""
    members = target.schema.members
    query, contexts = position(names, "query"), position(names, "contexts")
    if {"query", "contexts"} <= members and query is not None:
        texts = position(names, "text") if contexts is None else contexts
        if texts is not None and contexts is None and "text" in members:
            raise UploadRefused("bad_options", _AMBIGUOUS)
        if texts is not None:
            return {"query": query, "contexts": texts}
    messages = position(names, MESSAGES) if _is_chat(target) else None
    if messages is not None:
        return {MESSAGES: messages}
    text = first_of(names, INPUT_COLUMNS) if only is None else only
    if text is None:
        raise UploadRefused(
            "bad_options",
            f"template: none is given, and no column is named {', '.join(INPUT_COLUMNS)}. Set the "
            f"option template to a text with columns in braces, such as {_example(names)}. The "
            f"columns are: {listed(names)}.",
        )
    return {"text": text}


_AMBIGUOUS = (
    "template: the columns query and text may be texts to rank, or to embed. Name the second one "
    "contexts to rank it; the template {text} embeds it."
)


def _is_chat(target: Target) -> bool:
    return target.task in {Task.GENERATION, Task.UNKNOWN} or target.shape is Shape.MESSAGES


def _members_of(target: Target) -> set[str]:
    """The members that columns may set."""
    found = set(target.schema.members)
    if _is_chat(target):
        found.add("system")
    if target.shape is Shape.INPUT:
        found |= {"max_tokens", "reasoning_effort"}
    if target.images is not False and target.shape in CHAT_SHAPES:
        found.add("image")
    return found - _NO_MEMBERS


def _chat(
    messages: msgspec.Raw, members: dict[str, msgspec.Raw], target: Target
) -> dict[str, msgspec.Raw]:
    """A chat request of messages, with the system's text before them."""
    system = {"system": made(target.system)} if target.system else {}
    return convert_body({**members, **system, MESSAGES: messages}, Endpoint.CHAT, target, "row")


def _texts(cell: str) -> msgspec.Raw:
    """The texts to rank: a list as JSON, of texts or of objects, or one text."""
    found = elements_of(cell.encode()) if cell.startswith("[") else None
    texts = [made(cell)] if found is None else found
    return made([{"text": one} if begins(one, b'"') else one for one in texts])


def first_of(names: Sequence[str], candidates: Iterable[str]) -> int | None:
    """The position of the first candidate that exists; None if none does."""
    found = (position(names, name) for name in candidates)
    return next((index for index in found if index is not None), None)


def text_reference_of(cell: str) -> msgspec.Raw:
    """A reference that is text, as JSON; null for an empty one."""
    return msgspec.Raw(encode(cell)) if cell else NULL


# ── templates ─────────────────────────────────────────────────────────────────────────────────────


ATTACHED = ":s3}"
"""The end of what a template says of a column that names an object in S3."""
_TOKEN = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


class Template:
    """A template, read once: text, column, text, column, … text.

    Attributes:
        attached: the positions of the columns whose cells name objects in S3.
    """

    def __init__(self, template: str, columns: Sequence[str]) -> None:
        """Parse it."""
        self._texts = [""]
        self._columns: list[int] = []
        self.attached: list[int] = []
        at = 0
        for token in _TOKEN.finditer(template):
            self._texts[-1] += template[at : token.start()]
            at = token.end()
            name = token.group(1)
            if name is not None:
                column = position(columns, name)
                object_column = position(columns, name.removesuffix(":s3"))
                if column is None and object_column is not None:
                    self.attached.append(object_column)
                    continue
                if column is None:
                    raise UploadRefused(
                        "bad_options",
                        f"template: there is no column {name!r}. The columns "
                        f"are: {listed(columns)}.",
                    )
                self._columns.append(column)
                self._texts.append("")
            elif len(token.group()) == 1:
                raise UploadRefused(
                    "bad_options",
                    f"template: a {token.group()} is unmatched. Write {{{{ and }}}} for "
                    "literal braces.",
                )
            else:
                self._texts[-1] += token.group()[0]
        self._texts[-1] += template[at:]
        if not self.columns:
            message = (
                f"template: it names no column; the columns are {listed(columns)}. Write one in "
                f"braces, such as {_example(columns)}."
            )
            raise UploadRefused("bad_options", message)

    def is_blank(self, values: Sequence[str]) -> bool:
        """Whether every value that would be filled in is empty, and no object is named."""
        return not self.attached and not any(values[column] for column in self._columns)

    @property
    def columns(self) -> list[int]:
        """The positions of the columns that it names."""
        return self._columns + self.attached

    def fill(self, values: Sequence[str]) -> str:
        """The text for one row's values."""
        pieces = [self._texts[0]]
        for column, text in zip(self._columns, self._texts[1:], strict=True):
            pieces += (values[column], text)
        return "".join(pieces)


def named_in(template: str) -> list[str]:
    """What a template names, whether there are such columns or not."""
    return [found[1] for found in _TOKEN.finditer(template) if found[1]]


def template_of(target: Target, columns: Sequence[str]) -> Template | None:
    """The template of a job, if it has one; `UploadRefused` if its model takes no such objects."""
    found = Template(target.template, columns) if target.template else None
    if found and found.attached:
        if target.images is False:
            message = f"template: {target.model} takes only text, no objects as {{…{ATTACHED}."
            raise UploadRefused("bad_options", message)
        if len(found.attached) > 1 and target.shape not in CHAT_SHAPES:
            message = f"template: {target.model} takes one object a request. Name one column."
            raise UploadRefused("bad_options", message)
    return found


def position(columns: Sequence[str], name: str) -> int | None:
    """Where a column is; one that differs in case or space counts if no other does."""
    if name in columns:
        return columns.index(name)
    like = [
        index
        for index, column in enumerate(columns)
        if column.strip().casefold() == name.strip().casefold()
    ]
    return like[0] if len(like) == 1 and name.strip() else None


def _example(columns: Sequence[str]) -> str:
    named = (one for one in columns if one.strip() and one not in REFERENCE_COLUMNS)
    return f"{{{next(named, 'name')[:60]}}}"


def listed(columns: Sequence[str]) -> str:
    """The first columns, for an error message."""
    names = ", ".join(repr(column[:60]) for column in columns[:20])
    return names if len(columns) <= 20 else f"{names} and {len(columns) - 20} more"  # noqa: PLR2004
