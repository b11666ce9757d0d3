"""The right to call the API: the shared rate budget, pauses of the account, waits of one model.

All three are control items of the one table, so that every function sees the same. Nothing here knows batches. When
the table fails, no right is given: over Cloudflare's limit every call is refused for 5 minutes.

The rate budget is a token bucket kept as one time (the generic cell rate algorithm): `filled_at` is when the bucket
would be full again. Taking n tokens moves it n intervals on, if that leaves it within the burst. Submits may use only
half of the burst, so that polls always find some; polls leave a tenth for the first batches of jobs, which may use all.
"""

from __future__ import annotations

import math
import random
import secrets
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from shared.aws.attribute_values import attribute, attributes, read
from shared.ledger import ConditionFailedError, call_dynamodb
from shared.observability import count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

PAUSED_LOOK_SECONDS = 300.0
"""Paused items look this often, so that deleting the pause is noticed."""

FIRST_MODEL_WAIT_SECONDS, MAX_MODEL_WAIT_SECONDS = 15.0, 900.0
MODEL_PROBE_SECONDS = 90.0
FIRST_OUTAGE_WAIT_SECONDS, MAX_OUTAGE_WAIT_SECONDS = 15.0, 300.0
TOKEN_PROBE_SECONDS, TOKEN_PROBE_LATER_SECONDS, TOKEN_PROBE_SOON_FOR = 60.0, 300.0, 600.0
QUOTA_PROBE_SECONDS = 1_800.0
NO_TOKEN_SECONDS = 5.0
"""When to look again after an empty bucket, about."""
HOLD_SECONDS, MAX_HOLD_SECONDS = 60.0, 900.0
"""How long to hold after a 429 that does not say how long, and at most after one that does."""
HELD_ON_SECONDS = 300.0
"""A hold that begins so soon after the last one goes on with it."""

CLOUDFLARE_CALLS = 1_200
"""Calls of one token that Cloudflare allows in any 5 minutes; over that it refuses everything for 5 minutes."""

OUTSTANDING_MINUTES = 15
"""Batches of one model may be outstanding up to what the polls' share can poll once in this many minutes."""
MIN_OUTSTANDING = 2
"""Batches that each model may have outstanding, whatever others have."""
MAX_FULL_MODELS = 20
"""Models named in the control item, at most."""
FULL_LOOK_SECONDS = 60.0
"""When to look again at a batch whose model has as many outstanding as it may, about."""


class CallKind(StrEnum):
    """What a call of the API is for."""

    SUBMIT = "submit"
    POLL = "poll"


class PauseReason(StrEnum):
    """Why calls are paused; the word users see in `waiting_for`."""

    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a reason, no secret
    QUOTA_SPENT = "quota_spent"
    OUTAGE = "outage"


PAUSE_MESSAGES = {
    PauseReason.TOKEN_REFUSED: "Cloudflare refuses the API token or the account. Check the token's value in Secrets "
    "Manager, its Workers AI permission and the account id; a changed secret is used within minutes.",
    PauseReason.QUOTA_SPENT: "The account's daily allocation is used up. Submits go on after 00:00 UTC, or sooner on a "
    "paid plan.",
    PauseReason.OUTAGE: "The API does not answer submits; one batch at a time is tried.",
}


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of the account's calls.

    Attributes:
        reason: why.
        until: Unix seconds; it ends by itself then. None: only a good probe ends it.
        next_probe: Unix seconds; the first call after that may try.
        nonce: a good probe lifts exactly the pause it read.
        since: Unix seconds of its beginning.
        step: seconds between probes at present.
        code: what the API said, for the user.
    """

    reason: PauseReason
    nonce: str
    since: float
    next_probe: float
    step: float
    until: float | None = None
    code: str = ""


@dataclass(frozen=True, slots=True)
class ModelWait:
    """One model asks to wait: one batch of it tries at `until`, the others move behind; `since` it did, 0: unknown."""

    until: float
    step: float
    nonce: str
    code: str = ""
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class Rate:
    """The token bucket.

    Attributes:
        filled_at: milliseconds since the epoch at which it is full again.
        hold_until: Unix seconds until which Cloudflare asked every call to wait.
        held_since: Unix seconds since when it does so, one hold after another.
    """

    filled_at: int = 0
    hold_until: float = 0.0
    held_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Controls:
    """The control items as they were read together."""

    pause: Pause | None
    model_wait: ModelWait | None
    rate: Rate
    full_models: frozenset[str]
    """Models that have as many batches outstanding as they may."""


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to make one call; a probe's permit names what a good answer lifts."""

    pause: Pause | None = None
    model_wait: ModelWait | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """No call now: when to look again, and whether the wait stops a batch's clock, as pauses do."""

    until: float
    paused: bool


@dataclass(frozen=True, slots=True)
class Free:
    """How many calls would find a token now.

    Attributes:
        first: submits of jobs' first batches.
        submits: all submits, these included.
        polls: polls.
        paused: whether a pause keeps submits from using the tokens there are.
        look_at: when to look again at a batch that a pause keeps waiting.
    """

    first: int = 0
    submits: int = 0
    polls: int = 0
    paused: bool = False
    look_at: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelRoom:
    """How many batches of one model may be submitted now.

    Attributes:
        batches: None for any number.
        until: when the others look again.
        full: whether the model has as many batches outstanding as it may, which may last for days.
    """

    batches: int | None
    until: float
    full: bool = False


class Budget:
    """Asks for permits and keeps what the API said about waiting."""

    def __init__(self, client: DynamoDBClient, table: str, calls_per_minute: int) -> None:
        """Use a ready client.

        Args:
            client: of DynamoDB.
            table: the ledger's table.
            calls_per_minute: of all functions together.
        """
        self.client = client
        self.table = table
        self.burst = max(1, calls_per_minute // 2)
        self.submit_burst = max(1, self.burst // 2)
        self.poll_burst = self.burst - self.burst // 10
        # A full bucket and what flows into it in 5 minutes must stay within Cloudflare's limit: above 218 a minute the
        # flow gives way, for a bucket that holds next to nothing lets hardly any call through.
        self.interval = max(-(-60_000 // calls_per_minute), -(-300_000 // (CLOUDFLARE_CALLS - self.burst)))
        self.most_outstanding = calls_per_minute / 2 * OUTSTANDING_MINUTES

    def controls(self, model: str = "") -> Controls:
        """Read all control items at once, consistently."""
        keys = [_key("PAUSE"), _key("RATE"), _key("RATE#OUTSTANDING")]
        if model:
            keys.append(_key(f"RATE#MODEL#{model}"))
        answer = self._call("batch_get_item", RequestItems={self.table: {"Keys": keys, "ConsistentRead": True}})
        found = {item["sk"]["S"]: item for item in answer["Responses"].get(self.table, [])}
        if answer.get("UnprocessedKeys"):
            found = {sk: item for key in keys if (sk := key["sk"]["S"]) and (item := self._get(sk))}
        pause, wait = found.get("PAUSE"), found.get(f"RATE#MODEL#{model}")
        return Controls(
            read(pause, Pause) if pause else None,
            read(wait, ModelWait) if wait else None,
            read(found.get("RATE", {}), Rate),
            frozenset(found.get("RATE#OUTSTANDING", {}).get("full_models", {}).get("SS", ())),
        )

    # ── permits ──────────────────────────────────────────────────────────────────────────────────────────────────

    def permit_submit(self, model: str, now: float, *, first: bool = False) -> Permit | Denied:
        """The right to submit one batch of a model now; a job's first one finds tokens that others leave."""
        burst = self.burst if first else self.submit_burst
        controls = self.controls(model)
        if model in controls.full_models:
            return Denied(now + _jittered(FULL_LOOK_SECONDS), paused=True)
        # Looked at before a probe is claimed, which would be lost without a token.
        if (held := self._held(controls.rate, 1, burst, now)) is not None:
            return held
        paused = self._pass_pause(controls.pause, CallKind.SUBMIT, now)
        if isinstance(paused, Denied):
            return paused
        waited = self._pass_model(model, controls.model_wait, now)
        if isinstance(waited, Denied):
            return waited
        if not self._take(controls.rate, 1, burst, now):
            return Denied(now + _jittered(NO_TOKEN_SECONDS), paused=False)
        return Permit(paused, waited)

    def free(self, now: float) -> Free:
        """How many calls would find a token now, pauses considered: it is no use to begin more than these."""
        controls = self.controls()
        if controls.rate.hold_until > now:
            return Free()
        first, submits, polls = (
            max(self._free(controls.rate, burst, now), 0) for burst in (self.burst, self.submit_burst, self.poll_burst)
        )
        pause = controls.pause
        if pause is None or (pause.until is not None and now >= pause.until):
            return Free(first, submits, polls)
        probes = 1 if now >= pause.next_probe else 0
        look_at = min(max(pause.next_probe, now + 1), now + PAUSED_LOOK_SECONDS, pause.until or math.inf)
        return Free(min(first, probes), min(submits, probes), polls, paused=True, look_at=look_at)

    def model_room(self, model: str, now: float) -> ModelRoom:
        """How many batches of a model may be submitted now, tokens and pauses apart."""
        controls = self.controls(model)
        if model in controls.full_models:
            return ModelRoom(0, now + FULL_LOOK_SECONDS, full=True)
        if (wait := controls.model_wait) is None:
            return ModelRoom(None, now)
        return ModelRoom(0, wait.until) if wait.until > now else ModelRoom(1, now + MODEL_PROBE_SECONDS)

    def calls_in(self, seconds: float) -> int:
        """The most calls that so many seconds can see."""
        return self.burst + int(1000 * seconds / self.interval)

    def permit_polls(self, wanted: int, now: float) -> tuple[int, Permit | Denied]:
        """The right to make up to `wanted` polls now: how many, and under which permit."""
        controls = self.controls()
        if (held := self._held(controls.rate, 1, self.poll_burst, now)) is not None:
            return 0, held
        paused = self._pass_pause(controls.pause, CallKind.POLL, now)
        if isinstance(paused, Denied):
            return 0, paused
        wanted = 1 if paused else wanted
        free = self._free(controls.rate, self.poll_burst, now)
        granted = min(wanted, free)
        if granted < 1 or not self._take(controls.rate, granted, self.poll_burst, now):
            return 0, Denied(now + _jittered(NO_TOKEN_SECONDS), paused=False)
        return granted, Permit(paused)

    def isolation_turns(self, wanted: int, now: float) -> list[float]:
        """When each piece of a batch may be submitted: some at once, the others at a quarter of the submit rate.

        A token bucket of its own, kept like the rate. A turn is no permit: the submit asks for that as any other.

        Args:
            wanted: how many pieces.
            now: Unix seconds.

        Returns:
            For each piece Unix seconds, ascending.
        """
        interval, burst = 8 * self.interval, max(self.submit_burst // 4, 1)
        for _ in range(3):
            seen = read(self._get("RATE#ISOLATION") or {}, Rate).filled_at
            begin = max(seen, int(now * 1000))
            try:
                self._call(
                    "update_item",
                    Key=_key("RATE#ISOLATION"),
                    UpdateExpression="SET filled_at = :moved",
                    ConditionExpression="attribute_not_exists(filled_at) OR filled_at = :seen",
                    ExpressionAttributeValues={
                        ":moved": attribute(begin + wanted * interval),
                        ":seen": attribute(seen),
                    },
                )
            except ConditionFailedError:
                continue
            break
        return [max((begin + (1 + turn - burst) * interval) / 1000, now) for turn in range(wanted)]

    def permit_check(self, now: float) -> bool:
        """The right to make one free call, which says whether the token is good: no pause is in its way."""
        rate = self.controls().rate
        return self._held(rate, 1, self.burst, now) is None and self._take(rate, 1, self.burst, now)

    def can_submit(self, model: str, now: float) -> bool:
        """Whether a submit would find a permit now, as far as pause, hold, model and cap are concerned."""
        controls = self.controls(model)
        pause, wait = controls.pause, controls.model_wait
        paused = pause is not None and (pause.until is None or now < pause.until) and now < pause.next_probe
        waits = wait is not None and now < wait.until
        full = model in controls.full_models
        return not (paused or waits or full or controls.rate.hold_until > now)

    def claim_probe(self, pause: Pause, now: float) -> Pause | None:
        """The right to be the one call that tries whether a pause is over; None if it is not time, or another's."""
        if now < pause.next_probe:
            return None
        step = pause.step
        if pause.reason is PauseReason.TOKEN_REFUSED and now - pause.since > TOKEN_PROBE_SOON_FOR:
            step = TOKEN_PROBE_LATER_SECONDS
        probing = replace(pause, next_probe=now + step, step=step)
        return probing if self._replace("PAUSE", pause, probing) else None

    def _pass_pause(self, pause: Pause | None, call_for: CallKind, now: float) -> Pause | Denied | None:
        """None: no pause in the way; a pause: this call is its probe."""
        if pause is None or (pause.until is not None and now >= pause.until):
            return None
        if call_for is CallKind.POLL and pause.reason is not PauseReason.TOKEN_REFUSED:
            return None
        look = min(now + PAUSED_LOOK_SECONDS, pause.until or now + PAUSED_LOOK_SECONDS)
        if probing := self.claim_probe(pause, now):
            return probing
        return Denied(min(look, max(pause.next_probe, now + 1)) + random.uniform(1, 10), paused=True)  # noqa: S311

    def _pass_model(self, model: str, wait: ModelWait | None, now: float) -> ModelWait | Denied | None:
        """None: no wait in the way; a wait: this call is its probe."""
        if wait is None:
            return None
        if now >= wait.until:
            probing = replace(wait, until=now + MODEL_PROBE_SECONDS)
            if self._replace(f"RATE#MODEL#{model}", wait, probing):
                return probing
        return Denied(max(wait.until, now) + random.uniform(1, 15), paused=False)  # noqa: S311

    def _held(self, rate: Rate, tokens: int, burst: int, now: float) -> Denied | None:
        """Why no call may be made, whatever it is for: Cloudflare asked to wait, or the bucket is empty."""
        if rate.hold_until > now:
            return Denied(rate.hold_until + random.uniform(0, 10), paused=True)  # noqa: S311
        if self._free(rate, burst, now) < tokens:
            return Denied(now + _jittered(NO_TOKEN_SECONDS), paused=False)
        return None

    def _free(self, rate: Rate, burst: int, now: float) -> int:
        ahead = max(rate.filled_at - int(now * 1000), 0)
        return burst - -(-ahead // self.interval)

    def _take(self, rate: Rate, tokens: int, burst: int, now: float) -> bool:
        """Move the bucket's time on, if nobody did since we read it; a lost race is tried again twice."""
        for _ in range(3):
            if self._free(rate, burst, now) < tokens:
                return False
            moved = max(rate.filled_at, int(now * 1000)) + tokens * self.interval
            try:
                self._call(
                    "update_item",
                    Key=_key("RATE"),
                    UpdateExpression="SET filled_at = :moved",
                    ConditionExpression="attribute_not_exists(filled_at) OR filled_at = :seen",
                    ExpressionAttributeValues={
                        ":moved": attribute(moved),
                        ":seen": attribute(rate.filled_at),
                    },
                )
            except ConditionFailedError:
                rate = read(self._get("RATE") or {}, Rate)
            else:
                count("RateBudgetLeft", self._free(replace(rate, filled_at=moved), self.burst, now))
                return True
        return False

    # ── what the API said ────────────────────────────────────────────────────────────────────────────────────────

    def hold(self, now: float, seconds: float | None) -> float:
        """Cloudflare asks to slow down: every call of every function waits.

        Args:
            now: Unix seconds.
            seconds: how long, where it said so; `MAX_HOLD_SECONDS` at most.

        Returns:
            Until when calls wait, as far as this reply is concerned.
        """
        until = now + min(seconds or HOLD_SECONDS, MAX_HOLD_SECONDS)
        rate = self.controls().rate
        since = rate.held_since if rate.held_since and rate.hold_until > now - HELD_ON_SECONDS else now
        try:
            self._call(
                "update_item",
                Key=_key("RATE"),
                UpdateExpression="SET hold_until = :until, held_since = :since",
                ConditionExpression="attribute_not_exists(hold_until) OR hold_until < :until",
                ExpressionAttributeValues={":until": attribute(until), ":since": attribute(since)},
            )
        except ConditionFailedError:
            return until  # a longer hold is in force
        return until

    def pause(self, reason: PauseReason, now: float, code: str, permit: Permit) -> None:
        """Pause the account's calls, or keep the pause that is there.

        Args:
            reason: why.
            now: Unix seconds.
            code: what the API said, for the user.
            permit: of the call that was answered so; a failed probe of an outage waits longer for the next.
        """
        old = self.controls().pause
        if old and old.until is not None and now >= old.until:
            same, other = None, None
        else:
            same, other = (old, None) if old and old.reason is reason else (None, old)
        if reason is PauseReason.TOKEN_REFUSED:
            if same:
                return
            step, until = TOKEN_PROBE_SECONDS, None
        elif other and other.reason is PauseReason.TOKEN_REFUSED:
            return  # nothing is harder than a refused token; its probe will meet whatever else there is
        elif reason is PauseReason.QUOTA_SPENT:
            step, until = QUOTA_PROBE_SECONDS, _next_midnight(now)
        else:
            if other or (same and not permit.pause):
                return
            step, until = (min(2 * same.step, MAX_OUTAGE_WAIT_SECONDS) if same else FIRST_OUTAGE_WAIT_SECONDS), None
        since = same.since if same else now
        self._write("PAUSE", old, Pause(reason, secrets.token_hex(8), since, now + step, step, until, code))

    def delay_model(self, model: str, now: float, code: str, permit: Permit) -> float:
        """Make a model wait, longer each time it refuses a probe; until when."""
        old = self.controls(model).model_wait
        if old and old.until > now and not permit.model_wait:
            return old.until
        step = min(2 * old.step, MAX_MODEL_WAIT_SECONDS) if old and permit.model_wait else FIRST_MODEL_WAIT_SECONDS
        since = (old.since if old else 0.0) or now
        wait = ModelWait(now + min(_jittered(step), MAX_MODEL_WAIT_SECONDS), step, secrets.token_hex(8), code, since)
        self._write(f"RATE#MODEL#{model}", old, wait)
        return wait.until

    def lift(self, permit: Permit, model: str) -> None:
        """A probe was good: lift exactly what it probed."""
        for sk, probed in (("PAUSE", permit.pause), (f"RATE#MODEL#{model}", permit.model_wait)):
            if probed is None:
                continue
            try:
                self._call(
                    "delete_item",
                    Key=_key(sk),
                    ConditionExpression="nonce = :nonce",
                    ExpressionAttributeValues={":nonce": {"S": probed.nonce}},
                )
            except ConditionFailedError:
                continue  # another pause was written meanwhile; it has its own probe

    def full_models(self, outstanding: Mapping[str, int], total: int) -> list[str]:
        """The models that have as many batches outstanding as they may.

        A model alone may have `most_outstanding`; half of what others have outstanding comes off. So a model that has
        stalled leaves room for every other, and all together never have twice as many.

        Args:
            outstanding: batches by model.
            total: of all models, those included whose model is not known.
        """
        full = {
            model: batches
            for model, batches in outstanding.items()
            if batches >= max(self.most_outstanding - (total - batches) / 2, MIN_OUTSTANDING)
        }
        return sorted(full, key=full.__getitem__, reverse=True)[:MAX_FULL_MODELS]

    def note_outstanding(self, count: int, full_models: Sequence[str] = ()) -> None:
        """Keep how many batches are outstanding, and which models may submit no more, for submits to see."""
        full = {"full_models": {"SS": sorted(full_models)}} if full_models else {}
        self._call("put_item", Item={**_key("RATE#OUTSTANDING"), "count": attribute(count), **full})

    # ── the table ────────────────────────────────────────────────────────────────────────────────────────────────

    def _replace(self, sk: str, old: Pause | ModelWait, new: Pause | ModelWait) -> bool:
        """Write `new` if the item is still exactly the one we saw; its nonce and its next time say so."""
        moment = "next_probe" if isinstance(old, Pause) else "until"
        return self._put_if(
            sk,
            new,
            ConditionExpression="nonce = :nonce AND #moment = :seen",
            ExpressionAttributeNames={"#moment": moment},
            ExpressionAttributeValues={":nonce": {"S": old.nonce}, ":seen": attribute(getattr(old, moment))},
        )

    def _write(self, sk: str, old: Pause | ModelWait | None, new: Pause | ModelWait) -> None:
        """Write `new` over what we saw; if somebody else wrote meanwhile, theirs is as good."""
        if old is None:
            self._put_if(sk, new, ConditionExpression="attribute_not_exists(pk)")
        else:
            condition = {
                "ConditionExpression": "nonce = :nonce",
                "ExpressionAttributeValues": {":nonce": {"S": old.nonce}},
            }
            self._put_if(sk, new, **condition)

    def _put_if(self, sk: str, new: Pause | ModelWait, **condition: Any) -> bool:  # noqa: ANN401 - boto3's own arguments
        try:
            self._call("put_item", Item={**_key(sk), **attributes(new)}, **condition)
        except ConditionFailedError:
            return False
        return True

    def _get(self, sk: str) -> dict[str, Any] | None:
        item: dict[str, Any] | None = self._call("get_item", Key=_key(sk), ConsistentRead=True).get("Item")
        return item

    def _call(self, operation: str, **arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - boto3's own arguments
        if "RequestItems" not in arguments:
            arguments["TableName"] = self.table
        return call_dynamodb(self.client, operation, **arguments)


def _key(sk: str) -> dict[str, Any]:
    return {"pk": {"S": "CONTROL"}, "sk": {"S": sk}}


def _next_midnight(now: float) -> float:
    """00:00 UTC of the next day, when Cloudflare's daily allocation is new."""
    return (now // 86_400 + 1) * 86_400


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, guards nothing
