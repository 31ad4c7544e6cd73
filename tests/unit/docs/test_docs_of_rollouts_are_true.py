"""What the pages about rollouts say is so: phases, what is compared, limits and defaults, numbers, budgets, reasons, and its objects."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api.conditions import Reason
from dflash_controller.api.defaults import GATES, RolloutPolicy, effective_rollout, replicas
from dflash_controller.api.gates import GATE_SPECS
from dflash_controller.api.parse import parse_spec
from dflash_controller.api.quantity import parse_duration
from dflash_controller.api.structural import structural
from dflash_controller.api.types import Spec
from dflash_controller.model.change import Part
from dflash_controller.planning.replicas.next_replicas import Budget
from dflash_controller.planning.revisions.diff import question
from dflash_controller.planning.revisions.outcome import Phase
from dflash_controller.planning.revisions.revision import Revision, read
from dflash_controller.planning.rollout.movement import Movement, goals
from tests.support.planning_world import World

PAGES = ("reference/rollouts.md", "explanation/analysis.md", "how-to/change-a-drafter.md")
PAGE = "\n".join((Path(__file__).parents[3] / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
MODEL = {"model": "Qwen/Qwen3.5-9B"}


def table(head: str) -> list[list[str]]:
    """The rows of the one table that begins with this column, on any of the pages."""
    [body] = re.findall(rf"^\| {head} \|.*\n\| ---.*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in body.splitlines()]


def parsed(**more: Any) -> Spec:
    spec = parse_spec({"metadata": {"name": "chat"}, "spec": {"target": MODEL, **more}})
    assert isinstance(spec, Spec)
    return spec


def policy(**more: Any) -> RolloutPolicy:
    return effective_rollout(parsed(**more))


def test_every_phase_of_a_rollout_is_told_and_no_other() -> None:
    assert {row[0].strip("`") for row in table("Phase")} == set(Phase)


def test_the_diagram_shows_every_phase_but_those_that_any_other_may_enter() -> None:
    [diagram] = re.findall(r"```mermaid\n(.*?)```", PAGE, re.DOTALL)
    shown = {state for line in re.findall(r"^ +(\S+) --> (\S+?):?(?: |$)", diagram, re.MULTILINE) for state in line} - {"[*]"}
    assert shown == set(Phase) - {Phase.PAUSED, Phase.SUSPENDED}


EDITS: Mapping[str, Any] = {
    Part.DRAFTER: {"drafter": {"revision": "b" * 40}},
    Part.BLOCK_SIZE: {"blockSize": 8},
    Part.ENGINE: {"engine": {"version": "0.5.19"}},
    Part.TARGET: {"target": {**MODEL, "revision": "b" * 40}},
    "nothing of these": {"scheduling": {"priorityClassName": "high"}},
}


def pair_of_records(edit: Mapping[str, Any]) -> tuple[Revision, Revision]:
    """Those of a revision in force and of the one that an edit makes."""
    world = World({"target": MODEL, "drafter": {"revision": "a" * 40}, "blockSize": 16, "replicas": 3})
    world.settle()
    world.edit(lambda spec: spec.update(edit))
    world.settle()
    found = sorted((record for item in world.of_kind("ControllerRevision") if (record := read(item))), key=lambda record: record.number)
    assert len(found) == 2
    return found[0], found[1]


@pytest.mark.parametrize("changed", EDITS)
def test_what_is_compared_for_a_change_is_what_the_table_says(changed: str) -> None:
    [head] = re.findall(r"^\| Changed \| (.+) \|$", PAGE, re.MULTILINE)
    [row] = [row for row in table("Changed") if row[0] == changed]
    said = {name for name, cell in zip(head.split(" | "), row[1:], strict=True) if cell == "yes"}
    asked = question(policy(), *pair_of_records(EDITS[changed]), concurrent=True, warm_up_s=60.0)
    assert said == ({*asked.gates, *(["text"] if asked.text_gates else [])} if asked else set())


def test_the_analysis_knows_the_deadline_of_the_rollout() -> None:
    asked = question(policy(), *pair_of_records(EDITS["drafter"]), concurrent=True, warm_up_s=60.0)
    assert asked
    assert asked.deadline_s == policy().deadline_s == 7200


def test_every_part_that_can_change_has_its_row() -> None:
    assert [row[0] for row in table("Changed")] == [*EDITS]
    assert set(Part) < set(EDITS)


def number(cell: str) -> float:
    [found] = re.findall(r"\d+(?:\.\d+)?", cell)
    return float(found)


def test_the_defaults_of_the_metrics_are_those_of_the_code() -> None:
    rows = {row[0]: row[2:] for row in table("Metric")}
    assert set(rows) == set(GATES)
    for name, (limit, samples, window, interval, failures) in rows.items():
        gate, fields = GATES[name], GATE_SPECS[name].fields
        assert (number(limit), number(samples), parse_duration(interval)) == (gate.limit, gate.min_samples, gate.interval_s), name
        assert window == (f"{gate.window_s}s" if "window" in fields else ""), name
        assert failures == (str(gate.failure_limit) if "failureLimit" in fields else ""), name


def test_fields_a_metric_is_said_not_to_have_are_not_in_its_schema() -> None:
    analysis = structural(Spec)["properties"]["rollout"]["properties"]["analysis"]["properties"]
    for name, *_, window, _, failures in table("Metric"):
        for field, cell in (("window", window), ("failureLimit", failures)):
            assert (field in analysis[name]["properties"]) == (cell != ""), (name, field)


def described(node: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Path and default of the fields whose description names one."""
    if found := re.search(r"Default:? ([^ ]+?)[.,]?(?: |$)", node.get("description", "")):
        yield path, found[1]
    for name, child in node.get("properties", {}).items():
        yield from described(child, f"{path}.{name}".removeprefix("."))


def test_defaults_told_by_descriptions_of_the_rollout_are_those_of_the_code() -> None:
    told = {path: yaml.safe_load(text) for path, text in described(structural(Spec)["properties"]["rollout"], "")}
    default = policy()
    probe = default.probe
    in_force: dict[str, Any] = {
        "maxSurge": default.max_surge,
        "maxUnavailable": default.max_unavailable,
        "probe.enabled": probe.enabled,
        "probe.prompts": probe.prompts,
        "probe.maxTokens": probe.max_tokens,
        "probe.promptsPerMinute": probe.prompts_per_minute,
        "probe.timeout": f"{probe.timeout_s}s",
        "probe.maxMismatchPercent": probe.max_mismatch_percent,
        "onInconclusive": default.on_inconclusive,
        "automaticRollback": default.automatic_rollback,
        "deadline": f"{default.deadline_s // 3600}h",
        "paused": default.paused,
        "window.timeZone": "Etc/UTC",
        "historyLimit": default.history_limit,
    }
    for name, gate in default.analysis.items():
        in_force |= {f"analysis.{name}.enabled": gate.enabled, f"analysis.{name}.limit": gate.limit}
    assert told == in_force


def test_numbers_of_the_judgement_are_those_of_the_code() -> None:
    modules = {
        **dict.fromkeys(("primary", "effect_size", "blocks", "traffic_comparability", "probe"), "analysis"),
        "pod_troubles": "planning.state",
        **dict.fromkeys(("surge", "trial_clocks"), "planning.rollout"),
        "prober": "runtime",
        "slots": "observe.probe",
    }
    rows = table("Number")
    assert len(rows) >= 20
    for _, value, where in rows:
        module, name, *key = where.strip("`").split(".")
        found = getattr(importlib.import_module(f"dflash_controller.{modules[module]}.{module}"), name)
        assert float(value) == (found[key[0]] if key else found), where


def test_the_budget_of_every_example_is_what_the_arithmetic_gives() -> None:
    rows = table("replicas")
    assert len(rows) >= 5
    for count, surge, unavailable, shared, at_least, at_most in rows:
        written = {
            field: cell if "%" in cell else int(cell) for field, cell in (("maxSurge", surge), ("maxUnavailable", unavailable)) if cell
        }
        spec = parsed(replicas=int(count), rollout=written)
        effective = effective_rollout(spec)
        budget = Budget(replicas(spec), effective.max_surge, effective.max_unavailable)
        moving = {"stable": Movement.FROZEN, "candidate": Movement.FILLING}
        reached = goals(budget, (), moving, "stable", "candidate")
        assert (f"{reached['stable']} + {reached['candidate']}", budget.floor, budget.ceiling) == (shared, int(at_least), int(at_most))


def test_reasons_named_by_the_pages_exist() -> None:
    held = {reason for row in table("Reason") for reason in re.findall(r"`(\w+)`", row[0])}
    bracketed = set(re.findall(r"\(`([A-Z]\w+)`\)", PAGE)) - set(Phase)
    assert len(held) >= 5
    assert len(bracketed) >= 8
    assert (held | bracketed) - set(Reason) == set()


def test_the_objects_of_the_pages_are_valid() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        parsed(**yaml.safe_load(block)["spec"])
