"""What a spec would change against what runs: the revision that the operator would make, and how it would judge it."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dflash_controller.analysis.gates import applicable
from dflash_controller.api import defaults
from dflash_controller.api.gates import GATE_SPECS
from dflash_controller.api.inputs import canonical, revision_inputs
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Spec
from dflash_controller.catalog import Catalog
from dflash_controller.cli.deployments import Live
from dflash_controller.cli.failures import NEGATIVE, Failure
from dflash_controller.cli.field_changes import changes
from dflash_controller.cli.printing import as_yaml
from dflash_controller.cluster import kinds
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import resolve, spec_problems
from dflash_controller.engines.resolved import OperatorDefaults, Resolved
from dflash_controller.model.change import Change
from dflash_controller.planning.replicas.count import revision_of
from dflash_controller.planning.revisions.desired import PendingRevision, desired_revision, rolled_back
from dflash_controller.planning.revisions.diff import TEXT_STAYS, changed
from dflash_controller.planning.revisions.measured_rates import with_measured
from dflash_controller.planning.revisions.rendering import pod_difference, render, with_speculation
from dflash_controller.planning.revisions.revision import Revision, RevisionState, data, live_workload, manifest, read, revision_hash
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.planning.revisions.trial_state import Trial

_RUNS = "runs"
_NEVER = "the operator creates its first revision, which is not compared with anything"


@dataclass(frozen=True, slots=True)
class Difference:
    """Between what runs (``before``) and what a spec asks for (``after``). Both are equal if the spec asks for what runs."""

    before: Revision | None
    after: Revision
    new: bool
    """Whether the operator would make ``after``, and not return to a revision that is kept."""
    policy: tuple[str, ...]
    """Fields that change and start no revision."""
    drift: tuple[str, ...]
    """What somebody else changed in the live workload of ``before``."""
    labels: tuple[str, str] = (_RUNS, "asked for")
    """What ``before`` and ``after`` are, for the header of the unified diff."""

    @property
    def differs(self) -> bool:
        """Whether ``after`` is another revision than ``before``."""
        return self.before is None or self.before.hash != self.after.hash

    @property
    def restarts(self) -> bool:
        """Whether engines are replaced: a revision that failed is not tried again."""
        return self.differs and not self._failed

    @property
    def any(self) -> bool:
        return self.differs or bool(self.policy) or bool(self.drift)

    def fields(self) -> list[str]:
        """Returns the changed inputs of the revision, one in a line."""
        before = canonical(self.before.inputs) if self.before else {}
        return changes(before, canonical(self.after.inputs), "spec")

    def manifests(self) -> str:
        """Returns the unified diff of the workloads; empty if they are the same."""
        before = as_yaml(_comparable(self.before)).splitlines() if self.before else []
        after = as_yaml(_comparable(self.after)).splitlines()
        name = f"{self.before.name} ({self.labels[0]})" if self.before else "nothing runs"
        return "\n".join(difflib.unified_diff(before, after, name, f"{self.after.name} ({self.labels[1]})", lineterm=""))

    def judged(self) -> tuple[str, ...]:
        """Returns the metrics that decide the rollout; empty if nothing is compared."""
        if self.before is None or not self.restarts:
            return ()
        parts = changed(self.before, self.after)
        if not parts:
            return ()
        change = Change(parts, self.after.speculation.max_block_size, self.before.speculation.max_block_size)
        found = applicable(change)
        return (*(name for name in GATE_SPECS if name in found), *(("text",) if parts <= TEXT_STAYS else ()))

    def summary(self) -> str:
        """Returns in a sentence what the operator would do."""
        if self.before is None and self._on_trial:
            return f"{self.after.name} is what the spec asks for, and starts already as the first revision"
        if self.before is None:
            return f"{self.after.name}: {_NEVER}"
        if not self.differs:
            return f"no engine restarts: {self.before.name} runs and is what the spec asks for"
        if self._failed:
            again = "it is not tried again until the spec or spec.restartId changes"
            return f"no engine restarts: {self.after.name} failed before, so {again}; {self.before.name} keeps serving"
        verb = "make" if self.new else "return to"
        judged = self.judged()
        if self._on_trial:
            compared = f"{', '.join(judged)} are compared" if judged else "nothing is compared, because performance stays the same"
            return f"{self.after.name} is what the spec asks for, and is on trial already beside {self.before.name}; {compared}"
        how = f"compare {', '.join(judged)}" if judged else "compare nothing, because performance stays the same"
        return f"the operator would {verb} {self.after.name}, try it on one replica beside {self.before.name}, and {how}."

    @property
    def _on_trial(self) -> bool:
        return not self.new and self.after.state is RevisionState.CANDIDATE

    @property
    def _failed(self) -> bool:
        return self.before is not None and not self.new and rolled_back(self.after)


def between(before: Revision, after: Revision, stored: StoredRevisions) -> Difference:
    """Returns the difference between two revisions that are stored."""
    active = stored.stable.hash if stored.stable else None
    first, second = (_RUNS if record.hash == active else str(record.state) for record in (before, after))
    return Difference(before, after, False, (), (), (first, second))


def pair(live: Live, first: Revision, other: Revision | None) -> tuple[Revision, Revision]:
    """Returns the two revisions to compare, the one to start from first; ``other`` is None if only one was named.

    Raises Failure if there is nothing to compare ``first`` with.
    """
    stable, candidate = live.stored.stable, live.stored.candidate
    if other is not None:
        return first, other
    if stable is not None and first.hash != stable.hash:
        return stable, first
    if candidate is not None and candidate.hash != first.hash:
        return first, candidate
    served = [record for record in live.stored.records if record.hash != first.hash and _served(record)]
    if not served:
        said = f"no revision of {live.name} that is kept served before {first.name}"
        raise Failure(said, f"Name two; see kubectl dflash rollout history {live.name}", status=NEGATIVE)
    # The number does not tell which was the last: a revision gets a new one whenever it is tried again.
    return max(served, key=lambda record: (_last_served(record), record.number)), first


def _served(record: Revision) -> bool:
    return record.state in (RevisionState.STABLE, RevisionState.RETIRED) or bool(_last_served(record))


def _last_served(record: Revision) -> str:
    """Returns when the revision last became the active one, as text that sorts; empty if its history does not tell."""
    return next((entry["at"] for entry in reversed(record.history) if entry["outcome"] == RevisionState.STABLE), "")


def compare(live: Live, asked: Mapping[str, Any], operator: OperatorDefaults) -> Difference | list[Problem]:
    """Returns the difference between what runs of a deployment and what a manifest asks for, or what is wrong with the manifest."""
    spec = parse_spec(asked)
    if not isinstance(spec, Spec):
        return spec
    stable, records = live.stored.stable, live.stored.records
    if problems := spec_problems(spec, Catalog.load(), operator):
        return problems

    def fill(carried: Resolved | None) -> Resolved | list[Problem]:
        found = resolve(spec, live.name, live.namespace, Catalog.load(), operator, carried)
        if not isinstance(found, Resolved):
            return found
        committed = found if carried is None else _with_known_commits(found, spec, stable)
        return with_measured(committed, revision_inputs(spec), records)

    wanted: Revision | PendingRevision | list[Problem] = desired_revision(spec, records, stable, fill)
    if isinstance(wanted, list):
        return wanted
    if isinstance(wanted, PendingRevision):
        request = wanted.resolved.launch_request(wanted.speculation)
        if impossible := ENGINES[wanted.resolved.engine].problems(request):
            return list(impossible)
        after, new = _made(live, spec, wanted, operator), True
    else:
        after, new = wanted, False
    policy = tuple(changes(_policy(live.obj), _policy(asked), "spec"))
    return Difference(stable, after, new, policy, tuple(_drift(live, stable)) if stable else ())


def _made(live: Live, spec: Spec, wanted: PendingRevision, operator: OperatorDefaults) -> Revision:
    """Returns the revision that the operator would store, made as it makes it."""
    stable = live.stored.stable
    hash = revision_hash(wanted.inputs, wanted.speculation, [record.hash for record in live.stored.records])
    workload = None
    if stable is not None and stable.resolved == wanted.resolved and stable.same_intent(wanted.inputs):
        workload = with_speculation(stable, wanted.speculation, hash, live.name, live.namespace, spec)
    roots = operator.host_path_roots
    workload = workload or render(live.name, live.namespace, hash, spec, wanted.resolved, wanted.speculation, roots)
    content = data(wanted.inputs, wanted.block_size_as_written, wanted.speculation, wanted.resolved, workload)
    made = read(manifest(live.name, live.namespace, {}, hash, 0, content, RevisionState.CANDIDATE, [], Trial()))
    assert made is not None, "this release has just written it"
    return made


def _with_known_commits(resolved: Resolved, spec: Spec, stable: Revision | None) -> Resolved:
    """Returns the values with the commits that the active revision has, where the spec names the same branch as it did."""
    if stable is None:
        return resolved
    for part, written in (("target", spec.target.revision), ("drafter", spec.drafter.revision)):
        before, after = getattr(stable.resolved, part), getattr(resolved, part)
        if before.model == after.model and (stable.inputs.get(part) or {}).get("revision") == written:
            resolved = replace(resolved, **{part: before})
    return resolved


def _drift(live: Live, stable: Revision) -> list[str]:
    found = []
    for kind in kinds.WORKLOADS:
        if kind.optional and stable.resolved.nodes == 1:
            continue
        for workload in live.cluster.children(kind, live.name):
            if revision_of(workload) == stable.hash:
                difference = pod_difference(stable, replace(stable, workload=live_workload(workload)))
                if difference.any:
                    named = ", ".join(difference.unexplained or ()) or "its containers"
                    found.append(f"{kind.name} {workload['metadata']['name']} was changed by somebody else: {named}")
    return found


def _policy(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the spec that start no revision."""
    spec = obj.get("spec") or {}
    parsed = parse_spec(obj)
    inputs = revision_inputs(parsed) if isinstance(parsed, Spec) else {}
    plain = _without(spec, inputs)
    # The API server fills it in; a file without it asks for the same.
    return {"replicas": defaults.REPLICAS, **plain}


def _without(whole: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in whole.items():
        if name not in part:
            found[name] = value
        elif isinstance(value, Mapping) and isinstance(part[name], Mapping) and (inner := _without(value, part[name])):
            found[name] = inner
    return found


def _comparable(record: Revision) -> Mapping[str, Any]:
    """Returns the workload with its keys sorted, as they are stored, and without the revision's name, which always differs."""
    text = json.dumps(record.workload, sort_keys=True).replace(record.hash, "REVISION")
    found: Mapping[str, Any] = json.loads(text)
    return found
