"""Faults: what can go wrong on demand, when a fault strikes, which requests it affects.

What a fault then does is carried out in `api.py` (calls) and `complete.py` (finished batches).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal, NamedTuple

import msgspec

Call = Literal["submit", "poll", "sync", "queues"]
Where = Literal["submit", "poll", "queues", "any"]
"""`any` is every call of a model; `queues` every call of Queues and event subscriptions."""


Stage = Literal["instead", "after", "batch"]
"""The call is not carried out; it is, and its reply is changed; the batch is marked for good."""


class Kind(NamedTuple):
    stage: Stage
    where: Where
    """The calls it strikes unless the fault says otherwise."""
    about: str


_KINDS: dict[tuple[Stage, Where], dict[str, str]] = {
    ("instead", "any"): {
        "error": "error envelope with `code` (and `status`, `message`, `retry_after`)",
        "bare": "empty reply with `status` (429)",
        "html": "HTML page with `status` (502)",
        "json_500": "500 with the JSON error envelope, code 10013",
        "refuse": "no connection is made (mock transport; over a socket: `reset`)",
        "reset": "the connection is reset, nothing was accepted",
        "hang": "silence for `seconds` (for ever), nothing was accepted",
    },
    ("instead", "poll"): {
        "flood": "`factor` megabytes of `message`: items, errors, unknown, wide, deep, or page",
    },
    ("after", "submit"): {
        "accept_then_reset": "carried out, then the connection is reset",
        "accept_then_close": "carried out, then the connection is closed",
        "accept_then_hang": "carried out, then silence for `seconds`",
        "accept_then_truncate": "carried out, the connection ends `at` a byte of the body",
        "accept_then_html": "carried out, answered with an HTML page, `status` (502)",
        "accept_then_error": "carried out, answered with an error: `code` (else drawn), `status`",
        "accept_no_request_id": "carried out, answered `success:true, result:{}`",
        "sync_answer": "not queued: the results are in the reply, and are billed",
    },
    ("after", "poll"): {
        "truncated_json": "a whole HTTP reply whose JSON stops `at` a byte (half)",
        "truncated_body": "the connection ends `at` a byte of the body (half)",
        "no_answers": "carried out, answered `status: completed` without an array",
        "slow_body": "each kilobyte arrives `seconds` (switch `pace`) after the last",
    },
    ("batch", "submit"): {
        "stuck": "the batch is pending `seconds` longer; if they are not given, for ever",
        "batch_fails": "fails after acceptance with `code` (3030)",
        "forgotten": "billed, and its id is unknown from then on",
        "partial": "while it runs, the items that are finished are beside `status`",
        "unnumbered": "items have no `id` or `index`, only their `external_reference`",
        "missing": "items are missing in the `first` answers, or always",
        "placeholder": "`first` answers (or all) lack results; `message`: bare, null, queued",
        "repeated": "items are repeated, identical",
        "contradicting": "items are repeated, with different results",
        "foreign": "an item with an id beyond the batch's last",
        "swapped_reference": "two items have each other's `external_reference`",
        "null_reference": "items lose their `external_reference`",
        "item_fails": "items fail with `code` (3040) in their `first` attempts, or always",
        "null_vectors": "embeddings have null in place of each number, and success is true",
        "event_lost": "its event `message` (queued, succeeded, failed; none: each) never comes",
        "event_late": "its event `message` (none: each) comes `seconds` (3600) later",
        "event_twice": "its event `message` (none: each) comes twice",
        "event_early": "its last event comes with its acceptance, while polls say pending",
        "event_false": "its last event is `failed`, and polls bring its answers",
        "deep": "results are nested so deeply that no reader follows",
        "giant": "results are `factor` times as long",
    },
}
KINDS = {
    name: Kind(stage, where, about)
    for (stage, where), kinds in _KINDS.items()
    for name, about in kinds.items()
}


class Fault(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True
):
    """A scripted fault: what happens, to which calls, how often."""

    kind: str
    on: Where | None = None
    """Calls it strikes; None: the kind's own."""
    model: str = ""
    contains: str = ""
    """Text that the call's body must contain; for a poll, its own body or the polled batch's."""
    nth: int = 1
    """The first matching call that it strikes."""
    times: int = 1
    """How many calls it strikes; 0: all."""
    code: int = 0
    status: int = 0
    message: str = ""
    retry_after: int = -1
    """Seconds; below 0: the code's own default."""
    seconds: float = -1.0
    at: int = -1
    items: tuple[int, ...] = ()
    """Of the batch kinds: positions of the requests struck."""
    marker: str = ""
    """Of the batch kinds: requests whose JSON contains this are struck."""
    share: float = 0.0
    """Of the batch kinds: this share of the requests is struck."""
    first: int = 0
    """Answers of the batch (or attempts of the request) that are struck; 0: all."""
    factor: int = 10

    def __post_init__(self) -> None:
        if self.kind not in KINDS and not self.kind.isdigit():
            raise ValueError(f"there is no fault {self.kind!r}")

    @property
    def nature(self) -> Kind:
        """The kind that its name or number stands for."""
        return KINDS["error" if self.kind.isdigit() else self.kind]

    @property
    def error_code(self) -> int:
        """The code of an `error`; 0 if there is none."""
        return int(self.kind) if self.kind.isdigit() else self.code

    def strikes(self, call: Call, model: str, bodies: Iterable[bytes]) -> bool:
        where = self.on or self.nature.where
        if call != where and (where != "any" or call == "queues"):
            return False
        if self.model and self.model != model:
            return False
        needle = self.contains.encode()
        return not needle or any(needle in body for body in bodies)

    def chosen(self, requests: list[Any], salt: str) -> set[int]:
        """Positions of the requests struck; one drawn by `salt` when the fault names none."""
        if not requests:
            return set()
        if self.items:
            return {index for index in self.items if index < len(requests)}
        if self.marker or self.share:
            texts = [msgspec.json.encode(request) for request in requests]
            return {index for index, text in enumerate(texts) if self._is_chosen(text)}
        return {int(chance(self.kind, salt) * len(requests))}

    def _is_chosen(self, text: bytes) -> bool:
        is_marked = bool(self.marker) and self.marker.encode() in text
        return is_marked or chance("share", text) < self.share


def without_reference(request: object) -> object:
    if not isinstance(request, dict):
        return request
    return {name: value for name, value in request.items() if name != "external_reference"}


def chance(*parts: str | int | bytes) -> float:
    """A number from 0 to 1, drawn from the parts: the same parts always draw the same."""
    digest = blake2b(digest_size=8)
    for part in parts:
        digest.update(part if isinstance(part, bytes) else str(part).encode())
        digest.update(b"\0")
    return int.from_bytes(digest.digest()) / 2**64


@dataclass(slots=True)
class _Scripted:
    fault: Fault
    seen: int = 0
    used: int = 0


class Faults:
    def __init__(self) -> None:
        self._queue: list[_Scripted] = []

    def add(self, *faults: Fault) -> None:
        """Queue faults; earlier ones strike first."""
        self._queue.extend(_Scripted(fault) for fault in faults)

    def clear(self) -> None:
        self._queue.clear()

    def queued(self) -> list[Fault]:
        return [entry.fault for entry in self._queue]

    def take(self, call: Call, model: str, bodies: Iterable[bytes]) -> list[Fault]:
        struck: list[Fault] = []
        for entry in list(self._queue):
            fault = entry.fault
            if not fault.strikes(call, model, bodies):
                continue
            entry.seen += 1
            if entry.seen < fault.nth or not _goes_with(fault, struck):
                continue
            struck.append(fault)
            entry.used += 1
            if fault.times and entry.used >= fault.times:
                self._queue.remove(entry)
        return struck


def by_name(name: str) -> Fault:
    """The fault of a rate's name, such as `3040` or `poll:html`."""
    where, colon, kind = name.rpartition(":")
    return Fault(kind=kind, on=msgspec.convert(where, Where) if colon else None)


def by_chance(rates: Mapping[str, float], call: Call, *draw: str | int) -> list[Fault]:
    """Chance faults that strike a call, by their rates and what chance is drawn from."""
    struck: list[Fault] = []
    for name, rate in rates.items():
        fault = by_name(name)
        if not fault.strikes(call, "", ()) or not _goes_with(fault, struck):
            continue
        if chance(name, *draw) < rate:
            struck.append(fault)
    return struck


def _goes_with(fault: Fault, struck: Iterable[Fault]) -> bool:
    """Whether one more may strike: at most one changes the call itself."""
    stages = {one.nature.stage for one in struck} - {"batch"}
    return fault.nature.stage == "batch" or not stages
