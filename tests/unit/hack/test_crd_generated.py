"""The committed CustomResourceDefinition is the generated one."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dflash_controller.api.crd import node
from dflash_controller.api.rules import rules
from dflash_controller.engines import ENGINES
from hack.crd import definition, main

ROOT = Path(__file__).parents[3]
COMMITTED = (ROOT / "crds" / "serving.dflash.io_dflashdeployments.yaml", ROOT / "charts" / "dflash-operator" / "files" / "crd.yaml")


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: file.parent.name)
def test_the_committed_definition_is_the_generated_one(file: Path) -> None:
    assert file.read_text(encoding="utf-8") == definition(), "run `make crd`"


def test_every_rule_is_in_the_definition_and_names_its_field() -> None:
    crd = yaml.safe_load(definition())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for rule in rules({name: engine.owned_flags() for name, engine in ENGINES.items()}):
        assert rule.to_json() in node(schema, rule.path)["x-kubernetes-validations"]
        place = rule.path.replace("[]", "") or "metadata.name"
        assert rule.message.startswith(place), rule.message
        assert ";" in rule.message or "," in rule.message, "a message ends with the remedy"


def test_the_command_writes_files_or_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")])
    assert capsys.readouterr().out == ""
    assert (tmp_path / "a.yaml").read_text(encoding="utf-8") == (tmp_path / "b.yaml").read_text(encoding="utf-8") == definition()
    main([])
    assert capsys.readouterr().out == definition()
