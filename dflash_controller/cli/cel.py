"""Evaluates the CEL expressions of the CustomResourceDefinition without an API server.

It knows the part of the language that the rules of ``api.rules`` and the patterns of ``api.patterns`` use, with the functions that
Kubernetes adds to it. An expression outside this part raises ``CelError`` when it is parsed, so a new rule is never skipped silently.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from typing import Annotated, Any

from pydantic import StringConstraints, TypeAdapter, ValidationError

from dflash_controller.api.quantity import parse_quantity

_TOKEN = re.compile(
    r"\s*(?:(?P<raw>r'[^']*')|(?P<text>'(?:[^'\\]|\\.)*')|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[!<>?:()\[\].,%+-]))"
)
_ESCAPED = re.compile(r"__(dash|dot|slash|underscores)__")
_ESCAPES = {"dash": "-", "dot": ".", "slash": "/", "underscores": "__"}
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": lambda one, other: one == other,
    "!=": lambda one, other: one != other,
    "<=": lambda one, other: one <= other,
    ">=": lambda one, other: one >= other,
    "<": lambda one, other: one < other,
    ">": lambda one, other: one > other,
}
_MACROS = frozenset({"all", "exists", "exists_one", "filter", "map"})
Scope = Mapping[str, Any]
Expression = Callable[[Scope], Any]


class CelError(ValueError):
    """The expression is outside the part of CEL that is known."""


class NotEvaluated(CelError):
    """The expression has no value for this object, for instance because a text is no quantity. The API server refuses the object then."""


@dataclass(frozen=True, slots=True)
class _Type:
    """What ``type(x)`` returns and what ``int`` means beside it."""

    name: str


def evaluate(expression: str, value: Any) -> Any:
    """Returns the value of an expression about ``self``. Raises NotEvaluated, or CelError for one that is not known."""
    function = parsed(expression)
    try:
        return function({"self": value})
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NotEvaluated(str(error)) from error


@cache
def parsed(expression: str) -> Expression:
    """Returns the function that an expression stands for. Raises CelError if it is outside the part of CEL that is known."""
    parser = _Parser(expression)
    found = parser.ternary()
    parser.expect("")
    return found


class _Parser:
    """Recursive descent, one method for each level of precedence, the loosest first."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [*_tokens(text), ("end", "")]
        self._place = 0

    def ternary(self) -> Expression:
        test = self._or()
        if not self._takes("?"):
            return test
        yes = self.ternary()
        self.expect(":")
        no = self.ternary()
        return lambda scope: yes(scope) if test(scope) else no(scope)

    def _or(self) -> Expression:
        found = self._and()
        while self._takes("||"):
            found = _either(found, self._and())
        return found

    def _and(self) -> Expression:
        found = self._relation()
        while self._takes("&&"):
            found = _both(found, self._relation())
        return found

    def _relation(self) -> Expression:
        found = self._sum()
        while True:
            kind, sign = self._tokens[self._place]
            if kind == "sign" and sign in _COMPARED:
                self._place += 1
                found = _compared(_COMPARED[sign], found, self._sum())
            elif (kind, sign) == ("name", "in"):
                self._place += 1
                found = _contained(found, self._sum())
            else:
                return found

    def _sum(self) -> Expression:
        found = self._product()
        while self._takes("+"):
            found = _added(found, self._product())
        return found

    def _product(self) -> Expression:
        found = self._unary()
        while self._takes("%"):
            found = _remainder(found, self._unary())
        return found

    def _unary(self) -> Expression:
        if self._takes("!"):
            inner = self._unary()
            return lambda scope: not inner(scope)
        return self._postfix(self._primary())

    def _postfix(self, found: Expression) -> Expression:
        while True:
            if self._takes("."):
                name = self._name()
                found = self._call(found, name) if self._takes("(") else _member(found, name)
            elif self._takes("["):
                found = _item(found, self.ternary())
                self.expect("]")
            else:
                return found

    def _call(self, receiver: Expression, name: str) -> Expression:
        if name in _MACROS:
            variable = self._name()
            self.expect(",")
            body = self.ternary()
            self.expect(")")
            return _macro(name, receiver, variable, body)
        if name not in _METHODS:
            raise CelError(f"{self._text}: unknown method {name}")
        return _method(_METHODS[name], receiver, self._arguments())

    def _arguments(self) -> list[Expression]:
        found: list[Expression] = []
        while not self._takes(")"):
            found.append(self.ternary())
            self._takes(",")
        return found

    def _primary(self) -> Expression:
        kind, token = self._tokens[self._place]
        self._place += 1
        if kind == "raw":
            return _constant(token[2:-1])
        if kind == "text":
            return _constant(re.sub(r"\\(.)", r"\1", token[1:-1]))
        if kind == "number":
            return _constant(int(token))
        if token == "(":
            inner = self.ternary()
            self.expect(")")
            return inner
        if token == "[":
            return self._list()
        if kind == "name":
            return self._named(token)
        raise CelError(f"{self._text}: unexpected {token or 'end'}")

    def _list(self) -> Expression:
        items: list[Expression] = []
        while not self._takes("]"):
            items.append(self.ternary())
            self._takes(",")
        return lambda scope: [item(scope) for item in items]

    def _named(self, name: str) -> Expression:
        if name in ("true", "false"):
            return _constant(name == "true")
        if self._takes("("):
            if name == "has":
                return self._has()
            if name not in _FUNCTIONS:
                raise CelError(f"{self._text}: unknown function {name}")
            return _function(_FUNCTIONS[name], self._arguments())
        if name == "int":
            return _constant(_Type("int"))
        return lambda scope: scope[name]

    def _has(self) -> Expression:
        path = [self._name()]
        while self._takes("."):
            path.append(_unescaped(self._name()))
        self.expect(")")

        def has(scope: Scope) -> bool:
            value = scope[path[0]]
            for name in path[1:-1]:
                value = value[name]
            return path[-1] in value

        return has

    def _name(self) -> str:
        kind, token = self._tokens[self._place]
        if kind != "name":
            raise CelError(f"{self._text}: a name is expected, not {token or 'the end'}")
        self._place += 1
        return token

    def _takes(self, sign: str) -> bool:
        found = self._tokens[self._place] == ("sign", sign)
        self._place += found
        return found

    def expect(self, sign: str) -> None:
        kind, token = self._tokens[self._place]
        if kind not in ("sign", "end") or token != sign:
            raise CelError(f"{self._text}: {sign or 'the end'} is expected, not {token}")
        self._place += 1


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    place = 0
    while text[place:].strip():
        match = _TOKEN.match(text, place)
        if match is None:
            raise CelError(f"{text}: {text[place:].strip()[:20]} cannot be read")
        yield str(match.lastgroup), match[str(match.lastgroup)]
        place = match.end()


def _constant(value: Any) -> Expression:
    return lambda scope: value


def _either(one: Expression, other: Expression) -> Expression:
    return lambda scope: one(scope) or other(scope)


def _both(one: Expression, other: Expression) -> Expression:
    return lambda scope: one(scope) and other(scope)


def _compared(compare: Callable[[Any, Any], bool], one: Expression, other: Expression) -> Expression:
    return lambda scope: compare(one(scope), other(scope))


def _contained(item: Expression, container: Expression) -> Expression:
    return lambda scope: item(scope) in container(scope)


def _added(one: Expression, other: Expression) -> Expression:
    return lambda scope: one(scope) + other(scope)


def _remainder(one: Expression, other: Expression) -> Expression:
    return lambda scope: one(scope) % other(scope)


def _member(receiver: Expression, name: str) -> Expression:
    return lambda scope: receiver(scope)[_unescaped(name)]


def _item(receiver: Expression, index: Expression) -> Expression:
    return lambda scope: receiver(scope)[index(scope)]


def _function(function: Callable[..., Any], arguments: list[Expression]) -> Expression:
    return lambda scope: function(*(argument(scope) for argument in arguments))


def _method(method: Callable[..., Any], receiver: Expression, arguments: list[Expression]) -> Expression:
    return lambda scope: method(receiver(scope), *(argument(scope) for argument in arguments))


def _macro(name: str, receiver: Expression, variable: str, body: Expression) -> Expression:
    if name == "map":
        return lambda scope: [body({**scope, variable: item}) for item in receiver(scope)]

    def results(scope: Scope) -> list[tuple[Any, bool]]:
        return [(item, bool(body({**scope, variable: item}))) for item in receiver(scope)]

    if name == "all":
        return lambda scope: all(holds for _, holds in results(scope))
    if name == "exists":
        return lambda scope: any(holds for _, holds in results(scope))
    if name == "exists_one":
        return lambda scope: sum(holds for _, holds in results(scope)) == 1
    return lambda scope: [item for item, holds in results(scope) if holds]


def _unescaped(name: str) -> str:
    """CEL has no field name with a dash: ``ephemeral__dash__storage`` stands for ``ephemeral-storage``."""
    return _ESCAPED.sub(lambda match: _ESCAPES[match[1]], name)


@cache
def _pattern(pattern: str) -> TypeAdapter[str]:
    """pydantic's engine for patterns knows RE2's classes, such as ``\\p{L}``; Python's own does not."""
    return TypeAdapter(Annotated[str, StringConstraints(pattern=pattern)])


def matches(text: str, pattern: str) -> bool:
    """Returns whether a text matches an RE2 pattern, as the API server reads it."""
    try:
        _pattern(pattern).validate_python(text)
    except ValidationError:
        return False
    return True


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True


def _order(one: Decimal, other: Decimal) -> int:
    return (one > other) - (one < other)


def _type(value: Any) -> _Type:
    return _Type("int" if isinstance(value, int) and not isinstance(value, bool) else type(value).__name__)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {"string": str, "quantity": parse_quantity, "isQuantity": _is_quantity, "type": _type}
_METHODS: Mapping[str, Callable[..., Any]] = {
    "compareTo": _order,
    "contains": lambda text, part: part in text,
    "endsWith": str.endswith,
    "isSorted": lambda items: items == sorted(items),
    "matches": matches,
    "size": len,
    "split": str.split,
    "startsWith": str.startswith,
}
