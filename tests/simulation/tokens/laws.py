"""Laws of each API token.

Its rate, its own budget, its batches, and that a refused one is asked by probes only.

They know what reached the API and what the secret was, and nothing of how the functions choose.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from shared.bootstrap import SECRET_SECONDS
from tests.simulation.tokens.secret import Change, in_use
from tests.simulation.worlds.judges import CALLS_IN_FIVE_MINUTES, FIVE_MINUTES
from tests.support.aws.wire_items import number, submissions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from local.workers_ai.replies import Reply
    from simulation.kernel import Life
    from simulation.services.dynamodb import Key, Wire
    from tests.simulation.worlds.judges import Laws

RATE = "no token makes more calls than its rate"
OWN = "each call takes from the budget of its token"
BATCH = "a batch is polled by the token and at the account that it was submitted with"
REFUSED = "a refused token is asked by probes only"
NUMBER = "a batch says which token submitted it, and nothing that identifies it"

READ_SECONDS = SECRET_SECONDS + 150.0
"""For so long a call may follow from a value of the secret.

A process remembers it, and an invocation has begun with
it.
"""
BEGUN_SECONDS = 150.0
"""Seconds after a token's first refusal in which calls that were permitted before may still be made."""
PROBE_SECONDS = 50.0
"""Between two probes of a refused token at least, less what a call may take.

And less by how much clocks differ.
"""


class TokenLaws:
    """Judges each exchange with the API by its token."""

    def __init__(self, laws: Laws, changes: Sequence[Change]) -> None:
        """Watch the world of these laws."""
        self.laws, self.world = laws, laws.world
        self.places: defaultdict[str, set[int]] = defaultdict(set)
        """At which places of the secret each token is in the world."""
        for change in changes:
            for place, line in enumerate(change.lines, 1):
                self.places[line.partition(" ")[0]].add(place)
        self.times: defaultdict[str, list[float]] = defaultdict(list)
        self.owner: dict[str, tuple[str, str, set[int]]] = {}
        """Of each id: its token, its account, and the places that the token may have had."""
        self.known: set[str] = set()
        """Ids that batches have."""
        self.refused: dict[str, list[float]] = {}
        """When each token was refused, since it last was not, or the secret changed."""
        self.taken: WeakKeyDictionary[Life, set[int]] = WeakKeyDictionary()
        """From which tokens' budgets each invocation has taken."""
        self.world.on_answer.append(self._judge)
        self.world.dynamodb.watchers.append(self._note)

    def _note(self, key: Key, old: Wire | None, new: Wire | None) -> None:
        life = self.world.kernel.life()
        if key[1].startswith("BATCH#") and new is not None:
            self._judge_number(key, new)
        if key == ("CONTROL", "STACK") and not number(new, "held_since"):
            self.refused.clear()  # An operator's `run` ends pauses, so one more call may be made.
        if (
            life is None
            or new is None
            or key[0] != "CONTROL"
            or number(new, "filled_at") == number(old, "filled_at")
        ):
            return
        if key[1] == "RATE" or key[1].startswith("RATE#TOKEN#"):
            self.taken.setdefault(life, set()).add(
                int(key[1].rpartition("#")[2]) if "#" in key[1] else 1
            )

    def _judge_number(self, key: Key, item: Wire) -> None:
        if any(token in str(item) for token in self.places):
            self.laws.broken(NUMBER, f"{key}: {item}")
        for one in submissions(item):
            request_id = one["request_id"]["S"]
            self.known.add(request_id)
            sender = one.get("sender", {}).get("M", {})
            told = int(number(sender, "number") or 1)
            if request_id in self.owner and told not in self.owner[request_id][2]:
                self.laws.broken(NUMBER, f"{key}: {told}, {self.owner[request_id]}")

    def _judge(self, url: str, headers: Mapping[str, str], body: bytes, reply: Reply) -> None:
        token, path = headers["authorization"].removeprefix("Bearer "), urlsplit(url).path
        if "/ai/" not in path:
            return  # Queues has laws of its own.
        self.times[token].append(self.world.kernel.now)
        self._judge_budget(token)
        if "/ai/run/" not in path:
            return
        account = path.split("/")[4]
        self._judge_refused(token, account, reply)
        asked: dict[str, Any] = json.loads(body)
        if "request_id" in asked:
            self._judge_poll(asked["request_id"], token, account)
        elif (request_id := _id_in(reply)) and request_id not in self.owner:
            self.owner[request_id] = token, account, self._numbers(token)

    def _numbers(self, token: str) -> set[int]:
        """The numbers that a token may have, as far as any process knows.

        The first number's calls may find the token of a line that has just come.
        """
        secrets = in_use(self.world, READ_SECONDS)
        places = {
            place for lines in secrets for place, one in enumerate(lines, 1) if one[0] == token
        }
        return places | {1} if self._has_changed else places

    @property
    def _has_changed(self) -> bool:
        """Whether some process may still know another secret than the present one."""
        since = self.world.kernel.now - READ_SECONDS
        return any(at >= since and at > self.world.began for at, _ in self.world.secrets)

    def _judge_budget(self, token: str) -> None:
        life, able = self.world.kernel.life(), self._numbers(token)
        if life is not None and not self.taken.get(life, set()) & able:
            self.laws.broken(OWN, f"{life.name}: {token}, from {self.taken.get(life)}")

    def _judge_poll(self, request_id: str, token: str, account: str) -> None:
        """Judge a poll by where its batch was submitted.

        And by every value that the secret had of late.
        """
        if request_id not in self.owner:
            return  # Of another stack, or of a batch whose reply was lost.
        _, submitted_to, numbers = self.owner[request_id]
        able = {
            _able(lines, submitted_to, one)
            for lines in in_use(self.world, READ_SECONDS)
            for one in numbers
            if lines
        }
        # An orphan is polled to find out whose it is, by who looks for its own, even while another
        # finds that out.
        is_orphan = request_id not in self.known or any(
            sk.endswith(request_id)
            for pk, sk in self.world.dynamodb.items
            if pk.startswith("ORPHANS#")
        )
        if account != submitted_to or (token not in able and not is_orphan):
            self.laws.broken(
                BATCH, f"{request_id}: {token} at {account}, not {sorted(able)} at {submitted_to}"
            )

    def _judge_refused(self, token: str, account: str, reply: Reply) -> None:
        """Judge how often a token is used that is refused.

        For another account it is another pause.
        """
        asks, now = f"{token} {account}", self.world.kernel.now
        is_refused = reply.status in {401, 403} and token not in self.world.api.behaviour.tokens
        if not is_refused or self._has_changed:
            self.refused.pop(asks, None)
            return
        times = self.refused.setdefault(asks, [])
        times.append(now)
        least = PROBE_SECONDS - self.world.calls.awkward.clock_behind_seconds
        if now - times[0] > BEGUN_SECONDS and now - times[-2] < least:
            self.laws.broken(REFUSED, f"{asks}: {now - times[-2]:.0f} s after the last call")

    def judge_rates(self) -> None:
        """Judge each token's calls.

        One that was moved in the secret may have had the budget of each of its places.
        """
        calls = self.world.calls_per_minute
        for token, times in self.times.items():
            most = min(5 * calls + max(1, calls // 2) + 1, CALLS_IN_FIVE_MINUTES) * max(
                len(self.places[token]), 1
            )
            for before, at in zip(times, times[most:], strict=False):
                if at - before < FIVE_MINUTES:
                    self.laws.broken(RATE, f"{token}: over {most} by {at - self.world.began:.0f} s")
                    break


def _able(lines: list[tuple[str, str]], account: str, place: int) -> str:
    """The token that may poll what the token at a place has submitted to an account.

    When the secret is so.
    """
    if place <= len(lines) and lines[place - 1][1] == account:
        return lines[place - 1][0]
    return next((token for token, of in lines if of == account), lines[0][0])


def _id_in(reply: Reply) -> str:
    """The id that a submit was accepted under.

    Empty if it was not, or if the reply does not say.
    """
    try:
        result = json.loads(reply.body)["result"]
    except (ValueError, KeyError, TypeError):
        return ""
    return str(result.get("request_id", "")) if isinstance(result, dict) else ""
