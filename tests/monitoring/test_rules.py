"""The rule file by promtool: valid, each alert fires, keeps quiet at the edge and recovers, and a healthy system is silent."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import dashboards
from monitoring import alerts, recording_rules
from testbed import binaries
from tests.monitoring import healthy, readings, serving_stories, set_ups, speculation_stories

ROOT = Path(__file__).parents[2]
RULES = ROOT / "charts" / "dflash-operator" / "files" / "rules" / "dflash.rules.yaml"
ALERTS = {alert.name: alert for alert in alerts.alerts()}
STORIES = [*speculation_stories.stories(), *serving_stories.stories()]


def promtool(*arguments: str) -> str:
    """Its standard output. With fewer collections of garbage it takes a fifth less time."""
    command, environment = [str(binaries.path_of("promtool")), *arguments], {**os.environ, "GOGC": "400"}
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1500)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def test_nothing_generated_is_stale() -> None:
    assert dashboards.main(["--check"]) == 0


def test_the_rule_file_is_valid() -> None:
    found = promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert f"{len(recording_rules.rules()) + len(ALERTS)} rules found" in found


def test_no_template_of_helm_is_in_it() -> None:
    """The chart reads it as data; only what Prometheus fills in may stand in braces."""
    braces = re.findall(r"{{\s*(.*?)\s*}}", RULES.read_text(encoding="utf-8"))
    assert braces
    assert {words.split()[0].partition(".")[0] for words in braces} == {"$labels", "$value"}


def test_every_rule_is_told_in_words() -> None:
    assert set(recording_rules.MEANINGS) == {rule.record for rule in recording_rules.rules()}


def test_every_alert_has_its_stories() -> None:
    assert {story.alert for story in STORIES} == set(ALERTS)
    for name in ALERTS:
        told = [story for story in STORIES if story.alert == name]
        assert any(story.recovers for story in told), f"{name} is not seen to fire and recover"
        assert any(not story.fires for story in told), f"{name} is not seen to keep quiet at the edge"


def test_promtool_agrees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    through = set_ups.stories()
    stories = [story.to_dict(ALERTS) for story in STORIES] + healthy.groups(list(ALERTS)) + readings.groups()
    stories += [story for _, story in through]
    agrees(stories, RULES.read_text(encoding="utf-8"), tmp_path)
    with capsys.disabled():
        print(
            f"\npromtool: {len(stories)} stories, {_looks(stories)} looks, of {len(ALERTS)} alerts and {len(recording_rules.rules())} rules"
        )
        for kind, count in Counter(kind for kind, _ in through).items():
            print(f"  set-up {kind}: {count}")


def agrees(stories: list[dict[str, Any]], rule_file_text: str, tmp_path: Path) -> None:
    """Runs the stories on these rules."""
    rules = {group["name"]: group for group in yaml.safe_load(rule_file_text)["groups"]}
    tests: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for story in stories:
        tests.setdefault((story["interval"], *_needed(story, rules)), []).append(story)
    files = []
    for number, ((interval, *names), chosen) in enumerate(tests.items()):
        rule_file, test_file = (tmp_path / f"{number}.{what}.yaml" for what in ("rules", "test"))
        rule_file.write_text(_dumped({"groups": [rules[name] for name in names]}))
        head = {"rule_files": [str(rule_file)], "evaluation_interval": interval, "group_eval_order": names}
        test_file.write_text(_dumped(head | {"tests": chosen}))
        files.append(str(test_file))
    # One file has most of the work: the others are read beside it.
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda some: promtool("test", "rules", *some), filter(None, (files[:1], files[1:]))))


def _dumped(document: dict[str, Any]) -> str:
    """PyYAML's own dumper takes five times as long."""
    return yaml.dump(document, Dumper=yaml.CSafeDumper, allow_unicode=True, width=1_000_000)


def _needed(story: dict[str, Any], rules: dict[str, Any]) -> tuple[str, ...]:
    """Groups of rules that a story needs: all of them where it begins with engines, else its alert's, and those that the operator's series
    and history need."""
    if any(one["series"].startswith(("vllm:", "sglang:")) for one in story["input_series"]):
        return tuple(rules)
    names = {look["alertname"] for look in story.get("alert_rule_test", ())}
    needed = [name for name, group in rules.items() if names & {rule.get("alert") for rule in group["rules"]}]
    return ("dflash.operator", "dflash.history", *needed)


def _looks(groups: list[dict[str, Any]]) -> int:
    return sum(len(group.get("alert_rule_test", ())) + len(group.get("promql_expr_test", ())) for group in groups)
