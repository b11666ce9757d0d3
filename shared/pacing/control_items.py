"""The control items in the one table.

Reads all of them, writes pauses and waits of models, and claims their probes.

What they are is in `shared.pacing.controls`. Who may call according to them is in
`shared.pacing.budget`, which also writes the items of the token bucket and of outstanding batches.
"""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from shared.aws.attribute_values import attribute, attributes, read
from shared.aws.dynamodb import ConditionFailedError, Table, call_dynamodb
from shared.errors import UnreadableItemError
from shared.observability import count_broken_law, logger
from shared.pacing.controls import (
    MAX_OUTAGE_WAIT_SECONDS,
    MODEL_PROBE_SECONDS,
    PAUSE_SK,
    RATE_SK,
    UNPAID,
    CallKind,
    Controls,
    Denied,
    ModelWait,
    Pause,
    PauseReason,
    Permit,
    Rate,
    StackControl,
    control_key,
    wait_for_lift,
    wait_for_model,
)
from shared.retry import jittered, soon_after

T = TypeVar("T")

FIRST_MODEL_WAIT_SECONDS, MAX_MODEL_WAIT_SECONDS = 15.0, 900.0
TOKEN_PROBE_LATER_SECONDS, TOKEN_PROBE_SOON_FOR = 300.0, 600.0
FIRST_PROBE_SECONDS = {
    PauseReason.TOKEN_REFUSED: 60.0,
    PauseReason.QUOTA_SPENT: 1_800.0,
    PauseReason.CREDITS_SPENT: 300.0,
    PauseReason.SPEND_LIMIT: 300.0,
    PauseReason.OUTAGE: 15.0,
}
"""Seconds from the beginning of a pause to its first probe."""

REPLACED = {
    PauseReason.TOKEN_REFUSED: {*UNPAID, PauseReason.OUTAGE},
    **{reason: {*UNPAID, PauseReason.OUTAGE} for reason in UNPAID},
    PauseReason.OUTAGE: set[PauseReason](),
}
"""By the reason of a new pause, the pauses in force that it replaces.

A refused token pauses more than a spent quota,
and that more than an outage. A failed probe of an outage makes that pause longer.
"""


class ControlItems(Table):
    """The control items: reads all of them, writes pauses and waits of models."""

    def controls(self, model: str = "") -> Controls:
        """Read the control items together, consistently; an empty model is none."""
        keys = [control_key(sk) for sk in (PAUSE_SK, RATE_SK, "RATE#OUTSTANDING", "STACK")]
        if model:
            keys.append(control_key(f"RATE#MODEL#{model}"))
        answer = call_dynamodb(
            self.client,
            "batch_get_item",
            RequestItems={self.table: {"Keys": keys, "ConsistentRead": True}},
        )
        found = {item["sk"]["S"]: item for item in answer["Responses"].get(self.table, [])}
        if answer.get("UnprocessedKeys"):
            found = {sk: item for key in keys if (sk := key["sk"]["S"]) and (item := self.get(key))}
        wait = self.readable(found.get(f"RATE#MODEL#{model}"), ModelWait)
        full = frozenset(found.get("RATE#OUTSTANDING", {}).get("full_models", {}).get("SS", ()))
        stack = self.readable(found.get("STACK"), StackControl) or StackControl()
        pause = self.readable(found.get(PAUSE_SK), Pause)
        rate = self.readable(found.get(RATE_SK), Rate) or Rate()
        return Controls(pause, wait, rate, full, stack)

    def readable(self, item: dict[str, Any] | None, kind: type[T]) -> T | None:
        """A control item; None if there is none.

        One that cannot be read is deleted, so that it stops no call.

        Nothing is lost for long: what refuses calls refuses the next one, and the command for the
        stack is read again.
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
            same = {
                "ConditionExpression": "nonce = :nonce",
                "ExpressionAttributeValues": {":nonce": item["nonce"]},
            }
        with suppress(ConditionFailedError):  # Another one was written meanwhile.
            self.call("delete_item", Key={name: item[name] for name in ("pk", "sk")}, **same)
        return None

    def note_stack(self, stack: StackControl) -> None:
        """Store the result of operators' commands; the caller reads the object again afterwards."""
        self.call("put_item", Item={**control_key("STACK"), **attributes(stack)})

    def pause(self, reason: PauseReason, now: float, code: str, permit: Permit) -> None:
        """Pause calls, or keep the existing pause.

        Args:
            reason: why.
            now: Unix seconds.
            code: what the API said, for the user.
            permit: of the call that got this answer; after a failed probe of an outage, the next
                one is later, once.
        """
        old = self.controls().pause
        in_force = old if old and not old.is_over(now) else None
        same = in_force if in_force and in_force.reason is reason else None
        is_probed = (
            same is not None and permit.pause is not None and permit.pause.nonce == same.nonce
        )
        longer_outage = same if reason is PauseReason.OUTAGE and is_probed else None
        if in_force and in_force.reason not in REPLACED[reason] and not longer_outage:
            return
        step = (
            min(2 * longer_outage.step, MAX_OUTAGE_WAIT_SECONDS)
            if longer_outage
            else FIRST_PROBE_SECONDS[reason]
        )
        until = _next_midnight(now) if reason in UNPAID else None
        since = same.since if same else now
        nonce = secrets.token_hex(8)
        new = Pause(reason, nonce, since, now + step, step, until, code)
        self._write(PAUSE_SK, old, new)

    def delay_model(self, model: str, now: float, code: str, permit: Permit) -> float:
        """Make a model wait, longer after each rejected probe; return until when."""
        old = self.controls(model).model_wait
        if old and old.until > now and not permit.model_wait:
            return old.until
        step = (
            min(2 * old.step, MAX_MODEL_WAIT_SECONDS)
            if old and permit.model_wait
            else FIRST_MODEL_WAIT_SECONDS
        )
        since = (old.since if old else 0.0) or now
        wait = ModelWait(
            now + min(jittered(step), MAX_MODEL_WAIT_SECONDS),
            step,
            secrets.token_hex(8),
            code,
            since,
        )
        self._write(f"RATE#MODEL#{model}", old, wait)
        return wait.until

    def lift(self, permit: Permit, model: str) -> bool:
        """After a good probe, delete exactly the pause and the wait that it probed.

        Whether that ended a pause.
        """
        pause, is_over = permit.pause, permit.pause is not None
        for sk, probed in (
            (PAUSE_SK, pause),
            (f"RATE#MODEL#{model}", permit.model_wait),
        ):
            if probed is None:
                continue
            try:
                self.call(
                    "delete_item",
                    Key=control_key(sk),
                    ConditionExpression="nonce = :nonce",
                    ExpressionAttributeValues={":nonce": {"S": probed.nonce}},
                )
            except (
                ConditionFailedError
            ):  # It is gone, or another was written meanwhile, which has its own probe.
                is_over = is_over and (probed is not pause or self.get(control_key(sk)) is None)
        return is_over

    def claim_probe(self, pause: Pause, now: float) -> Pause | None:
        """Claim the one call that tests whether a pause is over.

        None if it is too early, or another call has it.
        """
        if now < pause.next_probe:
            return None
        step = pause.step
        if pause.reason is PauseReason.TOKEN_REFUSED and now - pause.since > TOKEN_PROBE_SOON_FOR:
            step = TOKEN_PROBE_LATER_SECONDS
        probing = replace(pause, next_probe=now + step, step=step)
        return probing if self._replace(PAUSE_SK, pause, probing) else None

    def pass_pause(
        self, pause: Pause | None, call_for: CallKind, now: float, wait: ModelWait | None = None
    ) -> Pause | Denied | None:
        """Check for a pause. None: no pause prevents the call; a pause: the call is its probe.

        While the call's model waits, no probe is claimed: it would be lost.
        """
        if pause is None or pause.is_over(now):
            return None
        if call_for is CallKind.POLL and pause.reason is not PauseReason.TOKEN_REFUSED:
            return None
        if wait and pause.next_probe <= now < wait.until:
            return wait_for_model(wait, now)
        if probing := self.claim_probe(pause, now):
            return probing
        if call_for is CallKind.POLL:
            return Denied(soon_after(pause.look_at(now) + 1, 9), paused=True, since=pause.since)
        return wait_for_lift(now, pause.probed_at(now))

    def pass_model(
        self, model: str, wait: ModelWait | None, now: float
    ) -> ModelWait | Denied | None:
        """Check for a wait of a model.

        None: no wait prevents the call; a wait: the call is its probe.
        """
        if wait is None:
            return None
        if now >= wait.until:
            probing = replace(wait, until=now + MODEL_PROBE_SECONDS)
            if self._replace(f"RATE#MODEL#{model}", wait, probing):
                return probing
        return wait_for_model(wait, now)

    def _replace(self, sk: str, old: Pause | ModelWait, new: Pause | ModelWait) -> bool:
        """Write `new` if the item is still exactly the one that was read.

        By its nonce and its next time.
        """
        moment = "next_probe" if isinstance(old, Pause) else "until"
        return self._put_if(
            sk,
            new,
            ConditionExpression="nonce = :nonce AND #moment = :seen",
            ExpressionAttributeNames={"#moment": moment},
            ExpressionAttributeValues={
                ":nonce": {"S": old.nonce},
                ":seen": attribute(getattr(old, moment)),
            },
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


def _next_midnight(now: float) -> float:
    """00:00 UTC of the next day, when Cloudflare renews the daily allocation."""
    return (now // 86_400 + 1) * 86_400
