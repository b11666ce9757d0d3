"""Pauses: the control items of the one table, which every function reads before it calls the API.

A pause is a circuit breaker. It opens when the API refuses every call (a refused token, a used-up quota, an
outage). It is half-open at each `next_probe`: one call, the probe, may try. A successful probe closes it (`lift`), on
the condition that the item, identified by its nonce, is still the one that the probe has read; a pause written
meanwhile stays. A wait of one model is a circuit breaker for that model alone.

Each API token has a pause and a rate of its own: `Sender` says which. So have jobs that were created with another
account than the stack's, whose calls neither wait for the stack's pause nor probe it.

The items of the token bucket (`Rate`) and of outstanding batches are read here together with the pauses;
`shared.pacing.budget` writes them.
"""

from __future__ import annotations

import math
import secrets
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from shared.aws.attribute_values import attribute, attributes, read
from shared.aws.dynamodb import ConditionFailedError, Table, call_dynamodb
from shared.errors import UnreadableItemError
from shared.models import FIRST, Sender
from shared.observability import count_broken_law, logger
from shared.retry import jittered, soon_after

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

LIFT_LOOK_SECONDS = 2.0
"""Seconds by which a submit is put off during a pause: it goes behind others that are due, and is due when it ends."""
PAUSED_LOOK_SECONDS = 45.0
"""Maximum seconds between two looks of a poll, or of a batch of another account: due within a minute of its end."""

FIRST_MODEL_WAIT_SECONDS, MAX_MODEL_WAIT_SECONDS = 15.0, 900.0
MODEL_PROBE_SECONDS = 90.0
FIRST_OUTAGE_WAIT_SECONDS, MAX_OUTAGE_WAIT_SECONDS = 15.0, 300.0
TOKEN_PROBE_LATER_SECONDS, TOKEN_PROBE_SOON_FOR = 300.0, 600.0


class CallKind(StrEnum):
    """What a call of the API is for."""

    SUBMIT = "submit"
    POLL = "poll"


class PauseReason(StrEnum):
    """Why calls are paused; the value that users see in `waiting_for`."""

    TOKEN_REFUSED = "token_refused"  # noqa: S105 - a reason, not a secret
    QUOTA_SPENT = "quota_spent"
    CREDITS_SPENT = "credits_spent"
    SPEND_LIMIT = "spend_limit"
    DAY_LIMIT = "day_limit"
    OUTAGE = "outage"


FIRST_PROBE_SECONDS = {
    PauseReason.TOKEN_REFUSED: 60.0,
    PauseReason.QUOTA_SPENT: 1_800.0,
    PauseReason.CREDITS_SPENT: 300.0,
    PauseReason.SPEND_LIMIT: 300.0,
    PauseReason.DAY_LIMIT: 300.0,
    PauseReason.OUTAGE: FIRST_OUTAGE_WAIT_SECONDS,
}
"""Seconds from the beginning of a pause to its first probe."""

UNPAID = frozenset({PauseReason.QUOTA_SPENT, PauseReason.CREDITS_SPENT, PauseReason.SPEND_LIMIT, PauseReason.DAY_LIMIT})
"""Reasons that something must be paid, raised or waited for; such a pause ends at midnight at the latest."""

REPLACED = {
    PauseReason.TOKEN_REFUSED: {*UNPAID, PauseReason.OUTAGE},
    **{reason: {*UNPAID, PauseReason.OUTAGE} for reason in UNPAID},
    PauseReason.OUTAGE: set[PauseReason](),
}
"""By the reason of a new pause, the pauses in force that it replaces: a refused token pauses more than a spent quota,
and that more than an outage. A failed probe of an outage makes that pause longer."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of an account's calls.

    Attributes:
        reason: why.
        until: Unix seconds at which it ends automatically. None: only a successful probe ends it.
        next_probe: Unix seconds; the first call after that may try.
        nonce: identifies the pause: a successful probe lifts exactly the one it read.
        since: Unix seconds at which it began.
        step: current seconds between probes.
        code: what the API said, for the user.
        account: another Cloudflare account than the stack's whose calls it concerns; empty: the stack's.
        token: number of the token whose calls it concerns.
    """

    reason: PauseReason
    nonce: str
    since: float
    next_probe: float
    step: float
    until: float | None = None
    code: str = ""
    account: str = ""
    token: int = 1

    @property
    def sk(self) -> str:
        """Its item's sort key."""
        return pause_sk(self.sender)

    @property
    def sender(self) -> Sender:
        """Whose calls it stops."""
        return Sender(self.token, self.account)

    def is_over(self, now: float) -> bool:
        """Whether it has ended automatically."""
        return self.until is not None and now >= self.until

    def probed_at(self, now: float) -> float:
        """When a call may show that it is over, or it ends automatically, Unix seconds."""
        return min(max(self.next_probe, now), self.until or math.inf)

    def look_at(self, now: float) -> float:
        """When paused polls look again, Unix seconds: at its probe or its end, or soon enough if it is lifted."""
        return min(self.probed_at(now), now + PAUSED_LOOK_SECONDS)


@dataclass(frozen=True, slots=True)
class ModelWait:
    """A wait of one model: one batch tries at `until`, the others wait longer. `since`: its beginning; 0: unknown."""

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
        held_since: Unix seconds at which the current run of rate limit waits, one after another, began.
    """

    filled_at: int = 0
    hold_until: float = 0.0
    held_since: float = 0.0


@dataclass(frozen=True, slots=True)
class StackControl:
    """The result of operators' commands (`control/stack`). It is not a circuit breaker: nothing probes it.

    Attributes:
        version: version of the object that was carried out last.
        held_since: Unix seconds since when submits are paused; 0 while they are not.
    """

    version: str = ""
    held_since: float = 0.0


@dataclass(frozen=True, slots=True)
class Controls:
    """The control items as they were read together."""

    pause: Pause | None
    model_wait: ModelWait | None
    rate: Rate
    full_models: frozenset[str]
    """Models that are at their limit of outstanding batches."""
    stack: StackControl = field(default_factory=StackControl)


@dataclass(frozen=True, slots=True)
class Permit:
    """A permit for one call of a token; a probe's permit names what a good answer lifts."""

    pause: Pause | None = None
    model_wait: ModelWait | None = None
    sender: Sender = FIRST


@dataclass(frozen=True, slots=True)
class Denied:
    """No call now.

    Attributes:
        until: when the item is due again, Unix seconds.
        paused: whether the wait stops a batch's clock, as pauses do.
        wake_at: when the poll function has to look at it if nobody lifts the pause before; 0: when it is due.
        since: Unix seconds since when Cloudflare refuses every poll; infinite if it does not.
    """

    until: float
    paused: bool
    wake_at: float = 0.0
    since: float = math.inf


class ControlItems(Table):
    """The control items: reads all of them, writes pauses and waits of models."""

    def controls(self, model: str = "", sender: Sender = FIRST) -> Controls:
        """The control items of a model and one token."""
        return self.controls_of(model, (sender,))[0]

    def controls_of(self, model: str, senders: Sequence[Sender]) -> list[Controls]:
        """Read the control items of a model and of each token together, consistently; an empty model is none."""
        own = {sk: None for sender in senders for sk in (pause_sk(sender), rate_sk(sender))}
        keys = [control_key(sk) for sk in (*own, "RATE#OUTSTANDING", "STACK")]
        if model:
            keys.append(control_key(f"RATE#MODEL#{model}"))
        answer = call_dynamodb(
            self.client, "batch_get_item", RequestItems={self.table: {"Keys": keys, "ConsistentRead": True}}
        )
        found = {item["sk"]["S"]: item for item in answer["Responses"].get(self.table, [])}
        if answer.get("UnprocessedKeys"):
            found = {sk: item for key in keys if (sk := key["sk"]["S"]) and (item := self.get(key))}
        wait = self.readable(found.get(f"RATE#MODEL#{model}"), ModelWait)
        full = frozenset(found.get("RATE#OUTSTANDING", {}).get("full_models", {}).get("SS", ()))
        stack = self.readable(found.get("STACK"), StackControl) or StackControl()
        pauses = [self.readable(found.get(pause_sk(sender)), Pause) for sender in senders]
        rates = [self.readable(found.get(rate_sk(sender)), Rate) or Rate() for sender in senders]
        return [Controls(pause, wait, rate, full, stack) for pause, rate in zip(pauses, rates, strict=True)]

    def readable(self, item: dict[str, Any] | None, kind: type[T]) -> T | None:
        """A control item; None if there is none. One that cannot be read is deleted, so that it stops no call.

        Nothing is lost for long: what refuses calls refuses the next one, and the command for the stack is read again.
        """
        if item is None:
            return None
        try:
            return read(item, kind)
        except UnreadableItemError:
            logger.exception("control item deleted, because it cannot be read", sk=item["sk"]["S"])
            count_broken_law()
        same: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(nonce)"}
        if "nonce" in item:
            same = {"ConditionExpression": "nonce = :nonce", "ExpressionAttributeValues": {":nonce": item["nonce"]}}
        with suppress(ConditionFailedError):  # Another one was written meanwhile.
            self.call("delete_item", Key={name: item[name] for name in ("pk", "sk")}, **same)
        return None

    def note_stack(self, stack: StackControl) -> None:
        """Store the result of operators' commands; the caller reads the object again afterwards."""
        self.call("put_item", Item={**control_key("STACK"), **attributes(stack)})

    def pause(self, reason: PauseReason, now: float, code: str, permit: Permit) -> None:
        """Pause a token's calls, or keep the existing pause.

        Args:
            reason: why.
            now: Unix seconds.
            code: what the API said, for the user.
            permit: of the call that got this answer; after a failed probe of an outage, the next one is later, once.
        """
        sender = permit.sender
        old = self.controls(sender=sender).pause
        in_force = old if old and not old.is_over(now) else None
        same = in_force if in_force and in_force.reason is reason else None
        is_probed = same is not None and permit.pause is not None and permit.pause.nonce == same.nonce
        longer_outage = same if reason is PauseReason.OUTAGE and is_probed else None
        if in_force and in_force.reason not in REPLACED[reason] and not longer_outage:
            return
        step = min(2 * longer_outage.step, MAX_OUTAGE_WAIT_SECONDS) if longer_outage else FIRST_PROBE_SECONDS[reason]
        until = _next_midnight(now) if reason in UNPAID else None
        since = same.since if same else now
        nonce = secrets.token_hex(8)
        new = Pause(reason, nonce, since, now + step, step, until, code, sender.account, sender.number)
        self._write(new.sk, old, new)

    def delay_model(self, model: str, now: float, code: str, permit: Permit) -> float:
        """Make a model wait, longer after each rejected probe; return until when."""
        old = self.controls(model).model_wait
        if old and old.until > now and not permit.model_wait:
            return old.until
        step = min(2 * old.step, MAX_MODEL_WAIT_SECONDS) if old and permit.model_wait else FIRST_MODEL_WAIT_SECONDS
        since = (old.since if old else 0.0) or now
        wait = ModelWait(now + min(jittered(step), MAX_MODEL_WAIT_SECONDS), step, secrets.token_hex(8), code, since)
        self._write(f"RATE#MODEL#{model}", old, wait)
        return wait.until

    def lift(self, permit: Permit, model: str) -> bool:
        """After a good probe, delete exactly the pause and the wait that it probed; whether that ended a pause."""
        pause, is_over = permit.pause, permit.pause is not None
        for sk, probed in ((pause.sk if pause else "", pause), (f"RATE#MODEL#{model}", permit.model_wait)):
            if probed is None:
                continue
            try:
                self.call(
                    "delete_item",
                    Key=control_key(sk),
                    ConditionExpression="nonce = :nonce",
                    ExpressionAttributeValues={":nonce": {"S": probed.nonce}},
                )
            except ConditionFailedError:  # It is gone, or another was written meanwhile, which has its own probe.
                is_over = is_over and (probed is not pause or self.get(control_key(sk)) is None)
        return is_over

    def claim_probe(self, pause: Pause, now: float) -> Pause | None:
        """Claim the one call that tests whether a pause is over; None if it is too early, or another call has it."""
        if now < pause.next_probe:
            return None
        step = pause.step
        if pause.reason is PauseReason.TOKEN_REFUSED and now - pause.since > TOKEN_PROBE_SOON_FOR:
            step = TOKEN_PROBE_LATER_SECONDS
        probing = replace(pause, next_probe=now + step, step=step)
        return probing if self._replace(pause.sk, pause, probing) else None

    def pass_pause(self, pause: Pause | None, call_for: CallKind, now: float) -> Pause | Denied | None:
        """Check for a pause. None: no pause prevents the call; a pause: the call is its probe."""
        if pause is None or pause.is_over(now):
            return None
        if call_for is CallKind.POLL and pause.reason is not PauseReason.TOKEN_REFUSED:
            return None
        if probing := self.claim_probe(pause, now):
            return probing
        if call_for is CallKind.POLL:
            return Denied(soon_after(pause.look_at(now) + 1, 9), paused=True, since=pause.since)
        return wait_for_lift(now, pause.probed_at(now))

    def pass_model(self, model: str, wait: ModelWait | None, now: float) -> ModelWait | Denied | None:
        """Check for a wait of a model. None: no wait prevents the call; a wait: the call is its probe."""
        if wait is None:
            return None
        if now >= wait.until:
            probing = replace(wait, until=now + MODEL_PROBE_SECONDS)
            if self._replace(f"RATE#MODEL#{model}", wait, probing):
                return probing
        return wait_for_model(wait, now)

    def _replace(self, sk: str, old: Pause | ModelWait, new: Pause | ModelWait) -> bool:
        """Write `new` if the item is still exactly the one that was read, by its nonce and its next time."""
        moment = "next_probe" if isinstance(old, Pause) else "until"
        return self._put_if(
            sk,
            new,
            ConditionExpression="nonce = :nonce AND #moment = :seen",
            ExpressionAttributeNames={"#moment": moment},
            ExpressionAttributeValues={":nonce": {"S": old.nonce}, ":seen": attribute(getattr(old, moment))},
        )

    def _write(self, sk: str, old: Pause | ModelWait | None, new: Pause | ModelWait) -> None:
        """Write `new` over what was read; if another function wrote meanwhile, its item stays."""
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
            self.call("put_item", Item={**control_key(sk), **attributes(new)}, **condition)
        except ConditionFailedError:
            return False
        return True


def wait_for_lift(now: float, wake_at: float = math.inf) -> Denied:
    """No submit now, but as soon as a pause is lifted; `wake_at` is when to look if nobody lifts it."""
    return Denied(soon_after(now + LIFT_LOOK_SECONDS, 1), paused=True, wake_at=wake_at)


def wait_for_model(wait: ModelWait, now: float) -> Denied:
    """No submit of the model now, but when its wait is over."""
    return Denied(soon_after(max(wait.until, now) + 1, 14), paused=False)


def pause_sk(sender: Sender) -> str:
    """Sort key of a token's pause; the first has one for each account that it asks."""
    if sender.number > 1:
        return f"PAUSE#TOKEN#{sender.number}"
    return f"PAUSE#{sender.account}" if sender.account else "PAUSE"


def rate_sk(sender: Sender) -> str:
    """Sort key of a token's rate, whatever account it asks."""
    return f"RATE#TOKEN#{sender.number}" if sender.number > 1 else "RATE"


def control_key(sk: str) -> dict[str, Any]:
    """Key of a control item."""
    return {"pk": {"S": "CONTROL"}, "sk": {"S": sk}}


def _next_midnight(now: float) -> float:
    """00:00 UTC of the next day, when Cloudflare renews the daily allocation."""
    return (now // 86_400 + 1) * 86_400
