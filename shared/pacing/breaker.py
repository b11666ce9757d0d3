"""The circuit breaker: what the API refuses to every call is not tried by every call.

A pause opens when the API refuses calls for a reason that is no single batch's: a refused token, a
spent quota, an outage, a model without capacity. It is half-open at each `next_probe`: one call,
the probe, may try. A good answer deletes the pause, on the condition that its nonce is still the
one that the probe has read: a pause that was written meanwhile stays. A bad answer waits longer.
One table says what each reason does, and one item holds the pause of each scope: of the account,
and of a model. An item that cannot be read is deleted, so that it stops no call: what refuses calls
refuses the next one.

It is worth its lines because each call in vain counts against Cloudflare's limits, and each
submit without an answer may be billed.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dropbatch.core.errors import ONE_A_STACK
from dropbatch.core.names import CONTROL_PK
from shared.aws.attribute_values import attribute, attributes, read
from shared.aws.dynamodb import ConditionFailedError, Table, call_dynamodb
from shared.errors import StorageError, UnreadableItemError
from shared.models import NEVER, Wait
from shared.observability import count_broken_law, logger
from shared.retry import soon_after

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

T = TypeVar("T")

PROBE_SECONDS = 90.0  # That a probe has until there is another: longer than a POST
LIFT_LOOK_SECONDS = 2.0  # To the next look at a submit that the pause's end brings
PAUSED_LOOK_SECONDS = 45.0  # To the next look at a paused poll, at most


class PauseReason(StrEnum):
    """Why calls are paused; the value that users see in `waiting_for`."""

    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a reason, not a secret
    QUOTA_SPENT = "quota_spent"
    CREDITS_SPENT = "credits_spent"
    SPEND_LIMIT = "spend_limit"
    OUTAGE = "outage"
    MODEL_WAITS = "model_waits"


ALARMED = frozenset(PauseReason) - {PauseReason.MODEL_WAITS}  # Reasons with an alarm of their own
UNPAID = frozenset({PauseReason.QUOTA_SPENT, PauseReason.CREDITS_SPENT, PauseReason.SPEND_LIMIT})
"""Reasons that something must be paid or raised; at 00:00 UTC the allocation is renewed."""
LIFTED = frozenset({"paused", *ALARMED})  # Codes of waits that somebody may end at any time
HELD, MODEL_BUSY, TOO_MANY_CALLS = "paused", "model_busy", "too_many_calls"
"""Codes of waits that no answer of the API decides: an operator, the limits of calls."""


class Rule(NamedTuple):
    """What a pause for one reason does."""

    first_step: float  # seconds to its first probe
    longest_step: float  # most seconds between two; each bad answer doubles them
    message: str  # for users, who read what to do
    replaces: frozenset[PauseReason] = frozenset()  # reasons whose pauses in force it replaces
    stops_polls: bool = False  # whether polls wait too


WEAKER = UNPAID | {PauseReason.OUTAGE}  # What a refused token, or a bill, pauses more than
RULES = {
    PauseReason.TOKEN_REFUSED: Rule(
        60.0,
        300.0,
        "Cloudflare refuses the API token or the account. Check the token's value in Secrets "
        "Manager, its Workers AI permission and the account id; a changed secret is used within "
        "minutes.",
        WEAKER,
        stops_polls=True,
    ),
    PauseReason.QUOTA_SPENT: Rule(
        1_800.0,
        1_800.0,
        "The account's daily allocation is used up. Submits resume after 00:00 UTC, or sooner on "
        "a paid plan.",
        WEAKER,
    ),
    PauseReason.CREDITS_SPENT: Rule(
        300.0,
        300.0,
        "AI Gateway says that the account has no credits left. Add credits in Cloudflare's "
        "dashboard; submits resume within minutes.",
        WEAKER,
    ),
    PauseReason.SPEND_LIMIT: Rule(
        300.0,
        300.0,
        "The spend limit of AI Gateway is reached. Raise it in Cloudflare's dashboard, or wait "
        "for the end of its window; submits resume within minutes.",
        WEAKER,
    ),
    PauseReason.OUTAGE: Rule(
        15.0,
        300.0,
        "The API does not answer submits, or with errors that prove nothing; Dropbatch tries one "
        "batch at a time.",
    ),
    PauseReason.MODEL_WAITS: Rule(
        15.0, 900.0, "Workers AI has no capacity for the model now; submits resume automatically."
    ),
}
STACK_MESSAGE = "An operator has paused all jobs. An operator resumes them with `dropbatch resume`."


@dataclass(frozen=True, slots=True)
class Pause:
    """Calls of the account, or of one model, are paused. Times are Unix seconds."""

    reason: PauseReason  # why
    nonce: str  # identifies the pause: a good probe lifts exactly the one it read
    since: float  # when it began
    next_probe: float  # when the next call may try
    step: float  # seconds between probes
    until: float | None = None  # when it ends by itself; None: only a good probe ends it
    code: str = ""  # what the API said, for the user

    def is_over(self, now: float) -> bool:
        """Whether it has ended by itself."""
        return self.until is not None and now >= self.until

    def probed_at(self, now: float) -> float:
        """When a call may show that it is over, or it ends by itself."""
        return min(max(self.next_probe, now), self.until or math.inf)

    def as_wait(self, until: float) -> Wait:
        """What its calls wait for, as far as they know until a time."""
        said = f" (API response: {self.code}.)" if self.code else ""
        words = ONE_A_STACK if self.code == ONE_A_STACK else RULES[self.reason].message + said
        return Wait(until, self.reason.value, words, self.since)

    def for_users(self) -> Wait:
        """The same for users: until it ends by itself, or a model's next probe."""
        ends = self.until if self.reason is PauseReason.QUOTA_SPENT else None
        if self.reason is PauseReason.MODEL_WAITS:
            ends = self.next_probe
        return self.as_wait(ends or NEVER)


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate budget's token bucket."""

    filled_at: int = 0  # milliseconds since the epoch at which it is full again
    hold_until: float = 0.0  # Unix seconds until which Cloudflare asked every call to wait
    # Unix seconds at which the current run of such waits, one after another, began
    held_since: float = 0.0


@dataclass(frozen=True, slots=True)
class StackControl:
    """The result of operators' commands (`control/stack`): nothing probes it."""

    version: str = ""  # version of the object that was carried out last
    held_since: float = 0.0  # Unix seconds since when submits are paused; 0 while they are not


@dataclass(frozen=True, slots=True)
class Controls:
    """The control items as they were read together."""

    # of the account; its item stays after its end until another pause replaces it
    pause: Pause | None = None
    model_pause: Pause | None = None  # of the model that was asked for
    rate: Rate = field(default_factory=Rate)  # the token bucket
    full_models: frozenset[str] = frozenset()  # at their limit of batches
    stack: StackControl = field(default_factory=StackControl)  # operators' commands

    def pause_in_force(self, now: float) -> Pause | None:
        """The account's pause, unless it has ended by itself."""
        return self.pause if self.pause and not self.pause.is_over(now) else None


@dataclass(frozen=True, slots=True)
class Permit:
    """A permit for one call; a probe's names the pauses that a good answer lifts."""

    pause: Pause | None = None
    model_pause: Pause | None = None


def stack_held() -> Wait:
    """An operator has paused all submits."""
    return Wait(NEVER, HELD, STACK_MESSAGE)


def control_key(sk: str) -> dict[str, Any]:
    """Key of a control item."""
    return {"pk": {"S": CONTROL_PK}, "sk": {"S": sk}}


def pause_sk(model: str = "") -> str:
    """Sort key of a pause: a model's, or the account's."""
    return f"PAUSE#{model}" if model else "PAUSE"


class Breaker(Table):
    """Reads the control items together, and opens, probes and lifts pauses."""

    def controls(self, model: str = "") -> Controls:
        """Read the control items together, consistently; an empty model is none."""
        sks = ["PAUSE", "RATE", "RATE#OUTSTANDING", "STACK", *([pause_sk(model)] if model else [])]
        keys = [control_key(sk) for sk in sks]
        wanted = {self.table: {"Keys": keys, "ConsistentRead": True}}
        answer = call_dynamodb(self.client, "batch_get_item", RequestItems=wanted)
        found = {item["sk"]["S"]: item for item in answer["Responses"].get(self.table, [])}
        if answer.get("UnprocessedKeys"):
            found = {sk: item for sk in sks if (item := self.get(control_key(sk)))}
        return Controls(
            self.readable(found.get("PAUSE"), Pause),
            self.readable(found.get(pause_sk(model)), Pause) if model else None,
            self.readable(found.get("RATE"), Rate) or Rate(),
            frozenset(found.get("RATE#OUTSTANDING", {}).get("full_models", {}).get("SS", ())),
            self.readable(found.get("STACK"), StackControl) or StackControl(),
        )

    def readable(self, item: Mapping[str, Any] | None, kind: type[T]) -> T | None:
        """A control item; None if there is none, or if it cannot be read: then it is deleted."""
        if item is None:
            return None
        try:
            return read(item, kind)
        except UnreadableItemError:
            logger.exception("control item deleted, because it cannot be read", sk=item["sk"]["S"])
            count_broken_law()
        self._delete(item["sk"]["S"], item.get("nonce"))
        return None

    def note_stack(self, stack: StackControl) -> None:
        """Store the result of operators' commands; the caller reads the object again afterwards."""
        self.call("put_item", Item={**control_key("STACK"), **attributes(stack)})

    # ── opening ───────────────────────────────────────────────────────────────────────────────────

    def pause(
        self, reason: PauseReason, now: float, code: str, permit: Permit, model: str = ""
    ) -> Pause:
        """Pause calls, or keep the pause in force, which a probe that got this makes longer."""
        rule, controls = RULES[reason], self.controls(model)
        old, probed = controls.pause, permit.pause
        if model:
            old, probed = controls.model_pause, permit.model_pause
        in_force = old if old and not old.is_over(now) else None
        same = in_force if in_force and in_force.reason is reason else None
        is_probed = same is not None and probed is not None and probed.nonce == same.nonce
        if in_force and not is_probed and (same or in_force.reason not in rule.replaces):
            return in_force
        step = min(2 * same.step, rule.longest_step) if same else rule.first_step
        since = same.since if same else now
        until = _next_midnight(now) if reason in UNPAID else None
        new = Pause(reason, secrets.token_hex(8), since, now + step, step, until, code)
        if old is None:
            self._put(pause_sk(model), new, "attribute_not_exists(pk)")
        else:
            self._put(pause_sk(model), new, "nonce = :nonce", nonce=old.nonce)
        return new

    # ── half-open ─────────────────────────────────────────────────────────────────────────────────

    def pass_submit(self, controls: Controls, model: str, now: float) -> Permit | Wait:
        """A permit for a submit as far as pauses are concerned; it may be a probe.

        While one of both waits, the other is not probed: its probe would be lost.
        """
        if controls.stack.held_since:
            return stack_held()
        found = (controls.pause_in_force(now), controls.model_pause)
        waiting = [one for one in found if one and now < one.next_probe]
        if waiting:
            return waiting[0].as_wait(waiting[0].probed_at(now))
        claimed: list[Pause | None] = []
        for pause, sk in zip(found, (pause_sk(), pause_sk(model)), strict=True):
            probing = self.claim_probe(pause, now, sk) if pause else None
            if pause and not probing:
                # Whoever has the probe may have lifted the pause before this is written.
                return pause.as_wait(now + LIFT_LOOK_SECONDS)
            claimed.append(probing)
        return Permit(*claimed)

    def pass_poll(self, controls: Controls, now: float) -> Permit | Wait:
        """A permit for a poll, or the probe of a refused token, as far as pauses are concerned."""
        pause = controls.pause_in_force(now)
        if pause is None or not RULES[pause.reason].stops_polls:
            return Permit()
        if probing := self.claim_probe(pause, now):
            return Permit(probing)
        until = min(pause.probed_at(now), now + PAUSED_LOOK_SECONDS)
        return pause.as_wait(soon_after(until + 1, 9))

    def claim_probe(self, pause: Pause, now: float, sk: str = "PAUSE") -> Pause | None:
        """Claim the one call that tests a pause; None: it is too early, or another call has it."""
        if now < pause.next_probe:
            return None
        probing = replace(pause, next_probe=now + max(pause.step, PROBE_SECONDS))
        same = "nonce = :nonce AND next_probe = :seen"
        is_mine = self._put(sk, probing, same, nonce=pause.nonce, seen=pause.next_probe)
        return probing if is_mine else None

    def lift(self, permit: Permit, model: str) -> bool:
        """Delete exactly the pauses that a good probe tested; whether the account's ended."""
        if permit.model_pause:
            self._delete(pause_sk(model), attribute(permit.model_pause.nonce))
        pause = permit.pause
        return pause is not None and self._delete(pause_sk(), attribute(pause.nonce))

    def _delete(self, sk: str, nonce: Mapping[str, Any] | None) -> bool:
        """Delete an item, if it is still the one with this nonce; whether there is none now."""
        same: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(nonce)"}
        if nonce:
            same = {"ConditionExpression": "nonce = :nonce"}
            same["ExpressionAttributeValues"] = {":nonce": nonce}
        try:
            self.call("delete_item", Key=control_key(sk), **same)
        except ConditionFailedError:  # Another was written meanwhile, which has its own probe.
            return self.get(control_key(sk)) is None
        return True

    def _put(self, sk: str, new: Pause, condition: str, **values: object) -> bool:
        """Write a pause on a condition; if another function wrote meanwhile, its item stays."""
        given: dict[str, Any] = {"ConditionExpression": condition}
        if values:
            wired = {f":{name}": attribute(value) for name, value in values.items()}
            given["ExpressionAttributeValues"] = wired
        try:
            self.call("put_item", Item={**control_key(sk), **attributes(new)}, **given)
        except ConditionFailedError:
            return False
        return True


def _next_midnight(now: float) -> float:
    """00:00 UTC of the next day, when Cloudflare renews the daily allocation."""
    return (now // 86_400 + 1) * 86_400


# ── what other ids are answered ───────────────────────────────────────────────────────────────────
# An id that is lost looks like any id while no id is found, and a batch that failed by a bad record
# like any batch while all fail. Both decide about paid answers, so one item remembers when a poll
# last got a known reply, and which id was last said to have failed.

KEY = control_key("KNOWN")
PENDING_EVERY_SECONDS = 60.0  # Between two notes of pending replies by one process


class Known(Table):
    """The item of known replies."""

    def __init__(self, client: DynamoDBClient, table: str) -> None:
        super().__init__(client, table)
        self._noted_at = 0.0

    def note(self, now: float, *, pending: bool) -> None:
        """Note that a poll got a known reply; a failure costs nothing but the note."""
        if pending and 0 <= now - self._noted_at < PENDING_EVERY_SECONDS:
            return
        try:
            self.change_if(KEY, "SET answered_at = :at", "", {"at": now})
        except StorageError as error:
            logger.warning("known reply not noted", reason=str(error))
        else:
            self._noted_at = now

    def answered_at(self) -> float:
        """When a poll last got a known reply, Unix seconds; 0 if none did."""
        item = self.get(KEY) or {}
        return float(item.get("answered_at", {}).get("N", "0"))

    def note_failed(self, kind: str, request_id: str, now: float) -> tuple[bool, float]:
        """Note that an id is said to have failed.

        Return whether the one noted before is another with the same reply, and when it was noted.
        """
        before = (self.get(KEY) or {}).get("failed", {}).get("M", {})
        noted = {"kind": kind, "id": request_id, "at": now}
        self.change_if(KEY, "SET #of = :noted", "", {"noted": noted}, {"of": "failed"})
        is_other = before.get("kind") == {"S": kind} and before.get("id") != {"S": request_id}
        return is_other, float(before.get("at", {}).get("N", "0"))
