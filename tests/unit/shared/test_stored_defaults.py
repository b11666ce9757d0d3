"""What an item means that leaves out a member.

The default of its class, which stays as it is here for ever.
"""

from dataclasses import MISSING, fields, is_dataclass
from typing import get_args, get_type_hints

import pytest
from shared.pacing.day_costs import DayCosts

from dropbatch.core import plan
from shared.aws.attribute_values import defaults_of, read
from shared.models import FIRST, Batch, Job
from shared.pacing import controls

ITEMS = (
    Job,
    Batch,
    controls.Pause,
    controls.ModelWait,
    controls.Rate,
    controls.StackControl,
    DayCosts,
)
NO_PROGRESS = {
    "mark": "",
    "next_id": 0,
    "segments": 0,
    "growing": 0,
    "growing_size": 0,
    "size": 0,
    "lines": 0,
    "sha": "",
    "upload": "",
}
NO_TOKENS = {
    "prompt_tokens": None,
    "completion_tokens": None,
    "total_tokens": None,
    "cached_tokens": None,
}
NO_TOTALS = {
    "batches": 0,
    "succeeded": 0,
    "failed": 0,
    "errors_size": 0,
    "retry_size": 0,
    "usage": NO_TOKENS,
    "unmetered_size": 0,
    "unmetered_records": 0,
    "uncollected": 0,
    "unknowable": 0,
    "doubtful": 0,
    "found": 0,
    "told": 0,
    "vain_size": 0,
    "vain_records": 0,
    "unsent": 0,
}
DEFAULTS: dict[str, dict[str, object]] = {
    "Job": {
        "ended_at": None,
        "completed_at": None,
        "deadline_at": None,
        "max_failed_fraction": None,
        "max_cost": None,
        "output_tokens": 0,
        "tags": {},
        "retry_of": "",
        "cancel_with_task": False,
        "task_token": "",
        "task_beat_at": 0.0,
        "task_fault": None,
        "due_at": None,
        "lease_until": 0.0,
        "claims": 0,
        "unchanged_visits": 0,
        "total": None,
        "bytes_read": 0,
        "blank_until": None,
        "read_to_end": True,
        "has_endings": False,
        "seen_accepted": False,
        "isolation": None,
        "sweep": None,
        "lasting_error": None,
        "denied_write": None,
        "spent": None,
        "cost_reached": False,
        "error": None,
        "control": None,
        "denied": None,
        "output": NO_PROGRESS,
        "errors": NO_PROGRESS,
        "retry": NO_PROGRESS,
        "batches": NO_PROGRESS,
        "sums": NO_TOTALS,
        "staging": None,
        "status_sha": "",
        "fraction": 0.0,
        "status_at": 0.0,
        "status_succeeded": 0,
        "status_failed": 0,
    },
    "Batch": {
        "completed_at": None,
        "originals_size": 0,
        "end": None,
        "ordinal": None,
        "estimate": 0,
        "estimated_before": 0,
        "reserved": None,
        "due_at": None,
        "work": None,
        "claims": 0,
        "fence": 0.0,
        "held": False,
        "ready_at": 0.0,
        "paused": 0.0,
        "attempt": 0,
        "sender": FIRST,
        "submissions": (),
        "unknowable": 0,
        "doubtful": 0,
        "doubts": 0,
        "found": 0,
        "markers": (),
        "looking": None,
        "refusals": 0,
        "calls_fail_since": 0.0,
        "round": 0,
        "round_size": 0,
        "round_requests": 0,
        "answered": (),
        "polls": 0,
        "polls_settled": 0,
        "pending_at": 0.0,
        "api_status": "",
        "told_at": 0.0,
        "misses": 0,
        "missed_at": 0.0,
        "failures": 0,
        "failing_code": 0,
        "failing_at": 0.0,
        "partial_replies": (),
        "missing_polls": 0,
        "isolating": None,
        "cause": "",
        "pieces": 0,
        "ending_if_unanswered": None,
        "ending": None,
        "part": None,
    },
    "Upload": {"source_key": None},
    "SplitPlan": {
        "form": "",
        "packing": "",
        "start": 0,
        "first_requests": 500,
        "format": "",
        "start_line": 0,
        "converts": False,
        "by_default": False,
        "delimiter": "",
        "answers": False,
        "inputs": "",
        "task": "",
        "facts": "",
        "first_bytes": 0,
        "checks_models": False,
        "is_strict": False,
    },
    "Checkpoint": {"offset": 0, "line": 0, "record": 0},
    "Reservation": {"counted": 0},
    "DayCosts": {
        "spent": 0,
        "reserved": 0,
        "lifted": False,
        "waited_at": 0.0,
        "writes": 0,
        "last": "",
    },
    "Spent": {"amount": 0, "settled": 0, "measured": 0, "records": 0, "vain": 0},
    "Isolation": {"submits": 0, "granted": (), "causes": {}, "writes": 0, "untried": ()},
    "Sweep": {"due": 0.0, "after": ""},
    "DeniedWrite": {},
    "LastingError": {"refused": False, "message": ""},
    "ErrorDetail": {"said": ""},
    "JobControl": {"version": "", "held_since": 0.0, "resumed_at": 0.0, "cancelled": ""},
    "ResultFileProgress": NO_PROGRESS,
    "JobTotals": NO_TOTALS,
    "Usage": NO_TOKENS,
    "Staging": {"mark": "", "refused": 0},
    "UploadDenial": {},
    "Part": {"usage": NO_TOKENS},
    "Submission": {"round": 0, "misses": 0, "missed_at": 0.0, "given_up": False, "sender": FIRST},
    "Sender": {"number": 1, "account": ""},
    "PartialReply": {},
    "Looking": {"code": "", "doubtful": False, "doubts": 0, "looks": 0},
    "Pause": {"until": None, "code": "", "account": "", "token": 1},
    "ModelWait": {"code": "", "since": 0.0},
    "Rate": {"filled_at": 0, "hold_until": 0.0, "held_since": 0.0},
    "StackControl": {"version": "", "held_since": 0.0},
}
"""By class, each member that an item may leave out. Add to it; change nothing in it."""


def stored_classes() -> dict[str, type]:
    """The data classes that items are made of."""
    found: dict[str, type] = {}
    left: list[object] = [*ITEMS]
    while left:
        kind = left.pop()
        left.extend(get_args(kind))
        if isinstance(kind, type) and is_dataclass(kind) and kind.__name__ not in found:
            found[kind.__name__] = kind
            left.extend(get_type_hints(kind).values())
    return found


def plainly(value: object) -> object:
    """A default with its type, so that 0, 0.0 and False differ; a data class as its members."""
    if is_dataclass(value):
        return {one.name: plainly(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, dict):
        return {name: plainly(one) for name, one in value.items()}
    return type(value), value


def test_each_stored_class_is_listed():
    assert stored_classes().keys() == DEFAULTS.keys()


@pytest.mark.parametrize("name", DEFAULTS)
def test_default_never_changes(name):
    defaults = defaults_of(stored_classes()[name])

    given = {member: plainly(one) for member, one in defaults.items() if one is not MISSING}

    assert given == {member: plainly(one) for member, one in DEFAULTS[name].items()}


def test_growth_of_batches_never_changes():
    """Jobs that are being split must be cut as they were begun."""
    stored = {
        "model": {"S": "m"},
        "account": {"S": "a"},
        "max_requests": {"N": "5000"},
        "max_bytes": {"N": "1"},
    }

    sizes = [
        plan.max_records(read(stored, plan.SplitPlan), number) for number in (0, 3, 4, 8, 12, 16)
    ]

    assert sizes == [500, 500, 1_000, 2_000, 4_000, 5_000]
