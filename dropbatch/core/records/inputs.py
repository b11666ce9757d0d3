"""Inputs: whether a model takes a request.

By the schemas that Cloudflare publishes and the efforts that are known.

One without an input, with an empty one, or with a value beyond its range would be refused, and with
it its whole batch; one that names another model would be answered by the wrong one. Requests are
judged while they are decoded: a decoder that knows the members it looks for is quicker than one
that keeps all.
"""

from __future__ import annotations

import re
from collections import deque
from functools import cache
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dropbatch.core.formats.base import RecordFault
from dropbatch.core.formats.conversion.members import STREAM, only_values
from dropbatch.core.formats.model_catalog import model_id, no_other_than, of_other_model
from dropbatch.core.formats.published import (
    NEVER,
    alternatives,
    check_false,
    content,
    not_empty,
    struct_of,
    with_efforts,
)
from dropbatch.core.formats.schemas import Limits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dropbatch.core.formats.model_catalog import Efforts
    from dropbatch.core.formats.published import Members
    from dropbatch.core.records.plan import SplitPlan

EFFORTS = {"reasoning_effort", "reasoning.effort"}
"""The members that are efforts, by whether a model has the Responses API's shape."""


class Request(msgspec.Struct, gc=False, kw_only=True):
    """What is read of each request."""

    external_reference: Any = None


class Form(NamedTuple):
    """One of the forms that a model's requests have.

    Attributes:
        member: that holds the input.
        decode: reads a request of this form; raises for any other.
        only: why members may have no other value than they may.
    """

    member: str
    decode: Callable[[bytes], Request]
    only: Mapping[str, str] = MappingProxyType({})


@cache
def forms_of(
    schema: str,
    efforts: tuple[str, ...] | None = None,
    model: str = "",
    *,
    is_strict: bool = False,
    dimensions: int | None = None,
) -> tuple[Form, ...]:
    """The forms of a schema's requests; if nothing is known, one that any object has.

    Args:
        schema: its name, one of `dropbatch.core.formats.published`.
        efforts: that the model takes; None if they are not known.
        model: the only one of Workers AI that a request may name; empty: any.
        is_strict: whether a request must have something to answer, and members that its answer can
            be right for.
        dimensions: numbers in one of the model's embeddings; None if unknown.
    """
    named: Members = {"model": [f"string {no_other_than(model)}", "null"]} if model else {}
    if schema not in content()["schemas"]:
        only = only_values("", model, dimensions) if is_strict else {}
        return (_form("", named, only),)
    found = alternatives(schema)
    inputs = [next(name[:-1] for name in one.members if name.endswith("!")) for one in found]
    forms = []
    for one, member in zip(found, inputs, strict=True):
        others = dict.fromkeys(set(inputs) - {member}, NEVER)
        members = with_efforts(one.members, efforts) | others | named
        only = {}
        if is_strict:
            members = {
                name: not_empty(kind) if name.endswith("!") else kind
                for name, kind in members.items()
            }
            every = only_values(member, model, dimensions)
            only = {
                name: every[name] for name in every if name == STREAM or name not in one.members
            }
        forms.append(_form(member, members, only))
    return tuple(reversed(forms))  # The usual one is the last that is published.


def _form(member: str, members: Members, only: Mapping[str, tuple[object, str]]) -> Form:
    """The form with this input and these members, of which some may have only one value."""
    kinds = {name: _only(value, members.get(name)) for name, (value, _) in only.items()}
    decoder = msgspec.json.Decoder(struct_of(members | kinds, Request), dec_hook=check_false)
    return Form(member, decoder.decode, {name: message for name, (_, message) in only.items()})


def _only(value: object, published: Any) -> Any:  # noqa: ANN401 # Kinds, as `dropbatch.core.formats.published` has them.
    """The kind of one value, and of null unless the published kind has none.

    What is sent is what is written.
    """
    kind = "null" if value is None else "false" if value is False else f"integer {value}..{value}"
    takes_null = published is None or published == "any" or "null" in published
    return [kind, "null"] if takes_null else kind


class _Named(msgspec.Struct):
    model: Any = None


_decode_named = msgspec.json.Decoder(_Named).decode
_WRONG = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_external_reference = attrgetter("external_reference")
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_MISSING = re.compile(r"required field `(\w+)`")


class Inputs:
    """The requests that the model of a job takes."""

    def __init__(
        self,
        schema: str,
        efforts: Efforts | None = None,
        model: str = "",
        *,
        is_strict: bool = False,
        dimensions: int | None = None,
    ) -> None:
        """Judge by the schema of this name, by the model's efforts if they are known.

        And by its id if it is given.

        `is_strict` and `dimensions`: as for `forms_of`.
        """
        self._efforts, self._model, self._is_strict = efforts, model, is_strict
        self._forms = forms_of(
            schema, efforts and efforts.values, model, is_strict=is_strict, dimensions=dimensions
        )

    def references(self, raws: Sequence[bytes], *, wanted: bool) -> list[Any] | None:
        """The references of requests that all have an input, in the same form.

        None if perhaps one has none.

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
        """What is read of a request that has an input.

        None for any other, and for what is not JSON.
        """
        if not is_text(raw):
            return None
        for form in self._forms:
            try:
                return form.decode(raw)
            except _WRONG:
                continue
        return None

    def fault(self, raw: bytes) -> RecordFault | None:
        """Why a request, a JSON object, cannot be sent; None if it can."""
        if self.read(raw) is not None:
            return None
        model = model_id(_decode_named(raw).model)
        if self._model and model not in {"", self._model}:
            return RecordFault("mismatched_model", f"model: {of_other_model(model, self._model)}")
        if not (self._is_strict or self._forms[0].member):
            return None
        return RecordFault("bad_record", self._fault_of_input(raw))

    def _fault_of_input(self, raw: bytes) -> str:
        """Begins with the member at fault."""
        members = _decode_members(raw)
        given = [one for one in self._forms if one.member in members or not one.member]
        takers = " or ".join(one.member for one in self._forms)
        if not given:
            return f"{self._forms[0].member}: It is missing. The model takes {takers}."
        form, *others = given
        if others:
            return f"{others[0].member}: It is beside {form.member}. The model takes {takers}."
        try:
            form.decode(raw)
        except msgspec.ValidationError as error:
            return self._explained(str(error), form)
        return f"{form.member}: It cannot be read."

    def _explained(self, error: str, form: Form) -> str:
        """An error of msgspec in words, with the path of the member at fault."""
        found = _PLACE.search(error)
        place, said = (found[1], error[: found.start()]) if found else ("", error)
        if missing := _MISSING.search(said):
            return f"{place}{'.' * bool(place)}{missing[1]}: It is missing."
        place = place or form.member
        if place in form.only:
            return f"{place}: {form.only[place]}"
        if place in EFFORTS and self._efforts:
            return f"{place}: It must be {Limits(words=self._efforts.values).text()}."
        if "length >= 1" in said:
            return f"{place}: It must not be empty."
        return f"{place}: It has the wrong type." if ", got " in said else f"{place}: {said}."


def inputs_of(plan: SplitPlan) -> Inputs:
    """The requests that the model of a job takes.

    Any if nothing is known, or if an older version planned it so.
    """
    efforts = plan.known_model.efforts if plan.facts else None
    return Inputs(
        plan.inputs,
        efforts,
        plan.model if plan.checks_models else "",
        is_strict=plan.is_strict,
        dimensions=plan.known_model.dimensions,
    )


def is_text(raw: bytes) -> bool:
    """Whether bytes are UTF-8: a decoder does not check what it skips."""
    if raw.isascii():
        return True
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
