"""The state from which a plan and a status are derived, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_controller.api.types import Spec
from dflash_controller.model.hub import NO_QUESTIONS, ModelQuestions
from dflash_controller.model.snapshot import Object, Pod, Snapshot
from dflash_controller.planning.replicas.count import engines
from dflash_controller.planning.replicas.next_replicas import Budget, Pool
from dflash_controller.planning.revisions.drafter_health import DrafterHealth
from dflash_controller.planning.revisions.outcome import CandidateOutcome
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.state.inputs import Blocker, PlannerInputs
from dflash_controller.planning.state.plan import Part
from dflash_controller.tuner.decision import TunerDecision


@dataclass(frozen=True, slots=True)
class ReconcileState:
    """The state of one reconcile. ``stable`` and ``candidate`` are the roles after this plan. ``spec`` is None only if it is invalid."""

    snapshot: Snapshot
    deployment: Object
    context: PlannerInputs
    spec: Spec | None
    stored: StoredRevisions
    """The revisions before this plan."""
    obstacles: Mapping[Part, Blocker] = field(default_factory=dict)
    """What keeps a part of the plan from being carried out."""
    unknown: frozenset[str] = frozenset()
    """Hashes of revisions in force or on trial whose records cannot be read. Their replicas stay, and are scaled if they are in force."""
    in_force_unread: str | None = None
    """The one of them that is active; None if the active revision can be read."""
    taken: frozenset[tuple[str, str]] = frozenset()
    """Kinds and names of children that are not written, because somebody else holds the name or the kind is not served."""
    records: tuple[Revision, ...] = ()
    stable: Revision | None = None
    candidate: Revision | None = None
    failed: Revision | None = None
    """The revision that the spec asks for, if it was tried and failed. Stable serves in its place."""
    pin: Revision | None = None
    """The revision that the pin annotation asks for in place of the spec's."""
    departs: bool = False
    """True if the desired revision is not the spec's: a pin names another one, or the spec's could not be created yet."""
    outcome: CandidateOutcome | None = None
    """The decision on the candidate, also if this plan ends its trial."""
    budget: Budget = field(default_factory=lambda: Budget(0, 0, 0))
    pools: tuple[Pool, ...] = ()
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Desired replicas by revision after this plan."""
    empty_first: frozenset[str] = frozenset()
    """Revisions whose workload this plan creates without replicas, before others give up replicas for it."""
    asked_hub: ModelQuestions = NO_QUESTIONS
    """What is asked of the model hub for the revision that the spec asks for."""
    waits_for_hub: str | None = None
    """What the model hub is being asked, if the desired revision is not known before it has answered."""
    decision: TunerDecision | None = None
    """The tuner's decision; None if it was not asked or knows nothing yet."""
    health: DrafterHealth | None = None
    """Health of the active drafter; None if nothing is known yet."""

    @property
    def blocker(self) -> Blocker | None:
        """Returns the first obstacle in the order of the parts: what a human should look at first."""
        return next((self.obstacles[part] for part in Part if part in self.obstacles), None)

    @property
    def held(self) -> Blocker | None:
        """Returns the obstacle that stops the rollout, or None."""
        return self.obstacles.get(Part.ROLLOUT)

    @property
    def serving(self) -> int:
        return sum(pool.serving for pool in self.pools)

    @property
    def existing(self) -> int:
        return sum(pool.existing for pool in self.pools)

    @property
    def newest(self) -> Revision | None:
        """Returns the revision with the highest number: the one that was asked for last."""
        return max(self.records, key=lambda record: record.number, default=None)

    @property
    def target(self) -> Revision | None:
        """Returns the candidate, or stable if there is none."""
        return self.candidate or self.stable

    def pods(self, revision: str) -> list[Pod]:
        """Returns the engine pods of a revision that are not terminating."""
        return [pod for pod in engines(self.snapshot.pods) if pod.revision == revision and not pod.terminating]

    def pool(self, revision: str) -> Pool:
        """Returns the replicas of a revision; all zero if it has none."""
        return next((pool for pool in self.pools if pool.revision == revision), Pool(revision, 0, 0, 0, 0))
