"""What ``status`` shows: the allowed loss as a bar, what matters most as the headline, and nothing that is not there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from dflash_controller.cli import screen, standing
from dflash_controller.cli.commands.status import one
from dflash_controller.planning.revisions.revision import RevisionState, read
from tests.support.stored_revisions import stored

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def deployment(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "qwen", "namespace": "default"}, "spec": {"target": {"model": "a/b"}}, "status": status}


def condition(kind: str, status: str, reason: str = "R") -> dict[str, str]:
    return {"type": kind, "status": status, "reason": reason, "message": f"{reason} is why"}


@pytest.mark.parametrize(
    ("metric", "candidate", "stable", "limit", "used"),
    [
        ("acceptanceLength", 4.75, 5.0, 5.0, 1.0),
        ("probeSpeed", 97.5, 100.0, 5.0, 0.5),
        ("speed", 120.0, 100.0, 5.0, 0.0),
        ("ttft", 1.1, 1.0, 20.0, 0.5),
        ("errors", 1.5, 1.0, 1.0, 0.5),
        ("restarts", 1.0, None, 0.0, 1.0),
        ("restarts", 0.0, None, 0.0, 0.0),
        ("speed", None, 1.0, 5.0, None),
        ("text", 1.0, 1.0, 1.0, None),
    ],
)
def test_a_bar_is_the_used_part_of_the_allowed_loss(
    metric: str, candidate: float | None, stable: float | None, limit: float, used: float | None
) -> None:
    item = {"metric": metric, "verdict": "Inconclusive", "candidate": candidate, "stable": stable, "limit": limit}
    [line] = screen.verdicts(deployment(rollout={"phase": "Analyzing", "analysis": [item]}))
    assert line.used == (None if used is None else pytest.approx(used))
    assert len(line.bar) == screen.BAR
    assert line.bar.count("█") == round((used or 0) * screen.BAR)


def test_the_headline_is_what_matters_most() -> None:
    ready = condition("Ready", "True", "AsSpecified")
    assert screen.headline(deployment(conditions=[ready]))[0] == "Ready=True AsSpecified"
    stalled = condition("Stalled", "True", "InvalidSpec")
    found = screen.headline(deployment(conditions=[condition("Ready", "False", "InvalidSpec"), stalled]))
    assert found == ("Stalled=True InvalidSpec", "InvalidSpec is why")
    assert screen.headline({"metadata": {}, "spec": {}})[0] == "not seen by an operator yet"


def test_metrics_that_are_not_known_are_left_out() -> None:
    shown = dict(screen.facts(deployment(serving="1/2", metrics={"acceptanceLength": 5.731}), NOW))
    assert shown["acceptance"] == "5.73 tokens per verify step"
    assert shown["replicas"] == "1/2 serving"
    assert "speed" not in shown
    assert "block size" not in shown


BUSY = {
    "acceptanceLength": 5.73,
    "tokensPerSecond": 800.0,
    "stepTimeMilliseconds": 19.1,
    "concurrency": 12.0,
    "measuredAt": "2026-11-29T09:00:00Z",
}


def test_measured_values_say_of_which_time_they_are() -> None:
    shown = dict(screen.facts(deployment(metrics=BUSY), NOW))
    assert shown["speed"] == "800 tokens/s, all replicas"
    assert shown["concurrency"] == "12 requests in service per replica"
    assert shown["measured"] == "3 h ago, over the window before; no value has left 10 % of it since"
    assert "traffic" not in shown
    blind = {"type": "MetricsAvailable", "status": "False", "reason": "PrometheusUnreachable", "message": "It does not answer"}
    shown = dict(screen.facts(deployment(metrics=BUSY, conditions=[blind]), NOW))
    assert shown["measured"] == "3 h ago, over the window before"
    assert shown["now"] == "not measured, PrometheusUnreachable: It does not answer"


@pytest.mark.parametrize("zero", ["tokensPerSecond", "concurrency"])
def test_an_idle_deployment_shows_no_load_of_another_time(zero: str) -> None:
    idle = deployment(metrics={**BUSY, zero: 0.0})
    shown = dict(screen.facts(idle, NOW))
    assert (shown["speed"], shown["concurrency"]) == ("-", "-")
    assert shown["acceptance"] == "5.73 tokens per verify step, when there was traffic"
    assert shown["step time"] == "19.1 ms per verify step, when there was traffic"
    assert shown["traffic"] == "idle since 2026-11-29T09:00:00Z or earlier (3 h ago)"
    assert "measured" not in shown
    assert screen.row(idle)[4:6] == ["-", "-"]
    assert screen.row(deployment(metrics=BUSY))[4:6] == ["5.73", "800"]


BLIND = {**condition("MetricsAvailable", "False", "PrometheusError"), "lastTransitionTime": "2026-11-29T10:00:00Z"}


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_traffic_that_is_not_measured_is_not_known_and_never_idle(status: str) -> None:
    blind = deployment(metrics={**BUSY, "tokensPerSecond": 0.0}, conditions=[{**BLIND, "status": status}])
    shown = dict(screen.facts(blind, NOW))
    assert shown["traffic"] == "not known since 2026-11-29T10:00:00Z: PrometheusError"
    assert shown["now"] == "not measured, PrometheusError: PrometheusError is why"
    assert "idle" not in str(shown)
    assert screen.idle_since(blind["status"]) == ""
    assert screen.row(deployment(metrics=BUSY, conditions=[BLIND]))[4:6] == ["-", "-"], "they are not of now"


def test_a_time_without_measurements_was_not_idle() -> None:
    again = {**BLIND, "status": "True", "lastTransitionTime": "2026-11-29T11:00:00Z"}
    idle = deployment(metrics={**BUSY, "tokensPerSecond": 0.0}, conditions=[again])
    assert dict(screen.facts(idle, NOW))["traffic"] == "idle since 2026-11-29T11:00:00Z or earlier (60 min ago)"
    early = deployment(metrics={**BUSY, "tokensPerSecond": 0.0}, conditions=[{**again, "lastTransitionTime": "2026-11-29T01:00:00Z"}])
    assert screen.idle_since(early["status"]) == "2026-11-29T09:00:00Z"


def unseen(**status: Any) -> dict[str, Any]:
    found = deployment(**status)
    return {**found, "metadata": {**found["metadata"], "generation": 7}}


def test_a_spec_that_the_operator_has_not_seen_is_not_ready_as_specified() -> None:
    ready = condition("Ready", "True", "AsSpecified")
    before = unseen(observedGeneration=6, conditions=[ready])
    state, message = screen.headline(before)
    assert state == "Unknown NotSeen"
    assert message.startswith(
        "The operator has not seen this spec (generation 7, seen 6). Of the one before it said Ready=True AsSpecified"
    )
    assert (screen.row(before)[1], screen.row(before)[-1]) == ("Unknown", "NotSeen")
    seen = unseen(observedGeneration=7, conditions=[ready])
    assert (screen.row(seen)[1], screen.row(seen)[-1]) == ("True", "AsSpecified")
    new = {**unseen(), "status": {}}
    assert (screen.headline(new)[0], screen.row(new)[-1]) == ("not seen by an operator yet", "NotSeen")


def test_an_operator_that_is_gone_measures_nothing() -> None:
    left = ("dflash-system/dflash-operator", "2026-11-29T11:58:00Z")
    idle = deployment(metrics={**BUSY, "tokensPerSecond": 0.0}, conditions=[condition("Ready", "True", "AsSpecified")])
    lines = [str(part) for part in one(idle, [], NOW, None, left)]
    assert (
        lines[2]
        == "Does the operator run? Nobody has renewed its Lease dflash-system/dflash-operator since 2026-11-29T11:58:00Z (2 min ago)"
    )
    assert (
        dict(screen.facts(idle, NOW, left=left[1]))["traffic"] == "not known since 2026-11-29T11:58:00Z: nobody renews the operator's Lease"
    )
    assert screen.outlived(idle, left) == left
    later = deployment(metrics={**BUSY, "measuredAt": "2026-11-29T11:59:00Z"})
    assert screen.outlived(later, left) is None, "its operator works without that Lease"
    assert not any("Lease" in str(part) for part in one(idle, [], NOW, None))


def test_what_runs_is_that_of_the_active_revision_and_not_of_the_spec() -> None:
    runs = {"target": {"model": "Qwen/Qwen3.5-9B"}, "blockSize": 16}
    stable = read(stored("raaaaaaa", 1, RevisionState.STABLE, runs))
    asked = {**deployment(), "spec": runs}
    same = dict(screen.facts(asked, NOW, stable))
    assert same["target"] == "Qwen/Qwen3.5-9B"
    assert "asked for" not in same
    other = dict(screen.facts({**asked, "spec": {**runs, "target": {"model": "Qwen/Qwen3-8B"}, "restartId": "again"}}, NOW, stable))
    assert other["target"] == "Qwen/Qwen3.5-9B"
    assert other["asked for"] == 'spec.target.model: "Qwen/Qwen3.5-9B" -> "Qwen/Qwen3-8B", spec.restartId: not set -> "again"'
    unknown = dict(screen.facts(asked, NOW))
    assert "target" not in unknown
    assert unknown["asked for"] == "target Qwen/Qwen3.5-9B"


def test_a_schedule_shows_block_sizes_by_requests() -> None:
    speculation = {"mode": "Schedule", "ranges": [[1, 8, 15], [9, 64, 7]], "label": "schedule-16"}
    shown = dict(screen.facts(deployment(speculation=speculation), NOW))
    assert shown["block size"] == "schedule-16 (1 to 8 requests: 16, 9 to 64 requests: 8)"


def test_the_newest_decisions_come_first() -> None:
    events = [
        {"metadata": {}, "reason": f"R{place}", "message": "m", "lastTimestamp": f"2026-11-29T11:{place:02}:00Z"} for place in range(10)
    ]
    found = list(screen.decisions(events, NOW))
    assert [reason for _, reason, _ in found] == ["R9", "R8", "R7", "R6", "R5", "R4"]
    assert found[0][0] == "51 min ago"


@pytest.mark.parametrize(
    ("phase", "ready", "wrong"),
    [
        ("Completed", "True", False),
        ("Superseded", "True", False),
        ("Superseded", "False", True),
        ("Analyzing", "False", False),
        ("Held", "False", True),
        ("RolledBack", "False", True),
    ],
)
def test_a_superseded_rollout_is_fine_where_the_deployment_is_ready(phase: str, ready: str, wrong: bool) -> None:
    assert standing.went_wrong(deployment(rollout={"phase": phase}, conditions=[condition("Ready", ready)])) is wrong


@pytest.mark.parametrize(("reason", "shown"), [("Learning", "Learning: no traffic"), ("Exploring", "Learning, Exploring: no traffic")])
def test_a_state_and_its_reason_are_said_once_where_they_are_alike(reason: str, shown: str) -> None:
    tuning = {"state": "Learning", "reason": reason, "message": "no traffic"}
    assert dict(screen.facts(deployment(tuning=tuning), NOW))["tuner"] == shown
    completed = deployment(rollout={"phase": "Completed", "reason": "Completed", "revision": "qwen-r1"})
    assert screen.rollout(completed, NOW).startswith("Completed qwen-r1, ")
