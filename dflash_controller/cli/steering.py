"""What the verbs of ``rollout`` are about to do: the sentences that say it, and the patch that does it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dflash_controller.api import defaults, names
from dflash_controller.api.inputs import revision_inputs
from dflash_controller.api.types import Spec
from dflash_controller.cli.failures import NEGATIVE, Failure
from dflash_controller.planning.revisions.operations import OPERATIONS, pin, standing
from dflash_controller.planning.revisions.revision import Revision, RevisionState
from dflash_controller.planning.revisions.roles import StoredRevisions

_REPLACING = "Progressing"
_GITOPS = "If the object comes from Git, change it there too, or it is set back"


@dataclass(frozen=True, slots=True)
class Action:
    """One change of a DFlashDeployment. ``first`` must be gone from the trial before ``patch`` counts; usually it is None."""

    says: tuple[str, ...]
    patch: Mapping[str, Any]
    asks: bool = True
    """Whether a person has to agree."""
    first: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """What the verbs need to know of a deployment."""

    obj: Mapping[str, Any]
    spec: Spec
    stored: StoredRevisions

    @property
    def name(self) -> str:
        return str(self.obj["metadata"]["name"])

    @property
    def phase(self) -> str:
        return str(((self.obj.get("status") or {}).get("rollout") or {}).get("phase") or "")

    @property
    def outage(self) -> str:
        """Returns a warning if replacing replicas stops serving."""
        policy, replicas = defaults.effective_rollout(self.spec), defaults.replicas(self.spec)
        if replicas == 1 and policy.max_surge == 0:
            return "Serving stops while the new replica loads: there is one replica, and spec.rollout.maxSurge is 0"
        return ""

    def record(self, name: str) -> Revision:
        """Returns a revision by its name, or by the part after the deployment's. Raises Failure."""
        if found := self.stored.named(name):
            return found
        raise Failure(f"{self.name} has no revision {name}", f"See kubectl dflash rollout history {self.name}")


def pause(now: Situation) -> Action:
    """Returns the pause of a rollout."""
    if now.spec.rollout.paused:
        raise Failure(f"{now.name} is paused already", f"Go on with kubectl dflash rollout resume {now.name}", status=NEGATIVE)
    says = "No rollout begins, and none is promoted, until it is resumed. A candidate on trial keeps its replica, and may still fail"
    return Action((says, _GITOPS), {"spec": {"rollout": {"paused": True}}}, asks=False)


def resume(now: Situation) -> Action:
    """Returns the end of a pause."""
    if not now.spec.rollout.paused:
        raise Failure(f"{now.name} is not paused", status=NEGATIVE)
    return Action(("Rollouts go on from where they stand", _GITOPS), {"spec": {"rollout": {"paused": False}}}, asks=False)


def promote(now: Situation) -> Action:
    """Returns the promotion of the candidate. Raises Failure if there is none."""
    candidate = now.stored.candidate
    if candidate is None:
        raise Failure(f"{now.name} has no candidate to promote{_phase(now)}", status=NEGATIVE)
    says = [
        f"{candidate.name} becomes the active revision, whatever the analysis and the maintenance window say",
        f"As soon as one replica of it serves, it replaces {now.stored.stable.name if now.stored.stable else 'what runs'}",
    ]
    return _operation(now, "promote", candidate, [*says, *_warned(now)])


def abort(now: Situation) -> Action:
    """Returns the end of a trial, or of a replacement that is under way. Raises Failure if there is nothing to abort."""
    candidate, stable = now.stored.candidate, now.stored.stable
    if candidate is not None:
        says = f"{candidate.name} fails and its replicas are removed; {stable.name if stable else 'nothing'} keeps serving"
        return _operation(now, "abort", candidate, [says, "It is not tried again until the spec or spec.restartId changes"])
    if stable is not None and now.phase == _REPLACING:
        says = f"{stable.name} fails while it replaces the others; the revision before it becomes active again and fills up"
        return _operation(now, "abort", stable, [says])
    raise Failure(
        f"{now.name} has nothing to abort{_phase(now)}", f"To go back use kubectl dflash rollout undo or pin {now.name}", status=NEGATIVE
    )


def undo(now: Situation, to: str | None) -> Action:
    """Returns the change of the spec back to what an earlier revision was made from. Raises Failure if there is none.

    By default that is the active revision if the spec asks for another one, else the last one that served before it.
    """
    stable = now.stored.stable
    earlier = [
        record for record in now.stored.records if record.state in (RevisionState.RETIRED, RevisionState.STABLE) and record != stable
    ]
    if to:
        record: Revision | None = now.record(to)
    elif stable is not None and _back_to(now, stable):
        record = stable
    else:
        record = max(earlier, key=lambda found: found.number, default=None)
    if record is None:
        raise Failure(f"{now.name} has no earlier revision that served", status=NEGATIVE)
    patch = _back_to(now, record)
    if not patch and stable is not None and record.speculation != stable.speculation:
        block = record.speculation.max_block_size
        raise Failure(
            f"the spec of {now.name} asks for {record.name} already: the tuner changed the block size from {record.speculation.label()} to "
            f"{stable.speculation.label()}",
            f"To run it again, use kubectl dflash rollout pin {now.name} {record.name}; to keep the tuner from changing it, set "
            f"spec.tuning.mode to Advise and spec.blockSize to {block}",
            status=NEGATIVE,
        )
    if not patch:
        raise Failure(f"the spec of {now.name} asks for {record.name} already", status=NEGATIVE)
    if record == stable:
        return Action((f"The spec is set back to {record.name}, which serves; a rollout that is under way ends", _GITOPS), {"spec": patch})
    says = (
        f"The spec is set back to what {record.name} was made from. It is tried on one replica and compared like any other change",
        f"To go back at once, without a comparison: kubectl dflash rollout pin {now.name} {record.name}",
        *_warned(now),
        _GITOPS,
    )
    return Action(says, {"spec": patch})


def pin_to(now: Situation, revision: str) -> Action:
    """Returns the pin of a revision. Raises Failure if it is not kept, or pinned already."""
    record = now.record(revision)
    if pin(dict(now.obj)) == record.name:
        raise Failure(f"{now.name} is pinned to {record.name} already", status=NEGATIVE)
    says = (
        f"{record.name} takes over as soon as one replica of it serves, without window, probe or analysis, whatever the spec says",
        f"Ready is False with reason Pinned until the pin is taken away: kubectl dflash rollout pin {now.name} --off",
        *_warned(now),
    )
    return Action(says, _annotation(names.ANNOTATION_PIN, record.name))


def unpin(now: Situation) -> Action:
    """Returns the end of a pin. Raises Failure if nothing is pinned."""
    if pin(dict(now.obj)) is None:
        raise Failure(f"{now.name} is not pinned", status=NEGATIVE)
    says = ("The spec counts again. If it asks for another revision, that one is tried like any other change", *_warned(now))
    return Action(says, _annotation(names.ANNOTATION_PIN, None))


def restart(now: Situation, at: datetime) -> Action:
    """Returns a restart of all engines. A branch is resolved anew, and today's defaults apply."""
    says = (
        "All engines are replaced, within the budget of a rollout. Branches are resolved to commits anew, and the operator's defaults of "
        "today apply",
        *_warned(now),
        _GITOPS,
    )
    return Action(says, {"spec": {"restartId": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}})


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON merge patch from one object to another; empty if they are equal."""
    patch: dict[str, Any] = {name: None for name in before if name not in after}
    for name, value in after.items():
        now = before.get(name)
        if isinstance(value, Mapping) and isinstance(now, Mapping):
            if inner := merge_patch(now, value):
                patch[name] = inner
        elif value != now:
            patch[name] = value
    return patch


def history(stored: StoredRevisions) -> list[dict[str, Any]]:
    """Returns every change of state of every revision that is kept, oldest first: when, what, who asked, why."""
    found = [
        {"at": entry["at"], "revision": record.name, "state": entry["outcome"], "askedBy": entry["origin"], "reason": entry["reason"]}
        for record in sorted(stored.records, key=lambda record: record.number)
        for entry in record.history
    ]
    return sorted(found, key=lambda entry: entry["at"])


def _operation(now: Situation, operation: str, record: Revision, says: Sequence[str]) -> Action:
    key = OPERATIONS[operation]
    stale = operation in standing(dict(now.obj), record.name)
    if stale and operation not in record.trial.disregards:
        raise Failure(f"{operation} is asked for already: the annotation {key} names {record.name}{_phase(now)}", status=NEGATIVE)
    # An annotation that stood before the trial began was meant for an earlier one. It counts again once the operator has seen it gone.
    return Action(tuple(says), _annotation(key, record.name), first=_annotation(key, None) if stale else None)


def _annotation(key: str, value: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": {key: value}}}


def _back_to(now: Situation, record: Revision) -> dict[str, Any]:
    """Returns the merge patch of the spec to what a revision was made from; empty if the spec asks for it already."""
    if record.same_intent(revision_inputs(now.spec)) and record.block_size_as_written == now.spec.block_size:
        return {}
    return merge_patch(_asked(revision_inputs(now.spec), now.spec.block_size), _asked(record.inputs, record.block_size_as_written))


def _asked(inputs: Mapping[str, Any], block_size: int | None) -> dict[str, Any]:
    return {**inputs, **({"blockSize": block_size} if block_size is not None else {})}


def _warned(now: Situation) -> list[str]:
    return [now.outage] if now.outage else []


def _phase(now: Situation) -> str:
    return f" (phase {now.phase})" if now.phase else ""
