"""The Lambda invocation that runs: how much of its time is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aws_lambda_powertools.utilities.typing import LambdaContext


def seconds_left(context: LambdaContext) -> Callable[[], float]:
    """A function that returns the seconds that an invocation has left."""
    return lambda: context.get_remaining_time_in_millis() / 1000
