"""Anything at all happens to a deployment, in any order, and what must hold holds; in the end it serves what the spec asks for.

A long run, with its number of sequences: ``DFLASH_MODEL_SEQUENCES=2000 pytest tests/unit/planning/test_model.py``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dflash_controller.analysis.verdict import MetricVerdict, Outcome
from dflash_controller.api import names
from dflash_controller.api.gates import GATE_SPECS
from tests.support.planning_watch import Watch, scene
from tests.support.planning_world import BIASED, FAILED, NODES, PASSED, UNDECIDED, World

DRAFTERS = ("a" * 40, "b" * 40, "c" * 40)
BUDGETS = (
    {},
    {"maxSurge": 1, "maxUnavailable": 0},
    {"maxSurge": 1, "maxUnavailable": 1},
    {"maxSurge": 2, "maxUnavailable": 2},
    {"maxSurge": 0, "maxUnavailable": 2},
    {"maxSurge": "25%", "maxUnavailable": "25%"},
    {"maxSurge": "50%", "maxUnavailable": 0},
    {"maxSurge": "0%", "maxUnavailable": "50%"},
    {"maxSurge": "100%", "maxUnavailable": "100%"},
)
VERDICTS = tuple(
    MetricVerdict(metric, Outcome.INCONCLUSIVE, "too few samples " * 40, candidate=1.02, stable=6.4, samples=12.0, age_s=3.5)
    for metric in (*GATE_SPECS, "text")
)
JUDGEMENTS = {
    outcome: replace(judgement, verdicts=VERDICTS)
    for outcome, judgement in {"passed": PASSED, "undecided": UNDECIDED, "failed": FAILED, "biased": BIASED}.items()
}
WINDOW = {"schedule": "0 22 * * *", "duration": "2h", "timeZone": "Europe/Berlin"}
SETTLE_ROUNDS = 80
ROUND_S = 25.0

REPLICAS = st.sampled_from([3, 2, 1, 4, 0, 5])
TURNS = st.integers(0, 3)
"""Operator and controllers go on for so long after something happened; without it most sequences would get nowhere."""

edits = st.one_of(
    REPLICAS.map(lambda count: ("replicas", count)),
    st.sampled_from(DRAFTERS).map(lambda commit: ("drafter", {"revision": commit})),
    st.sampled_from([16, 8, None]).map(lambda block: ("blockSize", block)),
    st.sampled_from([("drafter", None), ("restartId", "again"), ("restartId", "later"), ("suspend", None), ("suspend", True)]),
)
policies = st.one_of(
    st.sampled_from(BUDGETS),
    st.sampled_from([{"paused": None}, {"paused": True}, {"window": None}, {"window": WINDOW}]),
    st.sampled_from(
        [
            {"onInconclusive": "Hold"},
            {"onInconclusive": "Promote"},
            {"onInconclusive": "Rollback"},
            {"automaticRollback": False},
            {"automaticRollback": True},
            {"historyLimit": 1},
            {"historyLimit": 3},
            {"probe": {"enabled": False}},
            {"probe": None},
        ]
    ),
)
accidents = st.one_of(
    st.sampled_from(["fix", "hang", "end", "overdue", "in time", "scaled by hand"]).map(lambda what: (what, None)),
    st.tuples(st.sampled_from(["crash", "crash for good"]), st.sampled_from(["candidate", "stable", "any"])),
    st.tuples(st.sampled_from(["image", "quota"]), st.sampled_from(["candidate", "stable"])),
    st.sampled_from([None, 0, 2, 3, 4, 6]).map(lambda count: ("capacity", count)),
    st.tuples(st.sampled_from(["node dies", "node returns"]), st.sampled_from(NODES[:3])),
)
losses = st.one_of(
    st.just(("status", 0, "")),
    st.tuples(st.sampled_from(["trial", "probe"]), st.integers(0, 2), st.sampled_from(["", "{", "[]", "null"])),
    st.tuples(st.just("record"), st.integers(0, 2), st.just("")),
)


class DeploymentMachine(RuleBasedStateMachine):
    """Users, cluster, measurements and operator take turns in any order."""

    @initialize(
        replicas=REPLICAS,
        budget=st.sampled_from(BUDGETS),
        policy=policies,
        already=st.sampled_from(["new", "runs", "loading", "on trial", "given up"]),
    )
    def begin(self, replicas: int, budget: dict[str, Any], policy: dict[str, Any], already: str) -> None:
        rollout = {key: value for key, value in {**budget, **policy}.items() if value is not None}
        if "maxSurge" in policy:
            rollout = policy
        spec = {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": replicas, "tuning": {"mode": "Off"}, "rollout": rollout}
        self.world = World(spec)
        self.world.warm_up_s = 60.0
        self.watch = Watch(self.world)
        self.seen: list[str] = []
        if already != "new":
            self._turns(4)
        if already in ("loading", "on trial", "given up"):
            self.world.judgement = JUDGEMENTS["failed" if already == "given up" else "undecided"]
            self._edit({"drafter": {"revision": DRAFTERS[0]}})
            self._turns(6, start=already != "loading")

    # Users.

    @rule(change=edits, turns=TURNS)
    def edit(self, change: tuple[str, Any], turns: int) -> None:
        field, value = change
        self._edit({field: value})
        self._turns(turns)

    @rule(whom=st.sampled_from(["Superseded", "Retired", "Failed", "Stable"]), turns=TURNS)
    def go_back(self, whom: str, turns: int) -> None:
        """The spec as it was when it asked for that revision."""
        former = scene(self.world).revisions.get(str(self._name(whom)))
        if former is not None:
            written = {field: former.inputs.get(field) for field in ("drafter", "restartId")}
            self._edit({**written, "blockSize": former.block})
            self._turns(turns)

    @rule(change=policies, turns=TURNS)
    def edit_policy(self, change: dict[str, Any], turns: int) -> None:
        rollout = self.world.deployment["spec"].get("rollout") or {}
        if not change or "maxSurge" in change:
            rollout = {key: value for key, value in rollout.items() if key not in ("maxSurge", "maxUnavailable")}
        self._edit({"rollout": {key: value for key, value in {**rollout, **change}.items() if value is not None}})
        self._turns(turns)

    @rule(
        operation=st.sampled_from(["promote", "abort", "pin"]),
        whom=st.sampled_from(["Candidate", "Retired", "Superseded", "Failed", "Stable", "gone", "made up", None]),
        turns=TURNS,
    )
    def annotate(self, operation: str, whom: str | None, turns: int) -> None:
        annotations, key = self.world.deployment["metadata"].setdefault("annotations", {}), f"{names.GROUP}/{operation}"
        name = self._name(whom)
        if name is None:
            annotations.pop(key, None)
        elif annotations.get(key) != name:
            annotations[key] = name
            self.watch.asked(operation)
        self._turns(turns)

    # Measurements.

    @rule(outcome=st.sampled_from(sorted(JUDGEMENTS)), turns=TURNS)
    def judge(self, outcome: str, turns: int) -> None:
        self.world.judgement = JUDGEMENTS[outcome]
        self._turns(turns)

    @rule(outcome=st.sampled_from(["answered", "failing", "stale"]))
    def probe(self, outcome: str) -> None:
        self.world.answering = outcome == "answered"
        self.world.probe_error = "The stable replica answered none of the probe's first 5 prompts" if outcome == "failing" else None
        if outcome != "stale":
            self.world.probes = ()

    # The cluster.

    @rule(accident=accidents, turns=TURNS, start=st.booleans())
    def accident(self, accident: tuple[str, Any], turns: int, start: bool) -> None:
        what, which = accident
        world, candidates = self.world, [item.name for item in scene(self.world).of_state("Candidate")]
        match what:
            case "crash" | "crash for good":
                self._crash(which, 5 if what == "crash for good" else 3)
            case "image" | "quota":
                self._refuse(what, which)
            case "fix":
                self._fix()
            case "hang":
                for pod in list(world.pods.values())[:1]:
                    pod["hangs"] = True
            case "end":
                for pod in world.pods.values():
                    pod["hangs"] = False
            case "overdue":
                world.overdue = frozenset(name.removeprefix("chat-") for name in candidates)
            case "in time":
                world.overdue = frozenset()
            case "capacity":
                world.capacity = which
            case "node dies":
                world.lose_node(which)
            case "node returns":
                world.dead_nodes -= {which}
            case "scaled by hand":
                for item in world.of_kind("Deployment")[-1:]:
                    item["spec"]["replicas"] += 2
                    item["metadata"]["generation"] += 1
        self._turns(turns, start=start)

    @rule(start=st.booleans())
    def controllers(self, start: bool) -> None:
        self.world.controllers(start=start)

    @rule(seconds=st.sampled_from([1, 61, 301, 3600, 7201, 6 * 3600]), turns=TURNS)
    def wait(self, seconds: int, turns: int) -> None:
        self.world.advance(seconds)
        self._turns(turns)

    # The operator.

    @rule()
    def reconcile(self) -> None:
        self.watch.reconcile()

    @rule(steps=st.integers(0, 14))
    def killed(self, steps: int) -> None:
        self.watch.reconcile(stop_after=steps)

    @rule(loss=losses, turns=TURNS)
    def lose(self, loss: tuple[str, int, str], turns: int) -> None:
        what, which, text = loss
        records = sorted(self.world.of_kind("ControllerRevision"), key=lambda item: -int(item["revision"]))
        if what == "status":
            self.world.deployment.pop("status", None)
        elif records:
            record = records[which % len(records)]
            name = record["metadata"]["name"]
            if what == "record":
                # Its workload is what it can be made again from, as far as that has been written.
                workload = self.world.children.get(("Deployment", name))
                if workload is not None and _state(workload) == _state(record):
                    del self.world.children["ControllerRevision", name]
                    self.watch.lost.add(name)
            else:
                record["metadata"]["annotations"][f"{names.GROUP}/{what}"] = text
                if name in self.watch.courses:
                    self.watch.courses[name].forgotten = True
        self._turns(turns)

    # The end.

    def teardown(self) -> None:
        if hasattr(self, "world") and self.watch.content:
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        world, watch = self.world, self.watch
        rollout = {key: value for key, value in (world.deployment["spec"].get("rollout") or {}).items() if key not in ("paused", "window")}
        self._edit({"suspend": None, "rollout": rollout})
        for operation in ("promote", "abort", "pin"):
            world.deployment["metadata"].get("annotations", {}).pop(f"{names.GROUP}/{operation}", None)
        world.judgement, world.capacity, world.answering, world.probe_error = PASSED, None, True, None
        world.overdue = frozenset()
        self._fix()
        for pod in world.pods.values():
            pod["hangs"] = False
        self._settle()
        if scene(world).of_state("Candidate") and not watch.replicas:
            # All replicas were scaled away in the middle of a trial: it goes on when there are some.
            self._edit({"replicas": 1})
            self._settle()
        if world.deployment["status"]["rollout"]["reason"] == "ScaledToOne":
            # The trial waits for a second replica.
            self._edit({"replicas": 2})
            self._settle()
        if world.deployment["status"]["rollout"]["phase"] == "Held":
            # Only what is documented to wait for a human does, and one word from a human is enough.
            assert world.reason("Stalled") in ("AnalysisFailed", "EngineFailing", "ImageUnavailable"), world.reason("Stalled")
            assert world.serving() >= watch.replicas
            world.deployment["metadata"].setdefault("annotations", {})[names.ANNOTATION_PROMOTE] = world.deployment["status"][
                "candidateRevision"
            ]
            watch.asked("promote")
            self._settle()
        self._check_the_end()

    def _check_the_end(self) -> None:
        world, now = self.world, scene(self.world)
        assert world.serving() == self.watch.replicas
        assert list(now.replicas) == [now.in_force]
        assert len(now.of_state("Stable")) == 1
        assert not now.of_state("Candidate")
        failed = [item for item in now.of_state("Failed") if self.watch.is_asked_for(item)]
        wanted = now.revisions[str(now.in_force)]
        if failed and not self.watch.is_needed(wanted, now):
            assert (world.deployment["status"]["rollout"]["phase"], world.condition("Ready")) == ("RolledBack", "False")
            assert (world.condition("Stalled"), world.condition("Available")) == ("True", "True")
        else:
            assert self.watch.is_needed(wanted, now)
            assert (world.condition("Ready"), world.condition("Stalled"), world.condition("Reconciling")) == ("True", "False", "False")
        shown = world.deployment["status"]
        for seconds in (30, 600, 86400):
            world.advance(seconds)
            assert self.watch.reconcile() == 0, "a settled deployment is written to"
            assert world.deployment["status"] == shown

    def _settle(self) -> None:
        """Until four rounds in a row change nothing: a replica gets warm meanwhile, and answers the probe."""
        quiet = 0
        for _ in range(SETTLE_ROUNDS):
            written = self.watch.reconcile()
            quiet = 0 if self.world.controllers() or written or self.world.probes else quiet + 1
            if quiet == 4:
                return
            self.world.advance(ROUND_S)
        raise AssertionError("does not settle")

    def _turns(self, count: int, *, start: bool = True) -> None:
        for _ in range(count):
            self.watch.reconcile()
            self.world.controllers(start=start)
            self.world.advance(ROUND_S)

    def _edit(self, change: dict[str, Any]) -> None:
        spec = {**self.world.deployment["spec"], **change}
        self.world.edit(lambda old: (old.clear(), old.update({key: value for key, value in spec.items() if value is not None}))[0])

    def _name(self, whom: str | None) -> str | None:
        """A revision in that state, the one that failed or ran long ago, or none there is."""
        now = scene(self.world)
        self.seen += [name for name in sorted(now.revisions) if name not in self.seen]
        if whom == "gone":
            return next((name for name in self.seen if name not in now.revisions), "chat-rnothing")
        if whom is None or whom == "made up":
            return whom and "chat-rnothing"
        return max(((item.number, item.name) for item in now.of_state(whom)), default=(0, "chat-rnothing"))[1]

    def _crash(self, whose: str, restarts: int) -> None:
        self.world.restarts, now = restarts, scene(self.world)
        for pod in self.world.pods.values():
            name = f"chat-{pod['revision']}"
            state = now.revisions[name].state if name in now.revisions else None
            if whose == "any" or (state == "Candidate" if whose == "candidate" else name == now.in_force):
                pod.update(broken=True, ready=False)
                if whose == "any":
                    return

    def _refuse(self, what: str, whose: str) -> None:
        """New pods of a revision cannot start: their image is gone, or a quota refuses them."""
        now = scene(self.world)
        chosen = [item.name for item in now.of_state("Candidate")] if whose == "candidate" else [now.in_force or ""]
        for name in chosen:
            if what == "image":
                self.world.troubles[name.removeprefix("chat-")] = {"waiting_reason": "ImagePullBackOff", "container": "engine"}
            else:
                self.world.refused[name.removeprefix("chat-")] = "exceeded quota: gpus"

    def _fix(self) -> None:
        self.world.troubles.clear()
        self.world.refused.clear()
        for pod in self.world.pods.values():
            pod["broken"] = False


def _state(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["annotations"][names.ANNOTATION_STATE])


PARTS = 2
"""So many processors can share the sequences."""
SEQUENCES = int(os.environ.get("DFLASH_MODEL_SEQUENCES", "100")) // PARTS
STEPS = 30


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_happens_the_invariants_hold_and_the_spec_wins(part: int, capsys: pytest.CaptureFixture[str]) -> None:
    begun = 0

    class Counted(DeploymentMachine):
        def __init__(self) -> None:
            nonlocal begun
            begun += 1
            super().__init__()

    # Where the examples are the same each time, the parts must still differ.
    machine = seed(part)(Counted) if settings().derandomize else Counted
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        machine,
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=False,
        ),
    )
    assert begun >= SEQUENCES
    if "DFLASH_MODEL_SEQUENCES" in os.environ:
        with capsys.disabled():
            print(f"\n{begun} sequences of up to {STEPS} rules", file=sys.__stderr__)
