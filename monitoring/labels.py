"""What each label of the product's own metrics means, and which values it may have. Pure.

One name has one meaning in all metrics: a table or a join that combines two of them would otherwise take one for the other.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

from dflash_controller.analysis import positions
from dflash_controller.analysis.probe import PROBE_METRICS, TEXT
from dflash_controller.api.conditions import ConditionStatus, ConditionType, Reason
from dflash_controller.api.gates import GATE_SPECS
from dflash_controller.api.status import RevisionState, RolloutPhase, TuningState, Verdict
from dflash_controller.engines import ENGINES
from dflash_controller.planning.revisions.revision import Origin

_NAME = r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"


@dataclass(frozen=True, slots=True)
class Label:
    """``values`` is a regular expression that every value matches."""

    meaning: str
    values: str


def _words(*words: str) -> str:
    return "|".join(map(re.escape, words))


LABELS: Mapping[str, Label] = {
    "namespace": Label("namespace of the deployment", _NAME),
    "deployment": Label("name of a DFlashDeployment", _NAME),
    "revision": Label("a revision of a deployment", _NAME),
    "pod": Label("name of an engine pod", _NAME),
    "engine": Label("the pods' engine", _words(*ENGINES)),
    "block_size": Label(
        "block size that pods are configured with (off: speculation is off) or would have (1: off)", r"(schedule-)?\d+|off"
    ),
    "role": Label("what a revision is to its deployment", _words(*(state.lower() for state in get_args(RevisionState)))),
    "origin": Label("who asked for a revision", _words(*(origin.value for origin in Origin))),
    "phase": Label("phase of a rollout", _words("None", *get_args(RolloutPhase))),
    "metric": Label(
        "metric on which candidate and stable are compared", _words(*GATE_SPECS, *PROBE_METRICS.values(), TEXT, positions.METRIC)
    ),
    "verdict": Label("verdict on such a metric", _words(*get_args(Verdict))),
    "side": Label("which value of such a metric", _words("candidate", "stable", "limit")),
    "limit": Label("which number of requests served at once", _words("asked", "effective")),
    "state": Label("what a tuner does", _words(*get_args(TuningState))),
    "reason": Label("reason of a condition, a notice or the tuner's state", _words(*(reason.value for reason in Reason))),
    "name": Label("number of the tuner's decision; some end in a block size", r"[a-zA-Z]+\d*"),
    "type": Label("type of a condition", _words(*(kind.value for kind in ConditionType))),
    "status": Label("status of a condition", _words(*get_args(ConditionStatus))),
    "le": Label("upper bound of a histogram's bucket", r"[\d.e+-]+|\+Inf"),
    "quantile": Label("quantile of a histogram", r"0[.]\d+"),
    "position": Label("position of a draft in its block; 0 is the first", r"\d+"),
    "stage": Label("stage of an engine's start", r"[a-z0-9_]+"),
    "lease": Label("the Lease by which an operator leads", ".*"),
    "result": Label("how a reconcile ended", _words("success", "conflict", "error")),
    "error": Label("kind of an error of the operator", "[A-Z][A-Za-z]+"),
    "kind": Label("kind of a Kubernetes object", "[A-Z][A-Za-z]+"),
    "verb": Label("verb of a request to the API server", "[a-z]+"),
    "code": Label("HTTP status of its answer; 0: no answer", r"\d+"),
    "version": Label("version of the operator", r"\d.*"),
    "python": Label("version of its Python", r"3[.].*"),
}
"""By name."""
