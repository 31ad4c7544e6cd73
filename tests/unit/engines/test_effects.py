"""Every resolved value says what a change of it does to performance."""

from __future__ import annotations

from dataclasses import fields

from dflash_controller.engines.resolved import EFFECTS, PART_OF_FIELD, STEP_TIME_FIELDS, Resolved


def test_every_field_declares_its_effect() -> None:
    assert list(EFFECTS) == [field.name for field in fields(Resolved)]
    assert [name for name, effect in EFFECTS.items() if effect is None] == []


def test_what_changes_step_times_is_a_change_that_is_judged() -> None:
    """The tuner's curve would start anew under a candidate that nobody has compared."""
    assert STEP_TIME_FIELDS
    assert set(STEP_TIME_FIELDS) <= set(PART_OF_FIELD)
