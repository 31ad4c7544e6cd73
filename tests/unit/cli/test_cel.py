"""The part of CEL that the rules of the CustomResourceDefinition are written in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest

from dflash_controller.api.crd import crd
from dflash_controller.cli.cel import CelError, NotEvaluated, evaluate, parsed
from dflash_controller.engines import ENGINES


@pytest.mark.parametrize(
    ("expression", "value", "result"),
    [
        ("self == 1 || self == 2", 2, True),
        ("!(self > 1) && self % 2 == 1", 1, True),
        ("has(self.a.b) ? self.a.b : 'none'", {"a": {}}, "none"),
        ("self.a.all(x, x <= 3)", {"a": [1, 2, 4]}, False),
        ("self.a.exists_one(x, x == 4)", {"a": [4, 4]}, False),
        ("self.a.filter(x, x > 1)[0]", {"a": [1, 2, 4]}, 2),
        ("self.a.map(x, x + 1)", {"a": [1, 2]}, [2, 3]),
        ("self.all(k, !k.startsWith('x/') && !(k in ['a', 'b']))", {"c": 1}, True),
        ("self['a'].split('=')[0] + '!'", {"a": "b=c"}, "b!"),
        (r"self.matches(r'^[\p{L}]+$')", "ü", True),
        ("self.a__dash__b == 1", {"a-b": 1}, True),
        ("type(self) == int || isQuantity(string(self))", "1Gi", True),
        ("type(self) == int", True, False),
        ("quantity('1Gi').compareTo(quantity(string(self))) <= 0", "1G", False),
        ("[has(self.a), has(self.b)].exists_one(given, given)", {"a": 1}, True),
    ],
)
def test_expressions(expression: str, value: Any, result: Any) -> None:
    assert evaluate(expression, value) == result


@pytest.mark.parametrize("expression", ["self.reduce(x, x)", "timestamp(self)", "self ~ 1", "(self", "self.a.all(", "has(1)", "1 1"])
def test_what_is_not_known_is_an_error_and_not_true(expression: str) -> None:
    with pytest.raises(CelError) as refused:
        evaluate(expression, {"a": []})
    assert not isinstance(refused.value, NotEvaluated)


def test_a_value_that_an_expression_cannot_be_evaluated_on() -> None:
    with pytest.raises(NotEvaluated, match="not a quantity"):
        evaluate("quantity(self) == 1", "")


def rules(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        for rule in node.get("x-kubernetes-validations", ()):
            yield rule["rule"]
            yield from filter(None, [rule.get("messageExpression")])
        for inner in node.values():
            yield from rules(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from rules(inner)


def test_every_rule_of_the_definition_can_be_parsed() -> None:
    found = set(rules(crd({name: engine.owned_flags() for name, engine in ENGINES.items()})))
    assert len(found) > 30
    for rule in found:
        # No object fits all rules. What cannot be parsed never gets as far as a missing field.
        with suppress(KeyError, TypeError, AttributeError, IndexError):
            parsed(rule)({"self": {}})
