"""`doctor --probe`: ask the real API what its documentation leaves open, with a few tiny batches.

Each answer has the name of the local Workers AI's switch for it, so that `probe.json` can be passed to it (`--like`).
"""

from __future__ import annotations

import json
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dropbatch.cli.cloudflare import check_token
from dropbatch.cli.probe_events import EventProbe
from dropbatch.errors import NotPermitted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from dropbatch.cli.cloudflare import Api, Reply

COST = (
    "This sends up to 6 batches of one or two tiny records to {model} and polls them: about 50 calls, well under "
    "$0.001. If the token may edit Queues, a queue dropbatch-probe-... is made and deleted again. Nothing else is "
    "changed in the account."
)
BINDING_COST = (
    "It also polls an id that does not exist {calls:,} times through {url}, within five minutes: that runs no model. "
    "If the binding has the limit of a token (1,200 calls), Cloudflare refuses it for five minutes, and perhaps other "
    "calls of the account too."
)
MOST_CALLS, TOGETHER, BINDING_SECONDS = 1_300, 16, 290.0
"""Calls, more than a token has in five minutes; how many at once; and seconds in which they are made."""
ENOUGH_REFUSED = 20
TOO_MANY = 429
OTHER_MODEL = "@cf/baai/bge-base-en-v1.5"
NO_MODEL = "@cf/dropbatch/no-such-model"
UNQUEUEABLE_MODEL = "@cf/baai/bge-reranker-base"
MAX_WAIT_SECONDS = 600.0
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 2.0, 15.0
OK = 200
MAX_MESSAGE_CHARACTERS = 200


@dataclass
class Prober:
    """Asks one question after another.

    Attributes:
        api: the account.
        model: takes batches of `{"text": …}`.
        gateway: an AI Gateway to try; None for none.
        worker: a Worker whose AI binding is measured: its address and the secret that it shares; None for none.
        say: called with a text about each step.
        sleep: waits between two polls.
        clock: seconds.
        like: answers that were found, by switch of the local Workers AI.
        facts: answers for which there is no switch.
        observations: every reply: step, status, code, names of members.
    """

    api: Api
    model: str
    gateway: str | None = None
    worker: Api | None = None
    say: Callable[[str], None] = print
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    like: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    observations: list[dict[str, Any]] = field(default_factory=list)

    def run(self) -> dict[str, Any]:
        """Ask every question; return the content of probe.json.

        Raises:
            Error: the token is not accepted, or the API cannot be reached.
        """
        if wrong := check_token(self.api):
            raise NotPermitted(wrong)
        self._refusals()
        request_id = self._batch()
        if request_id:
            self._finished(request_id)
        self._bad_record()
        EventProbe(self).run()
        if self.gateway:
            self._gateway(self.gateway)
        if self.worker:
            self.say("Many calls through the Worker ...")
            found = self.facts["binding"] = measure_binding(self.worker, self.model, self.clock)
            self.like["binding_limit"] = found["first_refused_after"] or 0
        return {
            "version": 1,
            "made_at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
            "model": self.model,
            "like": self.like,
            "facts": self.facts,
            "observations": self.observations,
        }

    # ── calls that are free ──────────────────────────────────────────────────────────────────────────────────────

    def _refusals(self) -> None:
        self.say("Calls that are refused ...")
        one = {"requests": [{"text": "a"}]}
        bad = self.note("bad token", replace(self.api, token="0" * 40).run(self.model, one))
        self.like["bad_token"] = f"{bad.status}/{bad.code}"
        none = self.note("no token", replace(self.api, token="").run(self.model, one))
        self.like["malformed_token"] = f"{none.status}/{none.code}"
        route = self.note("malformed account", replace(self.api, account="none").run(self.model, one))
        self.like["route_pair"] = len((route.body or {}).get("errors", [])) > 1
        self.like["unknown_model_code"] = self.note("unknown model", self.api.run(NO_MODEL, one)).code
        reply = self.note("model without batches", self.api.run(UNQUEUEABLE_MODEL, one))
        if reply.status != OK:
            self.like["unqueueable_status"] = reply.status
        empty = self.note("no requests", self.api.run(self.model, {"requests": []}))
        self.like["empty_requests"] = "accept" if _request_id(empty) else "refuse"
        unknown = self.note("unknown request_id", self._poll(str(uuid.uuid4())))
        self.like |= {
            "unknown_id_status": unknown.status,
            "unknown_id_code": unknown.code,
            "unknown_id_message": self._message(unknown),
        }

    # ── one batch ────────────────────────────────────────────────────────────────────────────────────────────────

    def _batch(self) -> str:
        """Submit two records and wait for their answers; return the request_id, empty if there are no answers."""
        self.say(f"A batch of two records for {self.model} ...")
        records = [{"text": "one", "external_reference": "probe-1"}, {"text": "two"}]
        began = self.clock()
        submit = self.note("submit", self.api.run(self.model, {"requests": records}))
        request_id = _request_id(submit)
        if not request_id:
            self.facts["queued"] = False
            return ""
        self.facts["queued"] = True
        self.like |= {
            "submit_status": submit.status,
            "submit_model": "model" in submit.result,
            "request_id_form": "req" if request_id.startswith("req-") else "uuid",
        }
        reply = self._wait(request_id, note_pending=True)
        if reply is None:
            return ""
        self.facts["seconds_to_ready"] = round(self.clock() - began, 1)
        self._read_answer(reply)
        return request_id

    def _wait(self, request_id: str, *, note_pending: bool = False) -> Reply | None:
        """Poll until a batch is over; None after ten minutes."""
        pause, deadline = MIN_POLL_SECONDS, self.clock() + MAX_WAIT_SECONDS
        while self.clock() < deadline:
            reply = self._poll(request_id)
            if not _is_pending(reply):
                return self.note("finished", reply)
            if note_pending:
                self._read_pending(self.note("pending", reply))
            self.sleep(pause)
            pause = min(pause * 1.3, MAX_POLL_SECONDS)
        self.facts["timed_out"] = True
        return None

    def _read_pending(self, reply: Reply) -> None:
        result = reply.result
        self.like |= {"pending_status": reply.status, "pending_empty": not result}
        if result:
            self.like["pending_model"] = "model" in result
            word = result.get("status")
            if isinstance(word, str):
                name = "running_word" if word.lower() not in {"queued", "pending"} else "queued_word"
                self.like[name] = word

    def _read_answer(self, reply: Reply) -> None:
        result = reply.result
        while isinstance(result.get("result"), dict):
            result = result["result"]
        shape = "B" if "results" in result else "A"
        items = result.get("results" if shape == "B" else "responses") or []
        self.like["shapes"] = {"*": shape}
        self.like["completed_status"] = result.get("status", "")
        self.facts["usage"] = "usage" in result
        if shape == "B":
            self.like["shape_b_usage"] = "usage" in result
        places = [item.get("index" if shape == "B" else "id") for item in items]
        by_place = {place: item for place, item in zip(places, items, strict=True) if place is not None}
        failed = [item for item in items if item.get("success") is False]
        if failed:
            self.like["item_error"] = _item_error(failed[0])
        self.facts["every_record_answered"] = sorted(map(str, by_place)) == ["0", "1"]
        self.facts["in_order"] = places == sorted(places, key=str)
        first, second = (by_place.get(place, by_place.get(str(place), {})) for place in (0, 1))
        self.facts["reference_returned"] = first.get("external_reference") == "probe-1"
        self.like["echo_references"] = self.facts["reference_returned"]
        self.like["missing_reference"] = "null" if "external_reference" in second else "absent"
        inner = first.get("result")
        self.like["nested_result"] = isinstance(inner, dict) and isinstance(inner.get("result"), dict)

    # ── the batch again, and bad ones ────────────────────────────────────────────────────────────────────────────

    def _finished(self, request_id: str) -> None:
        self.say("The same answer again ...")
        packed = self.note(
            "again, gzip accepted", self.api.run(self.model, {"request_id": request_id}, **{"Accept-Encoding": "gzip"})
        )
        self.like["compress"] = packed.headers.get("content-encoding") == "gzip"
        self.like["answers_per_batch"] = 0 if _is_answer(packed) else 1
        if self.model != OTHER_MODEL:
            other = self.note("under another model", self.api.run(OTHER_MODEL, {"request_id": request_id}))
            if self.like["answers_per_batch"] == 0:
                self.like["model_must_match"] = not _is_answer(other)

    def _bad_record(self) -> None:
        self.say("Records that do not fit ...")
        reference = self.note(
            "reference is a number", self.api.run(self.model, {"requests": [{"text": "a", "external_reference": 7}]})
        )
        self.like["strict_reference"] = not _request_id(reference)
        reply = self.note("record without text", self.api.run(self.model, {"requests": [{"nonsense": 1}]}))
        request_id = _request_id(reply)
        self.like["validation"] = "fail_later" if request_id else "submit"
        failed = self._wait(request_id) if request_id else None
        if failed is None:
            return
        result = failed.result
        items = (result.get("responses") or result.get("results") or []) if isinstance(result, dict) else []
        if items:
            self.like["item_error"] = _item_error(items[0])
        else:
            word = result.get("status") if isinstance(result, dict) else None
            self.like["batch_failure"] = word if failed.status == OK and word in {"error", "failed"} else "envelope"

    def _gateway(self, gateway: str) -> None:
        self.say(f"The gateway {gateway} ...")
        url = f"https://gateway.ai.cloudflare.com/v1/{self.api.account}/{gateway}/workers-ai/{self.model}"
        body = b'{"requests":[{"text":"a"}]}'
        reply = self.note(
            "gateway", self.api.send("POST", f"{url}?queueRequest=true", body, {"Content-Type": "application/json"})
        )
        self.facts["gateway_passes_queue_request"] = bool(_request_id(reply))

    # ── one call ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _poll(self, request_id: str) -> Reply:
        return self.api.run(self.model, {"request_id": request_id})

    def note(self, step: str, reply: Reply) -> Reply:
        """Keep what a reply looked like, but nothing that it says."""
        result = reply.result
        self.observations.append(
            {
                "step": step,
                "status": reply.status,
                "code": reply.code,
                "members": sorted(result) if isinstance(result, dict) else [],
            }
        )
        return reply

    def _message(self, reply: Reply) -> str:
        return reply.message.replace(self.api.account, "ACCOUNT")[:MAX_MESSAGE_CHARACTERS]


def measure_binding(api: Api, model: str, clock: Callable[[], float]) -> dict[str, Any]:
    """Make calls until enough are refused, or all are made, or the time is over.

    Args:
        api: the Worker: its address and the secret that it shares.
        model: any that takes batches.
        clock: seconds.

    Returns:
        How many calls were made in how many seconds, how many of them were refused as too many, and before which number
        of calls the first was (None: none was).
    """
    url, body = f"{api.base_url}/run/{model}?queueRequest=true", json.dumps({"request_id": str(uuid.uuid4())}).encode()
    began, made, refused, first = clock(), 0, 0, None

    def call(_: int) -> int:
        return api.send("POST", url, body, {"Content-Type": "application/json"}).status

    with ThreadPoolExecutor(TOGETHER) as threads:
        while made < MOST_CALLS and refused < ENOUGH_REFUSED and clock() - began < BINDING_SECONDS:
            statuses = list(threads.map(call, range(min(TOGETHER, MOST_CALLS - made))))
            found = statuses.count(TOO_MANY)
            if found and first is None:
                first = made + statuses.index(TOO_MANY)
            made, refused = made + len(statuses), refused + found
    return {"calls": made, "seconds": round(clock() - began, 1), "refused": refused, "first_refused_after": first}


def _request_id(reply: Reply) -> str:
    result = reply.result
    found = result.get("request_id") if reply.status < 300 and isinstance(result, dict) else None  # noqa: PLR2004 - HTTP's
    return found if isinstance(found, str) else ""


def _is_answer(reply: Reply) -> bool:
    result = reply.result
    while isinstance(result, dict) and isinstance(result.get("result"), dict):
        result = result["result"]
    return reply.status == OK and isinstance(result, dict) and bool(result.get("responses") or result.get("results"))


def _is_pending(reply: Reply) -> bool:
    """Whether a poll found the batch unfinished: neither an answer nor an error."""
    if reply.status >= 300 or reply.code is not None or _is_answer(reply):  # noqa: PLR2004 - HTTP's
        return False
    result = reply.result
    return not result or str(result.get("status", "")).lower() not in {"error", "failed", "cancelled"}


def _item_error(item: dict[str, Any]) -> str:
    error = item.get("error")
    if isinstance(error, dict):
        return "object" if "code" in error else "message"
    if isinstance(error, str):
        return "string"
    return "errors" if "errors" in item else "text" if "message" in item else "none"


def lines(found: dict[str, Any]) -> Iterator[str]:
    """What was found, as text."""
    for title in ("facts", "like"):
        for name, value in found[title].items():
            yield f"{name:<29} {value}"
