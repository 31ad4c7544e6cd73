"""A plan: writes and events in three parts, and the status to show.

If a write meets a conflict, the rest of the plan is dropped. The next plan starts from the objects as they are then. A write that the API
server refuses stops only what depends on it: see ``Part``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from dflash_controller.model.hub import NO_QUESTIONS, ModelQuestions
from dflash_controller.model.probe import ProbeRequest
from dflash_controller.tuner.decision import TunerDecision

REQUEUE_AFTER_S = 60.0
"""Seconds to the next evaluation when no watch reports the change, for example of the clock or of somebody else's object."""


class Part(StrEnum):
    """A part of a plan that fails by itself. The parts are carried out in this order, whatever became of the ones before."""

    SERVING = "serving"
    """Scales and repairs what is in force."""
    ROLLOUT = "rollout"
    """Makes, tries, promotes and removes revisions. After a refused write, the rest of this part waits."""
    ACCESSORIES = "accessories"
    """Service, budget, policy, monitor and the Jobs that fetch weights. Each of them fails by itself."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A live object as it was when the plan was made. It fences a write to that object."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """A fenced merge patch that makes the deployment the only controller of a child and sets the labels the operator selects by."""

    ref: Ref
    owner_references: tuple[Mapping[str, Any], ...]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Create:
    """A POST of an object that must not exist yet (a ControllerRevision, whose data is immutable)."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Annotate:
    """A fenced merge patch of annotations and, if given, of the revision number of a ControllerRevision."""

    ref: Ref
    annotations: Mapping[str, str]
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """A server-side apply of a child. ``fence`` is the live object that the manifest was planned against; None if there was none.

    ``fenced`` is True if the write changes replicas and must carry that resourceVersion. The executor skips an apply that changes nothing.
    ``irreversible`` marks a scale-down.
    """

    manifest: Mapping[str, Any]
    fence: Ref | None = None
    fenced: bool = False
    irreversible: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """A deletion of a child, with UID and resourceVersion as preconditions. Background propagation deletes its pods too."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Event:
    """A core/v1 Event about the DFlashDeployment. The same reason and message is reported once an hour at most.

    Its place among the steps is where it is true: before an outage, after a promotion.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Step = Adopt | Create | Annotate | Apply | Delete | Event


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of one reconcile, by part. ``status`` is the whole status to show, or None to leave it unchanged.

    ``requeue_after_s`` is the time to the next evaluation in seconds.
    """

    serving: tuple[Step, ...] = ()
    rollout: tuple[Step, ...] = ()
    accessories: tuple[Step, ...] = ()
    status: Mapping[str, Any] | None = None
    requeue_after_s: float | None = None
    decision: TunerDecision | None = None
    """The tuner's decision, to log and count. The writes that follow from it are among the steps."""
    probe: ProbeRequest | None = None
    """The probe to run meanwhile. None means that no probe runs, and one under way is cancelled."""
    models: ModelQuestions = NO_QUESTIONS
    """What to ask of the model hub meanwhile."""
    stores_learned: bool = False
    """True if a step stores ``Knowledge.record`` with the stable revision."""

    @property
    def parts(self) -> tuple[tuple[Part, tuple[Step, ...]], ...]:
        """Returns the parts in the order in which they are carried out."""
        return ((Part.SERVING, self.serving), (Part.ROLLOUT, self.rollout), (Part.ACCESSORIES, self.accessories))

    @property
    def steps(self) -> tuple[Step, ...]:
        """Returns all steps in order."""
        return (*self.serving, *self.rollout, *self.accessories)

    @property
    def irreversible(self) -> bool:
        """Returns whether a step removes capacity or history. The children are then read live before the plan is carried out."""
        return any(
            isinstance(step, Delete)
            or (isinstance(step, Apply) and step.irreversible)
            or (isinstance(step, Annotate) and bool(step.annotations))
            for step in self.steps
        )
