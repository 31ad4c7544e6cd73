"""Anything at all happens to a deployment, in any order, and what must hold holds; in the end it serves what the spec asks for.

A long run, with its number of sequences: ``DFLASH_MODEL_SEQUENCES=2000 pytest tests/unit/planning/test_model.py``.
"""

from __future__ import annotations

import copy
import os
import sys
from collections import Counter
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
from tests.support.planning_world import BIASED, FAILED, NODES, PASSED, STATUS, UNDECIDED, WORKLOADS, Advice, Refusal, World

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
ACCESSORIES = ("Service", "PodDisruptionBudget", "NetworkPolicy", "PodMonitor")
REFUSALS = (
    Refusal(403, "forbidden: exceeded quota: services"),
    Refusal(403, "forbidden: User cannot patch resource"),
    Refusal(409, "the object has been modified"),
    Refusal(422, "spec: Invalid value: field is immutable"),
    Refusal(400, "admission webhook denied the request: no"),
    Refusal(500, "failed calling webhook: connection refused"),
)
MOST_REPLICAS = 6
SETTLE_ROUNDS = 80
ROUND_S = 25.0
STUCK_ROUNDS = 15
"""Minutes after which a candidate that cannot start has been given up."""
OBSTACLE_ROUNDS = 12
WAITS_FOR_A_SECOND = ("DowntimeNotAllowed", "ScaledToOne")
"""A second replica lets the trial go on."""
WAITS_FOR_A_HUMAN = ("AnalysisFailed", "EngineFailing", "ImageUnavailable", "ScaledToOne", "ScaledToZero")
TAKEN = [{"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "x", "controller": True}]

EVENTS: Counter[tuple[str, str]] = Counter()
"""What happened in which phase, in all sequences."""

REPLICAS = st.sampled_from([3, 2, 1, 4, 0, 5])
TURNS = st.integers(0, 3)
"""Operator and controllers go on for so long after something happened; without it most sequences would get nowhere."""

edits = st.one_of(
    REPLICAS.map(lambda count: ("replicas", count)),
    st.sampled_from(DRAFTERS).map(lambda commit: ("drafter", {"revision": commit})),
    st.sampled_from([16, 8, None, 32, "what runs"]).map(lambda block: ("blockSize", block)),
    st.sampled_from(["search", "chat"]).map(lambda team: ("podTemplate", {"metadata": {"labels": {"team": team}}})),
    st.sampled_from(["Auto", "Off", "Advise"]).map(lambda mode: ("tuning", {"mode": mode})),
    st.sampled_from([("drafter", None), ("restartId", "again"), ("restartId", "later"), ("suspend", None), ("suspend", True)]),
)
"""A block size of 32 breaks a rule."""
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
    st.sampled_from(["fix", "hang", "end", "overdue", "in time", "scaled by hand", "gates", "no gates"]).map(lambda what: (what, None)),
    st.tuples(
        st.sampled_from(["crash", "crash for good", "flicker", "restarted long ago"]), st.sampled_from(["candidate", "stable", "any"])
    ),
    st.tuples(st.sampled_from(["flicker all", "orphan", "delete", "recreate", "worker"]), st.sampled_from(["candidate", "stable"])),
    st.tuples(st.sampled_from(["image", "quota"]), st.sampled_from(["candidate", "stable"])),
    st.tuples(st.sampled_from(["served", "not served"]), st.sampled_from(["LeaderWorkerSet", "PodMonitor"])),
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
        already=st.sampled_from(["new", "runs", "loading", "on trial", "given up", "progressing", "exits"]),
        mode=st.sampled_from(["Off", "Off", "Auto"]),
        nodes=st.sampled_from([1, 1, 2]),
    )
    def begin(self, replicas: int, budget: dict[str, Any], policy: dict[str, Any], already: str, mode: str, nodes: int) -> None:
        rollout = {key: value for key, value in {**budget, **policy}.items() if value is not None}
        if "maxSurge" in policy:
            rollout = policy
        if already == "progressing":
            replicas += 2
        spec = {"target": {"model": "Qwen/Qwen3.5-9B"}, "replicas": replicas, "tuning": {"mode": mode}, "rollout": rollout}
        if nodes > 1:
            spec["parallelism"] = {"tensor": 16, "nodes": nodes}
        self.world = World(spec)
        self.world.kinds = frozenset({"LeaderWorkerSet", "PodMonitor"})
        self.world.advice = Advice()
        self.world.warm_up_s = 60.0
        self.watch = Watch(self.world)
        self.seen: list[str] = []
        self.put_back_s = 0
        self.taken: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
        if already != "new":
            self._turns(4)
        if already == "progressing":
            # Some replicas are the new revision's, some the old one's.
            self._edit({"drafter": {"revision": DRAFTERS[0]}})
            for _ in range(8):
                if len(scene(self.world).of_state("Stable")) > 1:
                    break
                self._turns(1)
            self._turns(2)
        if already in ("loading", "on trial", "given up"):
            self.world.judgement = JUDGEMENTS["failed" if already == "given up" else "undecided"]
            self._edit({"drafter": {"revision": DRAFTERS[0]}})
            self._turns(6, start=already != "loading")
        if already == "exits":
            # The engines of the first candidate exit again and again.
            self._edit({"drafter": {"revision": DRAFTERS[0]}})
            for _ in range(6):
                if self._pods("candidate"):
                    break
                self._turns(1, start=False)
            self._strike("crash for good", "candidate")
            self._clear_the_way()
            self._give_up()
            self._fix()

    # Users.

    @rule(change=edits, turns=TURNS)
    def edit(self, change: tuple[str, Any], turns: int) -> None:
        field, value = change
        now = scene(self.world)
        if value == "what runs":
            value = now.revisions[now.in_force].block if now.in_force in now.revisions else None
        self._note(f"{field} {'' if isinstance(value, dict) else value}")
        self._edit({field: value})
        self._turns(turns)

    @rule(low=st.sampled_from([0, 1]), high=st.sampled_from([0, 1, 2]), turns=st.integers(1, 3), after=TURNS)
    def autoscale(self, low: int, high: int, turns: int, after: int) -> None:
        """Down at night, up in the morning."""
        before = self.watch.replicas
        self._note(f"down to {low}")
        self._edit({"replicas": low})
        self._turns(turns)
        self._note("up again")
        self._edit({"replicas": min(MOST_REPLICAS, before + high)})
        self._turns(after)

    @rule(obstacle=st.sampled_from(["invalid", "accessory", "record"]), replicas=st.integers(1, 5), refusal=st.sampled_from(REFUSALS))
    def scale_under_an_obstacle(self, obstacle: str, replicas: int, refusal: Refusal) -> None:
        """What is wrong elsewhere stops no scaling where pods can start."""
        world = self.world
        self._note(f"obstacle: {obstacle}")
        self._heal()
        world.refuses.clear()
        world.kinds |= {"LeaderWorkerSet", "PodMonitor"}
        spec = {"replicas": replicas, "suspend": None}
        before = world.deployment["spec"].get("blockSize")
        if obstacle == "invalid":
            spec["blockSize"] = 32
        elif refusal.code != 409:
            self._refuse_writes("ControllerRevision" if obstacle == "record" else "Service", refusal)
            # A revision is asked for whose record cannot be written, or whose rollout the Service does not stop.
            spec["restartId"] = f"{obstacle}-{replicas}"
        self._edit(spec)
        best = 0
        for _ in range(OBSTACLE_ROUNDS):
            self._turns(1)
            best = max(best, sum(scene(world).serving.values()))
            if best >= replicas:
                break
        wanted = replicas if self.watch.invalid else replicas - self.watch.policy.max_unavailable
        if scene(world).in_force and not self.watch.lost:
            assert best >= wanted, f"{best} of {replicas} serve in {OBSTACLE_ROUNDS} rounds"
        world.refuses.clear()
        if obstacle == "invalid":
            self._edit({"blockSize": before})

    @rule(whom=st.sampled_from(["Superseded", "Retired", "Failed", "Stable"]), turns=TURNS)
    def go_back(self, whom: str, turns: int) -> None:
        """The spec as it was when it asked for that revision."""
        former = scene(self.world).revisions.get(str(self._name(whom)))
        if former is not None:
            written = {field: former.inputs.get(field) for field in ("drafter", "restartId", "podTemplate")}
            self._note(f"back to {whom}")
            self._edit({**written, "blockSize": former.block})
            self._turns(turns)

    @rule(change=policies, turns=TURNS)
    def edit_policy(self, change: dict[str, Any], turns: int) -> None:
        rollout = self.world.deployment["spec"].get("rollout") or {}
        self._note("paused" if change.get("paused") else "policy")
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
        self._note(f"{operation} {whom}")
        if name is None:
            annotations.pop(key, None)
        elif annotations.get(key) != name:
            annotations[key] = name
            self.watch.asked(operation)
        self._turns(turns)

    @rule(
        then=st.sampled_from(["back", "paused", "abort", "another", "pin", "restart", "back and paused", "down to one"]),
        budget=st.sampled_from(BUDGETS),
        turns=st.integers(1, 4),
    )
    def halfway(self, then: str, budget: dict[str, Any], turns: int) -> None:
        """Something happens while some replicas are the new revision's and some the old one's."""
        world, before = self.world, self._named("stable")
        asked = (world.deployment["spec"].get("drafter") or {}).get("revision")
        former, others = dict(world.deployment["spec"]), [commit for commit in DRAFTERS if commit != asked]
        world.judgement = PASSED
        self._edit({"drafter": {"revision": others[0]}, "replicas": max(3, self.watch.replicas), "rollout": budget, "suspend": None})
        for _ in range(8):
            if before and self._named("stable") != before and self._pods("stable"):
                break
            self._turns(1)
        self._note(f"halfway: {then}")
        if then == "paused" or then == "back and paused":
            self._edit({"rollout": {**budget, "paused": True}})
        if then.startswith("back"):
            self._edit({field: former.get(field) for field in ("drafter", "blockSize")})
        change = {"another": {"drafter": {"revision": others[1]}}, "restart": {"restartId": "halfway"}, "down to one": {"replicas": 1}}
        if then in change:
            self._edit(change[then])
        name = {"abort": self._named("stable"), "pin": before}.get(then)
        if name and self.watch.annotation(then) != name[0]:
            world.deployment["metadata"].setdefault("annotations", {})[f"{names.GROUP}/{then}"] = name[0]
            self.watch.asked(then)
        self._turns(turns)

    @rule(
        then=st.sampled_from(
            [
                *(("flicker all", "stable"), ("orphan", "stable"), ("worker", "stable"), ("recreate", "stable")),
                *(("crash for good", "candidate"), ("image", "candidate"), ("quota", "candidate"), ("flicker", "candidate")),
                *(("down to one", ""), ("invalid and down to one", ""), ("advice", ""), ("not served", "LeaderWorkerSet")),
            ]
        ),
        served=st.booleans(),
        turns=st.integers(1, 3),
    )
    def on_trial(self, then: tuple[str, str], served: bool, turns: int) -> None:
        """Something happens while a candidate starts, or serves and is not judged yet. What keeps it from starting stays."""
        world = self.world
        world.judgement = UNDECIDED
        asked = (world.deployment["spec"].get("drafter") or {}).get("revision")
        drafter = {"revision": next(commit for commit in DRAFTERS if commit != asked)}
        rollout = {key: value for key, value in (world.deployment["spec"].get("rollout") or {}).items() if key not in ("paused", "window")}
        self._edit({"drafter": drafter, "replicas": max(2, self.watch.replicas), "rollout": rollout, "suspend": None})
        for _ in range(6):
            if any(pod["ready"] or not served for pod in self._pods("candidate")):
                break
            self._turns(1, start=served)
        self._note(f"on trial: {then[0]}")
        if then[0] == "invalid and down to one":
            self._edit({"blockSize": 32})
            self._turns(1)
        if then[0].endswith("down to one"):
            self._edit({"replicas": 1})
        elif then[0] == "advice":
            world.advice = Advice(8)
        else:
            self._strike(*then)
        self._turns(turns)
        if then in (("crash for good", "candidate"), ("image", "candidate")):
            self._clear_the_way()
            self._give_up()

    # Measurements.

    @rule(outcome=st.sampled_from(sorted(JUDGEMENTS)), turns=TURNS)
    def judge(self, outcome: str, turns: int) -> None:
        self.world.judgement = JUDGEMENTS[outcome]
        self._turns(turns)

    @rule(passes=st.booleans(), then=st.sampled_from(["agree", "other advice", "off"]), turns=st.integers(0, 6))
    def tune(self, passes: bool, then: str, turns: int) -> None:
        """The tuner changes the block size, or tries to, and then a user or the load wants something."""
        world, stable = self.world, self._named("stable")
        if not stable or self.watch.replicas < 2:
            return
        self._note(f"tuned, {then}")
        block = 24 - scene(world).revisions[stable[0]].block
        world.judgement, world.advice = JUDGEMENTS["passed" if passes else "failed"], Advice(block)
        self._edit({"tuning": {"mode": "Auto"}})
        self._turns(6)
        world.judgement = PASSED
        self._edit({"blockSize": block} if then == "agree" else {"tuning": {"mode": "Off"}} if then == "off" else {})
        self._turns(2)
        if then == "other advice" or passes:
            world.advice = Advice(24 - block)
        self._turns(turns)

    @rule(block=st.sampled_from([8, 16, None]), turns=st.integers(0, 8))
    def advise(self, block: int | None, turns: int) -> None:
        self._note(f"advice {block}")
        self.world.advice = Advice(block)
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
        self._note(accident[0])
        self._strike(*accident)
        self._turns(turns, start=start)

    @rule(
        then=st.sampled_from(
            [("flicker all", "stable"), ("delete", "stable"), ("recreate", "stable"), ("worker", "stable"), ("crash for good", "stable")]
        ),
        turns=st.integers(1, 3),
    )
    def at_rest(self, then: tuple[str, str], turns: int) -> None:
        """Something happens when nothing has been left to do for a while."""
        self._turns(6)
        self._note(f"at rest: {then[0]}")
        self._strike(*then)
        self._turns(turns, start=False)

    def _strike(self, what: str, which: Any) -> None:
        world, candidates = self.world, [item.name for item in scene(self.world).of_state("Candidate")]
        match what:
            case "crash" | "crash for good":
                self._crash(which, 5 if what == "crash for good" else 3)
            case "flicker" | "flicker all" | "restarted long ago":
                for pod in self._pods(which)[: None if what == "flicker all" else 1]:
                    if what == "restarted long ago" and pod["ready"]:
                        pod["restarts"] += 1
                    elif what != "restarted long ago":
                        world.flicker(pod)
            case "orphan" | "delete":
                for name in self._named(which):
                    world.orphan(name)
                    for pod in self._pods(which) if what == "delete" else ():
                        pod.update(ready=False, terminating=True)
            case "recreate":
                for pod in self._pods(which)[:1]:
                    if pod["group"] is not None:
                        world.recreate_group(pod["revision"], int(pod["group"]))
            case "worker":
                for pod in [pod for pod in self._pods(which) if pod["worker"]][:1]:
                    world.break_pod(pod, 1)
            case "served" | "not served":
                world.kinds = world.kinds | {which} if what == "served" else world.kinds - {which}
            case "gates" | "no gates":
                world.gated = what == "gates"
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
                for item in [item for kind in WORKLOADS for item in world.of_kind(kind)][-1:]:
                    item["spec"]["replicas"] += 2
                    item["metadata"]["generation"] += 1

    @rule(
        kind=st.sampled_from(["workload", "ControllerRevision", *ACCESSORIES, "ServiceAccount", STATUS]),
        refusal=st.sampled_from(REFUSALS),
        turns=TURNS,
    )
    def refuse_writes(self, kind: str, refusal: Refusal, turns: int) -> None:
        self._note(f"{refusal.code} for {kind}")
        self._refuse_writes(kind, refusal)
        self._turns(turns)

    @rule(kind=st.sampled_from(ACCESSORIES), turns=TURNS)
    def take(self, kind: str, turns: int) -> None:
        """Somebody else controls an object whose name the operator needs."""
        self._note("name taken")
        for item in [item for item in self.world.of_kind(kind) if item["metadata"]["ownerReferences"] != TAKEN]:
            self.taken.append((item, item["metadata"]["ownerReferences"]))
            item["metadata"]["ownerReferences"] = TAKEN
        self._turns(turns)

    @rule(turns=TURNS)
    def accept_writes(self, turns: int) -> None:
        self.world.refuses.clear()
        self._turns(turns)

    @rule(kind=st.sampled_from(["ControllerRevision", *WORKLOADS, "Service"]), like_ours=st.booleans(), turns=TURNS)
    def add_a_stranger(self, kind: str, like_ours: bool, turns: int) -> None:
        """A copy that a user makes, with its labels and annotations, and the pods of such a copy."""
        world, owned = self.world, ("chat-rzzzzzz" if like_ours else "chat-debug")
        for item in [item for item in world.of_kind(kind) if "inputs" in item.get("data", {"inputs": 1})][:1]:
            made, name = copy.deepcopy(item), f"{owned}{len(world.strangers)}"
            made["metadata"] |= {"name": name, "uid": f"theirs-{name}"}
            if like_ours:
                made["metadata"].pop("ownerReferences", None)
            world.strangers.setdefault((kind, name), made)
            for pod in list(world.pods.values())[:1]:
                mine = {
                    **pod,
                    "uid": f"theirs-{name}",
                    "workload": name if kind in WORKLOADS else None,
                    "ready": True,
                    "terminating": False,
                }
                world.stranger_pods[f"{name}-1"] = mine
        self._note("a stranger")
        self._turns(turns)

    @rule(start=st.booleans())
    def controllers(self, start: bool) -> None:
        self.world.controllers(start=start)

    @rule(seconds=st.sampled_from([1, 61, 301, 3600, 7201, 6 * 3600, -61, -600]), turns=TURNS)
    def wait(self, seconds: int, turns: int) -> None:
        self.world.advance(seconds)
        self.put_back_s += max(0, -seconds)
        self._turns(turns)

    # The operator.

    @rule(flags=st.sampled_from([(), ("--newer",), ("--newer", "--newest")]), edited=st.booleans(), turns=TURNS)
    def upgrade(self, flags: tuple[str, ...], edited: bool, turns: int) -> None:
        """Another release of the operator, which renders more."""
        self._note("upgrade")
        self.world.flags = flags
        if edited:
            self._edit({"podTemplate": {"metadata": {"labels": {"team": f"flags-{len(flags)}"}}}})
        self._turns(turns)

    @rule()
    def reconcile(self) -> None:
        self.watch.reconcile()

    @rule(steps=st.integers(0, 14))
    def killed(self, steps: int) -> None:
        self.watch.reconcile(stop_after=steps)

    @rule(loss=losses, turns=TURNS)
    def lose(self, loss: tuple[str, int, str], turns: int) -> None:
        what, which, text = loss
        self.watch.accidents += 1
        records = [item for item in self.world.of_kind("ControllerRevision") if "inputs" in item["data"]]
        records.sort(key=lambda item: -int(item["revision"]))
        if what == "status":
            self.world.deployment.pop("status", None)
        elif records:
            record = records[which % len(records)]
            name = record["metadata"]["name"]
            if what == "record":
                # Its workload is what it can be made again from, as far as that has been written.
                workload = next((item for kind in WORKLOADS for item in self.world.of_kind(kind) if item["metadata"]["name"] == name), None)
                if workload is not None and _carries(workload, record):
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
        self._clear_the_way()
        self._give_up()
        self._name_the_loop()
        world.judgement, world.answering, world.probe_error = PASSED, True, None
        self._heal()
        self._settle()
        if world.refuses or self.taken:
            # Everything else was done. Now the rest can be, too.
            now, reason = scene(world), (world.deployment["status"].get("rollout") or {}).get("reason")
            assert sum(now.serving.values()) >= watch.replicas
            assert reason in (*WAITS_FOR_A_HUMAN, *WAITS_FOR_A_SECOND) or not now.of_state("Candidate"), (
                f"what is beside the rollout stops it: {reason}"
            )
            world.refuses.clear()
            for item, owners in self.taken:
                item["metadata"]["ownerReferences"] = owners
            self._settle()
        self._end_the_trial()
        self._check_the_end()
        if watch.mode == "Auto":
            self._tune()

    def _clear_the_way(self) -> None:
        """Nobody holds the rollout back, and there is room."""
        world = self.world
        rollout = {key: value for key, value in (world.deployment["spec"].get("rollout") or {}).items() if key not in ("paused", "window")}
        self._edit({"suspend": None, "rollout": rollout, **({"blockSize": None} if self.watch.invalid else {})})
        for operation in ("promote", "abort", "pin"):
            world.deployment["metadata"].get("annotations", {}).pop(f"{names.GROUP}/{operation}", None)
        world.refuses = {kind: refusal for kind, refusal in world.refuses.items() if kind in ACCESSORIES and refusal.code != 409}
        world.kinds |= {"LeaderWorkerSet", "PodMonitor"}
        world.advice = Advice()
        # What was stored or began by a clock that was put back later counts when the clock has caught up.
        world.advance(self.put_back_s)
        self._make_room()

    def _end_the_trial(self) -> None:
        """A trial that waits for a human, or for replicas, ends."""
        world, watch = self.world, self.watch
        if scene(world).of_state("Candidate") and not watch.replicas:
            # All replicas were scaled away in the middle of a trial: it goes on when there are some.
            self._edit({"replicas": 1})
            self._settle()
        if world.deployment["status"]["rollout"]["reason"] in WAITS_FOR_A_SECOND:
            self._edit({"replicas": 2})
            self._settle()
        if world.deployment["status"]["rollout"]["phase"] == "Held":
            # Only what is documented to wait for a human does, and one word from a human is enough.
            assert world.reason("Stalled") in WAITS_FOR_A_HUMAN, world.reason("Stalled")
            assert sum(scene(world).serving.values()) >= watch.replicas
            world.deployment["metadata"].setdefault("annotations", {})[names.ANNOTATION_PROMOTE] = world.deployment["status"][
                "candidateRevision"
            ]
            watch.asked("promote")
            self._settle()

    def _give_up(self) -> None:
        """There is room, and what keeps a candidate from starting stays: it is given up, or waits for a human."""
        world, stuck = self.world, Counter[str]()
        for turn in range(3 * STUCK_ROUNDS):
            names_ = [item.name for item in scene(world).of_state("Candidate") if self._is_stuck(item.name)]
            if not names_:
                return
            stuck.update(names_)
            # The first revision of all has nothing to give way to.
            told = world.condition("Stalled") == "True"
            assert told or stuck[names_[0]] < STUCK_ROUNDS, f"{names_[0]} cannot start, and is not given up"
            # A group that exits is given up by its starts, long before the start-up budget is over.
            self._turns(1, seconds=20.0 if self._loops(names_[0]) else 60.0)
            if not turn % 5:
                # The kubelet starts an engine that exits again, in the end every five minutes.
                for pod in self.world.pods.values():
                    pod["restarts"] += pod["broken"] and pod["node"] is not None

    def _name_the_loop(self) -> None:
        """Groups of the active revision that exit again and again are told, although no container restarts and no deadline passes."""
        world, now = self.world, scene(self.world)
        if now.of_state("Candidate") or not self.watch.replicas or not now.in_force or not self._loops(now.in_force):
            return
        for _ in range(STUCK_ROUNDS):
            self._turns(1, seconds=20.0)
            then = scene(world)
            if world.condition("Stalled") == "True" or then.of_state("Candidate") or then.in_force != now.in_force:
                return
        raise AssertionError(f"groups of {now.in_force} exit again and again, and nobody is told")

    def _loops(self, name: str) -> bool:
        return name.removeprefix("chat-") in self.world.crashing

    def _is_stuck(self, name: str) -> bool:
        world, course = self.world, self.watch.courses.get(name)
        held = {name.removeprefix("chat-")} & (world.troubles.keys() | world.crashing)
        mine = [pod for pod in world.pods.values() if pod["workload"] == name]
        never_served = course is not None and course.served_at is None
        return bool(mine) and never_served and (bool(held) or any(pod["broken"] for pod in mine))

    def _tune(self) -> None:
        """The tuner gets what it wants, and a user who writes another block size afterwards gets that."""
        world, watch = self.world, self.watch
        if watch.replicas < 2:
            self._edit({"replicas": 2})
            self._settle()
        now = scene(world)
        block = 24 - now.revisions[now.in_force or ""].block
        refused = [item for item in now.of_state("Failed") if item.block == block and item.origin != "Tuner"]
        if not any(item.inputs == now.revisions[now.in_force or ""].inputs for item in refused):
            world.advice = Advice(block)
            self._settle()
            now = scene(world)
            assert now.revisions[now.in_force or ""].block == block, "the tuner does not get its block size"
        self._check_the_end()
        now = scene(world)
        world.advice, runs = Advice(), now.revisions[now.in_force or ""]
        if watch.is_asked_for(runs) and world.deployment["spec"].get("blockSize") != 24 - runs.block:
            self._edit({"blockSize": 24 - runs.block})
            self._settle()
            now = scene(world)
            failed = [item for item in now.of_state("Failed") if item.origin != "Tuner" and watch.is_asked_for(item)]
            assert failed or now.revisions[now.in_force or ""].block == 24 - runs.block, "the user does not get the block size"

    def _check_the_end(self) -> None:
        world, now = self.world, scene(self.world)
        assert sum(now.serving.values()) == self.watch.replicas
        assert list(now.replicas) == [now.in_force]
        assert len(now.of_state("Stable")) == 1
        assert not now.of_state("Candidate")
        failed = [item for item in now.of_state("Failed") if self.watch.is_asked_for(item) and item.origin != "Tuner"]
        wanted = now.revisions[str(now.in_force)]
        block = self.world.deployment["spec"].get("blockSize")
        refused = [item for item in failed if not self.watch.is_needed(wanted, now) or (item.block == block and wanted.block != block)]
        if refused:
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

    def _turns(self, count: int, *, start: bool = True, seconds: float = ROUND_S) -> None:
        for _ in range(count):
            self.watch.reconcile()
            self.world.controllers(start=start)
            self.world.advance(seconds)

    def _note(self, what: str) -> None:
        phase = ((self.world.deployment.get("status") or {}).get("rollout") or {}).get("phase", "none")
        EVENTS[what.strip(), phase] += 1

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

    def _named(self, whose: str) -> list[str]:
        now = scene(self.world)
        return [item.name for item in now.of_state("Candidate")] if whose == "candidate" else [now.in_force] if now.in_force else []

    def _pods(self, whose: str) -> list[dict[str, Any]]:
        """Of the candidate, of the active revision, or all."""
        chosen = None if whose == "any" else self._named(whose)
        return [pod for pod in self.world.pods.values() if chosen is None or pod["workload"] in chosen]

    def _crash(self, whose: str, restarts: int) -> None:
        for pod in self._pods(whose)[: 1 if whose == "any" else None]:
            if pod["group"] is None:
                self.world.break_pod(pod, restarts)
            else:
                self.world.crashing.add(pod["revision"])

    def _refuse(self, what: str, whose: str) -> None:
        """New pods of a revision cannot start: their image is gone, or a quota refuses them."""
        for name in self._named(whose):
            if what == "image":
                self.world.troubles[name.removeprefix("chat-")] = {"waiting_reason": "ImagePullBackOff", "container": "engine"}
            else:
                self.world.refused[name.removeprefix("chat-")] = "exceeded quota: gpus"

    def _refuse_writes(self, kind: str, refusal: Refusal) -> None:
        for refused in WORKLOADS if kind == "workload" else (kind,):
            self.world.refuses[refused] = refusal
        if kind in ACCESSORIES:
            # What is as it should be is not written.
            self.world.children.pop((kind, "chat"), None)

    def _fix(self) -> None:
        self.world.troubles.clear()
        self.world.refused.clear()
        self.world.crashing.clear()
        for pod in self.world.pods.values():
            pod["broken"] = False

    def _make_room(self) -> None:
        self.world.capacity, self.world.gated, self.world.overdue = None, False, frozenset()
        self.world.refused.clear()
        if "parallelism" in self.world.deployment["spec"]:
            # A group whose worker a dead node holds cannot come back.
            self.world.dead_nodes = frozenset()
        for pod in self.world.pods.values():
            pod["hangs"] = False

    def _heal(self) -> None:
        self._make_room()
        self._fix()


def _carries(workload: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether the workload has the record's state and number. While writes to it are refused it may have those of before."""
    carried, stored = workload["metadata"]["annotations"], record["metadata"]["annotations"]
    same_state = carried[names.ANNOTATION_STATE] == stored[names.ANNOTATION_STATE]
    return bool(same_state and carried[names.ANNOTATION_NUMBER] == str(record["revision"]))


PARTS = 2
"""So many processors can share the sequences."""
SEQUENCES = int(os.environ.get("DFLASH_MODEL_SEQUENCES", "20")) // PARTS
STEPS = 20


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
            phases = sorted({phase for _, phase in EVENTS})
            for what in sorted({what for what, _ in EVENTS}):
                print(f"{what:28}", *(f"{phase} {EVENTS[what, phase]}" for phase in phases if EVENTS[what, phase]), file=sys.__stderr__)
