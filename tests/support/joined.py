"""Batches, replies to them, and the lines that the join makes of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from dropbatch.core.read.index import RecordEntry, index_of
from functions.poll.join import Answered, Answers, Failure, join, sort_answers
from shared.workers_ai.results import parse_answer

FAILURES: list[tuple[dict[str, object], str]] = [
    ({"error": {"code": 5006, "message": "bad input"}}, "5006: bad input"),
    ({"error": {"code": "5006", "message": "bad input"}}, "5006: bad input"),
    ({"error": {"internalCode": 3030, "message": "failed"}}, "3030: failed"),
    ({"error": {"code": None, "internalCode": 3030, "message": "failed"}}, "3030: failed"),
    ({"errors": [{"code": 3040, "message": "no capacity"}]}, "3040: no capacity"),
    ({"error": "5021: too long"}, "5021: too long"),
    ({"error": "words alone"}, "words alone"),
    ({"message": "words alone"}, "words alone"),
    ({"error": {"description": "described"}}, "described"),
    ({"error": None, "message": "words"}, "words"),
    ({"error": {"code": "²", "message": "odd"}}, "odd"),
    ({"error": "²: odd"}, "²: odd"),
    ({"error": {"code": "9" * 5_000, "message": "odd"}}, "odd"),
    ({}, "Workers AI gave no reason."),
    ({"error": []}, "Workers AI gave no reason."),
    ({"errors": [[1]], "result": {"response": "ignored"}}, "Workers AI gave no reason."),
]


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(value).encode())


def request_of(index: int) -> bytes:
    return b'{"text": "request %d"}' % index


def row_of(number: int, reference: object, code: str) -> RecordEntry:
    if code:
        return RecordEntry(number, 0, raw(None), code, f"Line {number}: wrong", raw("the text"))
    return RecordEntry(number, 20, raw(reference))


def lines_of(
    rows: list[RecordEntry],
    answers: Answers | None,
    first_id: int = 0,
    ending: tuple[str, str] | None = None,
    request_of: Callable[[int], bytes] = request_of,
    *,
    vectors: bool = False,
) -> list[Failure]:
    """All lines, a good record's too as output, error and request."""
    found: list[Failure] = []
    for lines in join(Answered(index_of(rows), first_id, answers, ending, vectors), request_of):
        if isinstance(lines, bytes):
            found += [
                Failure(line + b"\n", b"", b"", "")
                for line in lines.removesuffix(b"\n").split(b"\n")
            ]
        else:
            found.append(lines)
    return found


def answers_of(rows: list[RecordEntry], reply: object) -> Answers:
    body = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    return sort_answers(parse_answer(body), [row.reference for row in rows if row.length])


def items_reply(items: object) -> dict[str, object]:
    return {"responses": items}


def joined(rows: list[RecordEntry], items: object, **more: Any) -> list[Failure]:
    return lines_of(rows, answers_of(rows, items_reply(items)), **more)


def good(number: int, **more: object) -> dict[str, object]:
    return {"id": number, "success": True, "result": {"response": f"answer {number}"}, **more}


def outcome(line: Failure) -> str:
    told: dict[str, Any] = json.loads(line.output)
    return "" if told["success"] else str(told["error"]["code"])
