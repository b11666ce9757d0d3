"""How much time the running Lambda invocation has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from aws_lambda_powertools.utilities.typing import LambdaContext


def seconds_left(context: LambdaContext) -> Callable[[], float]:
    """Return a function that returns the seconds an invocation has left."""
    return lambda: context.get_remaining_time_in_millis() / 1000
