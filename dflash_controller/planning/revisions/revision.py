"""Reads and writes a stored revision: everything that defines the engine process, in one apps/v1 ControllerRevision.

``data`` is written once and is immutable. It holds the inputs as the user wrote them, the values from the catalog and the operator's
defaults, the active speculation, and the rendered workload. Only the annotations and ``.revision`` change later. The workload carries the
same record in an annotation of its metadata, so each object can be rebuilt from the other.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
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
from dflash_controller.render.workload import DEPLOYMENT, LEADER_WORKER_SET

FORMAT = 1
HISTORY_ENTRIES = 20
HISTORY_BYTES = 8 * 1024
HASH_PATTERN = "r[a-z2-7]{7}"
"""Matches what ``revision_hash`` returns."""


class RevisionState(StrEnum):
    """The state of a revision. Promotion to Stable is a single write."""

    CANDIDATE = "Candidate"
    STABLE = "Stable"
    FAILED = "Failed"
    SUPERSEDED = "Superseded"
    """A candidate that another change replaced before it was promoted, or after it had failed."""
    RETIRED = "Retired"
    """A formerly stable revision that a newer stable one replaced."""


class Origin(StrEnum):
    """Who asked for a revision."""

    USER = "User"
    TUNER = "Tuner"
    ROLLBACK = "Rollback"


@dataclass(frozen=True, slots=True)
class TunerTrial:
    """What the history keeps of a trial that the tuner asked for."""

    load: float
    """Requests per replica at which it was decided."""
    exploratory: bool
    """Whether its gain was not known."""

    @staticmethod
    def of(entry: Mapping[str, str]) -> TunerTrial | None:
        """Returns the trial in a history entry; None if the entry has none, or one that cannot be read."""
        try:
            load = float(entry["load"])
        except (KeyError, ValueError):
            return None
        return TunerTrial(load, entry.get("exploratory") == "true") if math.isfinite(load) and load >= 0.1 else None


@dataclass(frozen=True, slots=True)
class Revision:
    """One stored revision. ``hash`` is the part of its name after the deployment's name."""

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
    """The revision's answers to the probe's prompts; None if it has not been asked."""
    learned: str | None
    """What the tuner has learned, as JSON; None if it is not stored with this revision."""
    source: Object
    """The ControllerRevision that this was read from."""

    @property
    def name(self) -> str:
        return str(self.source["metadata"]["name"])

    @property
    def asked(self) -> Mapping[str, str]:
        """Returns the history entry that last made this revision a candidate; empty if there is none."""
        return next((entry for entry in reversed(self.history) if entry["outcome"] == RevisionState.CANDIDATE), {})

    @property
    def origin(self) -> str | None:
        """Returns who last made this revision a candidate."""
        return self.asked.get("origin")

    @property
    def failure(self) -> Mapping[str, str] | None:
        """Returns the history entry of its failure if that is how it ended last; being superseded afterwards does not count."""
        last = next((entry for entry in reversed(self.history) if entry["outcome"] != RevisionState.SUPERSEDED), None)
        return last if last is not None and last["outcome"] == RevisionState.FAILED else None

    @property
    def tuners_trial(self) -> TunerTrial | None:
        """Returns the trial for which the tuner last made this revision a candidate; None if it did not."""
        return TunerTrial.of(self.asked) if self.origin == Origin.TUNER else None

    @property
    def exploratory(self) -> bool:
        """Returns whether the tuner last made this revision a candidate because its gain was not known."""
        trial = self.tuners_trial
        return trial is not None and trial.exploratory

    @property
    def trial_lost(self) -> bool:
        """Returns whether the annotation of the trial is missing or damaged. Every operator writes it with the revision."""
        text = (self.source["metadata"].get("annotations") or {}).get(names.ANNOTATION_TRIAL)
        try:
            return not isinstance(json.loads(text or ""), dict)
        except (RecursionError, ValueError):
            return True

    def same_intent(self, inputs: Mapping[str, Any]) -> bool:
        """Returns whether the inputs are the same. Both are compared in the current canonical form, so old spellings do not matter."""
        return canonical(self.inputs) == canonical(inputs)


def read(revision: Object) -> Revision | None:
    """Returns the record in a ControllerRevision, or None if it cannot be read: it has a newer format or is damaged."""
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
            workload=_workload(data["workload"]),
            history=_history(annotations.get(names.ANNOTATION_HISTORY)),
            probe=_probe(annotations.get(names.ANNOTATION_PROBE)),
            learned=annotations.get(names.ANNOTATION_LEARNED) or None,
            trial=Trial.from_json(annotations.get(names.ANNOTATION_TRIAL)),
            source=revision,
        )
    except (KeyError, TypeError, ValueError):
        return None


def _workload(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the stored workload. Raises ValueError if it is of a kind that this operator does not make."""
    if {key: manifest[key] for key in ("apiVersion", "kind")} not in (DEPLOYMENT, LEADER_WORKER_SET):
        raise ValueError(f"no workload: {manifest['kind']}")
    return manifest


def _history(text: str | None) -> tuple[Mapping[str, str], ...]:
    """Returns the stored history without the entries that cannot be read. What is lost only counts as not having happened."""
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return ()
    fields = ("at", "origin", "outcome", "reason")
    whole = entries if isinstance(entries, list) else []
    return tuple(entry for entry in whole if isinstance(entry, Mapping) and all(isinstance(entry.get(field), str) for field in fields))


def _probe(text: str | None) -> ProbeRun | None:
    """Returns the stored answers, or None if they cannot be read. The probe then asks again."""
    try:
        return from_json(text) if text else None
    except (RecursionError, ValueError):
        return None


def revision_hash(inputs: Mapping[str, Any], speculation: Speculation, taken: Iterable[str]) -> str:
    """Returns a hash of eight characters that is not in ``taken``.

    The first character is a letter, because the names that a LeaderWorkerSet makes end in numbers. Raises AssertionError if none is free.
    """
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
    """Returns the immutable part of a ControllerRevision."""
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
    """Returns the ControllerRevision to create."""
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
        # A copy under another name thereby disagrees with its name. A record rebuilt from its workload may lack it.
        "data": {"hash": revision, **content},
        "revision": number,
    }


def state_annotations(
    record: Revision, state: RevisionState, now: datetime, origin: Origin, reason: str, trial: TunerTrial | None = None
) -> dict[str, str]:
    """Returns the annotations that set a revision's state and add the change to its history."""
    entry = history_entry(now, origin, state, reason, trial)
    return {names.ANNOTATION_STATE: state.value, names.ANNOTATION_HISTORY: _history_json([*record.history, entry])}


def history_entry(now: datetime, origin: Origin, outcome: RevisionState, reason: str, trial: TunerTrial | None = None) -> dict[str, str]:
    """Returns one entry of a revision's history."""
    entry = {"at": now.strftime("%Y-%m-%dT%H:%M:%SZ"), "origin": origin.value, "outcome": outcome.value, "reason": reason}
    if trial is not None:
        entry |= {"load": f"{trial.load:.1f}"} | ({"exploratory": "true"} if trial.exploratory else {})
    return entry


def workload_annotation(content: Mapping[str, Any]) -> str:
    """Returns the record as the workload carries it: everything except the workload itself."""
    return json.dumps({key: value for key, value in content.items() if key != "workload"}, sort_keys=True, separators=(",", ":"))


def data_from_workload(workload: Object) -> dict[str, Any] | None:
    """Returns the data of a lost ControllerRevision, rebuilt from its workload. Returns None if the workload carries no record.

    The live template, with the defaults of the API server, becomes the stored one. Applying it therefore changes no pod.
    """
    metadata = workload["metadata"]
    try:
        content = json.loads(metadata["annotations"][names.ANNOTATION_RECORD])
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    content["workload"] = live_workload(workload)
    return dict(content)


def live_workload(workload: Object) -> dict[str, Any]:
    """Returns a live workload as a manifest, without replicas and without the fields that only the API server writes."""
    metadata = workload["metadata"]
    return {
        "apiVersion": workload["apiVersion"],
        "kind": workload["kind"],
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "labels": dict(metadata.get("labels") or {})},
        "spec": compact({key: value for key, value in workload["spec"].items() if key != "replicas"}),
    }


def _history_json(entries: Sequence[Mapping[str, str]]) -> str:
    """Returns the newest entries as JSON. The outcome of an exploratory trial is kept for as long as it counts against another one."""
    kept = list(entries)
    while len(text := json.dumps(kept, separators=(",", ":"))) > HISTORY_BYTES or len(kept) > HISTORY_ENTRIES:
        newest = kept[-1]["at"]
        del kept[next((place for place, entry in enumerate(kept) if not _counts(entry, newest)), 0)]
    return text


def _counts(entry: Mapping[str, str], newest: str) -> bool:
    """Returns whether an entry is the outcome of an exploratory trial in the week before ``newest``."""
    trial = TunerTrial.of(entry)
    if trial is None or not trial.exploratory or entry["outcome"] == RevisionState.CANDIDATE:
        return False
    try:
        return datetime.fromisoformat(newest) - datetime.fromisoformat(entry["at"]) < timedelta(days=7)
    except (TypeError, ValueError):
        return False
