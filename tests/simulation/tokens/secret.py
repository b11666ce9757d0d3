"""What happens to the API tokens of a world.

Drawn from its seed, as data that can be printed and made smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from tests.support.aws.resources import ACCOUNT, TOKEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.simulation.worlds.world import World

SHARE = 0.25
"""Share of the worlds whose secret has several lines, or changes."""
OTHER = "f" * 32
"""The second account that a token may be for."""
GOOD = (TOKEN, "second-token", "third-token", "fourth-token")
OTHERS = frozenset({"of-other", "new-of-other"})
"""Tokens that may use the other account, and no other.

All others may use the stack's account only.
"""
SOON = (0.5, 20.0, 300.0)


@dataclass(frozen=True, slots=True)
class Change:
    """Somebody changes the secret, and Cloudflare refuses some tokens from now on, and no others.

    Attributes:
        lines: of the secret, each a token and perhaps its account.
        refused: tokens.
    """

    at: float
    lines: tuple[str, ...]
    refused: tuple[str, ...] = ()

    @property
    def value(self) -> str:
        """The secret's."""
        return "\n".join(self.lines)


def happen(world: World, change: Change) -> None:
    """Let a change happen."""
    world.token = change.value
    world.secrets.append((world.kernel.now, change.value))
    good = {*GOOD, *OTHERS} - {*change.refused}
    accounts = {one: (OTHER,) if one in OTHERS else (ACCOUNT,) for one in (*GOOD, *OTHERS)}
    world.api.switch(tokens=tuple(sorted(good)), token_accounts=accounts)


def draw_changes(seed: int, *, one_account: bool) -> list[Change]:
    """What happens to the tokens of a seed's world.

    Drawn apart, so that everything else of its plan stays as it was.

    In the end every token of the first lines, or what replaced it, is good again.

    Args:
        seed: the world's.
        one_account: whether all tokens are of the stack's account.
    """
    random = Random(f"{seed} tokens")
    if random.random() >= SHARE:
        return []
    lines = list(GOOD[: random.randint(1, 3)])
    if not one_account and random.random() < 0.5:
        lines.insert(random.randint(1, len(lines)), f"of-other {OTHER}")
    first = Change(0.0, tuple(lines))
    if random.random() < 0.25:
        return [first]
    at, place = random.choice(SOON), random.randrange(len(lines))
    old = lines[place]
    text = old.partition(" ")[0]
    new = f"new-of-other {OTHER}" if " " in old else "fourth-token"
    without, rotated = (
        (*lines[:place], *lines[place + 1 :]),
        (*lines[:place], new, *lines[place + 1 :]),
    )
    later = at + random.choice((60.0, 700.0, 4_000.0))
    good = Change(later, tuple(lines))
    match random.choice(
        (
            "refused",
            "refused and replaced",
            "rotated",
            "removed",
            "reordered",
            "added",
            "all but one",
        )
    ):
        case "refused":
            return [first, Change(at, first.lines, (text,)), good]
        case "refused and replaced":
            return [first, Change(at, first.lines, (text,)), Change(later, rotated, (text,))]
        case "rotated":  # The old one is good until everybody has read the new one, or not at all.
            return [first, Change(at, rotated, (text,) if random.random() < 0.5 else ())]
        case "removed" if without:
            return [first, Change(at, without, (text,)), good]
        case "reordered":
            return [first, Change(at, tuple(random.sample(lines, len(lines))))]
        case "added":
            return [first, Change(at, (*lines, "fourth-token"))]
        case _:
            texts = [one.partition(" ")[0] for one in lines]
            return [
                first,
                Change(at, first.lines, tuple(one for one in texts if one != text)),
                good,
            ]


def in_use(world: World, seconds: float) -> Iterator[list[tuple[str, str]]]:
    """What a process may have read of the secret that remembers it for so long.

    Each time, tokens and accounts.
    """
    since = world.kernel.now - seconds
    for place, (at, value) in enumerate(world.secrets):
        until = world.secrets[place + 1][0] if place + 1 < len(world.secrets) else world.kernel.now
        if until >= since and at <= world.kernel.now:
            yield [
                (one.partition(" ")[0], one.partition(" ")[2] or ACCOUNT)
                for one in value.split("\n")
            ]
