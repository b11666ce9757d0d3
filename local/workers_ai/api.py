"""The whole local Workers AI as one object: a request goes in, a `Reply` comes out.

No socket, no sleep.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from email.utils import formatdate
from functools import partial
from hashlib import sha256
from math import ceil
from threading import RLock
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from local.workers_ai import edge, replies
from local.workers_ai.batches import Batch, Batches
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import ApiError, error
from local.workers_ai.complete import answers, completed
from local.workers_ai.edge import Windows
from local.workers_ai.faults import Call, Fault, Faults, by_chance, without_reference
from local.workers_ai.models.catalogue import MODELS, listing
from local.workers_ai.models.schemas import read_requests
from local.workers_ai.queues.service import QueueService
from local.workers_ai.replies import FOREVER, Reply

_WINDOW_SECONDS = 300.0
"""The API's own window, and for how long it then refuses a token."""


class _Run(NamedTuple):
    """A call to a model's URL, parsed but not yet checked."""

    asked: edge.Asked
    call: Call
    sent: object
    """The decoded body; None if it is not JSON."""
    batch: Batch | None
    """The batch that is polled, if it exists."""
    faults: tuple[Fault, ...]


class WorkersAI:
    """The API, with switches and scripted faults, on a clock of Unix seconds.

    Safe to call from several threads: counting and bookkeeping happen under its lock.
    """

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        faults: Iterable[Fault] = (),
        now: Callable[[], float] = time.time,
    ) -> None:
        self._behaviour = behaviour or Behaviour()
        self._now = now
        self._lock = RLock()
        self._batches = Batches()
        self._queues = QueueService()
        self._faults = Faults()
        self._faults.add(*faults)
        self._tokens = Windows()
        self._sent: Counter[str] = Counter()
        self._calls: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._struck: Counter[str] = Counter()

    # --- What tests and the local routes read and change

    @property
    def behaviour(self) -> Behaviour:
        return self._behaviour

    def switch(self, **changes: object) -> None:
        with self._lock:
            self._behaviour = self._behaviour.changed(changes)

    def inject(self, *faults: Fault) -> None:
        with self._lock:
            self._faults.add(*faults)

    def clear_faults(self) -> None:
        """Forget the queued faults. Batches that are already marked stay marked."""
        with self._lock:
            self._faults.clear()

    @property
    def faults(self) -> list[Fault]:
        with self._lock:
            return self._faults.queued()

    @property
    def accepted(self) -> list[dict[str, Any]]:
        """The bill: every batch ever accepted, in order."""
        with self._lock:
            return self._batches.bill()

    @property
    def calls(self) -> dict[str, dict[str, int]]:
        """How many calls of each kind ended in which way."""
        with self._lock:
            return {kind: dict(ends) for kind, ends in self._calls.items()}

    @property
    def struck(self) -> dict[str, int]:
        """How many calls each kind of fault struck."""
        with self._lock:
            return dict(self._struck)

    @property
    def queues(self) -> list[dict[str, Any]]:
        """Every queue, with how many messages were pulled and acknowledged."""
        with self._lock:
            return self._queues.state(self._now(), self._behaviour)

    # --- The API

    def handle(
        self, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> Reply:
        given = {name.lower(): value for name, value in headers.items()}
        now = self._now()
        behaviour = self._behaviour
        found = edge.route(method, path)
        kind = found.kind if isinstance(found, edge.Route) else "other"
        is_free = isinstance(found, edge.Route) and found.is_of_messages
        limit = 0 if is_free or "cf-worker" in given else behaviour.global_limit
        with self._lock:
            token = given.get("authorization", "")
            window = self._tokens.take(token, now, limit, _WINDOW_SECONDS)
        if not window.allowed:
            reply = replies.failure(error(971), behaviour, ceil(window.seconds))
        elif isinstance(found, ApiError):
            reply = replies.failure(found, behaviour)
        else:
            by = given.get("authorization")
            asked = edge.Asked(method, found, parse_qs(query), by, body, now)
            kind, reply = self._answer(asked, kind, given)
        with self._lock:
            self._calls[kind][_end(reply)] += 1
        date = formatdate(now + behaviour.clock_ahead, usegmt=True)
        reply = reply.with_headers(("date", date))
        if limit and reply.status:
            reply = reply.with_headers(
                ("ratelimit", f'"default";r={window.remaining};t={ceil(window.seconds)}'),
                ("ratelimit-policy", f'"default";q={limit};w={ceil(_WINDOW_SECONDS)}'),
            )
        return reply

    def _answer(
        self, asked: edge.Asked, kind: str, headers: Mapping[str, str]
    ) -> tuple[str, Reply]:
        """As what a call counts, and its reply."""
        if asked.route.resource == "run":
            run = self._read(asked)
            act = partial(self._run, run, headers)
            return run.call, replies.struck(run.faults, act, self._behaviour)
        if asked.route.resource in ("queues", "subscriptions"):
            return kind, self._of_queues(asked)
        return kind, _of_account(asked, self._behaviour)

    def _of_queues(self, asked: edge.Asked) -> Reply:
        searched = [asked.route.rest.encode(), asked.body]
        with self._lock:
            faults = self._strikes("queues", "", searched, None, asked.body)
            act = partial(self._queues.handle, asked, self._behaviour)
            return replies.struck(faults, act, self._behaviour)

    # --- A model's URL

    def _read(self, asked: edge.Asked) -> _Run:
        """Parse a call; decide its kind and which faults strike it."""
        body = asked.body
        sent = edge.decoded(body)
        members = sent if isinstance(sent, dict) else {}
        request_id = None if "requests" in members else members.get("request_id")
        is_queued = asked.query.get("queueRequest") == ["true"]
        call: Call = "submit" if is_queued else "sync"
        batch, searched = None, [body]
        with self._lock:
            if isinstance(request_id, str):
                call = "poll"
                batch = self._batches.find(request_id, self._behaviour, asked.now)
                searched += [self._batches.body(batch)] if batch else []
            faults = self._strikes(call, asked.route.rest, searched, batch, body)
        return _Run(asked, call, sent, batch, tuple(faults))

    def _strikes(
        self, call: Call, model: str, bodies: list[bytes], batch: Batch | None, body: bytes
    ) -> list[Fault]:
        """The faults that strike a call: those scripted, and those by chance."""
        behaviour = self._behaviour
        faults = self._faults.take(call, model, bodies)
        if behaviour.fault_rates:
            about = batch.request_id if batch else sha256(body).hexdigest()
            self._sent[about] += 1
            draw = behaviour.seed, about, self._sent[about]
            faults += by_chance(behaviour.fault_rates, call, *draw)
        self._struck.update(fault.kind for fault in faults)
        return faults

    def _run(self, run: _Run, headers: Mapping[str, str]) -> Reply:
        behaviour = self._behaviour
        refused = edge.refusal(run.asked, behaviour)
        if refused is None and len(run.asked.body) >= behaviour.max_payload:
            refused = error(3006)
        if refused is not None:
            reply = replies.failure(refused, behaviour)
        elif run.call == "poll":
            reply = self._poll(run)
        else:
            reply = self._take(run)
        if behaviour.compress and "gzip" in headers.get("accept-encoding", ""):
            return replies.compressed(reply)
        return reply

    # --- Submit and synchronous runs

    def _take(self, run: _Run) -> Reply:
        """A submit, or a call that is answered synchronously."""
        behaviour, asked = self._behaviour, run.asked
        model = MODELS.get(asked.route.rest)
        if model is None:
            return replies.failure(error(5007), behaviour)
        if run.call == "submit" and not model.batch:
            return replies.failure(error(8007), behaviour)
        if not asked.body:
            return replies.failure(error(3003), behaviour)
        requests = read_requests(model, run.sent, behaviour)
        if isinstance(requests, ApiError):
            return replies.failure(requests, behaviour)
        with self._lock:
            batch = self._batches.accept(
                asked.route.account, model.name, asked.body, requests, behaviour, asked.now
            )
            kinds = {fault.kind for fault in run.faults}
            batch.inline = run.call == "sync" or "sync_answer" in kinds
            self._mark(batch, run.faults, lambda: requests, asked.now)
            batch.faults = tuple(fault for fault in run.faults if fault.nature.stage == "batch")
            if batch.inline:
                self._batches.forget(batch)
            else:
                self._queues.accepted(batch, asked.now, behaviour)
        taken = batch.accepted_at - asked.now
        if batch.inline:
            return replace(self._finished(batch, requests, batch.faults, 0), delay=taken)
        result = self._waits("queued", batch) | {"model": model.name}
        reply = replies.success(result, behaviour, behaviour.submit_status)
        return replace(reply, delay=taken)

    def _mark(
        self, batch: Batch, faults: Iterable[Fault], requests: Callable[[], list[Any]], now: float
    ) -> None:
        for fault in faults:
            if fault.kind == "stuck":
                batch.completes_at = max(batch.completes_at, now) + (
                    fault.seconds if fault.seconds >= 0 else FOREVER
                )
            elif fault.kind == "batch_fails":
                batch.failure = error(fault.code or 3030, fault.message, fault.status)
            elif fault.kind == "forgotten":
                self._batches.forget(batch)
            elif fault.kind == "item_fails":
                self._mark_items(batch, fault, requests())

    def _mark_items(self, batch: Batch, fault: Fault, sent: list[Any]) -> None:
        attempts = dict[bytes, int]()
        for index in fault.chosen(sent, batch.request_id):
            text = msgspec.json.encode(without_reference(sent[index]))
            # The same request twice in one batch is one attempt, whatever reference it has.
            if fault.first and text not in attempts:
                attempts[text] = self._batches.attempt(fault, text)
            if not fault.first or attempts[text] <= fault.first:
                batch.failing[index] = error(fault.code or 3040, fault.message)

    # --- Poll

    def _poll(self, run: _Run) -> Reply:
        behaviour, batch, asked = self._behaviour, run.batch, run.asked
        _, account, model = asked.route
        if batch is None or (batch.account, batch.model) != (account, model):
            unknown = ApiError(404, 10404, "AiError: request not found")
            return replies.failure(unknown, behaviour)
        with self._lock:
            self._mark(batch, run.faults, lambda: self._sent_requests(batch), asked.now)
            batch.polls += 1
            pending = asked.now < batch.completes_at
            earlier = batch.answers
            if not pending and batch.failure is None:
                # Read before it is counted: the last permitted answer deletes the body.
                requests = self._sent_requests(batch)
                batch.answers += 1
        if pending:
            return self._pending(batch, asked.now)
        if batch.failure is not None:
            return replies.failure(batch.failure, behaviour)
        struck = tuple(fault for fault in run.faults if fault.nature.stage == "batch")
        return self._finished(batch, requests, batch.faults + struck, earlier)

    def _sent_requests(self, batch: Batch) -> list[Any]:
        requests: list[Any] = msgspec.json.decode(self._batches.body(batch)).get("requests", [])
        return requests

    def _waits(self, word: str, batch: Batch) -> dict[str, Any]:
        """The `result` of a batch that is not finished."""
        behaviour = self._behaviour
        result = {"status": word, "request_id": batch.shown_id(behaviour)}
        return result | ({behaviour.empty_array: []} if behaviour.empty_array else {})

    def _pending(self, batch: Batch, now: float) -> Reply:
        behaviour = self._behaviour
        word = behaviour.queued_word if now < batch.running_at else behaviour.running_word
        result = self._waits(word, batch)
        if any(fault.kind == "partial" for fault in batch.faults):
            sent = self._sent_requests(batch)
            result = completed(batch, sent, behaviour, batch.faults, batch.answers, now) | result
        return replies.success(
            {} if behaviour.pending_empty else result, behaviour, behaviour.pending_status
        )

    def would_answer(self, request_id: str, request: object) -> bool:
        """Whether a poll for this id would now bring an item for each time a request was sent."""
        with self._lock:
            now = self._now()
            batch = self._batches.find(request_id, self._behaviour, now)
            if batch is None or batch.failure is not None or now < batch.completes_at:
                return False
            return answers(batch, self._sent_requests(batch), self._behaviour, request)

    def is_pending(self, request_id: str) -> bool:
        with self._lock:
            now = self._now()
            batch = self._batches.find(request_id, self._behaviour, now)
            return batch is not None and now < batch.completes_at

    def _finished(
        self, batch: Batch, requests: list[Any], faults: tuple[Fault, ...], earlier: int
    ) -> Reply:
        behaviour = self._behaviour
        result = completed(batch, requests, behaviour, faults, earlier)
        said = {"success": False} if behaviour.answers_refused else {}
        return replies.success(result, behaviour, **said)


def _end(reply: Reply) -> str:
    """How a call ended, for the count of calls."""
    if reply.cut is not None:
        return str(reply.cut) if reply.cut_after is None else "truncated"
    return str(reply.status)


def _of_account(asked: edge.Asked, behaviour: Behaviour) -> Reply:
    """Whether a token is good, and which models there are."""
    refused, is_check = edge.refusal(asked, behaviour), asked.route.resource == "verify"
    if is_check and refused is not None and refused.code == 10000:
        refused = error(1000, "Invalid API Token", 401)
    if refused is not None:
        return replies.failure(refused, behaviour)
    if is_check:
        message = {"code": 10000, "message": "This API Token is valid and active", "type": None}
        token = {"id": "0123456789abcdef0123456789abcdef", "status": "active"}
        return replies.success(token, behaviour, messages=[message])
    return replies.listed(list(listing()), asked.query, behaviour)
