"""Permits to call the API: one rate budget for all functions, and pauses (`shared.pacing.breaker`).

The promise: Cloudflare's limit is never passed, above which every call is refused for 5 minutes. If
the table fails, no permit is given. The bucket is stored as one time, as in the generic cell rate
algorithm: `filled_at` is when it will be full again; n tokens make it n intervals later, if that
leaves it within the burst. Of 10 tokens, one each 100 ms: all are there if `filled_at` is past, 7
if it is in 300 ms, none if it is in a second. Submits may use half of the burst, so that polls find
tokens; polls leave a tenth for the first batches of jobs, which may use all of it. Where a tenth is
less than a token, polls wait every other interval for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shared.aws.attribute_values import attribute
from shared.aws.dynamodb import ConditionFailedError
from shared.models import LASTING_SECONDS, NEVER, Wait
from shared.observability import count
from shared.pacing.breaker import (
    MODEL_BUSY,
    PROBE_SECONDS,
    RULES,
    TOO_MANY_CALLS,
    Breaker,
    Permit,
    Rate,
    control_key,
    stack_held,
)
from shared.retry import jittered, soon_after

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

RATE_LIMIT_SECONDS, MAX_RATE_LIMIT_SECONDS = 60.0, 900.0  # After a 429, and what it may ask
SAME_RATE_LIMIT_SECONDS = 300.0  # Between two waits that count as one

CLOUDFLARE_CALLS = 1_200  # Calls with one token that Cloudflare allows in any 5 minutes
OUTSTANDING_MINUTES = 15  # In which half of all calls can poll a model's batches
MIN_OUTSTANDING = 2  # Outstanding batches that each model may have, however many other models have
MAX_FULL_MODELS = 20  # Maximum models named in the control item


@dataclass(frozen=True, slots=True)
class FreeCalls:
    """How many calls would be permitted now."""

    first: int = 0  # submits of jobs' first batches
    submits: int = 0  # all submits, including these
    polls: int = 0  # polls
    paused: bool = False  # whether a pause prevents submits from using the available calls
    look_at: float = 0.0  # when the pause may be probed or ends; infinite for an operator's
    polls_paused: bool = False  # whether it prevents polls, too
    next_token: float = 0.0  # when a kind that has no call now has one; 0: each has one


def _soon(now: float) -> Wait:
    """No token now, but in a moment."""
    return Wait(now + jittered(5.0))


def _busy(model: str, now: float) -> Wait:
    """A model has as many outstanding batches as it may."""
    words = (
        f"Workers AI is slow to finish batches of {model}: as many as Dropbatch can poll are "
        "outstanding. Dropbatch submits more when some of them are finished."
    )
    return Wait(now + jittered(60.0), MODEL_BUSY, words)


def _limited(rate: Rate, until: float) -> Wait:
    """Cloudflare has asked every call to wait."""
    words = (
        "Cloudflare answers 'too many calls', and every call waits. Check whether other programs "
        "use the same token. Lower ApiCallsPerMinute, or give Dropbatch its own token."
    )
    return Wait(until, TOO_MANY_CALLS, words, rate.held_since)


class Budget(Breaker):
    """Gives permits for calls, and stores how long the API asked to wait."""

    def __init__(
        self,
        client: DynamoDBClient,
        table: str,
        calls_per_minute: int,
        limit: int | None = CLOUDFLARE_CALLS,
    ) -> None:
        super().__init__(client, table)
        self.burst = max(1, calls_per_minute // 2)
        self.submit_burst = max(1, self.burst // 2)
        self.poll_burst = self.burst - self.burst // 10
        # A full bucket and the tokens added in 5 minutes must stay within Cloudflare's limit. Above
        # 218 calls a minute the inflow is reduced, not the bucket: an almost empty bucket would let
        # hardly any call through.
        least = 0 if limit is None else -(-300_000 // (limit - self.burst))
        self.interval = max(-(-60_000 // calls_per_minute), least)
        # Seconds between the slots of a job's batches: submits may have all calls that polls leave.
        # Where the burst is too small to leave polls more tokens, polls have every other one.
        turns = 1 if self.submit_burst < self.poll_burst else 2
        self.slot_seconds = turns * self.interval / 1000
        # Batches that one model may have outstanding, if no other has any.
        self.most_outstanding = calls_per_minute / 2 * OUTSTANDING_MINUTES

    def permit_submit(self, model: str, now: float, *, first: bool = False) -> Permit | Wait:
        """A permit to submit one batch of a model now; a job's first may use all tokens."""
        controls = self.controls(model)
        burst = self.burst if first else self.submit_burst
        if model in controls.full_models:
            return _busy(model, now)
        # Checked before a probe is claimed, because a probe without a token would be lost.
        if (wait := self._no_call(controls.rate, burst, now)) is not None:
            return wait
        permit = self.pass_submit(controls, model, now)
        if isinstance(permit, Permit) and not self._take(controls.rate, 1, burst, now):
            return _soon(now)
        return permit

    def permit_polls(self, wanted: int, now: float) -> tuple[int, Permit | Wait]:
        """A permit for up to `wanted` polls now (1 or more): how many, and the permit."""
        controls = self.controls()
        if (wait := self._no_call(controls.rate, self.poll_burst, now)) is not None:
            return 0, wait
        permit = self.pass_poll(controls, now)
        if isinstance(permit, Wait):
            return 0, permit
        free = self._tokens(controls.rate, self.poll_burst, now)
        granted = min(1 if permit.pause else wanted, free)
        if not self._take(controls.rate, granted, self.poll_burst, now):
            return 0, _soon(now)
        return granted, permit

    def permit_check(self, now: float) -> bool:
        """Whether a call may be made now that runs no model, such as the token's check."""
        return self._take(self.controls().rate, 1, self.burst, now)

    def can_submit(self, model: str, now: float, *, has_place: bool = False) -> bool:
        """Whether a submit would get a permit now, but for its token, and a place it has."""
        controls = self.controls(model)
        pauses = (controls.pause_in_force(now), controls.model_pause)
        is_paused = any(one and now < one.next_probe for one in pauses)
        is_full = model in controls.full_models and not has_place
        is_held = is_full or controls.stack.held_since > 0
        return not (is_held or is_paused) and controls.rate.hold_until <= now

    def waits(self, model: str, now: float) -> list[Wait]:
        """All that keeps submits of a model waiting for more than moments, for users."""
        controls = self.controls(model)
        pauses = (controls.pause_in_force(now), controls.model_pause)
        found = [one.for_users() for one in pauses if one]
        if controls.stack.held_since:
            found.append(stack_held())
        if model in controls.full_models:
            found.append(_busy(model, NEVER))
        rate = controls.rate
        is_limited = rate.held_since > 0 and rate.hold_until > now - SAME_RATE_LIMIT_SECONDS
        if is_limited and now - rate.held_since >= LASTING_SECONDS:
            found.append(_limited(rate, rate.hold_until if rate.hold_until > now else NEVER))
        return found

    # ── for ticks ─────────────────────────────────────────────────────────────────────────────────

    def free_calls(self, now: float) -> FreeCalls:
        """How many calls would get a token now: it is useless to start more of them."""
        controls = self.controls()
        rate, pause = controls.rate, controls.pause_in_force(now)
        if rate.hold_until > now:
            return FreeCalls(next_token=rate.hold_until)
        bursts = self.burst, self.submit_burst, self.poll_burst
        first, submits, polls = (max(self._tokens(rate, burst, now), 0) for burst in bursts)
        taken_until = ((rate.filled_at - (burst - 1) * self.interval) / 1_000 for burst in bursts)
        stops_polls = pause is not None and RULES[pause.reason].stops_polls
        next_token = min((until for until in taken_until if until > now), default=0.0)
        free = FreeCalls(first, submits, polls, polls_paused=stops_polls, next_token=next_token)
        if controls.stack.held_since:
            return replace(free, first=0, submits=0, paused=True, look_at=math.inf)
        if pause is None:
            return free
        probes = 1 if now >= pause.next_probe else 0
        first, submits, look_at = min(first, probes), min(submits, probes), pause.probed_at(now)
        return replace(free, first=first, submits=submits, paused=True, look_at=look_at)

    def polls_wait_for_first(self, now: float) -> bool:
        """Whether polls leave this interval to first batches, which have no share of their own."""
        return self.poll_burst == self.burst and int(1000 * now) // self.interval % 2 == 0

    def model_room(self, model: str, now: float) -> tuple[int | None, Wait]:
        """How many batches of a model may be submitted (None: any), and what others wait for."""
        controls = self.controls(model)
        if model in controls.full_models:
            return 0, _busy(model, now)
        pause = controls.model_pause
        if pause is None:
            return None, _soon(now)
        is_probed = now >= pause.next_probe
        until = now + PROBE_SECONDS if is_probed else pause.next_probe
        return int(is_probed), pause.as_wait(until)

    def calls_in(self, seconds: float) -> int:
        """The maximum number of calls in this many seconds."""
        return self.burst + int(1000 * seconds / self.interval)

    # ── the bucket ────────────────────────────────────────────────────────────────────────────────

    def _no_call(self, rate: Rate, burst: int, now: float) -> Wait | None:
        """Why no call may be made, whatever it is for: Cloudflare asked to wait, or no token."""
        if rate.hold_until > now:
            return _limited(rate, soon_after(rate.hold_until, 10))
        return _soon(now) if self._tokens(rate, burst, now) < 1 else None

    def _tokens(self, rate: Rate, burst: int, now: float) -> int:
        """How many tokens are left of a burst; below 0 if a larger one has taken them."""
        ahead = max(rate.filled_at - int(now * 1000), 0)
        return burst - -(-ahead // self.interval)

    def _take(self, rate: Rate, tokens: int, burst: int, now: float) -> bool:
        """Take tokens, if so many are left of the burst; return whether they were."""
        clock, cost = int(now * 1000), tokens * self.interval
        for _ in range(3):
            if self._tokens(rate, burst, now) < tokens or rate.hold_until > now:
                return False
            moved = self._move(clock, cost, clock + (burst - tokens) * self.interval, rate)
            if moved is not None:
                count(
                    "RateBudgetLeft", self._tokens(replace(rate, filled_at=moved), self.burst, now)
                )
                return True
            rate = self.readable(self.get(control_key("RATE")), Rate) or Rate()
        return False

    def _move(self, clock: int, cost: int, most: int, seen: Rate) -> int | None:
        """Move the bucket's time, milliseconds since the epoch, from wherever others have moved it.

        None if since it was `seen` they have emptied the bucket, or it was full and no longer is.
        """
        change, values = "filled_at + :cost", {":cost": cost, ":now": clock, ":most": most}
        condition = "filled_at BETWEEN :now AND :most"
        if seen.filled_at <= clock:
            change, values = ":moved", {":moved": clock + cost, ":now": clock}
            condition = "attribute_not_exists(filled_at) OR filled_at <= :now"
        try:
            answer = self.call(
                "update_item",
                Key=control_key("RATE"),
                UpdateExpression=f"SET filled_at = {change}",
                ConditionExpression=condition,
                ExpressionAttributeValues={name: attribute(one) for name, one in values.items()},
                ReturnValues="UPDATED_NEW",
            )
        except ConditionFailedError:
            return None
        return int(answer["Attributes"]["filled_at"]["N"])

    def limit_rate(self, now: float, seconds: float | None) -> float:
        """Make every call wait, because Cloudflare asks to slow down; return until when."""
        until = now + min(seconds or RATE_LIMIT_SECONDS, MAX_RATE_LIMIT_SECONDS)
        rate = self.controls().rate
        since = rate.held_since if rate.hold_until > now - SAME_RATE_LIMIT_SECONDS else now
        update = "SET hold_until = :until, held_since = :since"
        is_longest = "attribute_not_exists(hold_until) OR hold_until < :until"
        self.change_if(control_key("RATE"), update, is_longest, {"until": until, "since": since})
        return until

    def find_full(self, outstanding: Mapping[str, int], total: int) -> list[str]:
        """The models at their limit of outstanding batches, from these by model and of all.

        It is `most_outstanding`, less half of the batches that other models have: so a model that
        has stalled leaves room for every other, and all together never have twice as many.
        """
        full = {
            model: batches
            for model, batches in outstanding.items()
            if batches >= max(self.most_outstanding - (total - batches) / 2, MIN_OUTSTANDING)
        }
        return sorted(full, key=full.__getitem__, reverse=True)[:MAX_FULL_MODELS]

    def note_outstanding(
        self,
        outstanding: int,
        full_models: Sequence[str] = (),
        ticked_at: float = 0.0,
        until: float = 0.0,
    ) -> None:
        """Store how many batches are outstanding, and which models may submit no more."""
        full = {"full_models": {"SS": sorted(full_models)}} if full_models else {}
        looks = {"ticked_at": ticked_at, "watched_from": ticked_at, "watched_until": until}
        item = {name: attribute(value) for name, value in {"count": outstanding, **looks}.items()}
        self.call("put_item", Item={**control_key("RATE#OUTSTANDING"), **item, **full})
