"""What to do next: an ordered list of writes and events, and the status to show.

A plan is dropped whole when one of its writes meets a conflict; the next one starts from what is there then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dflash_controller.model.probe import ProbeRequest
from dflash_controller.tuner.decision import TunerDecision

REQUEUE_AFTER_S = 60.0
"""Where nothing is watched that would tell: a name that somebody else holds, the clock."""


@dataclass(frozen=True, slots=True)
class Ref:
    """An object that exists, as it was when the plan was made: the fence of a write to it."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str


@dataclass(frozen=True, slots=True)
class Adopt:
    """Make the deployment the only controller of a child, with the labels it is found by (merge patch, fenced)."""

    ref: Ref
    owner_references: tuple[Mapping[str, Any], ...]
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Create:
    """POST an object that must not exist yet (a ControllerRevision, whose data is immutable)."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Annotate:
    """Merge-patch annotations and, where given, the revision number of a ControllerRevision (fenced)."""

    ref: Ref
    annotations: Mapping[str, str]
    revision: int | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """Server-side apply of a child. ``fence`` is the live object the manifest was planned against, None when there was none.

    ``fenced`` says the write changes replicas and must carry that resourceVersion; the executor skips an apply that changes nothing.
    ``irreversible`` marks a scale-down.
    """

    manifest: Mapping[str, Any]
    fence: Ref | None = None
    fenced: bool = False
    irreversible: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a child, with UID and resourceVersion as preconditions; its pods go with it (background propagation)."""

    ref: Ref


@dataclass(frozen=True, slots=True)
class Event:
    """A core/v1 Event about the DFlashDeployment. Same reason and message within an hour are told once.

    It stands among the steps where it is true: before an outage, after a promotion.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Step = Adopt | Create | Annotate | Apply | Delete | Event


@dataclass(frozen=True, slots=True)
class Plan:
    """``status`` is the whole status to show, None to leave it alone. ``requeue_after_s`` asks for another look."""

    steps: tuple[Step, ...] = ()
    status: Mapping[str, Any] | None = None
    requeue_after_s: float | None = None
    decision: TunerDecision | None = None
    """The tuner's, to be logged and counted; what is to be done about it is among the steps."""
    probe: ProbeRequest | None = None
    """The prompts to be sent meanwhile; None: none, and what is under way is broken off."""
    stores_learned: bool = False
    """A step keeps ``Knowledge.record`` with the stable revision."""

    @property
    def irreversible(self) -> bool:
        """Some step takes capacity or history away: children are read live before it is carried out."""
        return any(
            isinstance(step, Delete)
            or (isinstance(step, Apply) and step.irreversible)
            or (isinstance(step, Annotate) and bool(step.annotations))
            for step in self.steps
        )
