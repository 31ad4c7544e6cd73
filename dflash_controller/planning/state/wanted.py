"""Finds the revision that the spec asks for, or what keeps it from being known: a problem, or a hub that is still being asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_controller.api.conditions import Reason
from dflash_controller.api.inputs import revision_inputs
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Spec
from dflash_controller.engines import ENGINES
from dflash_controller.engines.drafter_config import block_problems, pair_problems, read_drafter, read_target, release_problems
from dflash_controller.engines.resolve import Published, resolve, spec_problems
from dflash_controller.engines.resolved import Resolved
from dflash_controller.model.hub import NO_QUESTIONS, HubAnswer, ModelFacts, ModelQuestions
from dflash_controller.planning.replicas.count import LEADER_WORKER_SET, revision_of, template_of
from dflash_controller.planning.revisions import measured_rates, model_commits
from dflash_controller.planning.revisions.desired import PendingRevision, desired_revision
from dflash_controller.planning.revisions.model_commits import ModelChoice, PartName
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state import blockers
from dflash_controller.planning.state.inputs import Blocker
from dflash_controller.planning.state.reconcile_state import ReconcileState

TRAINED = "spec.drafter.trainedBlockSize"
"""The one field that the hub can fill where neither spec nor catalog do."""
Found = Mapping[PartName, tuple[ModelChoice, HubAnswer]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """The hub is being asked. That takes seconds and ends by itself."""

    message: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """The revision that the spec asks for, or why there is none; and what is asked of the hub for it."""

    outcome: Revision | PendingRevision | Blocker | Waiting
    pending: ModelQuestions = NO_QUESTIONS


def wanted_revision(state: ReconcileState, spec: Spec) -> Wanted:
    """Returns what the spec asks for. The hub matters only for a revision that is not stored yet."""
    if problems := spec_problems(spec, state.context.catalog, state.context.defaults):
        return Wanted(blockers.invalid(problems))
    resolver = _Resolver(state, spec)
    outcome: Revision | PendingRevision | Blocker | Waiting = desired_revision(spec, state.records, state.stable, resolver.resolve)
    if isinstance(outcome, PendingRevision):
        request = outcome.resolved.launch_request(outcome.speculation)
        if impossible := ENGINES[outcome.resolved.engine].problems(request):
            return Wanted(blockers.engine_unsupported(impossible), resolver.questions)
        outcome = replace(outcome, doubts=resolver.doubts)
    if not isinstance(outcome, Blocker | Waiting) and outcome.resolved.nodes > 1 and LEADER_WORKER_SET not in state.snapshot.kinds:
        return Wanted(blockers.leader_worker_set_missing())
    if isinstance(outcome, Revision) and _has_image_volume(outcome.workload) and _lost_image_volume(state, outcome):
        return Wanted(blockers.image_volumes_missing("the API server leaves them out of pods"), resolver.questions)
    return Wanted(outcome, resolver.questions)


def _lost_image_volume(state: ReconcileState, revision: Revision) -> bool:
    """Whether the API server left out the image volume: one without the feature drops volume and mounts without a word."""
    live = [workload for workload in state.snapshot.workloads if revision_of(workload) == revision.hash]
    return any(not _has_image_volume(workload) for workload in live)


def _has_image_volume(workload: Mapping[str, Any]) -> bool:
    template = template_of(workload) or {}
    return any("image" in volume for volume in template.get("spec", {}).get("volumes") or ())


class _Resolver:
    """Fills the spec in for a new revision. Afterwards it says what it asked of the hub, and what it did without."""

    def __init__(self, state: ReconcileState, spec: Spec) -> None:
        self._state = state
        self._spec = spec
        self.questions = NO_QUESTIONS
        self.doubts: tuple[str, ...] = ()

    def resolve(self, carried: Resolved | None) -> Resolved | Blocker | Waiting:
        """``carried`` are the values of the active revision, unless ``restartId`` changed."""
        drafter, outcome = self._drafter(), self._resolved(carried, Published())
        others = not isinstance(outcome, Resolved) and any(problem.field != TRAINED for problem in outcome)
        if drafter is None or others:
            return self._without_problems(outcome)
        found = self._found(drafter, anew=carried is None)
        if isinstance(found, Waiting):
            return found
        if blocker := self._unresolved(found):
            return blocker
        outcome = self._resolved(carried, _published(found))
        if isinstance(outcome, Resolved) and (blocker := self._contradicted(found, outcome)):
            return blocker
        if not isinstance(outcome, Resolved):
            return self._without_problems(outcome)
        committed = model_commits.with_commits(self._spec, outcome, found, self._state.stable)
        return measured_rates.with_measured(committed, revision_inputs(self._spec), self._state.records)

    def _drafter(self) -> str | None:
        known = self._state.context.catalog.find(self._spec.target.model)
        return self._spec.drafter.model or (known.drafter if known else None)

    def _resolved(self, carried: Resolved | None, published: Published) -> Resolved | list[Problem]:
        context, key = self._state.context, self._state.snapshot.key
        return resolve(self._spec, key.name, key.namespace, context.catalog, context.defaults, carried, published)

    def _without_problems(self, outcome: Resolved | list[Problem]) -> Resolved | Blocker:
        return outcome if isinstance(outcome, Resolved) else blockers.unresolved(outcome, self._spec, self._state.context)

    def _found(self, drafter: str, *, anew: bool) -> Found | Waiting:
        """Returns the hub's answers for target and drafter, or that it is being asked."""
        hub, intent = self._state.context.hub, model_commits.intent_of(revision_inputs(self._spec))
        chosen = model_commits.choices(self._spec, drafter, self._state.stable, anew=anew)
        reason = model_commits.not_asked(self._spec, hub.endpoint)
        if reason is None and hub.endpoint is not None:
            self.questions = ModelQuestions(pending=tuple(dict.fromkeys(choice.question for choice in chosen)), intent=intent)
        found: dict[PartName, tuple[ModelChoice, HubAnswer]] = {}
        for choice in chosen:
            answer = reason or hub.resolved(choice.question, intent)
            if answer is None:
                asked = " and ".join(f"{each.question.model} at {each.question.ref}" for each in chosen)
                return Waiting(f"{hub.endpoint} is asked for the commit and the config.json of {asked}")
            found[choice.part] = choice, answer
        return found

    def _unresolved(self, found: Found) -> Blocker | None:
        """Notes what is not resolved. Where the operator's pods fetch the weights, nothing is made without a commit."""
        missing = [gap for choice, answer in found.values() if (gap := model_commits.unresolved(choice, answer))]
        if model_commits.fetched_by_operator(self._spec) and (fatal := [gap for gap in missing if gap.choice.fallback is None]):
            return blockers.not_resolved(fatal)
        asks = self._state.context.hub.endpoint is not None
        # Without a hub by the operator's settings every branch stays one, and RevisionNotPinned says so.
        self.doubts = tuple(_doubt(gap) for gap in missing if asks or gap.choice.fallback is not None)
        return None

    def _contradicted(self, found: Found, resolved: Resolved) -> Blocker | None:
        """Returns the blocker for a drafter whose config.json contradicts target, spec or engine release."""
        configs = {part: answer.config if isinstance(answer, ModelFacts) else None for part, (_, answer) in found.items()}
        drafter, target = read_drafter(configs["drafter"]), read_target(configs["target"])
        name = resolved.drafter.model
        problems = {
            Reason.DRAFTER_MISMATCH: [*pair_problems(name, drafter, resolved.target.model, target)],
            Reason.INVALID_SPEC: [*block_problems(name, drafter, self._spec.drafter.trained_block_size)],
            Reason.ENGINE_UNSUPPORTED: [*release_problems(name, drafter, resolved.engine, resolved.version)],
        }
        return blockers.contradicted(problems)


def _published(found: Found) -> Published:
    facts = {part: answer if isinstance(answer, ModelFacts) else None for part, (_, answer) in found.items()}
    target, drafter = facts["target"], facts["drafter"]
    return Published(
        trained_block_size=read_drafter(drafter.config).block_size if drafter else None,
        target_bytes=target.weight_bytes if target else None,
        drafter_bytes=drafter.weight_bytes if drafter else None,
    )


def _doubt(gap: model_commits.Unresolved) -> str:
    if gap.choice.fallback is not None:
        return (
            f"{gap}. {gap.choice.fallback} stays; change spec.restartId again once the hub answers, or set {gap.choice.field} to a commit"
        )
    return f"{gap}. Each engine loads what it names when it starts; set {gap.choice.field} to a 40-digit commit"
