"""``diff``: the revision that the operator would make, from what it has stored."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

import pytest

from dflash_controller.api import names
from dflash_controller.cli.comparison import Difference, between, compare, pair
from dflash_controller.cli.connection import Cluster
from dflash_controller.cli.deployments import Live
from dflash_controller.cli.failures import Failure
from dflash_controller.cluster import kinds
from dflash_controller.cluster.kinds import Kind
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.planning.revisions.revision import Origin, Revision, RevisionState, history_entry
from tests.support.stored_revisions import NOW, stored

OLD, NEW = "a" * 40, "b" * 40
FETCHES = OperatorDefaults(fetch_image="operator:1")


@dataclass
class Stored:
    """The revisions of a cluster."""

    revisions: list[dict[str, Any]] = field(default_factory=list)

    def children(self, kind: Kind, deployment: str) -> list[dict[str, Any]]:
        return self.revisions if kind is kinds.CONTROLLER_REVISION else []


def asked(drafter: str, **spec: Any) -> dict[str, Any]:
    models = {"target": {"model": "Qwen/Qwen3.5-9B", "revision": OLD}, "drafter": {"revision": drafter}}
    head = {"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": {"name": "qwen", "namespace": "default"}}
    return {**head, "spec": {**models, **spec}}


def found(stored: Stored, manifest: dict[str, Any], operator: OperatorDefaults = FETCHES) -> Difference:
    live = Live(cast(Cluster, stored), asked(OLD, storage={"persistentVolumeClaim": {"claimName": "weights"}}))
    difference = compare(live, manifest, operator)
    assert isinstance(difference, Difference), difference
    return difference


def kept(revision: Revision, rates: str | None = None) -> dict[str, Any]:
    """The active revision as it is stored."""
    source = copy.deepcopy(dict(revision.source))
    annotations = {names.ANNOTATION_STATE: RevisionState.STABLE.value} | ({names.ANNOTATION_RATES: rates} if rates else {})
    source["metadata"]["annotations"] = {**source["metadata"]["annotations"], **annotations}
    return source


def budget(revision: Revision) -> int:
    """Seconds that the engine of a revision may take to start."""
    [container] = revision.workload["spec"]["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    return int(probe["failureThreshold"]) * int(probe["periodSeconds"])


@pytest.mark.parametrize("more", [{}, {"restartId": "again"}], ids=["another drafter", "restart"])
def test_a_new_revision_has_the_start_up_budget_of_measured_rates(more: dict[str, Any]) -> None:
    storage = {"persistentVolumeClaim": {"claimName": "weights"}}
    old, new = asked(OLD, storage=storage), asked(OLD if more else NEW, storage=storage, **more)
    first = found(Stored(), old).after
    assumed = found(Stored([kept(first)]), new)
    slow = Stored([kept(first, '{"fetch": 50000000, "load": 20000000}')])
    measured = found(slow, new)
    assert assumed.new
    assert measured.new
    assert measured.after.resolved.load_measured
    assert measured.after.resolved.fetch_bytes_per_s == 50_000_000
    assert budget(measured.after) > budget(assumed.after) == budget(first)
    assert "failureThreshold" in measured.manifests()
    assert not found(slow, old).any, "what runs keeps the budget that it was made with"
    elsewhere = asked(NEW, storage={"persistentVolumeClaim": {"claimName": "others"}})
    assert not found(slow, elsewhere).after.resolved.load_measured, "another storage, another rate"


def revision(hash: str, number: int, *history: tuple[int, str]) -> dict[str, Any]:
    """A stored revision that became something at some minutes."""
    entries = [history_entry(NOW + timedelta(minutes=at), Origin.USER, RevisionState(outcome), "SpecChanged") for at, outcome in history]
    made = stored(hash, number, RevisionState(history[-1][1]), asked(hash[-1] * 40)["spec"])
    made["metadata"]["annotations"][names.ANNOTATION_HISTORY] = json.dumps(entries)
    return made


FIRST = revision("raaaaaaa", 4, (0, "Stable"), (10, "Retired"), (50, "Candidate"), (60, "Failed"))
SECOND = revision("rbbbbbbb", 2, (5, "Candidate"), (10, "Stable"), (40, "Retired"))
ACTIVE = revision("rccccccc", 3, (30, "Candidate"), (40, "Stable"))
BROKEN = revision("rddddddd", 5, (70, "Candidate"), (80, "Failed"))
ON_TRIAL = revision("reeeeeee", 6, (90, "Candidate"))


def compared(revisions: list[dict[str, Any]], *named: str) -> tuple[str, ...]:
    """The parts of the names and the labels of what ``rollout diff`` compares."""
    live = Live(cast(Cluster, Stored(revisions)), asked(OLD))
    first, other = [*named, None, None][:2]
    found = between(*pair(live, live.revision(first), live.revision(other) if other else None), live.stored)
    head = found.manifests().splitlines()[:2]
    return tuple(line[4:].removeprefix("qwen-") for line in head)


@pytest.mark.parametrize(
    ("revisions", "named", "expected"),
    [
        ([FIRST, SECOND, ACTIVE, BROKEN], (), ("rbbbbbbb (Retired)", "rccccccc (runs)")),
        ([FIRST, ACTIVE, BROKEN], (), ("raaaaaaa (Failed)", "rccccccc (runs)")),
        ([SECOND, ACTIVE, ON_TRIAL], (), ("rccccccc (runs)", "reeeeeee (Candidate)")),
        ([SECOND, ACTIVE, BROKEN], ("rddddddd",), ("rccccccc (runs)", "rddddddd (Failed)")),
        ([SECOND, ACTIVE, ON_TRIAL], ("reeeeeee",), ("rccccccc (runs)", "reeeeeee (Candidate)")),
        ([SECOND, ACTIVE, BROKEN], ("rbbbbbbb", "rddddddd"), ("rbbbbbbb (Retired)", "rddddddd (Failed)")),
    ],
    ids=["the last that served", "served once, then failed", "candidate", "one that failed", "the candidate, named", "two"],
)
def test_what_is_compared_with_what_and_how_it_is_called(
    revisions: list[dict[str, Any]], named: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert compared(revisions, *named) == expected


def test_nothing_served_before_the_active_revision() -> None:
    with pytest.raises(Failure, match="no revision of qwen that is kept served before qwen-rccccccc"):
        compared([ACTIVE, BROKEN])


def test_what_failed_before_is_said_to_stay_as_it_is() -> None:
    failed = revision("rddddddd", 5, (70, "Candidate"), (80, "Failed"))
    difference = found(Stored([ACTIVE, failed]), asked("d" * 40))
    assert (difference.any, difference.restarts, difference.judged()) == (True, False, ())
    assert difference.summary() == (
        "no engine restarts: qwen-rddddddd failed before, so it is not tried again until the spec or spec.restartId changes; "
        "qwen-rccccccc keeps serving"
    )
    assert difference.fields() == [f'spec.drafter.revision: "{"c" * 40}" -> "{"d" * 40}"']
    again = found(Stored([ACTIVE, failed]), asked("d" * 40, restartId="again"))
    assert "try it on one replica" in again.summary()


def test_a_change_that_is_on_trial_is_not_announced_again() -> None:
    made = found(Stored([ACTIVE]), asked("e" * 40)).after
    source = copy.deepcopy(dict(made.source))
    source["revision"] = 6
    difference = found(Stored([ACTIVE, source]), asked("e" * 40))
    assert (difference.any, difference.new, difference.after.name) == (True, False, made.name)
    said = difference.summary()
    assert said.startswith(f"{made.name} is what the spec asks for, and is on trial already beside qwen-rccccccc; acceptanceLength, ")
    assert "would" not in said
    assert "would make" in found(Stored([ACTIVE, source]), asked("f" * 40)).summary()
    first = found(Stored([source]), asked("e" * 40))
    assert first.summary() == f"{made.name} is what the spec asks for, and starts already as the first revision"
