"""The registry of metrics, the types of the spec and the defaults name the same gates and the same fields."""

from __future__ import annotations

from typing import Any

import pytest

from dflash_controller.api.gates import GATE_SPECS, Analysis
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.problem import Problem
from dflash_controller.api.schema import submodel

COMMON = ("enabled", "limit", "minSamples", "interval")
WRITTEN: dict[str, tuple[Any, str, Any]] = {
    "enabled": (False, "enabled", False),
    "limit": (7, "limit", 7),
    "minSamples": (11, "min_samples", 11),
    "window": ("13m", "window_s", 780),
    "interval": ("17s", "interval_s", 17),
    "failureLimit": (19, "failure_limit", 19),
}
"""What is written, and the field and value it becomes; none of the values is a default."""


def analysis(**gates: Any) -> Any:
    return {"spec": {"target": {"model": "Qwen/Qwen3.5-9B"}, "rollout": {"analysis": gates}}}


def test_every_metric_has_its_field_in_the_spec_of_its_own_type() -> None:
    fields = {str(field.alias): submodel(field.annotation) for field in Analysis.model_fields.values()}
    assert fields == {name: spec.type for name, spec in GATE_SPECS.items()}
    assert list(fields) == list(GATE_SPECS), "verdicts are shown in the order of the spec"


@pytest.mark.parametrize("name", GATE_SPECS)
def test_every_field_of_a_gate_changes_exactly_one_value(name: str) -> None:
    default = GATE_SPECS[name].default
    assert set(COMMON) <= set(GATE_SPECS[name].fields) <= set(WRITTEN)
    for field in GATE_SPECS[name].fields:
        written, attribute, value = WRITTEN[field]
        spec = parse_spec(analysis(**{name: {field: written}}))
        assert not isinstance(spec, list), spec
        gates = spec.rollout.analysis.gates()
        changed = {item for item in type(default).__dataclass_fields__ if getattr(gates[name], item) != getattr(default, item)}
        assert (changed, getattr(gates[name], attribute)) == ({attribute}, value), field
        assert {other: gate for other, gate in gates.items() if other != name} == {
            other: spec.default for other, spec in GATE_SPECS.items() if other != name
        }


@pytest.mark.parametrize("name", GATE_SPECS)
def test_a_gate_without_a_field_refuses_it_and_has_no_value_for_it(name: str) -> None:
    for field in WRITTEN.keys() - set(GATE_SPECS[name].fields):
        written, attribute, _ = WRITTEN[field]
        remedy = f"Remove it, or check its spelling with kubectl explain dfd.spec.rollout.analysis.{name} --recursive."
        assert parse_spec(analysis(**{name: {field: written}})) == [
            Problem(f"spec.rollout.analysis.{name}.{field}", "is not a field", remedy)
        ]
        assert getattr(GATE_SPECS[name].default, attribute) == 0


def test_only_fields_with_an_effect_are_published() -> None:
    missing = {name: WRITTEN.keys() - set(spec.fields) for name, spec in GATE_SPECS.items()}
    assert {name: fields for name, fields in missing.items() if fields} == {
        "acceptanceLength": {"window", "failureLimit"},
        "speed": {"window", "failureLimit"},
        "restarts": {"failureLimit"},
    }
