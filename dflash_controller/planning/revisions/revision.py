"""A revision as stored: everything that defines the engine process, in one apps/v1 ControllerRevision.

``data`` is immutable and written once: the inputs as the user wrote them, the values filled in from the catalog and the operator's
defaults, the active speculation and the rendered workload. What changes during a revision's life is annotations and ``.revision``.
The workload carries the same record in an annotation of its own metadata, so that either can be rebuilt from the other.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from dflash_controller.analysis.probe_json import from_json
from dflash_controller.api import names
from dflash_controller.api.inputs import canonical
from dflash_controller.api.speculation import Speculation, parse_speculation
from dflash_controller.engines.resolved import Resolved
from dflash_controller.model.counters import ProbeRun
from dflash_controller.model.snapshot import Object
from dflash_controller.planning.replicas.count import revision_of
from dflash_controller.planning.revisions.trial_state import Trial
from dflash_controller.render.compact import compact

FORMAT = 1
HISTORY_ENTRIES = 20
HISTORY_BYTES = 8 * 1024


class RevisionState(StrEnum):
    """Where a revision stands. Promotion to Stable is a single write."""

    CANDIDATE = "Candidate"
    STABLE = "Stable"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"
    """A candidate that another one replaced before it was promoted."""
    RETIRED = "Retired"
    """Once stable, replaced by a newer stable one."""


class Origin(StrEnum):
    """Who asked for it."""

    USER = "User"
    TUNER = "Tuner"
    ROLLBACK = "Rollback"


@dataclass(frozen=True, slots=True)
class Revision:
    """One revision. ``hash`` is the part of its name that follows the deployment's."""

    hash: str
    number: int
    state: RevisionState
    inputs: Mapping[str, Any]
    block_size_as_written: int | None
    speculation: Speculation
    resolved: Resolved
    workload: Mapping[str, Any]
    history: tuple[Mapping[str, str], ...]
    trial: Trial
    probe: ProbeRun | None
    """Its answers to the probe's prompts, where it has been asked."""
    learned: str | None
    """What the tuner has learned, as JSON, where that is kept with it."""
    source: Object
    """The ControllerRevision it was read from."""

    @property
    def name(self) -> str:
        return str(self.source["metadata"]["name"])

    @property
    def asked(self) -> Mapping[str, str]:
        """The entry of the history that last made it a candidate; empty where none is kept."""
        return next((entry for entry in reversed(self.history) if entry["outcome"] == RevisionState.CANDIDATE), {})

    @property
    def origin(self) -> str | None:
        """Who last made it a candidate."""
        return self.asked.get("origin")

    def same_intent(self, inputs: Mapping[str, Any]) -> bool:
        """Compared as written, in today's canonical form on both sides: an older operator's spelling never makes a difference."""
        return canonical(self.inputs) == canonical(inputs)


def read(revision: Object) -> Revision | None:
    """The record in a ControllerRevision; None where it is not one of ours (written by a newer format, or damaged)."""
    data, metadata = revision.get("data") or {}, revision["metadata"]
    annotations = metadata.get("annotations") or {}
    try:
        if data["format"] > FORMAT:
            return None
        return Revision(
            hash=revision_of(revision),
            number=int(revision.get("revision", 0)),
            state=RevisionState(annotations.get(names.ANNOTATION_STATE, RevisionState.SUPERSEDED)),
            inputs=data["inputs"],
            block_size_as_written=data.get("blockSize"),
            speculation=parse_speculation(data["speculation"]),
            resolved=Resolved.from_json(data["resolved"]),
            workload=data["workload"],
            history=tuple(json.loads(annotations.get(names.ANNOTATION_HISTORY, "[]"))),
            probe=_probe(annotations.get(names.ANNOTATION_PROBE)),
            learned=annotations.get(names.ANNOTATION_LEARNED) or None,
            trial=Trial.from_json(annotations.get(names.ANNOTATION_TRIAL)),
            source=revision,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _probe(text: str | None) -> ProbeRun | None:
    """Answers that cannot be read count as not given: the probe asks again."""
    try:
        return from_json(text) if text else None
    except ValueError:
        return None


def revision_hash(inputs: Mapping[str, Any], speculation: Speculation, taken: Iterable[str]) -> str:
    """Eight characters, the first a letter (a LeaderWorkerSet's own names end in numbers); unlike every one in ``taken``."""
    used = set(taken)
    for collision in range(len(used) + 1):
        content = json.dumps([canonical(inputs), speculation.to_json(), collision], sort_keys=True, separators=(",", ":"))
        digest = base64.b32encode(hashlib.sha256(content.encode()).digest()).decode().lower()
        if (name := "r" + digest[:7]) not in used:
            return name
    raise AssertionError("more collisions than names")


def data(
    inputs: Mapping[str, Any], block_size_as_written: int | None, speculation: Speculation, resolved: Resolved, workload: Mapping[str, Any]
) -> dict[str, Any]:
    """The immutable part of a ControllerRevision."""
    written = {"blockSize": block_size_as_written} if block_size_as_written is not None else {}
    return {
        "format": FORMAT,
        "inputs": dict(inputs),
        **written,
        "speculation": speculation.to_json(),
        "resolved": resolved.to_json(),
        "workload": dict(workload),
    }


def manifest(
    deployment: str,
    namespace: str,
    owner: Mapping[str, Any],
    revision: str,
    number: int,
    content: Mapping[str, Any],
    state: RevisionState,
    history: Sequence[Mapping[str, str]],
    trial: Trial,
) -> dict[str, Any]:
    """The ControllerRevision to create."""
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": f"{deployment}-{revision}",
            "namespace": namespace,
            "labels": names.child_labels(deployment) | {names.LABEL_REVISION: revision},
            "annotations": {
                names.ANNOTATION_STATE: state.value,
                names.ANNOTATION_HISTORY: _history_json(history),
                names.ANNOTATION_TRIAL: trial.to_json(),
            },
            "ownerReferences": [dict(owner)],
        },
        "data": dict(content),
        "revision": number,
    }


def state_annotations(record: Revision, state: RevisionState, now: datetime, origin: Origin, reason: str) -> dict[str, str]:
    """Annotations that move a revision to a state and remember that they did."""
    entry = history_entry(now, origin, state, reason)
    return {names.ANNOTATION_STATE: state.value, names.ANNOTATION_HISTORY: _history_json([*record.history, entry])}


def history_entry(now: datetime, origin: Origin, outcome: RevisionState, reason: str) -> dict[str, str]:
    """One line of a revision's history."""
    return {"at": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "origin": origin.value, "outcome": outcome.value, "reason": reason}


def workload_annotation(content: Mapping[str, Any]) -> str:
    """The record as the workload carries it: all but the workload itself."""
    return json.dumps({key: value for key, value in content.items() if key != "workload"}, sort_keys=True, separators=(",", ":"))


def data_from_workload(workload: Object) -> dict[str, Any] | None:
    """Rebuild a lost ControllerRevision's data from its workload; None where the workload carries no record.

    The live template, defaults of the API server included, becomes the stored one: applying it changes no pod.
    """
    metadata = workload["metadata"]
    try:
        content = json.loads(metadata["annotations"][names.ANNOTATION_RECORD])
    except (KeyError, TypeError, ValueError):
        return None
    content["workload"] = live_workload(workload)
    return dict(content)


def live_workload(workload: Object) -> dict[str, Any]:
    """A live workload as a manifest: without replicas, and without what only the API server writes."""
    metadata = workload["metadata"]
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "labels": dict(metadata.get("labels") or {})},
        "spec": compact({key: value for key, value in workload["spec"].items() if key != "replicas"}),
    }


def _history_json(entries: Sequence[Mapping[str, str]]) -> str:
    kept = list(entries)[-HISTORY_ENTRIES:]
    while len(text := json.dumps(kept, separators=(",", ":"))) > HISTORY_BYTES:
        kept = kept[1:]
    return text
