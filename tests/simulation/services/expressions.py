"""DynamoDB's expressions, as far as Dropbatch writes them: conditions, updates, key conditions. Others raise.

An expression is compiled once, by its text, into functions of an item and the names and values of a call. Items are in
wire form and are never changed: an update makes a new one.
"""

from __future__ import annotations

import operator
import re
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Item = Mapping[str, Any]
    Names = Mapping[str, str]
    Values = Mapping[str, Any]
    Condition = Callable[[Item, Names, Values], bool]
    Operand = Callable[[Item, Names, Values], Any]

_TOKEN = re.compile(r"\s*(<>|<=|>=|[=<>(),+.]|[#:]?\w+)")
_COMPARE = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class NotSimulatedError(BaseException):
    """Dropbatch uses something of AWS that the simulation does not have: add it there. No code may handle it."""


def value_of(wire: Any) -> Any:
    """A value that compares as DynamoDB compares it: numbers by value, everything else by its wire form."""
    ((kind, value),) = wire.items()
    if kind == "N":
        return float(value)
    return value if kind == "S" else _comparable(wire)


def _comparable(wire: Any) -> Any:
    ((kind, value),) = wire.items()
    match kind:
        case "N":
            return ("N", float(value))
        case "L":
            return ("L", tuple(map(_comparable, value)))
        case "M":
            return ("M", tuple(sorted((name, _comparable(member)) for name, member in value.items())))
        case "SS":
            return ("SS", tuple(sorted(value)))
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

    def path(self) -> Callable[[Names], tuple[str, ...]]:
        parts = [self.take()]
        while self.peek() == ".":
            self.take()
            parts.append(self.take())
        if any(part.startswith(":") or not re.match(r"[#\w]", part) for part in parts):
            raise NotSimulatedError(self.text)
        if not any(part.startswith("#") for part in parts):
            fixed = tuple(parts)
            return lambda _: fixed
        return lambda names: tuple(names[part] if part.startswith("#") else part for part in parts)

    # ── conditions ───────────────────────────────────────────────────────────────────────────────────────────────

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
        if token == "(":
            self.take()
            inner = self.either()
            self.take(")")
            return inner
        if token.upper() == "NOT":
            self.take()
            return _not(self.single())
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
        path = self.path()
        if name == "begins_with":
            self.take(",")
            value = self.take()
            self.take(")")
            return lambda item, names, values: str((_at(item, path(names)) or {}).get("S", "\0")).startswith(
                values[value]["S"]
            )
        self.take(")")
        wanted = name == "attribute_exists"
        return lambda item, names, _: (_at(item, path(names)) is not None) is wanted

    # ── updates ──────────────────────────────────────────────────────────────────────────────────────────────────

    def update(self) -> list[tuple[Callable[[Names], tuple[str, ...]], Operand | None]]:
        """Pairs of a path and its new value; None removes it."""
        changes: list[tuple[Callable[[Names], tuple[str, ...]], Operand | None]] = []
        while self.peek():
            clause = self.take().upper()
            if clause not in {"SET", "REMOVE"}:
                raise NotSimulatedError(self.text)
            while True:
                path = self.path()
                if clause == "SET":
                    self.take("=")
                    changes.append((path, self.operand()))
                else:
                    changes.append((path, None))
                if self.peek() != ",":
                    break
                self.take()
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
        path = self.path()
        return lambda item, names, _: _at(item, path(names))


def _at(item: Item, path: tuple[str, ...]) -> Any:
    found: Any = item.get(path[0])
    for part in path[1:]:
        found = found.get("M", {}).get(part) if found else None
    return found


def _sum(first: Any, second: Any) -> dict[str, str]:
    if not first or not second:
        raise NotSimulatedError("a sum with an attribute that does not exist, which DynamoDB refuses")
    return {"N": str(Decimal(first["N"]) + Decimal(second["N"]))}


def _or(left: Condition, right: Condition) -> Condition:
    return lambda item, names, values: left(item, names, values) or right(item, names, values)


def _and(left: Condition, right: Condition) -> Condition:
    return lambda item, names, values: left(item, names, values) and right(item, names, values)


def _not(inner: Condition) -> Condition:
    return lambda item, names, values: not inner(item, names, values)


def _between(path: Callable[[Names], tuple[str, ...]], low: str, high: str) -> Condition:
    def holds(item: Item, names: Names, values: Values) -> bool:
        found = _at(item, path(names))
        return found is not None and value_of(values[low]) <= value_of(found) <= value_of(values[high])

    return holds


def _compared(path: Callable[[Names], tuple[str, ...]], sign: Callable[[Any, Any], bool], value: str) -> Condition:
    equality = sign in {operator.eq, operator.ne}

    def holds(item: Item, names: Names, values: Values) -> bool:
        found, wanted = _at(item, path(names)), values[value]
        if found is None:
            return sign is operator.ne
        if found.keys() != wanted.keys():
            return sign is operator.ne
        if equality and found == wanted:
            return sign is operator.eq
        return bool(sign(value_of(found), value_of(wanted)))

    return holds


@cache
def condition(text: str) -> Condition:
    """A compiled condition; a key condition is one too.

    Raises:
        NotSimulatedError: Dropbatch did not write such expressions before.
    """
    parser = _Parser(text)
    compiled = parser.either()
    if parser.peek():
        raise NotSimulatedError(text)
    return compiled


@cache
def _update(text: str) -> list[tuple[Callable[[Names], tuple[str, ...]], Operand | None]]:
    return _Parser(text).update()


def normal(wire: Any) -> Any:
    """A value as DynamoDB stores it: numbers without what does not count."""
    ((kind, value),) = wire.items()
    match kind:
        case "N":
            if value.isdecimal():
                return wire
            text = f"{Decimal(value):f}"
            return {"N": (text.rstrip("0").rstrip(".") or "0") if "." in text else text}
        case "L":
            return {"L": [normal(member) for member in value]}
        case "M":
            return {"M": {name: normal(member) for name, member in value.items()}}
        case _:
            return wire


def projected(item: Item, text: str, names: Names) -> dict[str, Any]:
    """The attributes of an item, and members of them, that a projection names."""
    found: dict[str, Any] = {}
    for path in _projection(text):
        first, *inner = path(names)
        value = _at(item, (first, *inner))
        if value is not None:
            for part in reversed(inner):
                value = {"M": {part: value}}
            found[first] = value
    return found


@cache
def _projection(text: str) -> list[Callable[[Names], tuple[str, ...]]]:
    parser = _Parser(text)
    paths = [parser.path()]
    while parser.peek():
        parser.take(",")
        paths.append(parser.path())
    return paths


def changed(item: Item, text: str, names: Names) -> dict[str, Any]:
    """The attributes of an item that an update expression names, as far as they are there afterwards."""
    places = [path(names) for path, _ in _update(text)]
    return {place[0]: item[place[0]] for place in places if place[0] in item}


def updated(item: Item, text: str, names: Names, values: Values) -> dict[str, Any]:
    """A new item: as an update expression leaves this one."""
    new = dict(item)
    for path, operand in _update(text):
        place = path(names)
        if len(place) != 1:
            raise NotSimulatedError(text)
        if operand is None:
            new.pop(place[0], None)
        else:
            new[place[0]] = normal(operand(item, names, values))
    return new
