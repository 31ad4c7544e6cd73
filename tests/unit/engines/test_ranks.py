"""No flag starts more ranks than the pods have GPUs."""

import dataclasses

import pytest

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Off
from dflash_controller.engines import ENGINES
from dflash_controller.engines.ranks import RANKS, SPEAKS_OF_RANKS
from testbed.contract.examples import request
from testbed.simulator.option_table import facts, table_names
from tests.support.releases import default_release

CLASSED = [(engine, name) for engine, ranks in RANKS.items() for name in sorted(ranks.multiply)]


def problems(engine: str, *extra: str, tensor: int = 1) -> list[Problem]:
    base = request(engine, default_release(engine), "Qwen/Qwen3.5-35B-A3B", tensor)
    return list(ENGINES[engine].problems(dataclasses.replace(base, extra_args=extra)))


@pytest.mark.parametrize("name", table_names())
def test_every_option_about_ranks_is_classified(name: str) -> None:
    """A new release's new option fails here until somebody says what it does to the number of ranks."""
    ranks = RANKS[name.partition("-")[0]]
    spellings = {option.removeprefix("--no-") for entry in facts(name)["options"] for option in entry["names"] if option.startswith("--")}
    about = {f"--{spelling.removeprefix('--')}" for spelling in spellings if SPEAKS_OF_RANKS.search(spelling.removeprefix("--"))}
    assert about - ranks.classified == set()


def test_every_classified_option_exists_in_some_release() -> None:
    for engine, ranks in RANKS.items():
        real = {o for name in table_names() if name.startswith(engine) for entry in facts(name)["options"] for o in entry["names"]}
        assert ranks.classified <= real


@pytest.mark.parametrize(("engine", "name"), CLASSED)
def test_a_flag_that_multiplies_ranks_is_refused(engine: str, name: str) -> None:
    (problem,) = problems(engine, "--trust-remote-code", f"{name}=2")
    assert problem.field == "spec.engine.extraArgs[1]"
    assert f"{name}=2" in problem.message
    assert "spec.parallelism.tensor" in problem.remedy
    assert problems(engine, f"{name}=1") == []


@pytest.mark.parametrize(("engine", "name"), CLASSED)
def test_it_is_refused_without_speculation_too(engine: str, name: str) -> None:
    base = request(engine, default_release(engine), "Qwen/Qwen3.5-35B-A3B", 1)
    off = dataclasses.replace(base, speculation=Off(), extra_args=(f"{name}=2",))
    assert len(ENGINES[engine].problems(off)) == 1


@pytest.mark.parametrize(
    ("engine", "name"), [(engine, name) for engine, ranks in RANKS.items() for name in sorted(ranks.multiply | ranks.divide)]
)
def test_its_abbreviations_are_refused(engine: str, name: str) -> None:
    if name == "--ep":
        return
    shorter = name[:-1]
    found = problems(engine, f"{shorter}=2")
    assert found
    assert shorter in found[0].message


@pytest.mark.parametrize(("engine", "token"), [("vllm", "-dp=2"), ("vllm", "-pp=2"), ("vllm", "-pcp=2"), ("sglang", "-tp=2")])
def test_short_flags_are_refused(engine: str, token: str) -> None:
    (problem,) = problems(engine, token)
    assert token in problem.message


@pytest.mark.parametrize(("engine", "name"), [(engine, name) for engine, ranks in RANKS.items() for name in sorted(ranks.outside)])
def test_a_flag_that_places_ranks_elsewhere_is_refused(engine: str, name: str) -> None:
    harmless = RANKS[engine].outside[name]
    found = problems(engine, f"{name}=7")
    assert found
    assert found[0].field == "spec.engine.extraArgs[0]"
    assert name in found[0].message
    if harmless is not None:
        assert problems(engine, f"{name}={harmless}") == []


def test_a_flag_that_divides_the_ranks_must_divide_them() -> None:
    assert problems("sglang", "--ep-size=4", tensor=4) == []
    assert problems("sglang", "--expert-parallel-size=3", tensor=4)[0].message.startswith("--expert-parallel-size=3 does not divide")
    assert problems("vllm", "--decode-context-parallel-size=2", tensor=4) == []
    assert problems("vllm", "--decode-context-parallel-size=8", tensor=4)
    assert problems("sglang", "--dp-size=4", "--enable-dp-attention", "--enable-dp-lm-head", tensor=4) == []
    assert problems("sglang", "--dp-size=3", "--enable-dp-attention", "--enable-dp-lm-head", tensor=4)
