"""Where the active block size comes from, what is on trial beside it, and what the tuner decided last.

Pure, from what is stored: the histories of the revisions, the status, and Events, which the API server keeps for an hour. A trial freezes
the tuner, so that the status no longer has the decision that began it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dflash_controller.api.conditions import Reason
from dflash_controller.api.inputs import canonical
from dflash_controller.api.types import Spec
from dflash_controller.catalog import Catalog
from dflash_controller.cli.field_changes import changes
from dflash_controller.cli.times import happened
from dflash_controller.planning.revisions.desired import block_acted_upon
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState, TunerTrial
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.rollout.transitions import PINNED
from dflash_controller.tuner.decision import TunerInputs

SPEC, TRAINED, TUNER, FALLBACK, PIN, EARLIER = "spec.blockSize", "trained size", "tuner", "fallback", "pin", "earlier revision"
"""Where a block size may come from."""
_EVENTS = "Tuner"
"""Beginning of the reasons of the tuner's Events."""
_FIELDS = 3
"""Changed fields of the spec that are named."""
_SECONDS = len("2026-11-29T12:00:00")
"""Letters of a time without fractions of a second, which Events have and histories do not."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where a block size comes from, in one word and in a sentence without its full stop. ``since`` is empty if it is not known."""

    source: str
    text: str
    since: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OnTrial:
    """A candidate, and who asked for it. ``text`` says why and how its rollout stands, in a sentence without its full stop."""

    revision: str
    block: str
    origin: str
    reason: str
    since: str
    phase: str
    text: str


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision of the tuner, other than to wait for a rollout."""

    at: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Background:
    """What ``explain`` says besides the curves."""

    source: Source
    trial: OnTrial | None = None
    last: Decided | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "source": asdict(self.source),
            "onTrial": asdict(self.trial) if self.trial else None,
            "lastDecision": asdict(self.last) if self.last else None,
        }


@dataclass(frozen=True, slots=True)
class _Promotion:
    """A moment at which a revision became the active one, and the history entry that asked for it."""

    at: str
    record: Revision
    asked: Mapping[str, str]


def background(
    spec: Spec, stored: StoredRevisions, stable: Revision, status: Mapping[str, Any], events: Sequence[Mapping[str, Any]]
) -> Background:
    """Returns the background of the active revision's block size. ``events`` are those about the deployment, oldest first."""
    return Background(_source(spec, stored, stable), _on_trial(stored, stable, status.get("rollout") or {}), _last(stored, status, events))


def of_changes(inputs: TunerInputs) -> Background | None:
    """Returns what the inputs of a decision tell: the tuner's last change, if it led to the active block size; else None."""
    kept = [change for change in inputs.changes if change.kept]
    if not kept or kept[-1].block != inputs.speculation.max_block_size:
        return None
    at = f"{(inputs.now_s - kept[-1].at_s) / 3600:.1f} hours before this decision"
    return Background(Source(TUNER, f"the tuner changed to it {at}{_at_load(kept[-1].load)}"))


# Where the block size comes from


def _source(spec: Spec, stored: StoredRevisions, stable: Revision) -> Source:
    """A block size stays when something else is changed. So the first of the last promotions with the same one tells where it is from."""
    since, record, asked = "", stable, stable.asked
    for promotion in reversed(_promotions(stored.records)):
        if promotion.record.speculation != stable.speculation:
            break
        since, record, asked = promotion.at, promotion.record, promotion.asked
    reason = asked.get("reason", "")
    if asked.get("origin") == Origin.TUNER:
        return _of_tuner(spec, asked, since)
    if reason == PINNED:
        return Source(
            PIN, f"the pin of {record.name} brought it, a revision made at block size {record.speculation.label()}", since, reason
        )
    block = stable.speculation.max_block_size
    if block == spec.block_size:
        return Source(SPEC, "spec.blockSize says so", since, reason)
    written = f"spec.blockSize is {spec.block_size} now, which is not active yet" if spec.block_size else "spec.blockSize is not set"
    if block in (record.block_size_as_written, block_acted_upon(spec, record)):
        return Source(
            SPEC, f"spec.blockSize said so; {written}{'' if spec.block_size else ' any more, which changes nothing'}", since, reason
        )
    if block == stable.resolved.trained_block_size:
        return Source(TRAINED, f"{stable.resolved.drafter.model} was trained with it ({_fact(stable)}); {written}", since, reason)
    return Source(EARLIER, "it is kept from an earlier revision, of which no history is left", since, reason)


def _of_tuner(spec: Spec, asked: Mapping[str, str], since: str) -> Source:
    reason, trial = asked.get("reason", ""), TunerTrial.of(asked)
    load = _at_load(trial.load) if trial else ""
    if reason == Reason.DRAFTER_COLLAPSED:
        return Source(FALLBACK, "the operator fell back to it, because the drafter's acceptance had collapsed", since, reason)
    why = f"the tuner tried it on one replica because its gain was not known{load}, and kept it"
    if reason != Reason.EXPLORING:
        why = f"the tuner expected it to be faster{load}, and the trial on one replica did not disagree"
    written = f". spec.blockSize is {spec.block_size}, where the tuner began; it counts again once it is changed" if spec.block_size else ""
    return Source(TUNER, f"{why}{written}", since, reason)


def _promotions(records: Iterable[Revision]) -> list[_Promotion]:
    """Returns all that the histories tell, oldest first; of one second the newer revision last."""
    return sorted((found for record in records for found in _of_record(record)), key=lambda found: (found.at, found.record.number))


def _of_record(record: Revision) -> Iterator[_Promotion]:
    asked: Mapping[str, str] = {}
    for entry in record.history:
        if entry["outcome"] == RevisionState.CANDIDATE:
            asked = entry
        elif entry["outcome"] == RevisionState.STABLE:
            own = asked if asked and entry["origin"] in (asked["origin"], Origin.ROLLBACK) else entry
            yield _Promotion(entry["at"], record, own)


def _fact(stable: Revision) -> str:
    """Returns where the trained block size is known from."""
    if (stable.inputs.get("drafter") or {}).get("trainedBlockSize"):
        return "spec.drafter.trainedBlockSize"
    pair = Catalog.load().pair(stable.resolved.target.model, stable.resolved.drafter.model)
    return (pair.sources.get("trainedBlockSize") if pair else None) or "the drafter's config.json"


def _at_load(load: float) -> str:
    return f" at {load:.1f} requests per replica" if load > 0 else ""


# What is on trial


def _on_trial(stored: StoredRevisions, stable: Revision, rollout: Mapping[str, Any]) -> OnTrial | None:
    candidate = stored.candidate
    if candidate is None:
        return None
    shown = rollout if rollout.get("revision") == candidate.name else {}
    phase = str(shown.get("phase") or "")
    origin, reason = candidate.origin or "", candidate.asked.get("reason", "")
    stands = f"; {phase}: {shown.get('message') or shown.get('step') or 'under way'}" if phase else ""
    text = f"{_asked_for(candidate, stable, origin, reason)}{stands}"
    return OnTrial(candidate.name, candidate.speculation.label(), origin, reason, candidate.asked.get("at", ""), phase, text)


def _asked_for(candidate: Revision, stable: Revision, origin: str, reason: str) -> str:
    if origin == Origin.TUNER:
        trial = candidate.tuners_trial
        load = _at_load(trial.load) if trial else ""
        if reason == Reason.DRAFTER_COLLAPSED:
            return "the operator falls back to it, because the drafter's acceptance has collapsed"
        return f"the tuner {'does not know its gain' if candidate.exploratory else 'expects it to be faster'}{load}"
    if reason == PINNED:
        return "it is pinned"
    lines = changes(canonical(stable.inputs), canonical(candidate.inputs), "spec")
    if candidate.speculation != stable.speculation:
        lines.append(f"block size {stable.speculation.label()} -> {candidate.speculation.label()}")
    more = f" and {len(lines) - _FIELDS} more" if len(lines) > _FIELDS else ""
    return f"the spec asks for it ({', '.join(lines[:_FIELDS])}{more})" if lines else "the spec asks for it"


# What was decided last


def _last(stored: StoredRevisions, status: Mapping[str, Any], events: Sequence[Mapping[str, Any]]) -> Decided | None:
    """Returns the newest decision that is known. Of one moment the one with the operator's own words counts."""
    found = [*_shown(status.get("tuning") or {}), *_reported(events), *_asked_by_tuner(stored.records)]
    return max(found, key=lambda decided: decided.at[:_SECONDS], default=None)


def _shown(tuning: Mapping[str, Any]) -> Iterator[Decided]:
    if tuning.get("decidedAt") and tuning.get("state") != "Frozen":
        yield Decided(str(tuning["decidedAt"]), str(tuning.get("reason", "")), str(tuning.get("message", "")))


def _reported(events: Sequence[Mapping[str, Any]]) -> Iterator[Decided]:
    for event in events:
        reason = str(event.get("reason", ""))
        if reason.startswith(_EVENTS) and reason.removeprefix(_EVENTS) in set(Reason) - {Reason.FROZEN}:
            yield Decided(happened(event), reason.removeprefix(_EVENTS), str(event.get("message", "")))


def _asked_by_tuner(records: Iterable[Revision]) -> Iterator[Decided]:
    """Yields the tuner's changes and trials, with how they ended: the revisions keep them when Events are gone."""
    for record in records:
        for place, entry in enumerate(record.history):
            if entry["outcome"] == RevisionState.CANDIDATE and entry["origin"] == Origin.TUNER:
                trial, ended = TunerTrial.of(entry), record.history[place + 1 : place + 2]
                how = f"; it became {ended[0]['outcome']} ({ended[0]['reason']}) at {ended[0]['at']}" if ended else ""
                text = f"Asked for block size {record.speculation.label()} ({record.name}){_at_load(trial.load) if trial else ''}{how}"
                yield Decided(entry["at"], entry["reason"], text)
