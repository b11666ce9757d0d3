"""The switches of the local Workers AI: one frozen object, and how text or JSON changes it.

The behaviour itself is in the other modules.

Each switch has the evidence for its default: `documented` (Cloudflare's own pages, schemas or
sources), `observed` (reported by clients of the live API), `unknown` (not known outside Cloudflare:
the default is a guess, the switch offers the other guesses), `invented` (specific to this server,
no claim about the API).
"""
# ruff: noqa: FBT003 # The default of a switch comes first, whatever its type.

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from local.workers_ai.faults import check_rates

Verdict = Literal["documented", "observed", "unknown", "invented"]


class SwitchError(ValueError):
    """A switch that does not exist, or a value that it does not accept."""


def _switch(default: object, verdict: Verdict, about: str) -> Any:  # As `dataclasses.field` does.
    metadata = {"verdict": verdict, "about": about}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the server behaves. Each field's declaration has its meaning."""

    # Access
    tokens: tuple[str, ...] = _switch(("local-token",), "invented", "accepted API tokens")
    foreign_tokens: tuple[str, ...] = _switch(
        (), "observed", "good tokens without access to the account: 403/9109"
    )
    accounts: tuple[str, ...] = _switch(
        (), "invented", "the only accounts accepted; empty: any 32 hex digits"
    )

    # AI Gateway
    gateway_token: str = _switch(
        "", "observed", "token that the gateway requires in cf-aig-authorization; empty: none"
    )

    # Worker
    raw_response: bool = _switch(
        True,
        "documented",
        "the Worker's AI binding returns raw responses; false: objects, and errors that it throws",
    )

    # Envelope
    envelope: bool = _switch(
        True,
        "documented",
        "REST envelope; false: bare bodies and the runtime's `internalCode` errors",
    )
    result_list: bool = _switch(False, "invented", "`result` is a list with one element")
    error_result: Literal["null", "empty", "absent"] = _switch(
        "null", "documented", "`result` beside errors"
    )
    compress: bool = _switch(
        False, "unknown", "gzip replies of over 1 KB for clients that accept it"
    )

    # Submit
    submit_status: Literal[200, 202] = _switch(200, "unknown", "HTTP status of an accepted submit")
    request_id_form: Literal["uuid", "req", "integer", "mixed"] = _switch(
        "uuid",
        "documented",
        "`req`: the form `req-<uuid>` of the event documentation; `integer`: a number, `mixed`: "
        "some of each of the other two, and pending replies in the other form (invented)",
    )
    accept_after: float = _switch(
        0.0,
        "unknown",
        "seconds (a wide median) after a submit's last byte until its batch exists and its reply "
        "begins",
    )
    max_payload: int = _switch(
        10_000_000,
        "documented",
        "bodies of this many bytes or more are refused, 413/3006 (the code is inferred)",
    )
    max_requests: int = _switch(
        0, "documented", "most requests in a batch; 0: no limit is documented"
    )
    unknown_members: Literal["accept", "refuse"] = _switch(
        "accept",
        "unknown",
        "members that a model's schema does not name; the published schemas forbid none",
    )

    # Poll
    pending_status: Literal[200, 202] = _switch(
        200, "unknown", "HTTP status while a batch is pending"
    )
    pending_empty: bool = _switch(False, "observed", "a pending reply's `result` is `{}`")
    empty_array: Literal["", "responses", "results"] = _switch(
        "", "invented", "name of an empty array in the replies for a pending batch"
    )
    queued_word: str = _switch("queued", "documented", "status before the batch runs")
    running_word: str = _switch("running", "documented", "status while it runs")
    retention: float = _switch(
        86_400.0, "unknown", "seconds after completion for which results are available; 0: for ever"
    )
    answers_per_batch: int = _switch(
        0, "unknown", "complete answers before the id is unknown; 0: any number (observed, weakly)"
    )

    # Completed batches
    shapes: Mapping[str, Literal["A", "B"]] = _switch(
        {},
        "observed",
        "shape by model: A `responses`/`id`, B `results`/`index`; `*` applies to every model",
    )
    shuffle: bool = _switch(True, "documented", "items are in another order than submitted")
    completed_status: str = _switch(
        "", "observed", "`status` beside the items of a completed batch"
    )
    missing_reference: Literal["null", "absent"] = _switch(
        "null", "documented", "`external_reference` of an item whose request had none"
    )
    nested_result: bool = _switch(
        False, "documented", "launch form: the item's `result` within a `result`"
    )
    item_ids: Literal["number", "text", "float", "opaque", "absent"] = _switch(
        "number",
        "documented",
        "`id` or `index` of an item; opaque (as a UUID) or absent: only its "
        "`external_reference` names its request",
    )
    item_success: Literal["true", "text", "one", "null", "absent"] = _switch(
        "true", "documented", "`success` of a good item: true, `'true'`, 1, null, or nothing"
    )
    answers_refused: bool = _switch(
        False, "invented", "`success: false` in the envelope around the answers"
    )
    usage_names: Literal["prompt", "input", "both"] = _switch(
        "prompt",
        "observed",
        "`usage` as `prompt_tokens` and `completion_tokens`, as `input_tokens` and "
        "`output_tokens`, or both",
    )
    cached_share: float = _switch(
        0.0,
        "observed",
        "share of the input tokens that `prompt_tokens_details.cached_tokens` reports",
    )
    item_error: Literal["object", "message", "string", "errors", "text", "none"] = _switch(
        "object",
        "unknown",
        "a failed item: `error:{code,message}`, `error:{message}`, `error:'code: "
        "message'`, `errors:[…]`, "
        "`message`, or nothing",
    )
    batch_failure: Literal["envelope", "error", "failed"] = _switch(
        "envelope",
        "unknown",
        "a batch that failed after acceptance: an error reply, or 200 with that `status`",
    )

    # Time
    latency: float = _switch(2.0, "invented", "seconds from acceptance to completion (its median)")
    latency_kind: Literal["fixed", "uniform", "lognormal"] = _switch(
        "fixed", "invented", "its spread"
    )
    latency_spread: float = _switch(
        0.5, "invented", "uniform: plus or minus this share; lognormal: the sigma"
    )

    clock_ahead: float = _switch(
        0.0, "invented", "seconds by which the API's clock is ahead of the caller's"
    )

    # Limits
    global_limit: int = _switch(
        1200,
        "documented",
        "calls of a token within five minutes, pulls and acknowledgements of Queues aside, then "
        "five minutes of 429/971; 0: no limit",
    )

    # Completion events
    queues_refused: Literal[
        "", "401/10000", "403/10000", "403/9109", "404/7003", "405/7001", "page"
    ] = _switch(
        "",
        "invented",
        "reply to every call of Queues and event subscriptions; page: HTML; "
        "empty: they are carried out",
    )
    subscriptions_per: Literal["any", "model", "source"] = _switch(
        "model",
        "unknown",
        "an account has at most one subscription for a model, or one in all; any: no limit",
    )
    event_names: Literal["full", "without_cf", "short"] = _switch(
        "full",
        "documented",
        "an event's `type`: `cf.workersAi.model.batch.queued`, without `cf.`, or `batch.queued`",
    )
    event_ids: Literal["req", "bare", "as_sent", "mixed"] = _switch(
        "req",
        "documented",
        "an event's `requestId`: with `req-`, without, as the reply to the submit had it, or one "
        "of the first two",
    )
    event_bodies: Literal["base64", "text", "object"] = _switch(
        "base64",
        "unknown",
        "`body` of a pulled message: base64, text, or the JSON value itself where it is one",
    )
    event_delay: float = _switch(
        1.0, "unknown", "seconds until an event is in its queue (their median)"
    )
    event_delay_spread: float = _switch(0.0, "unknown", "the sigma of their logarithm")
    foreign_events: float = _switch(
        0.0,
        "invented",
        "messages of others beside each event of a batch, on average: other "
        "stacks' batches, garbage",
    )

    # Answers
    refuse_reference: tuple[str, ...] = _switch(
        (),
        "unknown",
        "models whose schema takes no `external_reference`, 400/5006; `*`: every model",
    )
    embedder: Literal["words", "hash"] = _switch(
        "words", "invented", "vectors from hashes of words, or from a hash of the text"
    )
    answer_tokens: tuple[int, ...] = _switch(
        (),
        "invented",
        "fewest and most tokens that a generated text reports, drawn from the request and "
        "`seed`, each order of "
        "magnitude as often, up to the request's limit; empty: those that it has",
    )

    # Faults and chance
    seed: int = _switch(0, "invented", "seeds ids, order, latencies and chance faults")
    fault_rates: Mapping[str, float] = _switch(
        {},
        "invented",
        "probability by fault, such as `3040`, `poll:html` or `missing`: see Fault injection",
    )
    hang: float = _switch(3600.0, "invented", "seconds of silence of a `hang` fault")
    pace: float = _switch(1.0, "invented", "seconds before each kilobyte of a `slow_body` fault")
    retry_after: int = _switch(60, "invented", "`retry-after` of an injected 971, seconds")

    def changed(self, changes: Mapping[str, object]) -> "Behaviour":
        """The same behaviour with some switches changed to JSON-like values."""
        checked: dict[str, Any] = {name: _checked(name, value) for name, value in changes.items()}
        return dataclasses.replace(self, **checked)

    def changed_by_text(self, *assignments: str) -> "Behaviour":
        """The same with assignments as on a command line.

        `name=value`, `name=[…]` or `name=a,b` for several, `name.key=value` for a mapping.
        """
        behaviour = self
        for assignment in assignments:
            target, equals, text = assignment.partition("=")
            name, dot, key = target.partition(".")
            if not equals:
                raise SwitchError(f"{assignment!r} is not of the form name=value")
            value: object = _from_text(name, text, inside=bool(dot))
            if dot:
                value = {**getattr(behaviour, name), key: value}
            behaviour = behaviour.changed({name: value})
        return behaviour


_TYPES: dict[str, Any] = get_type_hints(Behaviour)


def switches() -> list[tuple[str, str, Verdict, str]]:
    """Name, default, verdict and meaning of each switch, in order of declaration."""
    fresh = dataclasses.asdict(Behaviour())
    return [
        (
            field.name,
            msgspec.json.encode(fresh[field.name]).decode(),
            field.metadata["verdict"],
            field.metadata["about"],
        )
        for field in dataclasses.fields(Behaviour)
    ]


def _type_of(name: str) -> Any:  # Types are values of no one type.
    if name not in _TYPES:
        raise SwitchError(f"there is no switch {name!r}")
    return _TYPES[name]


def _checked(name: str, value: object) -> object:
    kind = _type_of(name)
    try:
        checked: object = msgspec.convert(value, kind)
        if name == "fault_rates":
            check_rates(msgspec.convert(value, Mapping[str, float]))
    except ValueError as error:
        raise SwitchError(f"switch {name!r}: {error}") from error
    return checked


def _from_text(name: str, text: str, *, inside: bool) -> object:
    kind = _type_of(name)
    if inside:
        if get_origin(kind) is not Mapping:
            raise SwitchError(f"switch {name!r} is not a mapping")
        kind = get_args(kind)[1]
    if kind is str or (get_origin(kind) is Literal and isinstance(get_args(kind)[0], str)):
        return text
    if get_origin(kind) is tuple and not text.startswith("["):
        return [part for part in text.split(",") if part]
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise SwitchError(f"switch {name!r}: {error}") from error
