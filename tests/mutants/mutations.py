"""Small defects that can be put into a module, each as a change of its text.

A condition dropped, a bound shifted.

Conditions are detected from the form of the code, not from file names: an entry of a dict that is
passed as `expected`, a ConditionExpression, `IfNoneMatch`, a row of a table of enum members, an
`if` that only leaves, a comparison, a time after `now`. So conditions that are added later are
found too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

SHIFTED = {ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">")}
UNCONDITIONAL = frozenset({"IfNoneMatch", "IfMatch"})
CONDITION = "ConditionExpression"
EXPECTED = "expected"
"""The parameter for the values that an item must have for a write to be made."""


@dataclass(frozen=True)
class Mutation:
    """One defect.

    Attributes:
        scope: name of the class and the function, or of the table, that it is in.
        line: its line, from 1.
        what: what it does, described without a line number.
        start: offset in the module's bytes of what is replaced, and `stop` its end.
        new: the replacement.
    """

    scope: str
    line: int
    what: str
    start: int
    stop: int
    new: str

    def applied_to(self, source: str) -> str:
        """The module with the defect."""
        content = source.encode()
        return (content[: self.start] + self.new.encode() + content[self.stop :]).decode()


def mutations(source: str, *, guards: bool = True) -> list[Mutation]:
    """All defects of a module, in the order of its lines, each with a unique name.

    Args:
        source: the module's text.
        guards: whether to also break control flow: an `if` that leaves, a comparison, a wait.
    """
    module = _Module(source)
    found = [*module.conditions(), *module.rows()]
    if guards:
        found += [*module.guards(), *module.bounds(), *module.times()]
    names: dict[tuple[str, str], int] = {}
    numbered = []
    for one in sorted(found, key=lambda mutation: (mutation.start, mutation.what)):
        times = names[one.scope, one.what] = names.get((one.scope, one.what), 0) + 1
        what = one.what if times == 1 else f"{one.what} ({times})"
        numbered.append(Mutation(one.scope, one.line, what, one.start, one.stop, one.new))
    return numbered


class _Module:
    def __init__(self, source: str) -> None:
        self.content = source.encode()
        self.tree = ast.parse(source)
        self.scopes: dict[ast.AST, str] = {}
        self.nodes: list[ast.AST] = []
        self._walk(self.tree, ())

    def _walk(self, node: ast.AST, names: tuple[str, ...]) -> None:
        for child in ast.iter_child_nodes(node):
            inner = names
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                inner = (*names, child.name)
            elif not names and isinstance(child, ast.Assign | ast.AnnAssign):
                target = child.targets[0] if isinstance(child, ast.Assign) else child.target
                inner = (ast.unparse(target),)
            self.scopes[child] = ".".join(inner)
            # before Python 3.12 positions within an f-string are wrong
            if not isinstance(child, ast.JoinedStr):
                self.nodes.append(child)
                self._walk(child, inner)

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        for line in self.content.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return starts

    def _span(self, node: ast.expr) -> tuple[int, int]:
        stop = self._line_starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
        return self._line_starts[node.lineno - 1] + node.col_offset, stop

    def _text(self, node: ast.expr) -> str:
        start, stop = self._span(node)
        return " ".join(self.content[start:stop].decode().split())

    def _replace(self, node: ast.expr, new: str, what: str) -> Mutation:
        return Mutation(self.scopes[node], node.lineno, what, *self._span(node), new)

    def _drop(self, node: ast.expr, first: int, last: int, what: str) -> Mutation:
        """Drop an entry with the comma after it."""
        rest = self.content[last:]
        comma = len(rest) - len(rest.lstrip())
        stop = last + comma + 1 if rest[comma : comma + 1] == b"," else last
        return Mutation(self.scopes[node], node.lineno, what, first, stop, "")

    # ── conditions of writes ──────────────────────────────────────────────────────────────────────

    def conditions(self) -> Iterator[Mutation]:
        """Each condition of each write, dropped."""
        for given in self._expected():
            for key, value in zip(given.keys, given.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    what = f"without the condition on `{key.value}`"
                    yield self._drop(key, self._span(key)[0], self._span(value)[1], what)
        for name, value, start in self._named():
            if name in UNCONDITIONAL:
                yield self._drop(value, start, self._span(value)[1], f"without {name}")
            elif name == CONDITION and isinstance(value, ast.Constant):
                yield from self._clauses(value)
        for node in self.nodes:
            match node:
                case ast.Assign(targets=[ast.Name(id="conditions")], value=ast.List(elts=clauses)):
                    yield from (one for clause in clauses for one in self._clauses(clause))

    def _named(self) -> Iterator[tuple[str, ast.expr, int]]:
        """What is passed by name, as an argument or in a dict."""
        for node in self.nodes:
            match node:
                case ast.keyword(arg=str(name), value=value):
                    yield name, value, self._span(value)[0] - len(f"{name}=")
                case ast.Dict(keys=keys, values=values):
                    for key, value in zip(keys, values, strict=True):
                        if isinstance(key, ast.Constant) and isinstance(key.value, str):
                            yield key.value, value, self._span(key)[0]

    def _clauses(self, node: ast.expr) -> Iterator[Mutation]:
        """Each clause, made true."""
        clauses = ast.literal_eval(node).split(" AND ")
        for clause in clauses:
            true = f"({clause} OR attribute_not_exists(never))"
            new = " AND ".join(true if one is clause else one for one in clauses)
            yield self._replace(node, repr(new), f"without `{clause}`")

    def _expected(self) -> Iterator[ast.Dict]:
        """The dicts of what an item must have."""
        functions = {node.name: node for node in self.nodes if isinstance(node, ast.FunctionDef)}
        places = {}
        for name, function in functions.items():
            names = [argument.arg for argument in function.args.args if argument.arg != "self"]
            if EXPECTED in names:
                places[name] = names.index(EXPECTED)
        makers = set()
        for node in self.nodes:
            if isinstance(node, ast.Call) and (called := _called(node)) in places:
                given = next((one.value for one in node.keywords if one.arg == EXPECTED), None)
                given = given or (
                    node.args[places[called]] if len(node.args) > places[called] else None
                )
                if isinstance(given, ast.Dict):
                    yield given
                elif isinstance(given, ast.Call):
                    makers.add(_called(given))
        for name in sorted(makers & set(functions)):
            for node in ast.walk(functions[name]):
                if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
                    yield node.value

    # ── tables ────────────────────────────────────────────────────────────────────────────────────

    def rows(self) -> Iterator[Mutation]:
        """Each row of a table of enum members changed to another member."""
        for statement in self.tree.body:
            value = getattr(statement, "value", None)
            if isinstance(value, ast.Dict):
                members = {self._text(one) for one in value.values if _is_member(one)}
                for key, one in zip(value.keys, value.values, strict=True):
                    if key is not None and _is_member(one) and len(members) > 1:
                        other = min(members - {self._text(one)})
                        yield self._replace(one, other, f"`{self._text(key)}` is {other}")
            for inner in ast.walk(value) if isinstance(value, ast.Call) else ():
                if isinstance(inner, ast.Set) and len(inner.elts) > 1:
                    for one in inner.elts:
                        if isinstance(one, ast.Constant) and isinstance(one.value, int):
                            yield self._drop(one, *self._span(one), f"without {one.value}")

    # ── control flow ──────────────────────────────────────────────────────────────────────────────

    def guards(self) -> Iterator[Mutation]:
        """Each `if` that only leaves, made never to."""
        for node in self.nodes:
            if (
                isinstance(node, ast.If)
                and _only_leaves(node.body)
                and "TYPE_CHECKING" not in self._text(node.test)
            ):
                yield self._replace(node.test, "False", f"never `{self._text(node.test)}`")
            if isinstance(node, ast.BoolOp):
                for one in node.values:
                    neutral = "True" if isinstance(node.op, ast.And) else "False"
                    word = "and" if isinstance(node.op, ast.And) else "or"
                    if not any(isinstance(inner, ast.NamedExpr) for inner in ast.walk(one)):
                        yield self._replace(one, neutral, f"without `{word} {self._text(one)}`")

    def bounds(self) -> Iterator[Mutation]:
        """Each bound shifted."""
        for node in self.nodes:
            match node:
                case ast.Compare(ops=operators):
                    sides = [node.left, *node.comparators]
                    for (left, right), operator in zip(pairwise(sides), operators, strict=True):
                        if type(operator) not in SHIFTED:
                            continue
                        old, new = SHIFTED[type(operator)]
                        start, stop = self._span(left)[1], self._span(right)[0]
                        between = self.content[start:stop].decode().replace(old, new, 1)
                        what = f"`{new}` for `{old}` in `{self._text(node)}`"
                        yield Mutation(self.scopes[node], node.lineno, what, start, stop, between)
                case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=1)):
                    yield self._replace(
                        node, self._source(left), f"without the one in `{self._text(node)}`"
                    )
                case ast.Call(
                    func=ast.Name(id="min" | "max" as which), args=[_, _] as sides, keywords=[]
                ):
                    for side, other in (sides, sides[::-1]):
                        if not isinstance(side, ast.Starred) and not isinstance(other, ast.Starred):
                            what = f"not {which} with `{self._text(other)}` in `{self._text(node)}`"
                            yield self._replace(node, self._source(side), what)
                case _:
                    pass

    def _source(self, node: ast.expr) -> str:
        start, stop = self._span(node)
        return f"({self.content[start:stop].decode()})"

    def times(self) -> Iterator[Mutation]:
        """Each time after `now` made now: a wait of no time, a claim that ends immediately."""
        for node in self.nodes:
            match node:
                case ast.BinOp(left=ast.Name(id="now" | "began" as name), op=ast.Add()):
                    yield self._replace(node, name, f"`{name}` for `{self._text(node)}`")
                case ast.BinOp(left=ast.Call(func=ast.Attribute(attr="now")) as call, op=ast.Add()):
                    yield self._replace(node, self._text(call), f"now for `{self._text(node)}`")
                case _:
                    pass


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _is_member(node: ast.expr) -> bool:
    return (
        isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr.isupper()
    )


def _only_leaves(body: list[ast.stmt]) -> bool:
    leaves = (ast.Return, ast.Raise, ast.Continue, ast.Break)
    return isinstance(body[-1], leaves) and len(body) <= 2
