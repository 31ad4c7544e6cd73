"""Everything a plan and a status are derived from, worked out once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dflash_controller.api.types import Spec
from dflash_controller.model.snapshot import Object, Pod, Snapshot
from dflash_controller.planning.replicas.count import engines
from dflash_controller.planning.replicas.next_replicas import Budget, Pool
from dflash_controller.planning.revisions.drafter_health import DrafterHealth
from dflash_controller.planning.revisions.outcome import CandidateOutcome
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.state.inputs import Blocker, PlannerInputs
from dflash_controller.tuner.decision import TunerDecision


@dataclass(frozen=True, slots=True)
class ReconcileState:
    """``stable`` and ``candidate`` are the roles after this plan; ``spec`` is None only where it could not be read."""

    snapshot: Snapshot
    deployment: Object
    context: PlannerInputs
    spec: Spec | None
    stored: StoredRevisions
    """The revisions before this plan."""
    blocker: Blocker | None = None
    records: tuple[Revision, ...] = ()
    stable: Revision | None = None
    candidate: Revision | None = None
    failed: Revision | None = None
    """The revision the spec asks for, where it was tried and failed: stable serves in its place."""
    pin: Revision | None = None
    """The revision an annotation asks for in place of the spec's."""
    departs: bool = False
    """What is to run is not what the spec asks for: a pin says otherwise, or it could not be made yet."""
    outcome: CandidateOutcome | None = None
    """About the candidate; also where this plan ends its trial."""
    budget: Budget = field(default_factory=lambda: Budget(0, 0, 0))
    pools: tuple[Pool, ...] = ()
    wanted: Mapping[str, int] = field(default_factory=dict)
    """Replicas by revision after this plan."""
    decision: TunerDecision | None = None
    """The tuner's; None where it was not asked or knows nothing yet."""
    health: DrafterHealth | None = None
    """Of the active drafter; None where nothing is known yet."""

    @property
    def serving(self) -> int:
        return sum(pool.serving for pool in self.pools)

    @property
    def existing(self) -> int:
        return sum(pool.existing for pool in self.pools)

    @property
    def newest(self) -> Revision | None:
        """The revision that was asked for last."""
        return max(self.records, key=lambda record: record.number, default=None)

    @property
    def target(self) -> Revision | None:
        """The revision the spec asks for."""
        return self.candidate or self.stable

    def pods(self, revision: str) -> list[Pod]:
        """The engine pods of a revision that are not on their way out."""
        return [pod for pod in engines(self.snapshot.pods) if pod.revision == revision and not pod.terminating]

    def pool(self, revision: str) -> Pool:
        """The replicas of a revision, all zero where it has none."""
        return next((pool for pool in self.pools if pool.revision == revision), Pool(revision, 0, 0, 0, 0))
