"""What must hold whatever happens to a deployment, told from the objects alone and with other code than the planner's.

A ``Watch`` sees every reconcile from outside: the objects before it, the steps it made, the objects after it. What it remembers itself is
what an onlooker would: which revision is active, and what happened in the trial of each candidate.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.analysis.verdict import AnalysisDecision
from dflash_controller.api import names
from dflash_controller.api.defaults import RolloutPolicy, effective_rollout
from dflash_controller.api.inputs import canonical, revision_inputs
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.types import Spec
from dflash_controller.planning.state.plan import Annotate, Delete, Event, Step
from tests.support.planning_world import WORKLOADS, World

PHASES = {
    *("Preparing", "Canary", "Analyzing", "Progressing", "Completed", "Paused"),
    *("Held", "RollingBack", "RolledBack", "Superseded", "Suspended"),
}
ROLES = ("Candidate", "Stable")
BY_HAND = {"PromotedByHand": "promote", "Pinned": "pin"}
STATUS_BYTES = 32 * 1024
STABLE_DOWN_S = 180
CANNOT_START_S = 180
LOADS_S = 1200
"""No start-up budget is shorter."""
TRAINED_BLOCK = 16


@dataclass(frozen=True)
class Stored:
    """One ControllerRevision, as anybody can read it."""

    name: str
    number: int
    state: str
    reason: str
    inputs: Mapping[str, Any]
    block: int
    origin: str
    """Of its last trial: User or Tuner."""
    runs: Sequence[Any]
    """Image, arguments and environment of every container."""
    without_surge: bool

    @property
    def pinned_drafter(self) -> bool:
        return len((self.inputs.get("drafter") or {}).get("revision", "")) == 40

    def loads_the_same_as(self, other: Stored) -> bool:
        """Whether the engines of both run the same with the same weights."""
        restarted = self.inputs.get("restartId") != other.inputs.get("restartId")
        return self.runs == other.runs and (self.pinned_drafter or not restarted)


@dataclass
class Course:
    """What happened in one trial of a candidate, seen from outside."""

    served_at: float | None = None
    """These are seconds that have really passed, whatever clocks say."""
    down_since: float | None = None
    """Since when no replica of the active revision has served."""
    with_node_since: float | None = None
    """Since when a pod of it has had a node."""
    stuck_since: float | None = None
    """Since when the cluster keeps it from starting in a way that does not end by itself."""
    judged_bad: bool = False
    had_trouble: bool = False
    asked: set[str] = field(default_factory=set)
    """Operations (promote, abort) whose annotations were set in this trial."""
    forgotten: bool = False
    """What is stored of the trial was damaged or lost: operations meant for an earlier one can no longer be told apart."""


@dataclass(frozen=True)
class Scene:
    """The objects at one moment."""

    revisions: Mapping[str, Stored]
    replicas: Mapping[str, int]
    """Of each workload."""
    existing: Mapping[str, int]
    """Replicas with a pod that is not terminating."""
    serving: Mapping[str, int]
    """Replicas of which every pod is Ready."""
    promised: int
    """Replicas that still serve when the workloads have done what they are told."""
    terminating: int
    """On nodes that live."""

    def wanted(self, name: str) -> int:
        """What runs, where nothing says what is wanted."""
        return self.replicas.get(name, self.existing.get(name, 0))

    @property
    def held(self) -> int:
        """Accelerators taken or asked for, in replicas."""
        return self.terminating + sum(
            max(self.replicas.get(name, 0), self.existing.get(name, 0)) for name in {*self.replicas, *self.existing}
        )

    @property
    def in_force(self) -> str | None:
        stable = [item for item in self.revisions.values() if item.state == "Stable"]
        return max(stable, key=lambda item: item.number).name if stable else None

    def of_state(self, state: str) -> list[Stored]:
        return [item for item in self.revisions.values() if item.state == state]


def scene(world: World) -> Scene:
    size = (world.deployment["spec"].get("parallelism") or {}).get("nodes", 1)
    workloads = {item["metadata"]["name"]: item["spec"]["replicas"] for kind in WORKLOADS for item in world.of_kind(kind)}
    replicas: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for name, pod in world.pods.items():
        replicas.setdefault(pod["workload"], {}).setdefault(name if pod["group"] is None else pod["group"], []).append(pod)
    existing, serving, promised, terminating = {}, {}, 0, 0
    for name, groups in replicas.items():
        alive = {key: [pod for pod in pods if not pod["terminating"]] for key, pods in groups.items()}
        whole = [key for key, pods in alive.items() if sum(pod["ready"] for pod in pods) >= size]
        existing[name], serving[name] = sum(bool(pods) for pods in alive.values()), len(whole)
        left = workloads.get(name, len(groups))
        # A Deployment removes the worst pods, a LeaderWorkerSet the groups of the highest index.
        promised += sum(int(key) < left for key in whole if name in workloads) if size > 1 else min(len(whole), left)
        promised += len(whole) if size > 1 and name not in workloads else 0
        leaving = [pods for key, pods in groups.items() if not alive[key]]
        terminating += sum(any(pod["node"] not in world.dead_nodes for pod in pods) for pods in leaving)
    records = [item for item in world.of_kind("ControllerRevision") if "inputs" in item["data"]]
    return Scene({item["metadata"]["name"]: _stored(item) for item in records}, workloads, existing, serving, promised, terminating)


def _stored(item: Mapping[str, Any]) -> Stored:
    annotations = item["metadata"]["annotations"]
    history = json.loads(annotations[names.ANNOTATION_HISTORY])
    trials = [entry["origin"] for entry in history if entry["outcome"] == "Candidate"]
    try:
        without_surge = bool(json.loads(annotations[names.ANNOTATION_TRIAL])["withoutSurge"])
    except (KeyError, TypeError, ValueError):
        without_surge = False
    return Stored(
        item["metadata"]["name"],
        item["revision"],
        annotations[names.ANNOTATION_STATE],
        history[-1]["reason"],
        item["data"]["inputs"],
        item["data"]["speculation"]["blockSize"],
        trials[-1] if trials else "User",
        _runs(item["data"]["workload"]["spec"]),
        without_surge,
    )


def _runs(workload: Mapping[str, Any]) -> list[Any]:
    template = workload.get("leaderWorkerTemplate") or {}
    pods = [workload["template"]] if "template" in workload else [template["leaderTemplate"], template["workerTemplate"]]
    return [[container.get(key) for key in ("image", "args", "env")] for pod in pods for container in pod["spec"]["containers"]]


@dataclass(frozen=True)
class _Wants:
    """What the spec of this generation asks for."""

    generation: int
    policy: RolloutPolicy
    inputs: Mapping[str, Any]
    """Canonical."""


class Watch:
    """Reconciles a world and objects to what must not happen."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.in_force: str | None = None
        self.courses: dict[str, Course] = {}
        self.lost: set[str] = set()
        """Records that were taken away and are not back yet."""
        self.content = True
        """Nothing was objected to so far."""
        self.accidents = 0
        """How often something was taken away that tells the operator what it has done."""
        self._promoted_for: tuple[object, set[str]] = (None, set())
        """What was promoted since something changed that a promotion can follow from."""
        self._wants: _Wants | None = None
        self._settled_for: object = None
        """The cause of the last change, if the status says that nothing is left to do for it."""
        self._roles: set[str] = set()
        """Revisions that the last plan puts in force or on trial, whether that was written or not."""
        self._stalled = False
        """Whether the status said so before the last plan."""
        self._told: set[Event] = set()
        """The events of the last reconcile, if its status was written. What it says is said."""

    def reconcile(self, stop_after: int | None = None) -> int:
        """One plan, whole or cut short. Returns the writes made."""
        world, before, asked = self.world, scene(self.world), self.world.asked
        self.content = False
        shown, plan = "status" in world.deployment, world.plan()
        self._stalled = shown and bool(world.deployment["status"]) and world.condition("Stalled") == "True"
        steps = plan.steps[:stop_after]
        written = world.carry_out(plan, stop_after=stop_after)
        after = scene(world)
        self._follow(before, after, judged=world.asked > asked)
        self._budget(before, after)
        self._roles = {
            step.ref.name for step in plan.steps if isinstance(step, Annotate) and step.annotations.get(names.ANNOTATION_STATE) in ROLES
        }
        self._revisions(before, after, whole=stop_after is None and not world.obstructed)
        self._deletions(before, steps)
        if self.suspended:
            assert all(isinstance(step, Event) for step in steps), "a write under suspend"
        self._events(steps, shown=shown)
        if world.status_written:
            self._status(before)
        self.content = True
        return written

    # What the user wants.

    @property
    def wants(self) -> _Wants:
        """The spec, read anew when it was edited."""
        generation = self.world.deployment["metadata"]["generation"]
        if self._wants is None or self._wants.generation != generation:
            spec = parse_spec(self.world.deployment)
            assert isinstance(spec, Spec)
            self._wants = _Wants(generation, effective_rollout(spec), canonical(revision_inputs(spec)))
        return self._wants

    @property
    def policy(self) -> RolloutPolicy:
        return self.wants.policy

    @property
    def replicas(self) -> int:
        return int(self.world.deployment["spec"].get("replicas", 1))

    @property
    def suspended(self) -> bool:
        return bool(self.world.deployment["spec"].get("suspend"))

    @property
    def tuned(self) -> bool:
        """Whether the block size is the tuner's to choose."""
        return self.mode != "Off"

    @property
    def mode(self) -> str:
        return str((self.world.deployment["spec"].get("tuning") or {}).get("mode"))

    @property
    def invalid(self) -> bool:
        """Whether the spec breaks a rule."""
        return (self.world.deployment["spec"].get("blockSize") or 0) > TRAINED_BLOCK

    @property
    def cause(self) -> object:
        """All that a change of revision can follow from."""
        metadata, advice = self.world.deployment["metadata"], self.world.advice
        annotations = tuple(sorted((metadata.get("annotations") or {}).items()))
        return metadata["generation"], annotations, id(advice), self.accidents

    def annotation(self, operation: str) -> str | None:
        value: str | None = (self.world.deployment["metadata"].get("annotations") or {}).get(f"{names.GROUP}/{operation}")
        return value

    def is_asked_for(self, stored: Stored) -> bool:
        """The spec's intent, whatever the block size."""
        return canonical(stored.inputs) == self.wants.inputs

    def asked(self, operation: str) -> None:
        """An operation's annotation has just been set: for the trial under way, if it names a candidate."""
        name = self.annotation(operation)
        stored = scene(self.world).revisions.get(name or "")
        if stored is not None and (stored.state == "Candidate" or stored.name == self.in_force):
            self.courses.setdefault(stored.name, Course()).asked.add(operation)

    # What happened.

    def _follow(self, before: Scene, after: Scene, *, judged: bool) -> None:
        world = self.world
        for name, now in after.revisions.items():
            was = before.revisions.get(name)
            if now.state == "Candidate" and (was is None or was.state != "Candidate"):
                self.courses[name] = Course(forgotten=name in self.lost)
            if was is None or was.state != "Candidate":
                continue
            course = self.courses.setdefault(name, Course())
            if before.serving.get(name, 0):
                course.served_at = world.lived_s if course.served_at is None else course.served_at
            if not self.suspended:
                down = self.in_force is not None and not before.serving.get(self.in_force, 0)
                course.down_since = _since(course.down_since, world.lived_s) if down else None
            course.judged_bad |= judged and world.judgement.decision is AnalysisDecision.FAIL
            mine = [pod for pod in world.pods.values() if pod["workload"] == name]
            revision = name.removeprefix("chat-")
            in_trouble = revision in world.troubles or revision in world.crashing
            course.had_trouble |= any(pod["restarts"] for pod in mine) or in_trouble
            if any(pod["node"] for pod in mine):
                course.with_node_since = _since(course.with_node_since, world.lived_s)

    def _budget(self, before: Scene, after: Scene) -> None:
        floor, ceiling = self.replicas - self.policy.max_unavailable, self.replicas + self.policy.max_surge
        assert after.promised >= min(before.promised, floor), (before, after)
        assert after.held <= max(before.held, ceiling), (before, after)

    def _revisions(self, before: Scene, after: Scene, *, whole: bool) -> None:
        numbers = [item.number for item in after.revisions.values()]
        assert len(numbers) == len(set(numbers)), after.revisions
        promoted, rebuilt = [], False
        for name, now in after.revisions.items():
            was = before.revisions.get(name)
            if was is None and name in self.lost:
                self.lost.discard(name)
                rebuilt = True
                assert now.reason == "RebuiltFromWorkload"
                continue
            assert was is not None or now.state == "Candidate", now
            if was is not None and was.state != now.state:
                self._moved(was, now, before)
                promoted += [name] if now.state == "Stable" else []
            elif was is not None and was.number != now.number:
                self._reverted(was, now, before)
                promoted.append(name)
            elif was is None:
                self._made(now, before)
        if self._promoted_for[0] != self.cause:
            self._promoted_for = (self.cause, set())
        for name in promoted:
            assert name not in self._promoted_for[1], f"{name} is promoted twice, and nothing has changed in between"
            self._promoted_for[1].add(name)
        if self.in_force is not None and self.in_force not in self.lost:
            expected = promoted[0] if promoted else self._left_by_abort(before, after) or self.in_force
            assert after.in_force == expected, f"{after.in_force} is active in place of {expected}"
        if not self.lost:
            self.in_force = after.in_force
        self._replicas(before, after)
        if not self.lost and not rebuilt:
            self._movement(before, after)
        if whole and not self.suspended and not self.lost and not rebuilt:
            self._goes_back(before, after)
        # A plan that makes a record again does nothing else: what is wrong with its state is put right by the next.
        if whole and not self.suspended and not self.lost and not rebuilt:
            candidates = after.of_state("Candidate")
            assert len(candidates) <= 1, candidates
            failed = [item for item in after.of_state("Failed") if self.is_asked_for(item) and item.origin != "Tuner"]
            stable = after.revisions.get(self.in_force or "")
            # An invalid spec stops the rollout where it is.
            stopped = self.invalid or self._pin(before) is not None
            if failed and stable is not None and not self.is_asked_for(stable) and not stopped:
                others = [item for item in candidates if not self._is_tuned(item, stable)]
                assert not others, f"{failed} failed, and {others} is tried"

    def _pin(self, at: Scene) -> str | None:
        pin = self.annotation("pin")
        return pin if pin in at.revisions else None

    def _is_tuned(self, stored: Stored, in_force: Stored) -> bool:
        """Whether it is what runs, with another block size."""
        return stored.origin == "Tuner" and self.mode == "Auto" and canonical(stored.inputs) == canonical(in_force.inputs)

    def _made(self, now: Stored, before: Scene) -> None:
        """A revision is made if somebody asks for it and none is stored, and what was changed is all that changes."""
        stable = before.revisions.get(self.in_force or "")
        assert self.is_asked_for(now) or (stable is not None and self._is_tuned(now, stable)), f"{now} is made, and nobody asked"
        alike = [item for item in before.revisions.values() if canonical(item.inputs) == canonical(now.inputs)]
        assert not [item for item in alike if item.block == now.block], f"{now} is stored twice"
        if stable in alike and stable is not None:
            more = {flag for flag in self.world.flags if flag in str(now.runs)} - {
                flag for flag in self.world.flags if flag in str(stable.runs)
            }
            assert not more, f"{more} come along with another block size"

    def _moved(self, was: Stored, now: Stored, before: Scene) -> None:
        """One revision from one state to another."""
        match was.state, now.state:
            case ("Candidate" | "Superseded", "Stable") if self.in_force is None:
                assert now.reason in ("Serving", "Unproven"), now
                assert now.reason == "Unproven" or before.serving.get(now.name, 0)
            case "Candidate", "Stable":
                self._promoted(now, before)
            case "Candidate", "Failed":
                self._already_failed(now)
            case "Candidate", "Superseded":
                assert self._pin(before) or self.tuned or now.origin == "Tuner" or not self.is_needed(now, before), now
            case "Failed", "Superseded":
                assert self._pin(before) is None
                forgotten = not self.is_asked_for(now) or self._asks_for_another_block(now, before)
                assert forgotten, f"{now} failed, the spec still asks for it, and that is forgotten"
            case "Failed", "Candidate":
                assert self._pin(before) == now.name or was.origin == "Tuner", f"{now} failed and is tried again"
            case "Stable", "Failed" | "Superseded" if self.annotation("abort") == now.name:
                # It failed, and at once the failure counts no more where the spec asks for something else.
                assert now.state == "Superseded" or now.reason == "Aborted"
                assert now.state == "Failed" or not self.is_asked_for(now)
                course = self.courses.get(now.name, Course())
                assert self.annotation("abort") == now.name == self.in_force
                assert "abort" in course.asked or course.forgotten, "aborted by an annotation left over from an earlier trial"
                assert any(before.existing.get(item.name, 0) for item in before.of_state("Stable") if item.name != now.name)
            case "Stable", "Retired":
                # That in force may be retired with the write that puts another in its place, which is checked for every write.
                assert not before.existing.get(now.name, 0)
            case "Superseded" | "Retired" | "Stable", "Candidate":
                assert now.name != self.in_force
                assert now.number == max(item.number for item in before.revisions.values()) + 1
            case _:
                raise AssertionError(f"{was} became {now}")

    def _asks_for_another_block(self, failed: Stored, before: Scene) -> bool:
        """Whether its block size alone failed, and the spec asks for that no more."""
        stable = before.revisions.get(self.in_force or "")
        alone = stable is not None and canonical(stable.inputs) == canonical(failed.inputs)
        return alone and self.world.deployment["spec"].get("blockSize") != failed.block

    def _reverted(self, was: Stored, now: Stored, before: Scene) -> None:
        """A revision that was being replaced is active again, without a trial."""
        assert (was.state, now.state, now.reason) == ("Stable", "Stable", "Reverted")
        self.courses.setdefault(was.name, Course()).asked.clear()
        assert was.name != self.in_force
        assert before.existing.get(was.name, 0), f"{was} has no replica, and needs no trial"
        aborted = self.in_force is not None and self.annotation("abort") == self.in_force
        assert aborted or self._pin(before) == was.name or self.is_needed(now, before)

    def _left_by_abort(self, before: Scene, after: Scene) -> str | None:
        """What is active after the abort of the revision that replaced it."""
        name = self.in_force or ""
        was, now = before.revisions.get(name), after.revisions.get(name)
        if was is None or now is None or was.state != "Stable" or now.state not in ("Failed", "Superseded"):
            return None
        others = [item for item in before.of_state("Stable") if item.name != name and before.existing.get(item.name, 0)]
        return max(others, key=lambda item: item.number).name

    def is_needed(self, stored: Stored, at: Scene) -> bool:
        """What the spec asks for, block size included, unless the tuner chooses it. Where none is written, that in force stays."""
        in_force = at.revisions.get(self.in_force or "")
        if self.tuned:
            return self.is_asked_for(stored)
        block = self.world.deployment["spec"].get("blockSize", in_force.block if in_force else TRAINED_BLOCK)
        return self.is_asked_for(stored) and stored.block == block

    def _promoted(self, now: Stored, before: Scene) -> None:
        course, world = self.courses[now.name], self.world
        stable = before.revisions.get(self.in_force or "")
        assert not self.replicas or before.serving.get(now.name, 0), f"{now} is promoted while it serves nobody"
        assert not self.policy.paused or now.reason in BY_HAND, f"{now} is promoted although the rollout is paused"
        match now.reason:
            case "AnalysisPassed":
                assert world.judgement.decision is AnalysisDecision.PROMOTE
                assert self._texts_compared(now)
            case "NotCompared":
                assert stable is None or now.loads_the_same_as(stable), f"{now} runs otherwise than {stable} and was not compared"
            case "StableNotServing":
                assert course.forgotten or self._lasted(course.down_since, STABLE_DOWN_S), f"stable is down since {course.down_since}"
            case "PromotedByHand":
                assert self.annotation("promote") == now.name
                assert "promote" in course.asked or course.forgotten, "promoted by an annotation left over from an earlier trial"
            case "Pinned":
                assert self.annotation("pin") == now.name
            case "Unproven":
                assert self.replicas == 0
            case "Inconclusive":
                assert self.policy.on_inconclusive == "Promote"
                self._past_deadline(course)
                assert world.judgement.decision is not AnalysisDecision.FAIL
            case _:
                raise AssertionError(f"{now} is promoted for no reason")

    def _texts_compared(self, candidate: Stored) -> bool:
        """Where they say something, and an answer can be had."""
        question, evidence = self.world.question, self.world.evidence
        assert question is not None
        assert evidence is not None
        if evidence.probe is not None:
            return evidence.probe[0].revision == candidate.name.removeprefix("chat-")
        return not question.text_gates or self.world.probe_error is not None or not question.concurrent

    def _already_failed(self, now: Stored) -> None:
        course, tuners = self.courses[now.name], now.origin == "Tuner"
        match now.reason:
            case "Aborted":
                assert self.annotation("abort") == now.name
                assert "abort" in course.asked or course.forgotten, "aborted by an annotation left over from an earlier trial"
            case "Inconclusive":
                assert self.policy.on_inconclusive == "Rollback" or tuners
                self._past_deadline(course)
            case "AnalysisFailed":
                assert self.policy.automatic_rollback or tuners
                assert course.judged_bad
            case "EngineFailing":
                assert self.policy.automatic_rollback or tuners
                assert course.had_trouble or self._lasted(course.with_node_since, LOADS_S)
            case "ImageUnavailable":
                assert self.policy.automatic_rollback or tuners
                assert course.had_trouble
                assert course.forgotten or self._lasted(course.with_node_since, CANNOT_START_S)
            case "ReplicaBias":
                assert tuners
            case _:
                raise AssertionError(f"{now} failed for no reason")

    def _lasted(self, since: float | None, seconds: float) -> bool:
        """Time is stored in whole seconds."""
        return since is not None and self.world.lived_s - since >= seconds - 1

    def _past_deadline(self, course: Course) -> None:
        assert self._lasted(course.served_at, self.policy.deadline_s)

    def _movement(self, before: Scene, after: Scene) -> None:
        """What is right stays. While a candidate is on trial or the rollout is paused, so do others, but for what is too much or lost."""
        in_force, candidates = self.in_force, after.of_state("Candidate")
        if in_force is None or self.suspended:
            return
        paused, place, took = self.policy.paused, 0, 0
        for item in candidates:
            # That there is no room above spec.replicas counts from the next plan on, and only where a replica may be missing.
            was = before.revisions.get(item.name, item)
            place += not self.policy.max_surge or (item.without_surge and self.policy.max_unavailable > 0)
            took += not self.policy.max_surge or (was.without_surge and self.policy.max_unavailable > 0)
            has = before.wanted(item.name) or before.existing.get(item.name, 0)
            by_hand = item.name in (self.annotation("promote"), self.annotation("pin"))
            assert has or not paused or by_hand or not after.replicas.get(item.name, 0), f"{item} is tried although the rollout is paused"
        kept = self._is_aborted(in_force) or after.wanted(in_force) >= min(before.wanted(in_force), self.replicas - place)
        assert kept, f"{in_force} is right, and shrinks from {before.wanted(in_force)} to {after.wanted(in_force)} of {self.replicas}"
        if not (paused or candidates or (self.invalid and self._pin(before) is None)):
            return
        states = {item.name: item.state for item in after.revisions.values()}
        # A candidate that was superseded drains also while paused: nobody judges it any more.
        frozen = [name for name in {*before.replicas, *before.existing} if name != in_force and states.get(name) == "Stable"]
        others = sum(before.wanted(name) for name in frozen)
        spare = max(0, others + before.wanted(in_force) + place - self.replicas) + (not before.wanted(in_force))
        lost = sum(max(0, before.wanted(name) - after.wanted(name)) for name in frozen)
        assert lost <= spare, f"{frozen} lose {lost} and are to stay where they are"
        tried = sum(bool(after.replicas.get(item.name, 0)) for item in candidates) if took else 0
        missing = max(1, self.replicas - others - tried)
        grown = after.wanted(in_force) <= max(before.wanted(in_force), missing)
        assert grown, f"{in_force} grows to {after.wanted(in_force)} while it is to stay where it is"

    def _is_aborted(self, name: str | None) -> bool:
        """Whether a human has aborted the active revision. That is obeyed at once, although the write of it may be refused for long."""
        return name is not None and self.annotation("abort") == name and "abort" in self.courses.get(name, Course()).asked

    def _goes_back(self, before: Scene, after: Scene) -> None:
        """What is being replaced and is asked for again is active at once, with the replicas that it has."""
        if self.invalid or self.tuned or not all(self.world.is_served(kind) for kind, _ in self.world.children if kind in WORKLOADS):
            # Where what runs is not known, the rollout waits.
            return
        pin = self._pin(before)
        aborted, running = self.annotation("abort"), [item for item in before.of_state("Stable") if before.existing.get(item.name, 0)]
        course = self.courses.get(aborted or "", Course())
        if aborted == after.in_force and pin is None and "abort" in course.asked and not course.forgotten:
            assert not [item for item in running if item.name != aborted], f"{aborted} is aborted, and goes on replacing others"
        for item in before.of_state("Stable"):
            right = item.name == pin if pin else self.is_needed(item, before)
            aborted = after.revisions[item.name].state in ("Failed", "Superseded")
            if right and before.existing.get(item.name, 0) and not aborted:
                assert after.in_force == item.name, f"{item} is asked for, and is replaced"

    def _replicas(self, before: Scene, after: Scene) -> None:
        """Nothing grows without a stored reason, and a candidate never beyond one replica."""
        self._one_replica(before, after)
        for name, count in after.replicas.items():
            if count <= before.wanted(name):
                continue
            stored = after.revisions.get(name)
            assert stored is not None, f"{name} grows and is not stored"
            # An edit of replicas is carried out first. It goes to what the same plan puts in force, although that may be refused for long.
            asked = name in self._roles and (self._pin(before) == name or self.is_needed(stored, before))
            # Where the end of a trial was refused, what serves is kept up, and the end is tried again.
            kept_up = name == before.in_force and self._stalled
            assert stored.state == "Candidate" or name == self.in_force or asked or kept_up, f"{stored} grows"
            if stored.state == "Candidate" and self.in_force is not None:
                assert count == 1, f"{stored} gets {count} replicas before it is promoted"

    def _one_replica(self, before: Scene, after: Scene) -> None:
        """The last replica of a trial in which both served is the active revision's, unless a human decides otherwise."""
        in_force = self.in_force or ""
        beside = [
            item.name for item in after.of_state("Candidate") if before.replicas.get(item.name, 0) and before.serving.get(item.name, 0)
        ]
        by_hand = any(self.annotation(operation) is not None for operation in ("promote", "pin"))
        if self.replicas == 1 and not self.policy.max_surge and beside and before.serving.get(in_force, 0) and not by_hand:
            assert after.replicas.get(in_force, 0), f"{in_force} stops for {beside}"

    def _deletions(self, before: Scene, steps: Sequence[Step]) -> None:
        for step in steps:
            if not isinstance(step, Delete):
                continue
            name = step.ref.name
            if step.ref.kind in WORKLOADS:
                assert not before.replicas[name]
                assert not before.existing.get(name, 0)
            if step.ref.kind == "ControllerRevision":
                stored = before.revisions[name]
                assert name not in (self.in_force, self.annotation("pin")), f"{stored} is deleted"
                assert not before.existing.get(name, 0), f"{stored} runs and is deleted"
                assert not (stored.state == "Failed" and self.is_asked_for(stored)), f"that {stored} failed is deleted"
                assert stored.state not in ("Candidate", "Stable"), f"{stored} is deleted"

    # What is shown.

    def _events(self, steps: Sequence[Step], *, shown: bool) -> None:
        """Nothing is told twice in a row. ``shown`` is whether there was a status that tells what has been said."""
        told = {step for step in steps if isinstance(step, Event)}
        again = told & self._told if shown else set()
        assert not again, f"told again: {again}"
        self._told = told if self.world.status_written and not self.world.obstructed else set()

    def _status(self, before: Scene) -> None:
        """``before`` shows the pods the status speaks of."""
        status = self.world.deployment["status"]
        rollout = status.get("rollout") or {}
        assert rollout.get("phase", "Progressing") in PHASES
        assert len(rollout.get("analysis") or ()) <= 7
        assert all(len(item["message"]) <= 256 for item in rollout.get("analysis") or ())
        assert len(json.dumps(status)) <= STATUS_BYTES
        assert status["observedGeneration"] == self.world.deployment["metadata"]["generation"]
        if not self.lost and not (self.world.obstructed and self._is_aborted(self.in_force)):
            assert status.get("stableRevision") == self.in_force
        existing, serving = sum(before.existing.values()), sum(before.serving.values())
        shown = (status.get("replicas"), status.get("serving"))
        if "LeaderWorkerSet" in self.world.kinds or not self.world.of_kind("LeaderWorkerSet"):
            assert shown == (existing, f"{serving}/{self.replicas}"), f"{existing} exist, {serving} serve, and the status says {shown}"
        strangers = [item for item in status.get("notices") or () if item["reason"] == "ForeignObject"]
        assert not strangers or self.world.strangers, f"nobody made them: {strangers}"
        if self.world.condition("Ready") == "True":
            self._ready(before)
        self._reconciling(before)

    def _reconciling(self, before: Scene) -> None:
        """Replicas that load again by themselves are no change of the user, who was told that nothing is left to do."""
        now = scene(self.world)
        if self.world.condition("Reconciling") == "True" and self._settled_for == self.cause:
            others = [name for name, count in before.existing.items() if count and name != self.in_force]
            moves = others or now.of_state("Candidate") or before.existing.get(self.in_force or "", 0) > self.replicas
            assert moves or now.wanted(self.in_force or "") != self.replicas, "nothing changes, and Reconciling is True"
        self._settled_for = self.cause if self.world.reason("Reconciling") == "Settled" else None

    def _ready(self, before: Scene) -> None:
        """What runs is what the spec asks for."""
        now = scene(self.world)
        stored = now.revisions.get(self.in_force or "")
        if stored is None and (not self.replicas or self.suspended):
            # The first revision of all: it is active with the next plan that may write.
            stored = now.of_state("Candidate")[0]
        assert stored is not None
        # A user who asks for what the tuner already tries changes nothing, and its trial stays the tuner's.
        agreed = any(item.origin == "Tuner" and self.is_needed(item, now) for item in now.of_state("Candidate"))
        assert agreed or self.is_needed(stored, now), f"{stored} runs, not what the spec asks for, and Ready is True"
        needed = max(min(1, self.replicas), self.replicas - self.policy.max_unavailable)
        if any(item.origin == "Tuner" for item in now.revisions.values()):
            # Nobody waits for a change of the tuner, so one under way is no reason not to be ready.
            assert sum(before.serving.values()) >= needed, "too few serve, and Ready is True"
            return
        others = {name: count for name, count in before.existing.items() if count and name != stored.name}
        assert not others, f"{others} run, and Ready is True"
        assert before.existing.get(stored.name, 0) <= self.replicas
        assert before.serving.get(stored.name, 0) >= needed, "too few serve, and Ready is True"


def _since(since: float | None, now: float) -> float:
    return now if since is None else since
