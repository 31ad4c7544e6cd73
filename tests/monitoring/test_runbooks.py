"""A runbook for each alert, of the same form, whose queries Prometheus understands."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from monitoring import alerts, recording_rules
from monitoring.links import DOCS
from testbed import binaries

ROOT = Path(__file__).parents[2]
RUNBOOKS = ROOT / "docs" / "runbooks"
ALERTS = alerts.alerts()
PAGES = sorted(page for page in RUNBOOKS.glob("*.md") if page.stem != "README")
HEADINGS = ["What it means", "Impact", "Confirm it", "What to do"]
OF_OTHER_KINDS = {"DFlashDeployment", "DFlashDeployments", "DFlashDeploymentList"}
"""Names that begin like those of alerts."""
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    assert sorted(alert.page for alert in ALERTS) == [page.stem for page in PAGES]
    for alert in ALERTS:
        assert alert.to_dict()["annotations"]["runbook_url"] == f"{DOCS}/runbooks/{alert.page}.md"


@every_page
def test_a_runbook_begins_with_the_alerts_that_link_to_it(page: Path) -> None:
    named = re.findall(r"^Alerts? (`DFlash\w+`(?:, `DFlash\w+`)*)\.", page.read_text(encoding="utf-8").split("\n## ")[0], re.MULTILINE)
    assert [re.findall(r"\w+", names) for names in named] == [[alert.name for alert in ALERTS if alert.page == page.stem]]


def test_alerts_that_pages_name_exist() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("charts/*/*.md"), *ROOT.glob("examples/**/*.md")]
    named = {(name, page.relative_to(ROOT)) for page in pages for name in re.findall(r"\bDFlash[A-Z]\w+", page.read_text(encoding="utf-8"))}
    known = {alert.name for alert in ALERTS} | OF_OTHER_KINDS
    assert len(named) > len(ALERTS)
    assert [found for found in sorted(named) if found[0] not in known] == []


@every_page
def test_a_runbook_has_its_headings(page: Path) -> None:
    found = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [heading for heading in found if heading in HEADINGS] == HEADINGS


@every_page
def test_a_runbook_has_commands_to_confirm_it(page: Path) -> None:
    confirm = page.read_text(encoding="utf-8").partition("\n## Confirm it\n")[2].partition("\n## ")[0]
    assert re.search(r"^```(sh)?\n\S", confirm, re.MULTILINE)


def test_the_index_lists_every_alert() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((.+)\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(alert.name, alert.page, alert.severity) for alert in ALERTS]


def queries() -> list[str]:
    """Of every page: fences without a language, one query a line, more of it indented."""
    found = []
    for page in PAGES:
        for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            if not language:
                found += [query for query in re.sub(r"\n[ \t]+", " ", block).splitlines() if query.strip()]
    return found


def test_prometheus_understands_the_queries(tmp_path: Path) -> None:
    asked = queries()
    assert len(asked) >= len(PAGES)
    file = tmp_path / "queries.yaml"
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(asked)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "runbooks", "rules": rules}]}))
    answer = subprocess.run([str(binaries.path_of("promtool")), "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr


def test_the_rules_they_ask_for_exist() -> None:
    named = {name for page in PAGES for name in re.findall(r"dflash:[a-z_0-9:]+[a-z0-9]", page.read_text(encoding="utf-8"))}
    assert named <= {rule.record for rule in recording_rules.rules()}
