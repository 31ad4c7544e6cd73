"""Every metric of the API is evaluated, and asked only where it means something."""

from __future__ import annotations

import pytest

from dflash_controller.analysis.gates import GUARDRAILS, PRIMARY_METRICS, applicable
from dflash_controller.api.gates import GATE_SPECS, Role
from dflash_controller.model.change import Change, Part


def test_every_metric_is_evaluated_by_its_role_and_in_the_order_of_the_spec() -> None:
    assert list(PRIMARY_METRICS) == [name for name, spec in GATE_SPECS.items() if spec.role is Role.PRIMARY]
    assert list(GUARDRAILS) == [name for name, spec in GATE_SPECS.items() if spec.role is Role.GUARDRAIL]


def test_every_metric_means_something_for_some_change() -> None:
    assert frozenset.union(*(applicable(Change(frozenset({part}), 16, 16)) for part in Part)) == set(GATE_SPECS)


@pytest.mark.parametrize("first", Part)
@pytest.mark.parametrize("second", Part)
def test_several_changes_leave_what_each_of_them_leaves(first: Part, second: Part) -> None:
    alone = [applicable(Change(frozenset({part}), 16, 16)) for part in (first, second)]
    assert applicable(Change(frozenset({first, second}), 16, 16)) == alone[0] & alone[1]


@pytest.mark.parametrize(("candidate", "stable"), [(1, 16), (16, 1), (1, 1)])
def test_acceptance_length_means_nothing_where_a_side_drafts_nothing(candidate: int, stable: int) -> None:
    drafter = frozenset({Part.DRAFTER})
    assert applicable(Change(drafter, 16, 16)) - applicable(Change(drafter, candidate, stable)) == {"acceptanceLength"}
