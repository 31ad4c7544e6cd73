"""``rollout status`` answers for the present spec: refused, not seen, not begun; and what it waits for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Self

import pytest

from dflash_controller.cli import connection, standing
from dflash_controller.cli.failures import NEGATIVE, OK
from dflash_controller.cli.program import run
from dflash_controller.cli.where import Where

COMPLETED = {"phase": "Completed", "reason": "Completed", "revision": "qwen-r1", "message": "qwen-r1 is active"}


def condition(kind: str, status: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": f"{reason} is why"}


def deployment(*conditions: dict[str, str], seen: int | None = 7, phase: str = "Completed", **metadata: Any) -> dict[str, Any]:
    status = {"rollout": {**COMPLETED, "phase": phase}, "conditions": list(conditions)}
    return {
        "metadata": {"name": "qwen", "namespace": "default", "generation": 7, **metadata},
        "spec": {},
        "status": status if seen is None else {**status, "observedGeneration": seen},
    }


GOOD = (condition("Stalled", "False", "NotStalled"), condition("Ready", "True", "AsSpecified"))
Answer = Callable[..., tuple[int, str, str]]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Answer:
    """Runs ``rollout status`` on a cluster whose deployment is one object after the other, the last one for ever."""

    def call(objects: Sequence[dict[str, Any]], *options: str) -> tuple[int, str, str]:
        left = list(objects)

        class Stored:
            def __init__(self, where: Where) -> None:
                pass

            def __enter__(self) -> Self:
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def deployment(self, name: str) -> dict[str, Any]:
                return left.pop(0) if len(left) > 1 else left[0]

        monkeypatch.setattr(connection, "Cluster", Stored)
        monkeypatch.setattr("time.sleep", lambda seconds: None)
        status = run(["rollout", "status", "qwen", *options])
        return status, *capsys.readouterr()

    return call


@pytest.mark.parametrize("options", [(), ("--wait",)], ids=["now", "wait"])
@pytest.mark.parametrize("reason", ["InvalidSpec", "NameTaken", "PairUnknown"])
def test_a_spec_that_is_refused_is_a_negative_answer_at_once(answer: Answer, reason: str, options: tuple[str, ...]) -> None:
    refused = deployment(condition("Stalled", "True", reason), condition("Ready", "False", reason))
    status, out, _ = answer([refused], *options)
    first, second = out.splitlines()
    assert (status, first) == (NEGATIVE, f"qwen: Stalled, {reason}: {reason} is why")
    assert second.startswith("Last rollout: Completed qwen-r1")


def test_programs_read_the_rollout_and_people_why_it_does_not_count(answer: Answer) -> None:
    status, out, err = answer([deployment(condition("Stalled", "True", "NameTaken"))], "-o", "json")
    assert (status, json.loads(out), err) == (NEGATIVE, COMPLETED, "qwen: Stalled, NameTaken: NameTaken is why\n")


@pytest.mark.parametrize(("seen", "shown"), [(6, "6"), (None, "none")])
def test_a_spec_that_no_operator_has_seen_is_a_negative_answer(answer: Answer, seen: int | None, shown: str) -> None:
    before = deployment(*GOOD, seen=seen)
    status, out, _ = answer([before])
    said = f"the operator has not seen this change yet (generation 7, seen {shown})"
    assert (status, out.splitlines()[0]) == (NEGATIVE, f"qwen: {said}")
    status, out, _ = answer([before, before, deployment(*GOOD)], "--wait")
    assert (status, out.count(said), out.splitlines()[-1].split()[0]) == (OK, 1, "Completed")
    assert answer([before], "--wait", "--timeout", "0")[0] == NEGATIVE


@pytest.mark.parametrize("reason", ["RevisionNotResolved", "LeaderWorkerSetMissing", "HubUnreachable", "WritesFail", "QuotaExceeded"])
def test_what_ends_by_itself_is_waited_for_and_named(answer: Answer, reason: str) -> None:
    stalled = deployment(condition("Stalled", "True", reason))
    assert answer([stalled])[0] == NEGATIVE
    status, out, _ = answer([stalled, stalled, deployment(*GOOD)], "--wait")
    assert (status, out.splitlines()[0]) == (OK, f"waits, because this can end by itself: Stalled, {reason}: {reason} is why")


def test_a_spec_without_a_revision_yet_is_not_the_rollout_before(answer: Answer) -> None:
    asks = deployment(condition("Reconciling", "True", "ResolvingRevisions"))
    status, out, _ = answer([asks, deployment(*GOOD, phase="Progressing"), deployment(*GOOD)], "--wait")
    assert status == OK
    assert [line.split()[0] for line in out.splitlines()] == ["waits,", "Progressing", "Completed"]


@pytest.mark.parametrize(
    ("phase", "reason"), [("RolledBack", "RolledBack"), ("RolledBack", "Aborted"), ("Held", "AnalysisDeadlineExceeded")]
)
def test_a_rollout_that_failed_is_told_by_its_phase(answer: Answer, phase: str, reason: str) -> None:
    failed = deployment(condition("Stalled", "True", reason), phase=phase)
    status, out, _ = answer([failed], "--wait")
    assert (status, out.split()[0]) == (NEGATIVE, phase)
    turning = deployment(condition("Stalled", "True", "RolledBack"), phase="RollingBack")
    assert answer([turning])[0] == NEGATIVE
    status, out, _ = answer([turning, failed], "--wait")
    assert (status, out.splitlines()[-1].split()[0]) == (NEGATIVE, phase), "it waits until the replicas are back"


def test_a_stall_after_a_failed_rollout_is_about_another_spec() -> None:
    found = standing.of(deployment(condition("Stalled", "True", "InvalidSpec"), phase="RolledBack"))
    assert found == standing.Standing(True, False, "Stalled, InvalidSpec: InvalidSpec is why")


def test_a_deletion_is_no_change_that_is_not_seen() -> None:
    going = deployment(*GOOD, seen=6, deletionTimestamp="2026-11-29T12:00:00Z")
    assert standing.unseen(going) == ""
    assert standing.of(going) == standing.Standing(True, False, "it is being deleted since 2026-11-29T12:00:00Z")
