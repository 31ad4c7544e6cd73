"""Versions and the dialect each one gets."""

from pathlib import Path

import pytest
import yaml

from dflash_controller.api.problem import Problem
from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import ReleaseProfile
from dflash_controller.engines.releases import TABLE, read_table, version
from dflash_controller.engines.resolved import OperatorDefaults
from testbed.contract.environments import REQUIREMENTS
from testbed.simulator.option_table import table_names
from tests.support.releases import default_release, floor_release

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
ENTRY = """engine:
  title: Engine
  floor: "1.0.9"
  floorReason: the first release with it
  default: "1.2.0"
  tested:
    - {version: "1.1.0", overlays: [engine-1.1.0]}
    - {version: "1.2.0", overlays: []}
"""


@pytest.mark.parametrize(
    ("engine", "requested", "release", "tested"),
    [
        ("sglang", "0.5.14", "0.5.17", False),
        ("sglang", "0.5.17", "0.5.17", True),
        ("sglang", "0.5.17.post1", "0.5.17", False),
        ("sglang", "0.5.18", "0.5.17", False),
        ("sglang", "0.5.22", "0.5.19", False),
        ("sglang", "v0.5.23", "0.5.23", True),
        ("sglang", "0.6.0", default_release("sglang"), False),
        ("vllm", "0.24.0", "0.26.0", False),
        ("vllm", "0.33.0rc1", "0.26.0", False),
        ("vllm", "0.33.0", "0.33.0", True),
        ("vllm", "1.0.0", default_release("vllm"), False),
    ],
)
def test_nearest_older_tested_dialect(engine: str, requested: str, release: str, tested: bool) -> None:
    assert ENGINES[engine].dialect(requested) == ReleaseProfile(release, tested)


@pytest.mark.parametrize(
    ("engine", "requested"), [("sglang", "0.5.13.post1"), ("sglang", "0.5.14rc1"), ("vllm", "0.23.0"), ("vllm", "0.9.2")]
)
def test_older_than_the_floor_names_floor_and_reason(engine: str, requested: str) -> None:
    problem = ENGINES[engine].dialect(requested)
    assert isinstance(problem, Problem)
    assert problem.field == "spec.engine.version"
    floor = floor_release(engine)
    assert f"older than {floor}, the first release with" in problem.message
    assert floor in problem.remedy


@pytest.mark.parametrize("requested", ["latest", "0.5", "", "0.5.23-cu130", "0.5.x"])
def test_what_is_no_version(requested: str) -> None:
    problem = ENGINES["sglang"].dialect(requested)
    assert isinstance(problem, Problem)
    assert "is not a version of SGLang" in problem.message


def test_versions_are_ordered() -> None:
    ascending = ["0.5.9", "0.5.10.dev1", "0.5.10a1", "0.5.10rc1", "0.5.10rc2", "0.5.10", "0.5.10.post1", "0.5.11", "0.33.0+cu130", "1.0.0"]
    assert sorted(ascending, key=version) == ascending


def test_readiness_follows_the_release() -> None:
    assert ENGINES["sglang"].probes("0.5.19").readiness == "/health"
    assert ENGINES["sglang"].probes("0.5.20").readiness == "/ready"
    assert ENGINES["sglang"].probes(default_release("sglang")).worker == "/health"
    assert ENGINES["vllm"].probes(default_release("vllm")).worker is None


def test_the_table_knows_every_engine_and_gives_the_defaults() -> None:
    assert set(TABLE) == set(ENGINES)
    assert OperatorDefaults().versions == {name: releases.tested[-1] for name, releases in TABLE.items()}


def test_an_entry_is_read_as_it_stands() -> None:
    entry = read_table(ENTRY)["engine"]
    assert (entry.engine, entry.floor, entry.floor_reason, entry.default) == ("Engine", "1.0.9", "the first release with it", "1.2.0")
    assert entry.tested == ("1.1.0", "1.2.0")
    assert entry.overlays == {"1.1.0": ("engine-1.1.0",), "1.2.0": ()}
    assert entry.dialect("1.1.5") == ReleaseProfile("1.1.0", tested=False)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('default: "1.2.0"', 'default: "1.1.0"', "is not the newest tested release, 1.2.0"),
        ('floor: "1.0.9"', 'floor: "1.1.1"', "do not ascend"),
        ('version: "1.1.0"', 'version: "1.3.0"', "do not ascend"),
        ('version: "1.1.0"', 'version: "1.2.0"', "do not ascend"),
        ('version: "1.1.0"', 'version: "1.1"', "not a version"),
    ],
)
def test_an_entry_that_contradicts_itself_is_refused(before: str, after: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_table(ENTRY.replace(before, after))


def test_every_tested_release_has_its_option_table_and_requirements() -> None:
    assert table_names() == tuple(sorted(f"{name}-{release}" for name, releases in TABLE.items() for release in releases.tested))
    overlays = {overlay for releases in TABLE.values() for names in releases.overlays.values() for overlay in names}
    assert {path.stem for path in REQUIREMENTS.glob("*.txt")} == {"base", *overlays}


@pytest.mark.parametrize("name", TABLE)
def test_each_release_s_requirements_hold_it(name: str) -> None:
    for release, overlays in TABLE[name].overlays.items():
        wanted = f"{name}=={release}"
        lists = [(REQUIREMENTS / f"{overlay}.txt").read_text().splitlines() for overlay in (*overlays, "base")]
        named = [line for lines in lists for line in lines if line.startswith(f"{name}==")]
        assert named[:1] == [wanted], "the first list on the path wins"


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_an_example_names_a_tested_release(file: Path) -> None:
    engines = [obj["spec"]["engine"] for obj in yaml.safe_load_all(file.read_text()) if obj["kind"] == "DFlashDeployment"]
    assert engines
    for engine in engines:
        assert engine["version"] in TABLE[engine["name"]].tested
