"""The reply to a call that a fault strikes: a replacement, or the reply changed on its way back. No state."""

from dataclasses import replace

from local.workers_ai import envelope
from local.workers_ai.behaviour import Behaviour
from local.workers_ai.codes import error
from local.workers_ai.faults import Fault
from local.workers_ai.reply import Cut, Reply, page

_WITHOUT = {"accept_no_request_id": {}, "no_answers": {"status": "completed"}}
"""Results that lack what they should hold."""


def instead(fault: Fault, behaviour: Behaviour) -> Reply:  # One for each kind.
    """The reply of a fault that keeps a call from being carried out."""
    match fault.kind:
        case "bare":
            retry = (("retry-after", str(fault.retry_after)),) if fault.retry_after >= 0 else ()
            return Reply(status=fault.status or 429, headers=retry)
        case "html":
            return page(fault.status or 502)
        case "json_500":
            return envelope.failure(error(10013), behaviour)
        case "redirect":
            return Reply(status=fault.status or 301, headers=(("location", "https://elsewhere.invalid/"),))
        case "refuse":
            return Reply(status=0, cut=Cut.REFUSE)
        case "reset":
            return Reply(status=0, cut=Cut.RESET)
        case "hang":
            return replace(page(504), delay=fault.seconds if fault.seconds >= 0 else behaviour.hang)
        case _:
            failure = error(fault.error_code, fault.message, fault.status)
            retry_after = fault.retry_after
            if retry_after < 0 and failure.code == 971:
                retry_after = behaviour.retry_after
            return envelope.failure(failure, behaviour, retry_after)


def after(reply: Reply, fault: Fault, behaviour: Behaviour) -> Reply:  # One for each kind.
    """The reply to a call that was carried out, after a fault on its way back."""
    at = fault.at if fault.at >= 0 else len(reply.body) // 2
    match fault.kind:
        case "accept_then_reset":
            return replace(reply, cut=Cut.RESET)
        case "accept_then_close":
            return replace(reply, cut=Cut.CLOSE)
        case "accept_then_hang":
            return replace(reply, delay=fault.seconds if fault.seconds >= 0 else behaviour.hang)
        case "accept_then_truncate" | "truncated_body":
            return replace(reply, cut=Cut.CLOSE, cut_after=at)
        case "accept_then_html":
            return page(fault.status or 502)
        case "accept_then_json_500":
            return envelope.failure(error(10013), behaviour)
        case "accept_no_request_id" | "no_answers":
            return envelope.success(_WITHOUT[fault.kind], behaviour)
        case "slow_body":
            return replace(reply, pace=(1024, fault.seconds if fault.seconds >= 0 else behaviour.pace))
        case "slow":
            return replace(reply, delay=max(fault.seconds, 0.0))
        case _:
            return reply
