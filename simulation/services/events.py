"""EventBridge in memory: the events that were put."""

from typing import Any

from simulation.services.calls import Calls, writes


class Events:
    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.put: list[dict[str, Any]] = []

    @writes("events.put_events")
    def put_events(self, *, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        self.put += Entries
        return {"FailedEntryCount": 0, "Entries": [{"EventId": "simulated"} for _ in Entries]}
