"""ControllerRevisions as an operator stores them, made from a spec."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from dflash_controller.api.inputs import revision_inputs
from dflash_controller.cli.judgement import judge
from dflash_controller.engines.resolve import OperatorDefaults
from dflash_controller.planning.revisions.rendering import render
from dflash_controller.planning.revisions.revision import Origin, RevisionState, data, history_entry, manifest
from dflash_controller.planning.revisions.trial_state import Trial

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def stored(hash: str, number: int, state: RevisionState, spec: dict[str, Any], trial: Trial | None = None) -> dict[str, Any]:
    made = judge({"spec": spec}, "qwen", "default", OperatorDefaults()).made
    assert made is not None
    workload = render("qwen", "default", hash, made.spec, made.resolved, made.speculation)
    content = data(revision_inputs(made.spec), made.spec.block_size, made.speculation, made.resolved, workload)
    entry = history_entry(NOW, Origin.USER, state, "SpecChanged")
    return manifest("qwen", "default", {}, hash, number, content, state, [entry], trial or Trial())
