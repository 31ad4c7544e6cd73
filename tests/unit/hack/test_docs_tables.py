"""The generated tables of the documentation are those the code makes today."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash_controller.api.conditions import Reason
from dflash_controller.api.types import field_classes
from dflash_controller.engines.releases import TABLE
from dflash_controller.engines.resolved import OperatorDefaults
from dflash_controller.runtime.settings import Settings
from hack import docs_tables

DOCS = Path(__file__).parents[3] / "docs"
RENEW = "run `make docs`"


@pytest.mark.parametrize("file", sorted(DOCS.rglob("*.md")), ids=lambda file: str(file.relative_to(DOCS)))
def test_generated_tables_are_up_to_date(file: Path) -> None:
    text = file.read_text(encoding="utf-8")
    assert docs_tables.renewed(text) == text, RENEW


def test_every_field_reason_and_setting_is_documented() -> None:
    api, conditions, operations = (
        (DOCS / "reference" / name).read_text(encoding="utf-8") for name in ("api.md", "conditions.md", "operator.md")
    )
    assert [path for path in field_classes() if f"`{path}" not in api] == []
    assert [reason for reason in Reason if f"| `{reason}` |" not in conditions] == []
    assert [name for name in Settings.model_fields if f"| `DFLASH_{name.upper()}` |" not in operations] == []


def test_every_setting_and_condition_has_a_text() -> None:
    for name in ("settings", "conditions"):
        assert "|  |\n" not in docs_tables.renewed(f"<!-- generated: {name} -->\n<!-- end -->")


def test_the_section_of_reserved_reasons_is_there_only_if_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    block = "<!-- generated: reasons-to-come -->\n{}<!-- end -->\n"
    monkeypatch.setattr(docs_tables, "_raised", lambda: set(Reason))
    assert docs_tables.renewed(block.format("old\n")) == block.format("")
    monkeypatch.setattr(docs_tables, "_raised", lambda: set(Reason) - {Reason.PAUSED})
    text = docs_tables.renewed(block.format(""))
    assert "\n## Reserved reasons\n" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith("| `")] == ["`Paused`"]


def test_the_table_of_releases_is_that_of_the_engines() -> None:
    lines = docs_tables.renewed("<!-- generated: releases -->\n<!-- end -->").splitlines()
    for name, releases in TABLE.items():
        start, end = (
            f"| {releases.engine} | {releases.floor} | ",
            f" | {', '.join(releases.tested)} | {OperatorDefaults().versions[name]} |",
        )
        assert [line for line in lines if line.startswith(start) and line.endswith(end)]


def test_a_block_of_an_unknown_name_is_an_error() -> None:
    with pytest.raises(KeyError):
        docs_tables.renewed("<!-- generated: no-such-table -->\n<!-- end -->")


def test_the_command_renews_a_file_and_leaves_the_words_around_a_table(tmp_path: Path) -> None:
    file = tmp_path / "page.md"
    file.write_text("Before.\n<!-- generated: conditions -->\nold\n<!-- end -->\nAfter | all.\n")
    docs_tables.main([str(file)])
    text = file.read_text()
    assert text.startswith("Before.\n<!-- generated: conditions -->\n| Condition |")
    assert text.endswith("<!-- end -->\nAfter | all.\n")
    assert "old" not in text
