"""Permits to call the API.

The shared rate budget, with pauses and waits of models (`shared.pacing.controls`).

All state is in control items of the one table, so that every function sees the same. Nothing here
knows batches. If the table fails, no permit is given: above Cloudflare's limit every call is
refused for 5 minutes.

The rate budget is a token bucket, stored as one time, the theoretical arrival time of the generic
cell rate algorithm: `filled_at` is when the bucket would be full again. Taking n tokens makes it n
intervals later, if that leaves it within the burst. Submits may use only half of the burst, so that
polls always find tokens; polls leave a tenth for the first batches of jobs, which may use all of
it. Where a tenth is less than a token, polls wait every other interval for them.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import ConditionFailedError
from shared.observability import count
from shared.pacing.control_items import ControlItems
from shared.pacing.controls import (
    MODEL_PROBE_SECONDS,
    RATE_SK,
    CallKind,
    Denied,
    PauseReason,
    Permit,
    Rate,
    control_key,
    wait_for_lift,
)
from shared.pacing.room import Free, ModelRoom
from shared.retry import jittered, soon_after

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mypy_boto3_dynamodb import DynamoDBClient

NO_TOKEN_SECONDS = 5.0
"""Approximate seconds until the next look after an empty bucket."""
RATE_LIMIT_SECONDS, MAX_RATE_LIMIT_SECONDS = 60.0, 900.0
"""Seconds that calls wait after a 429 that does not say how long.

And the maximum after one that does.
"""
SAME_RATE_LIMIT_SECONDS = 300.0
"""A wait that begins within these seconds after the end of the last one continues it."""

TURNS = "RATE#ISOLATION"
"""Sort key of the bucket of pieces' turns."""

CLOUDFLARE_CALLS = 1_200
"""Calls with one token that Cloudflare allows in any 5 minutes.

Above that it refuses every call for 5 minutes.
"""

OUTSTANDING_MINUTES = 15
"""One model may have as many outstanding batches as the polls' share can poll once in this many minutes."""
MIN_OUTSTANDING = 2
"""Outstanding batches that each model may have, however many other models have."""
MAX_FULL_MODELS = 20
"""Maximum models named in the control item."""
FULL_LOOK_SECONDS = 60.0
"""Approximate seconds until the next look at a batch whose model is at its limit of outstanding batches."""


class Budget(ControlItems):
    """Gives permits for calls, and stores how long the API asked to wait."""

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        calls_per_minute: int,
        limit: int | None = CLOUDFLARE_CALLS,
    ) -> None:
        """Use a ready client.

        Args:
            client: DynamoDB client.
            table: the ledger's table.
            calls_per_minute: limit of all functions together.
            limit: calls in any 5 minutes that Cloudflare allows; None: as many as
                `calls_per_minute` says.
        """
        super().__init__(client, table)
        self.burst = max(1, calls_per_minute // 2)
        self.submit_burst = max(1, self.burst // 2)
        self.poll_burst = self.burst - self.burst // 10
        # A full bucket and the tokens added in 5 minutes must stay within Cloudflare's limit. Above
        # 218 calls a minute the inflow is reduced, not the bucket: an almost empty bucket would let
        # hardly any call through.
        least = 0 if limit is None else -(-300_000 // (limit - self.burst))
        self.interval = max(-(-60_000 // calls_per_minute), least)
        # Polls that do not go first have every other turn.
        turns = 1 if self.submit_burst < self.poll_burst else 2
        # Seconds between the slots of a job's batches: submits may have all calls that polls leave.
        self.slot_seconds = turns * self.interval / 1000
        # Batches that one model may have outstanding, if no other has any.
        self.most_outstanding = calls_per_minute / 2 * OUTSTANDING_MINUTES

    def permit_submit(self, model: str, now: float, *, first: bool = False) -> Permit | Denied:
        """A permit to submit one batch of a model now.

        Args:
            model: model id.
            now: Unix seconds.
            first: whether it is the first batch of its job, which may use tokens that others must
                leave.
        """
        controls = self.controls(model)
        burst = self.burst if first else self.submit_burst
        if model in controls.full_models:
            return Denied(now + jittered(FULL_LOOK_SECONDS), paused=True)
        # Checked before a probe is claimed, because a probe without a token would be lost.
        if (denied := self._denied(controls.rate, burst, now)) is not None:
            return denied
        if controls.stack.held_since:
            return wait_for_lift(now)
        paused = self.pass_pause(controls.pause, CallKind.SUBMIT, now, controls.model_wait)
        if isinstance(paused, Denied):
            return paused
        waited = self.pass_model(model, controls.model_wait, now)
        if isinstance(waited, Denied):
            return waited
        if not self._take(controls.rate, 1, burst, now):
            return Denied(now + jittered(NO_TOKEN_SECONDS), paused=False)
        return Permit(paused, waited)

    def free(self, now: float) -> Free:
        """How many calls would get a token now: it is useless to start more of them."""
        controls = self.controls()
        if controls.rate.hold_until > now:
            return Free(next_token=controls.rate.hold_until)
        bursts = self.burst, self.submit_burst, self.poll_burst
        first, submits, polls = (max(self._free(controls.rate, burst, now), 0) for burst in bursts)
        taken_until = (
            controls.rate.filled_at / 1_000 - (burst - 1) * self.interval / 1_000
            for burst in bursts
        )
        next_token = min((until for until in taken_until if until > now), default=0.0)
        pause = controls.pause_in_force(now)
        no_polls = pause is not None and pause.reason is PauseReason.TOKEN_REFUSED
        if controls.stack.held_since:
            return Free(
                polls=polls,
                paused=True,
                look_at=math.inf,
                polls_paused=no_polls,
                next_token=next_token,
            )
        if pause is None:
            return Free(first, submits, polls, next_token=next_token)
        probes = 1 if now >= pause.next_probe else 0
        return Free(
            min(first, probes),
            min(submits, probes),
            polls,
            paused=True,
            look_at=pause.probed_at(now),
            polls_paused=no_polls,
            next_token=next_token,
        )

    def polls_wait_for_first(self, now: float) -> bool:
        """Whether polls do not use the tokens of first batches that are being sent.

        They have no share of their own.
        """
        return self.poll_burst == self.burst and int(1000 * now) // self.interval % 2 == 0

    def model_room(self, model: str, now: float) -> ModelRoom:
        """How many batches of a model may be submitted now, regardless of tokens and the pause."""
        controls = self.controls(model)
        if model in controls.full_models:
            return ModelRoom(0, now + FULL_LOOK_SECONDS, full=True)
        if (wait := controls.model_wait) is None:
            return ModelRoom(None, now)
        return (
            ModelRoom(0, wait.until)
            if wait.until > now
            else ModelRoom(1, now + MODEL_PROBE_SECONDS)
        )

    def calls_in(self, seconds: float) -> int:
        """The maximum number of calls in this many seconds."""
        return self.burst + int(1000 * seconds / self.interval)

    def permit_polls(self, wanted: int, now: float) -> tuple[int, Permit | Denied]:
        """A permit for up to `wanted` polls now (1 or more): how many, and the permit."""
        controls = self.controls()
        if (denied := self._denied(controls.rate, self.poll_burst, now)) is not None:
            return 0, denied
        paused = self.pass_pause(controls.pause, CallKind.POLL, now)
        if isinstance(paused, Denied):
            return 0, paused
        granted = min(1 if paused else wanted, self._free(controls.rate, self.poll_burst, now))
        if not self._take(controls.rate, granted, self.poll_burst, now):
            return 0, Denied(now + jittered(NO_TOKEN_SECONDS), paused=False)
        return granted, Permit(paused)

    def isolation_slots(self, wanted: int, now: float) -> list[float]:
        """When each piece of a batch may be submitted.

        Some immediately, the others at a quarter of the submit rate.

        This is a separate token bucket, stored like the rate. A slot is not a permit: the submit
        requests one like any other.

        Args:
            wanted: how many pieces.
            now: Unix seconds.

        Returns:
            Unix seconds for each piece, ascending.
        """
        interval, burst = 8 * self.interval, max(self.submit_burst // 4, 1)
        clock, cost = int(now * 1000), wanted * interval
        later = "filled_at + :cost", "filled_at > :now", {":cost": cost}
        first = (
            ":moved",
            "attribute_not_exists(filled_at) OR filled_at <= :now",
            {":moved": clock + cost},
        )
        seen = self.readable(self.get(control_key(TURNS)), Rate) or Rate()
        begin = clock
        for change, condition, values in (
            (later, first, later) if seen.filled_at > clock else (first, later, first)
        ):
            if (
                moved := self._move(TURNS, change, condition, {**values, ":now": clock})
            ) is not None:
                begin = moved - cost
                break
        return [max((begin + (1 + slot - burst) * interval) / 1000, now) for slot in range(wanted)]

    def permit_check(self, now: float, calls: int = 1) -> bool:
        """Whether calls may be made now that run no model, such as the token's check.

        No pause prevents them.
        """
        return self._take(self.controls().rate, calls, self.burst, now)

    def can_submit(self, model: str, now: float) -> bool:
        """Whether a submit would get a permit now, but for its token of the bucket."""
        controls = self.controls(model)
        wait, pause = controls.model_wait, controls.pause_in_force(now)
        if model in controls.full_models or controls.stack.held_since:
            return False
        if wait is not None and now < wait.until:
            return False
        is_paused = pause is not None and now < pause.next_probe
        return not is_paused and controls.rate.hold_until <= now

    def _denied(self, rate: Rate, burst: int, now: float) -> Denied | None:
        """Why no call may be made, whatever it is for.

        Cloudflare asked to wait, or the bucket is empty.
        """
        if rate.hold_until > now:
            return Denied(
                soon_after(rate.hold_until, 10), paused=True, since=rate.held_since or math.inf
            )
        if self._free(rate, burst, now) < 1:
            return Denied(now + jittered(NO_TOKEN_SECONDS), paused=False)
        return None

    def _free(self, rate: Rate, burst: int, now: float) -> int:
        ahead = max(rate.filled_at - int(now * 1000), 0)
        return burst - -(-ahead // self.interval)

    def _take(self, rate: Rate, tokens: int, burst: int, now: float) -> bool:
        """Move the bucket's time forward, from wherever others have moved it meanwhile.

        If that leaves it in the burst.

        Any number of functions take tokens at the same time. The write fails only if the bucket has
        been emptied, or was full and no longer is, since it was read. What is then read may also
        say that all calls have to wait.
        """
        clock, cost = int(now * 1000), tokens * self.interval
        for _ in range(3):
            if self._free(rate, burst, now) < tokens or rate.hold_until > now:
                return False
            if rate.filled_at > clock:
                change, condition = "filled_at + :cost", "filled_at BETWEEN :now AND :most"
                values = {
                    ":cost": cost,
                    ":now": clock,
                    ":most": clock + (burst - tokens) * self.interval,
                }
            else:
                change, condition = ":moved", "attribute_not_exists(filled_at) OR filled_at <= :now"
                values = {":moved": clock + cost, ":now": clock}
            if (moved := self._move(RATE_SK, change, condition, values)) is not None:
                count("RateBudgetLeft", self._free(replace(rate, filled_at=moved), self.burst, now))
                return True
            rate = self.readable(self.get(control_key(RATE_SK)), Rate) or Rate()
        return False

    def _move(self, sk: str, change: str, condition: str, values: Mapping[str, int]) -> int | None:
        """Move a bucket's time, milliseconds since the epoch.

        Return it, None if the condition does not hold.
        """
        try:
            answer = self.call(
                "update_item",
                Key=control_key(sk),
                UpdateExpression=f"SET filled_at = {change}",
                ConditionExpression=condition,
                ExpressionAttributeValues={
                    name: attribute(value) for name, value in values.items()
                },
                ReturnValues="UPDATED_NEW",
            )
        except ConditionFailedError:
            return None
        return int(answer["Attributes"]["filled_at"]["N"])

    def limit_rate(self, now: float, seconds: float | None) -> float:
        """Make every call wait, because Cloudflare asks to slow down.

        Args:
            now: Unix seconds.
            seconds: how long, if Cloudflare said so; at most `MAX_RATE_LIMIT_SECONDS`.

        Returns:
            Until when calls wait, as far as this reply is concerned.
        """
        until = now + min(seconds or RATE_LIMIT_SECONDS, MAX_RATE_LIMIT_SECONDS)
        rate = self.controls().rate
        since = rate.held_since if rate.hold_until > now - SAME_RATE_LIMIT_SECONDS else now
        with suppress(ConditionFailedError):  # Then a longer wait is in force.
            self.call(
                "update_item",
                Key=control_key(RATE_SK),
                UpdateExpression="SET hold_until = :until, held_since = :since",
                ConditionExpression="attribute_not_exists(hold_until) OR hold_until < :until",
                ExpressionAttributeValues={":until": attribute(until), ":since": attribute(since)},
            )
        return until

    def full_models(self, outstanding: Mapping[str, int], total: int) -> list[str]:
        """The models that are at their limit of outstanding batches.

        A model's limit is `most_outstanding`, less half of the batches that other models have
        outstanding. So a model that has stalled leaves room for every other, and all together never
        have twice as many.

        Args:
            outstanding: batches by model.
            total: batches of all models, including those whose model is not known.
        """
        full = {
            model: batches
            for model, batches in outstanding.items()
            if batches >= max(self.most_outstanding - (total - batches) / 2, MIN_OUTSTANDING)
        }
        return sorted(full, key=full.__getitem__, reverse=True)[:MAX_FULL_MODELS]

    def note_outstanding(
        self,
        count: int,
        full_models: Sequence[str] = (),
        ticked_at: float = 0.0,
        until: float = 0.0,
    ) -> None:
        """Store how many batches are outstanding, and which models may submit no more.

        For submits to read.

        Args:
            count: outstanding batches.
            full_models: models that may submit no more.
            ticked_at: when this tick began, Unix seconds, for wake-ups (`shared.pacing.wakes`).
            until: until when it will look at what is due.
        """
        full = {"full_models": {"SS": sorted(full_models)}} if full_models else {}
        told = {
            "count": count,
            "ticked_at": ticked_at,
            "watched_from": ticked_at,
            "watched_until": until,
        }
        item = {name: attribute(value) for name, value in told.items()}
        self.call("put_item", Item={**control_key("RATE#OUTSTANDING"), **item, **full})
