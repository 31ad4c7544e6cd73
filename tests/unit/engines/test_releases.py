"""Versions and the dialect each one gets."""

import pytest

from dflash_controller.api.problem import Problem
from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import ReleaseProfile
from dflash_controller.engines.releases import version


@pytest.mark.parametrize(
    ("engine", "requested", "release", "tested"),
    [
        ("sglang", "0.5.14", "0.5.17", False),
        ("sglang", "0.5.17", "0.5.17", True),
        ("sglang", "0.5.17.post1", "0.5.17", False),
        ("sglang", "0.5.18", "0.5.17", False),
        ("sglang", "0.5.22", "0.5.19", False),
        ("sglang", "v0.5.23", "0.5.23", True),
        ("sglang", "0.6.0", "0.5.23", False),
        ("vllm", "0.24.0", "0.26.0", False),
        ("vllm", "0.33.0rc1", "0.26.0", False),
        ("vllm", "0.33.0", "0.33.0", True),
        ("vllm", "1.0.0", "0.33.0", False),
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
    floor = {"sglang": "0.5.14", "vllm": "0.24.0"}[engine]
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
    assert ENGINES["sglang"].probes("0.5.23").worker == "/health"
    assert ENGINES["vllm"].probes("0.33.0").worker is None
