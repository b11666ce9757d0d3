"""The requests in the body of a submit, and what is wrong with them as a whole."""

from typing import Any

from local.workers_ai.behaviour import Behaviour
from local.workers_ai.catalogue import Model
from local.workers_ai.codes import ApiError, error
from local.workers_ai.validate import problem


def read_requests(model: Model, sent: object, behaviour: Behaviour) -> tuple[list[Any], ApiError | None, bool]:
    """The requests of a body, what is wrong with them, and whether that is reported only after acceptance."""
    requests = sent.get("requests") if isinstance(sent, dict) else None
    if not isinstance(requests, list):
        late = behaviour.missing_requests == "fail_later"
        return [], error(5006, "AiError: Bad input: Error: required properties at '/' are 'requests'"), late
    if not requests and behaviour.empty_requests == "refuse":
        return [], error(5006, "AiError: Bad input: Error: '/requests' must hold at least 1 item"), False
    if behaviour.max_requests and len(requests) > behaviour.max_requests:
        most = f"AiError: Bad input: Error: '/requests' must hold at most {behaviour.max_requests} items"
        return requests, error(5006, most), False
    late = behaviour.validation != "submit"
    for index, request in enumerate(requests):
        wrong = problem(model.name, request, f"/requests/{index}", behaviour)
        if wrong is not None:
            return requests, error(5006, wrong), late
    return requests, None, False
