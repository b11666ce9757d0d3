"""DynamoDB's expressions, the most usual of them: conditions, updates, key conditions.

Others raise. An expression is compiled once, by its text, into functions of an item and the names
and values of a call. Items are in wire form and are never changed: an update makes a new one.
"""

import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, DecimalException
from functools import cache
from typing import Any

from boto3.dynamodb.types import DYNAMODB_CONTEXT

from simulation.services.errors import refused

Item = Mapping[str, Any]
Names = Mapping[str, str]
Values = Mapping[str, Any]
Condition = Callable[[Item, Names, Values], bool]
Operand = Callable[[Item, Names, Values], Any]
Path = tuple[str, ...]

_TOKEN = re.compile(r"\s*(<>|<=|>=|[=<>(),+.]|[#:]?\w+)")
_NORMAL = re.compile(r"-?[1-9][0-9]*(\.[0-9]*[1-9])?|0|-?0\.[0-9]*[1-9]", re.ASCII)
"""A number that DynamoDB stores as it is written."""
_COMPARE = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


_KEY_CONDITION = re.compile(
    r"(?P<name>#?\w+) = (?P<partition>:\w+)"
    r"( AND (begins_with\(#?\w+, (?P<prefix>:\w+)\)|#?\w+ BETWEEN (?P<low>:\w+) AND "
    r"(?P<high>:\w+)))?"
)


class NotSimulatedError(BaseException):
    """Something of AWS was used that the simulation does not have: add it there."""


@cache
def key_condition(text: str) -> dict[str, str]:
    """What a key condition names: the partition key, its value, and the bounds of the sort key."""
    found = _KEY_CONDITION.fullmatch(text)
    if found is None:
        raise NotSimulatedError(text)
    return found.groupdict("")


def _comparable(wire: Any) -> Any:
    """A value, with its type, that compares as DynamoDB compares it."""
    ((kind, value),) = wire.items()
    match kind:
        case "N":
            return (kind, float(value))
        case "L":
            return (kind, tuple(map(_comparable, value)))
        case "M":
            return (kind, sorted((name, _comparable(member)) for name, member in value.items()))
        case "SS":
            return (kind, sorted(value))
        case _:
            return (kind, value)


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _TOKEN.findall(text)
        if "".join(self.tokens) != re.sub(r"\s+", "", text):
            raise NotSimulatedError(text)
        self.place = 0

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def take(self, wanted: str = "") -> str:
        token = self.peek()
        if not token or (wanted and token.upper() != wanted):
            raise NotSimulatedError(f"{self.text!r} at {token!r}, expected {wanted or 'more'}")
        self.place += 1
        return token

    def path(self) -> Path:
        parts = [self.take()]
        while self.peek() == ".":
            self.take()
            parts.append(self.take())
        if any(part.startswith(":") or not re.match(r"[#\w]", part) for part in parts):
            raise NotSimulatedError(self.text)
        return tuple(parts)

    # ── conditions ────────────────────────────────────────────────────────────────────────────────

    def either(self) -> Condition:
        left = self.both()
        while self.peek().upper() == "OR":
            self.take()
            left = _or(left, self.both())
        return left

    def both(self) -> Condition:
        left = self.single()
        while self.peek().upper() == "AND":
            self.take()
            left = _and(left, self.single())
        return left

    def single(self) -> Condition:
        token = self.peek()
        if token == "(":  # noqa: S105 - of an expression
            self.take()
            inner = self.either()
            self.take(")")
            return inner
        if token in {"attribute_exists", "attribute_not_exists", "begins_with"}:
            return self.function(self.take())
        path = self.path()
        sign = self.take()
        if sign.upper() == "BETWEEN":
            low = self.take()
            self.take("AND")
            return _between(path, low, self.take())
        if sign not in _COMPARE:
            raise NotSimulatedError(self.text)
        return _compared(path, _COMPARE[sign], self.take())

    def function(self, name: str) -> Condition:
        self.take("(")
        find = _finder(self.path())
        if name == "begins_with":
            self.take(",")
            value = self.take()
            self.take(")")
            return lambda item, names, values: _begins(find(item, names), values[value])
        self.take(")")
        exists = name == "attribute_exists"
        return lambda item, names, _: (find(item, names) is not None) is exists

    # ── updates ───────────────────────────────────────────────────────────────────────────────────

    def update(self) -> list[tuple[str, Operand | None]]:
        """Pairs of an attribute and its new value; None removes it."""
        changes: list[tuple[str, Operand | None]] = []
        clause = ""
        while word := self.peek():
            clause = clause if word == "," else word.upper()
            self.take()
            name, *inner = self.path()
            if inner or clause not in {"SET", "REMOVE"}:
                raise NotSimulatedError(self.text)
            if clause == "SET":
                self.take("=")
            changes.append((name, self.operand() if clause == "SET" else None))
        return changes

    def operand(self) -> Operand:
        first = self.term()
        if self.peek() != "+":
            return first
        self.take()
        second = self.term()
        return lambda *given: _sum(first(*given), second(*given))

    def term(self) -> Operand:
        if self.peek().startswith(":"):
            token = self.take()
            return lambda _item, _names, values: values[token]
        find = _finder(self.path())
        return lambda item, names, _: find(item, names)


def _begins(found: Any, prefix: Any) -> bool:
    return bool(found) and "S" in found and found["S"].startswith(prefix["S"])


def _finder(path: Path) -> Callable[[Item, Names], Any]:
    """A function that finds what a path names."""
    first, *inner = path
    if inner:
        return lambda item, names: _at(item, tuple(names.get(part, part) for part in path))
    if first.startswith("#"):
        return lambda item, names: item.get(names[first])
    return lambda item, _: item.get(first)


def _at(item: Item, path: tuple[str, ...]) -> Any:
    found: Any = item.get(path[0])
    for part in path[1:]:
        found = found.get("M", {}).get(part) if found else None
    return found


def _sum(first: Any, second: Any) -> dict[str, str]:
    if not first or not second:
        raise NotSimulatedError(
            "a sum with an attribute that does not exist, which DynamoDB refuses"
        )
    return {"N": str(Decimal(first["N"]) + Decimal(second["N"]))}


def _or(left: Condition, right: Condition) -> Condition:
    return lambda item, names, values: left(item, names, values) or right(item, names, values)


def _and(left: Condition, right: Condition) -> Condition:
    return lambda item, names, values: left(item, names, values) and right(item, names, values)


def _between(path: Path, low: str, high: str) -> Condition:
    find = _finder(path)

    def holds(item: Item, names: Names, values: Values) -> bool:
        found = find(item, names)
        bounds = _comparable(values[low]), _comparable(values[high])
        return found is not None and bounds[0] <= _comparable(found) <= bounds[1]

    return holds


def _compared(path: Path, sign: Callable[[Any, Any], bool], value: str) -> Condition:
    equality, find = sign in {operator.eq, operator.ne}, _finder(path)

    def holds(item: Item, names: Names, values: Values) -> bool:
        found, wanted = find(item, names), values[value]
        if found is None or found.keys() != wanted.keys():
            return sign is operator.ne
        if equality and found == wanted:
            return sign is operator.eq
        return bool(sign(_comparable(found), _comparable(wanted)))

    return holds


@cache
def condition(text: str) -> Condition:
    """A compiled condition; a key condition is one too."""
    parser = _Parser(text)
    compiled = parser.either()
    if parser.peek():
        raise NotSimulatedError(text)
    return compiled


@cache
def _update(text: str) -> list[tuple[str, Operand | None]]:
    return _Parser(text).update()


MAX_DIGITS = 38


def normal(wire: Any) -> Any:
    """A value as DynamoDB stores it: numbers without what does not count."""
    ((kind, value),) = wire.items()
    match kind:
        case "N":
            is_normal = _NORMAL.fullmatch(value) and len(value) <= MAX_DIGITS
            return wire if is_normal else {"N": _number(value)}
        case "L":
            return {"L": [normal(member) for member in value]}
        case "M":
            return {"M": {name: normal(member) for name, member in value.items()}}
        case _:
            return wire


def _number(text: str) -> str:
    try:
        number = DYNAMODB_CONTEXT.create_decimal(text)
    except DecimalException:
        raise refused("ValidationException", "DynamoDB") from None
    if not number.is_finite():
        raise refused("ValidationException", "DynamoDB")
    text = f"{number:f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


def projected(item: Item, text: str, names: Names) -> dict[str, Any]:
    """The attributes of an item, and members of them, that a projection names."""
    found: dict[str, Any] = {}
    for path in _projection(text):
        first, *inner = (names.get(part, part) for part in path)
        value = _at(item, (first, *inner))
        if value is not None:
            for part in reversed(inner):
                value = {"M": {part: value}}
            found[first] = value
    return found


@cache
def _projection(text: str) -> list[Path]:
    parser = _Parser(text)
    paths = [parser.path()]
    while parser.peek():
        parser.take(",")
        paths.append(parser.path())
    return paths


def changed(item: Item, text: str, names: Names) -> dict[str, Any]:
    places = [names.get(name, name) for name, _ in _update(text)]
    return {place: item[place] for place in places if place in item}


def updated(item: Item, text: str, names: Names, values: Values) -> dict[str, Any]:
    new = dict(item)
    for name, operand in _update(text):
        place = names.get(name, name)
        if operand is None:
            new.pop(place, None)
        else:
            new[place] = normal(operand(item, names, values))
    return new
