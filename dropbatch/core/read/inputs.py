"""Whether a model takes a request, by the schema that Cloudflare publishes and its known efforts.

One without an input, with an empty one, or with a value beyond its range would be refused, and with
it its whole batch; one that names another model would be answered by the wrong one. Requests are
judged while they are decoded: a decoder that knows the members it looks for is quicker than one
that keeps all.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from dropbatch.core.formats.base import UNDECODABLE, RecordFault, is_text
from dropbatch.core.formats.conversion.members import STREAM, no_images, only_values
from dropbatch.core.models import Model, model_id, no_other_than, of_other_model
from dropbatch.core.read.attachments import UNNAMED, names_any
from dropbatch.core.requests import (
    NO_VALUE,
    Limits,
    Members,
    alternatives,
    check_false,
    content,
    not_empty,
    struct_of,
    with_efforts,
)

EFFORTS = {"reasoning_effort", "reasoning.effort"}
"""The members that are efforts, by whether a model has the Responses API's shape."""


class Request(msgspec.Struct, gc=False, kw_only=True):
    """What is read of each request."""

    external_reference: Any = None


class _Kind(NamedTuple):
    """A form of a model's requests: its input, its decoder, and why some members have one value."""

    member: str
    decode: Callable[[bytes], Request]
    only: Mapping[str, str] = MappingProxyType({})


@cache
def _kinds_of(
    schema: str,
    efforts: tuple[str, ...] | None,
    model: str,
    dimensions: int | None,
    images: bool | None,  # noqa: FBT001 # Of a model, as its other facts.
) -> tuple[_Kind, ...]:
    """The forms of a model's requests; if nothing is known, one that any object has."""
    named: Members = {"model": [f"string {no_other_than(model)}", "null"]} if model else {}
    if schema not in content()["schemas"]:
        return (_kind("", named, only_values("", model, dimensions, images=images)),)
    found = alternatives(schema)
    inputs = [next(name[:-1] for name in one.members if name.endswith("!")) for one in found]
    kinds = []
    for one, member in zip(found, inputs, strict=True):
        others = dict.fromkeys(set(inputs) - {member}, NO_VALUE)
        members = with_efforts(one.members, efforts) | others | named
        members = {
            name: not_empty(kind) if name.endswith("!") else kind for name, kind in members.items()
        }
        every = only_values(member, model, dimensions, images=images)
        only = {name: every[name] for name in every if name == STREAM or name not in one.members}
        kinds.append(_kind(member, members, only))
    return tuple(reversed(kinds))  # The usual one is the last that is published.


def _kind(member: str, members: Members, only: Mapping[str, tuple[object, str]]) -> _Kind:
    """The form with this input and these members, of which some may have only one value."""
    kinds = {name: _only(value, members.get(name)) for name, (value, _) in only.items()}
    decoder = msgspec.json.Decoder(struct_of(members | kinds, Request), dec_hook=check_false)
    return _Kind(member, decoder.decode, {name: message for name, (_, message) in only.items()})


def _only(value: object, published: Any) -> Any:
    """The kind of one value, and of null unless the published kind has none: it is sent so."""
    kind = "null" if value is None else "false" if value is False else f"integer {value}..{value}"
    takes_null = published is None or published == "any" or "null" in published
    return [kind, "null"] if takes_null else kind


class _Named(msgspec.Struct):
    model: Any = None


_decode_named = msgspec.json.Decoder(_Named).decode
_external_reference = attrgetter("external_reference")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_NO_IMAGE = "(?!input_image)"  # A pattern of models of the Responses API that see no images.
_MISSING = re.compile(r"required field `(\w+)`")


class Inputs:
    """The requests that a model takes."""

    def __init__(self, model: Model) -> None:
        """Judge by a model's schema, its efforts if they are known, and its id if it has one."""
        self._efforts, self._model = model.efforts, model.id
        efforts = model.efforts.values if model.efforts else None
        self._kinds = _kinds_of(model.schema, efforts, model.id, model.dimensions, model.images)

    def references(self, raws: Sequence[bytes], *, wanted: bool) -> list[Any] | None:
        """References of requests that all fit one form, or None; none if not `wanted`."""
        for kind in self._kinds:
            try:
                values = map(kind.decode, raws)
                if wanted:
                    return list(map(_external_reference, values))
                deque(values, maxlen=0)
            except UNDECODABLE:
                continue
            return []
        return None

    def read(self, raw: bytes) -> Request | None:
        """What is read of a request that has an input; None for any other, and no JSON."""
        if not is_text(raw) or names_any(raw):
            return None
        for kind in self._kinds:
            try:
                return kind.decode(raw)
            except UNDECODABLE:
                continue
        return None

    def fault(self, raw: bytes) -> RecordFault | None:
        """Why a request, a JSON object, cannot be sent; None if it can."""
        if names_any(raw):
            return RecordFault("bad_record", UNNAMED)
        if self.read(raw) is not None:
            return None
        model = model_id(_decode_named(raw).model)
        if self._model and model not in {"", self._model}:
            return RecordFault("mismatched_model", f"model: {of_other_model(model, self._model)}")
        return RecordFault("bad_record", self._fault_of_input(raw))

    def _fault_of_input(self, raw: bytes) -> str:
        """Begins with the member at fault."""
        members = _decode_members(raw)
        given = [one for one in self._kinds if one.member in members or not one.member]
        takers = " or ".join(one.member for one in self._kinds)
        if not given:
            return f"{self._kinds[0].member}: It is missing. The model takes {takers}."
        kind, *others = given
        if others:
            return f"{others[0].member}: It is beside {kind.member}. The model takes {takers}."
        try:
            kind.decode(raw)
        except msgspec.ValidationError as error:
            return self._explained(str(error), kind)
        return f"{kind.member}: It cannot be read."

    def _explained(self, error: str, kind: _Kind) -> str:
        """An error of msgspec in words, with the path of the member at fault."""
        found = _PLACE.search(error)
        place, said = (found[1], error[: found.start()]) if found else ("", error)
        if missing := _MISSING.search(said):
            return f"{place}{'.' * bool(place)}{missing[1]}: It is missing."
        place = place or kind.member
        if place in kind.only:
            return f"{place}: {kind.only[place]}"
        if place in EFFORTS and self._efforts:
            return f"{place}: It must be {Limits(words=self._efforts.values).text()}."
        if _NO_IMAGE in said:
            return f"{place}: {no_images(self._model)}"
        if "length >= 1" in said:
            return f"{place}: It must not be empty."
        return f"{place}: It has the wrong type." if ", got " in said else f"{place}: {said}."
