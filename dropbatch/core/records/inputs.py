"""Inputs: whether a request has one that its model takes, by the schemas that Cloudflare publishes.

One that has none, or an empty one, would be refused, and with it its whole batch. Requests are judged while they are
decoded: a decoder that knows the members it looks for is quicker than one that keeps all.
"""

from __future__ import annotations

import re
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class Request(msgspec.Struct, gc=False):
    """What is read of each request."""

    external_reference: Any = None


class _Message(msgspec.Struct, gc=False):
    role: str


class _TextOrTexts(Request, gc=False, kw_only=True):
    text: _Text | list[_Text]


class _OneText(Request, gc=False, kw_only=True):
    text: _Text


class _Contexts(Request, gc=False, kw_only=True):
    contexts: list[Any]


class _Prompt(Request, gc=False, kw_only=True):
    prompt: _Text


class _Messages(Request, gc=False, kw_only=True):
    messages: list[_Message]


class _SomeMessages(Request, gc=False, kw_only=True):
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]


class _LlamaMessage(msgspec.Struct, gc=False):
    role: str = ""


class _LlamaMessages(Request, gc=False, kw_only=True):
    messages: list[_LlamaMessage]


class _Input(Request, gc=False, kw_only=True):
    input: str | list[Any]


class Form(NamedTuple):
    """One of the forms that a model's requests have.

    Attributes:
        member: that holds the input.
        decode: reads a request of this form; raises for any other.
    """

    member: str
    decode: Callable[[bytes], Request]


def _form(member: str, kind: type[Request]) -> Form:
    return Form(member, msgspec.json.Decoder(kind).decode)


_PROMPT = _form("prompt", _Prompt)
_CHAT, _OWN_CHAT = (_form("messages", _SomeMessages), _PROMPT), (_form("messages", _Messages), _PROMPT)
FORMS: dict[str, tuple[Form, ...]] = {
    "": (_form("", Request),),
    "bge": (_form("text", _TextOrTexts),),
    "bge-m3": (_form("text", _TextOrTexts), _form("contexts", _Contexts)),
    "m2m100": (_form("text", _OneText),),
    "llama-3.3": _OWN_CHAT,
    "llama-4": (_form("messages", _LlamaMessages), _PROMPT),
    "qwen3": _OWN_CHAT,
    "chat": _CHAT,
    "responses": (_form("input", _Input),),
}
"""By the name that `model_catalog.json` gives a model's schema; empty: nothing is known."""

_WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_external_reference = attrgetter("external_reference")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"required field `(\w+)`")


class Inputs:
    """The inputs that the model of a job takes."""

    def __init__(self, schema: str) -> None:
        """Judge by the schema of this name, one of `FORMS`."""
        self._forms = FORMS[schema]

    def references(self, raws: Sequence[bytes], *, wanted: bool) -> list[Any] | None:
        """The references of requests that all have an input, in the same form; None if perhaps one has none.

        Args:
            raws: UTF-8, perhaps JSON.
            wanted: whether any request has a reference; if not, the list is empty.
        """
        for form in self._forms:
            try:
                values = map(form.decode, raws)
                if wanted:
                    return list(map(_external_reference, values))
                deque(values, maxlen=0)
            except _WRONG:
                continue
            return []
        return None

    def read(self, raw: bytes) -> Request | None:
        """What is read of a request that has an input; None for any other, and for what is not JSON."""
        if not is_text(raw):
            return None
        for form in self._forms:
            try:
                return form.decode(raw)
            except _WRONG:
                continue
        return None

    def fault(self, raw: bytes) -> str:
        """Why a request, a JSON object, has no input; empty if it has one. Begins with the member at fault."""
        if not self._forms[0].member or self.read(raw) is not None:
            return ""
        members = _decode_members(raw)
        form = next((one for one in self._forms if one.member in members), None)
        if form is None:
            takers = " or ".join(one.member for one in self._forms)
            return f"{self._forms[0].member}: It is missing. The model takes {takers}."
        try:
            form.decode(raw)
        except msgspec.ValidationError as error:
            return _explained(str(error), form.member)
        return f"{form.member}: It cannot be read."


def _explained(error: str, member: str) -> str:
    """An error of msgspec in words, with the path of the member at fault."""
    found = _PLACE.search(error)
    place = found[1] if found else member
    if missing := _MISSING.search(error):
        return f"{place}.{missing[1]}: It is missing."
    return f"{place}: It must not be empty." if "length >= 1" in error else f"{place}: It has the wrong type."


def is_text(raw: bytes) -> bool:
    """Whether bytes are UTF-8: a decoder does not check what it skips."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
