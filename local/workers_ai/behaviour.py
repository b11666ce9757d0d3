"""The switches of the local Workers AI: one frozen object, and how JSON changes it.

The behaviour itself is in the other modules.

Each switch has the evidence for its default: `documented` (Cloudflare's own pages, schemas or
sources), `observed` (reported by clients of the live API), `unknown` (not known outside Cloudflare:
the default is a guess, the switch offers the other guesses), `invented` (specific to this server,
no claim about the API).
"""
# ruff: noqa: FBT003, RUF009 # The default of a switch comes first, whatever its type.

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import msgspec

from local.workers_ai.faults import by_name

Verdict = Literal["documented", "observed", "unknown", "invented"]


class SwitchError(ValueError):
    """A switch that does not exist, or a value that it does not accept."""


def _switch(verdict: Verdict, default: object, about: str) -> Any:  # As `dataclasses.field` does.
    metadata = {"verdict": verdict, "about": about}
    if isinstance(default, dict):
        return dataclasses.field(default_factory=lambda: dict(default), metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


_documented = partial(_switch, "documented")
_observed = partial(_switch, "observed")
_unknown = partial(_switch, "unknown")
_invented = partial(_switch, "invented")

Status = Literal[200, 202]
Shape = Literal["A", "B"]
IdForm = Literal["uuid", "req", "integer", "mixed"]
ItemIds = Literal["number", "text", "float", "opaque", "absent"]
ItemSuccess = Literal["true", "text", "one", "null", "absent"]
ItemError = Literal["object", "message", "string", "errors", "text", "none"]
Spread = Literal["fixed", "uniform", "lognormal"]
EventIds = Literal["req", "bare", "as_sent", "mixed"]
Refusal = Literal["", "401/10000", "403/10000", "403/9109", "404/7003", "405/7001", "page"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """How the server behaves. Each field's declaration has its meaning."""

    # Access
    tokens: tuple[str, ...] = _invented(("local-token",), "accepted API tokens")
    foreign_tokens: tuple[str, ...] = _observed((), "good tokens of other accounts: 403/9109")
    accounts: tuple[str, ...] = _invented((), "accounts; empty: any 32 hex digits")
    gateway_token: str = _observed("", "what AI Gateway wants in cf-aig-authorization")
    raw_response: bool = _documented(
        True, "the AI binding returns raw responses; false: objects, and errors that it throws"
    )

    # Envelope
    envelope: bool = _documented(True, "false: bare bodies, and errors with `internalCode`")
    result_list: bool = _invented(False, "`result` is a list with one element")
    error_result: Literal["null", "empty", "absent"] = _documented("null", "it beside errors")
    compress: bool = _unknown(False, "gzip replies of over 1 KB for clients that accept it")

    # Submit
    submit_status: Status = _unknown(200, "HTTP status of an accepted submit")
    request_id_form: IdForm = _documented(
        "uuid",
        "`req`: `req-<uuid>`, as in events; `integer`: a number, `mixed`: some of each of the "
        "other two, and pending replies in the other form (invented)",
    )
    accept_after: float = _unknown(0.0, "seconds (a wide median) until its batch exists")
    max_payload: int = _documented(10_000_000, "bodies of so many bytes are refused, 413/3006")
    unknown_members: Literal["accept", "refuse"] = _unknown("accept", "those no schema names")

    # Poll
    pending_status: Status = _unknown(200, "HTTP status while a batch is pending")
    pending_empty: bool = _observed(False, "a pending reply's `result` is `{}`")
    empty_array: Literal["", "responses", "results"] = _invented("", "an array in such a reply")
    queued_word: str = _documented("queued", "status before the batch runs")
    running_word: str = _documented("running", "status while it runs")
    retention: float = _unknown(86_400.0, "seconds for which results are kept; 0: for ever")
    answers_per_batch: int = _unknown(0, "complete answers before the id is unknown; 0: any number")

    # Completed batches
    shapes: Mapping[str, Shape] = _observed(
        {}, "by model: A `responses`/`id`, B `results`/`index`; `*` applies to every model"
    )
    shuffle: bool = _documented(True, "items are in another order than submitted")
    completed_status: str = _observed("", "`status` beside the items of a completed batch")
    missing_reference: Literal["null", "absent"] = _documented("null", "where none was sent")
    nested_result: bool = _documented(False, "the item's `result` is within a `result`")
    item_ids: ItemIds = _documented(
        "number", "`id` or `index`; opaque (as a UUID) or absent: only the reference says whose"
    )
    item_success: ItemSuccess = _documented("true", "of a good item: true, `'true'`, 1, null, none")
    answers_refused: bool = _invented(False, "`success: false` in the envelope around answers")
    usage_names: Literal["prompt", "input", "both"] = _observed(
        "prompt", "`prompt_tokens` and `completion_tokens`, `input_tokens` and `output_tokens`"
    )
    cached_share: float = _observed(0.0, "share of the input tokens reported as `cached_tokens`")
    item_error: ItemError = _unknown(
        "object",
        "`error:{code,message}`, `error:{message}`, `error:'code: message'`, `errors:[…]`, "
        "`message`, or nothing",
    )

    # Time
    latency: float = _invented(2.0, "seconds from acceptance to completion (its median)")
    latency_kind: Spread = _invented("fixed", "its spread")
    latency_spread: float = _invented(0.5, "uniform: plus or minus this share; lognormal: sigma")
    clock_ahead: float = _invented(0.0, "seconds by which the API's clock is ahead of the caller's")

    # Limits
    global_limit: int = _documented(
        1200,
        "calls of a token within five minutes, pulls and acknowledgements of Queues aside, then "
        "five minutes of 429/971; 0: no limit",
    )

    # Completion events
    queues_refused: Refusal = _invented(
        "", "reply to every call of Queues; page: HTML; empty: none"
    )
    subscriptions_per: Literal["any", "model", "source"] = _unknown(
        "model", "an account has at most one subscription for a model, or one in all; any: no limit"
    )
    event_names: Literal["full", "without_cf", "short"] = _documented(
        "full", "`cf.workersAi.model.batch.queued`, without `cf.`, or `batch.queued`"
    )
    event_ids: EventIds = _documented(
        "req", "with `req-`, without, as in the submit's reply, mixed"
    )
    event_bodies: Literal["base64", "text", "object"] = _unknown(
        "base64", "`body` of a pulled message: base64, text, or the JSON value itself"
    )
    event_delay: float = _unknown(1.0, "seconds until an event is in its queue (their median)")
    event_delay_spread: float = _unknown(0.0, "the sigma of their logarithm")
    foreign_events: float = _invented(0.0, "messages of others beside each event, on average")

    # Answers
    refuse_reference: tuple[str, ...] = _unknown(
        (), "models that take no `external_reference`, 400/5006; `*`: every model"
    )
    embedder: Literal["words", "hash"] = _invented("words", "vectors from words, or from the text")
    answer_tokens: tuple[int, ...] = _invented(
        (),
        "fewest and most tokens that a generated text reports, drawn from the request and `seed`, "
        "each order of magnitude as often, up to the request's limit; empty: those that it has",
    )

    # Faults and chance
    seed: int = _invented(0, "seeds ids, order, latencies and chance faults")
    fault_rates: Mapping[str, float] = _invented(
        {}, "probability by fault, such as `3040`, `poll:html` or `missing`"
    )
    pace: float = _invented(1.0, "seconds before each kilobyte of a `slow_body` fault")

    def changed(self, changes: Mapping[str, object]) -> "Behaviour":
        """The same behaviour with some switches changed to JSON-like values."""
        if unknown := changes.keys() - {one.name for one in dataclasses.fields(self)}:
            raise SwitchError(f"there is no switch {min(unknown)!r}")
        try:
            changed = msgspec.convert(msgspec.to_builtins(self) | dict(changes), Behaviour)
            list(map(by_name, changed.fault_rates))  # Each must exist.
        except (msgspec.ValidationError, ValueError) as error:
            raise SwitchError(f"switches: {error}") from error
        return changed


def switches() -> list[tuple[str, str, Verdict, str]]:
    """Name, default, verdict and meaning of each switch, in order of declaration."""
    fresh = dataclasses.asdict(Behaviour())
    return [
        (one.name, msgspec.json.encode(fresh[one.name]).decode(), *one.metadata.values())
        for one in dataclasses.fields(Behaviour)
    ]
