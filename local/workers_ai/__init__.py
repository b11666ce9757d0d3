"""A faithful local stand-in for the asynchronous batch API of Cloudflare Workers AI.

`WorkersAI` is the whole API as a function from a request to a `Reply`: no socket, no thread, a
clock that a test may move. `transport` puts it behind `httpx.MockTransport`; `python -m
local.workers_ai` serves it on the loopback address. Each switch's default is documented, observed,
a guess or invented: see README.md beside this file.
"""

from local.workers_ai.api import WorkersAI
from local.workers_ai.behaviour import Behaviour, SwitchError
from local.workers_ai.faults import Fault
from local.workers_ai.mock import transport
from local.workers_ai.models.answers import expected_result
from local.workers_ai.replies import Cut, Reply

__all__ = [
    "Behaviour",
    "Cut",
    "Fault",
    "Reply",
    "SwitchError",
    "WorkersAI",
    "expected_result",
    "transport",
]
