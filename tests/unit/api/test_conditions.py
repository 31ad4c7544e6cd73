"""Conditions: when they move, what they keep, and that every reason is documented."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from dflash_controller.api.conditions import MAX_MESSAGE, REASONS, ConditionType, Reason, get_condition, set_condition, shorten, timestamp
from dflash_controller.api.status import Condition

NOW = datetime(2026, 11, 28, 1, 2, 3, 456, tzinfo=UTC)
LATER = NOW + timedelta(minutes=5)


def ready(existing: Any, status: bool | None, reason: Reason = Reason.AS_SPECIFIED, message: str = "m", now: datetime = LATER) -> Any:
    return set_condition(existing, ConditionType.READY, status, reason, message, 3, now)


def test_a_new_condition_is_complete() -> None:
    (condition,) = ready([], True, now=NOW)
    assert condition == {
        "type": "Ready",
        "status": "True",
        "reason": "AsSpecified",
        "message": "m",
        "observedGeneration": 3,
        "lastTransitionTime": "2026-11-28T01:02:03Z",
    }
    Condition.model_validate(condition)


def test_nothing_changed_gives_the_same_list() -> None:
    conditions = ready([], True, now=NOW)
    assert ready(conditions, True) is conditions


@pytest.mark.parametrize(("status", "moved"), [(True, False), (False, True), (None, True)])
def test_the_time_moves_only_with_the_status(status: bool | None, moved: bool) -> None:
    (condition,) = ready(ready([], True, now=NOW), status, Reason.STARTING, "other")
    assert condition["lastTransitionTime"] == timestamp(LATER if moved else NOW)
    assert (condition["reason"], condition["message"]) == ("Starting", "other")


def test_the_input_is_left_alone_and_others_are_kept_in_order() -> None:
    first = ready([], True, now=NOW)
    both = set_condition(first, ConditionType.AVAILABLE, True, Reason.ENOUGH_REPLICAS, "", 3, NOW)
    both = set_condition(both, ConditionType.STALLED, False, Reason.NOT_STALLED, "", 3, NOW)
    assert [condition["type"] for condition in both] == ["Available", "Ready", "Stalled"]
    assert len(first) == 1
    found = get_condition(both, ConditionType.STALLED)
    assert found is not None
    assert found["status"] == "False"
    assert get_condition(first, ConditionType.STALLED) is None


def test_a_foreign_condition_is_kept() -> None:
    foreign = {"type": "Audited", "status": "True", "reason": "Yes", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    assert foreign in ready([foreign], True)


def test_long_messages_are_cut() -> None:
    (condition,) = ready([], True, message="x" * 5000)
    assert len(condition["message"]) == MAX_MESSAGE
    assert condition["message"].endswith("…")
    assert shorten("short") == "short"


def test_timestamps_are_in_utc() -> None:
    assert timestamp(datetime(2026, 1, 1, 1, 0, tzinfo=timezone(timedelta(hours=2)))) == "2025-12-31T23:00:00Z"


def test_every_reason_is_documented_and_well_formed() -> None:
    assert set(REASONS) == set(Reason)
    for reason, doc in REASONS.items():
        assert re.fullmatch(r"[A-Z][A-Za-z]{1,63}", reason), reason
        assert doc.meaning.endswith("."), reason
        assert doc.remedy == "" or doc.remedy.endswith("."), reason
    needing = (
        Reason.INVALID_SPEC,
        Reason.DRAFTER_MISMATCH,
        Reason.PAIR_UNKNOWN,
        Reason.NAME_TAKEN,
        Reason.ROLLED_BACK,
        Reason.ANALYSIS_DEADLINE_EXCEEDED,
    )
    assert all(REASONS[reason].remedy for reason in needing)
