"""Builds the notices: facts worth knowing that are no error and change no condition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dflash_controller.api import names
from dflash_controller.api.conditions import Reason, shorten
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import fetch_image
from dflash_controller.planning.replicas.count import revision_of, template_of
from dflash_controller.planning.revisions import capacity, operations
from dflash_controller.planning.revisions.diff import rendered_differently
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.state.plan import Event
from dflash_controller.planning.state.reconcile_state import ReconcileState
from dflash_controller.planning.status.hub import moved_branches

NAMED = 3
"""Objects of others that the notice names."""
_CONCURRENCY = frozenset({Reason.CONCURRENCY_LIMITED.value, Reason.CONCURRENCY_DOES_NOT_FIT.value})


def notices(state: ReconcileState, metrics: Mapping[str, Any] | None) -> list[dict[str, str]]:
    """Returns the notices, at most one per reason, in a fixed order. ``metrics`` are those that the status shows of the stable revision."""
    target = state.target
    found: list[tuple[Reason, str]] = []
    if target is not None:
        resolved = target.resolved
        loose = [what for what, model in (("target", resolved.target), ("drafter", resolved.drafter)) if not model.pinned]
        if loose:
            fields = " and ".join(f"spec.{what}.revision" for what in loose)
            found.append(
                (Reason.REVISION_NOT_PINNED, f"Replicas may load different weights once a branch moves. Set {fields} to a 40-digit commit")
            )
        if not resolved.tested:
            found.append(
                (
                    Reason.ENGINE_RELEASE_UNTESTED,
                    f"{resolved.engine} {resolved.version} gets the command line of {resolved.dialect}, the nearest older release tested",
                )
            )
        if opened := _administered_by_clients(target):
            found.append((Reason.ADMIN_ENDPOINTS_OPEN, opened))
        if newer := _newer_defaults(state, target):
            found.append((Reason.NEWER_DEFAULTS_AVAILABLE, newer))
    found += moved_branches(state)
    found += _capacity(state, metrics)
    name = operations.pin(state.deployment)
    if name and state.pin is None:
        found.append(
            (Reason.PIN_UNKNOWN, f"The annotation serving.dflash.io/pin names {name}, which does not exist any more, so it has no effect")
        )
    if state.stable is not None and state.candidate is not None and (differently := rendered_differently(state.stable, state.candidate)):
        listed = ", ".join(differently)
        found.append(
            (
                Reason.RENDERED_DIFFERENTLY,
                f"{state.candidate.name} also changes {listed}: another release of the operator rendered {state.stable.name}. "
                "The analysis compares this too",
            )
        )
    if ignored := _ignored(state):
        found.append((Reason.ANNOTATION_IGNORED, ignored))
    if conflicts := state.context.field_conflicts:
        more = f"; the same for {len(conflicts) - 1} more" if len(conflicts) > 1 else ""
        found.append((Reason.FIELD_FIGHT, f"{conflicts[0]}{more}"))
    if strangers := state.snapshot.strangers:
        found.append((Reason.FOREIGN_OBJECT, _foreign_objects(strangers, state.snapshot.key.name)))
    if changed := foreign_template_keys(state):
        found.append((Reason.FOREIGN_TEMPLATE_CHANGE, f"Not written by the operator, and left alone: {', '.join(changed)}"))
    return [{"reason": str(reason), "message": shorten(message)} for reason, message in found]


def _administered_by_clients(target: Revision) -> str:
    """Returns a message if clients of the target, as its pods were stored, reach endpoints that are not meant for them; else nothing."""
    containers = (template_of(target.workload) or {}).get("spec", {}).get("containers", ())
    engine: Mapping[str, Any] = next((item for item in containers if item["name"] == names.ENGINE_CONTAINER), {})
    variables = {
        str(variable["name"]): None if "valueFrom" in variable else variable.get("value", "") for variable in engine.get("env", ())
    }
    words = [*engine.get("command", ()), *engine.get("args", ())]
    reason = ENGINES[target.resolved.engine].administered_by_clients(words, variables)
    return f"{reason}, so whoever reaches the serving port can administer the engine" if reason else ""


def _capacity(state: ReconcileState, metrics: Mapping[str, Any] | None) -> Iterator[tuple[Reason, str]]:
    """Yields what is known of the concurrency: of the stable revision what the engines say, of another one the estimate."""
    if state.stable is not None and (message := capacity.limited(state.stable, metrics)):
        yield Reason.CONCURRENCY_LIMITED, message
    record = state.candidate or state.target
    measured = state.stable is not None and record is state.stable and capacity.effective(state.stable, metrics) is not None
    if record is not None and not measured and (message := capacity.does_not_fit(record)):
        yield Reason.CONCURRENCY_DOES_NOT_FIT, message


def concurrency_reported(state: ReconcileState, shown: Mapping[str, Any]) -> tuple[Event, ...]:
    """Returns an event for each notice about the concurrency that the status, ``shown``, has for the first time."""
    before = {notice["reason"] for notice in (state.deployment.get("status") or {}).get("notices") or ()}
    fresh = [notice for notice in shown.get("notices") or () if notice["reason"] in _CONCURRENCY and notice["reason"] not in before]
    return tuple(Event("Warning", notice["reason"], notice["message"]) for notice in fresh)


def _ignored(state: ReconcileState) -> str | None:
    """Returns a message about operations that have no effect, for the person who set them. It leaves out those already carried out."""
    kept = {record.name for record in state.records}
    annotations = state.deployment["metadata"].get("annotations") or {}
    said = []
    for operation, key in operations.OPERATIONS.items():
        name = annotations.get(key)
        if name and name not in kept:
            said.append(f"{key} names {name}, which is not kept")
        elif state.stable is not None and name == state.stable.name and operation in operations.asked(state.deployment, state.stable):
            if operation == "abort":
                said.append(f"{key} names {name}, which has replaced every other revision. Set the spec back, or pin another revision")
        elif state.candidate is not None and name == state.candidate.name and operation in state.candidate.trial.disregards:
            said.append(f"{key} stood before the trial of {name} began; take it away, and set it again to {operation} it")
    return "; ".join(said) or None


def _foreign_objects(strangers: Sequence[str], deployment: str) -> str:
    more = f" and {len(strangers) - NAMED} more" if len(strangers) > NAMED else ""
    return (
        f"Not made by the operator, and neither counted nor written: {', '.join(strangers[:NAMED])}{more}. Take the label "
        f"{names.LABEL_DEPLOYMENT}={deployment} away from them and from their pods, because the Service selects pods by it"
    )


def _newer_defaults(state: ReconcileState, target: Revision) -> str | None:
    """Returns a message if the operator has newer defaults than the target runs. Only fields that the user left open count."""
    written: Mapping[str, Any] = target.inputs.get("engine") or {}
    engine, runs, today = target.resolved.engine, target.resolved, state.context.defaults
    version = str(written.get("version") or today.versions[engine])
    image = str(written.get("image") or today.images[engine].replace("{version}", version))
    if (version, image) == (runs.version, runs.image):
        if state.spec is None or not fetch_image(state.spec, runs.target, runs.drafter, today) or runs.writes_cache_only:
            return None
        if runs.fetch_image is None:
            return "The engines download their weights; today an init container does, and verifies them. Change spec.restartId to adopt it"
        return "The engines can write to the whole storage; today to their caches alone. Change spec.restartId to adopt it"
    return f"{engine} {runs.version} runs from {runs.image}; today's default is {version} from {image}. Change spec.restartId to adopt it"


def foreign_template_keys(state: ReconcileState) -> list[str]:
    """Returns what live pod templates have and their revisions do not: annotations, labels, containers, volumes, variables and mounts.

    ``kubectl rollout restart`` adds an annotation, for example.
    """
    templates = {record.hash: template_of(record.workload) for record in state.records}
    found = []
    for workload in state.snapshot.workloads:
        ours, live = templates.get(revision_of(workload)), template_of(workload)
        if ours is not None and live is not None:
            found += [f"{workload['metadata']['name']} {part}" for part in _foreign_parts(ours, live)]
    return found


def _foreign_parts(ours: Mapping[str, Any], live: Mapping[str, Any]) -> Iterator[str]:
    for field in ("annotations", "labels"):
        for key in sorted(set((live.get("metadata") or {}).get(field) or {}) - set((ours.get("metadata") or {}).get(field) or {})):
            yield f"{field} {key}"
    for field, word in (("containers", "container"), ("initContainers", "init container"), ("volumes", "volume")):
        before, after = (_by(template["spec"].get(field), "name") for template in (ours, live))
        yield from (f"{word} {name}" for name in sorted(after.keys() - before.keys()))
        if field == "volumes":
            continue
        for name in sorted(after.keys() & before.keys()):
            for part, key, what in (("env", "name", "variable"), ("volumeMounts", "mountPath", "mount")):
                extra = _by(after[name].get(part), key).keys() - _by(before[name].get(part), key).keys()
                yield from (f"{what} {item} of {word} {name}" for item in sorted(extra))


def _by(items: Sequence[Mapping[str, Any]] | None, key: str) -> dict[str, Mapping[str, Any]]:
    return {str(item[key]): item for item in items or ()}
