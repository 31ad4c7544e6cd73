"""Rules between fields, in Python: the same as in the CRD, and those only the operator can know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dflash_controller.api.parse import parse_spec
from dflash_controller.api.problem import Problem
from dflash_controller.api.types import Spec
from dflash_controller.api.validation import owned_flag, problems
from dflash_controller.catalog import Catalog
from dflash_controller.engines import ENGINES
from dflash_controller.engines.resolve import OperatorDefaults, resolve

EXAMPLES = Path(__file__).parents[2] / "api"
OWNED = {"--port", "--tp-size", "--speculative-num-draft-tokens"}


def header(file: Path, key: str) -> str:
    return next(line.removeprefix(f"# {key}: ") for line in file.read_text(encoding="utf-8").splitlines() if line.startswith(f"# {key}: "))


def all_problems(obj: dict[str, Any]) -> list[Problem]:
    """What the operator finds: shape, rules, then catalog and settings."""
    spec = parse_spec(obj)
    if not isinstance(spec, Spec):
        return spec
    engine = spec.engine.name or "sglang"
    known = Catalog.load().find(spec.target.model)
    found = problems(spec, owned_flags=ENGINES[engine].owned_flags(), trained_block_size=known.trained_block_size if known else None)
    resolved = resolve(spec, "name", "namespace", Catalog.load(), OperatorDefaults())
    return [*found, *(resolved if isinstance(resolved, list) else [])]


INVALID = sorted((EXAMPLES / "invalid").glob("*.yaml"))
OPERATOR = [file for file in INVALID if header(file, "by") == "operator"]
# The name is the API server's matter, pod resources and tolerations are checked again with the pod template, and flags split in two
# or with an underscore have their own test below.
DOOR_ONLY = ("name-", "toleration-", "request-above-limit", "extra-arg-pipeline", "storage-path-upwards")


@pytest.mark.parametrize("file", OPERATOR, ids=lambda file: file.stem)
def test_what_only_the_operator_knows_is_told_with_its_remedy(file: Path) -> None:
    found = all_problems(yaml.safe_load(file.read_text(encoding="utf-8")))
    assert any(header(file, "expect") in str(problem) for problem in found), [str(problem) for problem in found]


@pytest.mark.parametrize("file", [file for file in INVALID if not file.stem.startswith(DOOR_ONLY)], ids=lambda file: file.stem)
def test_the_operator_guards_itself_against_objects_stored_under_an_older_crd(file: Path) -> None:
    found = all_problems(yaml.safe_load(file.read_text(encoding="utf-8")))
    assert found
    assert all(problem.field.startswith("spec") and problem.message and problem.remedy.endswith(".") for problem in found)


@pytest.mark.parametrize("file", sorted((EXAMPLES / "valid").glob("*.yaml")), ids=lambda file: file.stem)
def test_valid_objects_have_no_problem(file: Path) -> None:
    assert all_problems(yaml.safe_load(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        ("--port=1", "--port"),
        ("--po=1", "--port"),
        ("--speculative_num_draft_tokens=3", "--speculative-num-draft-tokens"),
        ("--spec", "--speculative-num-draft-tokens"),
        ("--porter=1", None),
        ("--context-length=4096", None),
    ],
)
def test_owned_flags_in_every_disguise(argument: str, flag: str | None) -> None:
    assert owned_flag(argument, OWNED) == flag


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/mnt/models", True),
        ("/mnt/models/qwen", True),
        ("/mnt/models2", False),
        ("/mnt", False),
        ("/mnt/models/../x", False),
        ("/etc", False),
    ],
)
def test_host_paths_only_below_the_roots(path: str, allowed: bool) -> None:
    spec = parse_spec({"spec": {"target": {"model": "a/b"}, "storage": {"hostPath": {"path": path}}}})
    assert isinstance(spec, Spec)
    assert (problems(spec, owned_flags=OWNED, host_path_roots=["/mnt/models"]) == []) is allowed
