"""Combinations that an engine asserts against are refused over the merged command line; ``make contract`` asks the engines the same."""

import dataclasses

import pytest

from dflash_controller.engines import ENGINES
from testbed.contract.combinations import COMBINATIONS, Combination
from testbed.contract.examples import H100, request
from tests.support.releases import default_release

ALL = [(case, release) for case in COMBINATIONS for release in case.releases()]


@pytest.mark.parametrize(("case", "release"), ALL, ids=[f"{case.engine}-{release} {case.name}" for case, release in ALL])
def test_combination(case: Combination, release: str) -> None:
    engine = ENGINES[case.engine]
    found = [str(problem) for problem in engine.problems(case.request(release, case.flags))]
    if case.refused is None:
        assert found == []
    else:
        assert any(case.refused in problem for problem in found)
        assert all(problem.startswith("spec.engine.extraArgs[") for problem in found)
    if case.remedied is not None:
        assert list(engine.problems(case.request(release, case.remedied))) == []


def test_the_order_of_the_flags_does_not_matter() -> None:
    for case in COMBINATIONS:
        for release in case.releases():
            one, other = (ENGINES[case.engine].problems(case.request(release, flags)) for flags in (case.flags, case.flags[::-1]))
            assert sorted(problem.message for problem in one) == sorted(problem.message for problem in other)


def test_the_problem_is_at_the_user_s_flag_and_names_it_as_written() -> None:
    release = default_release("sglang")
    base = request("sglang", release, "Qwen/Qwen3.5-35B-A3B", 1)
    extra = ("--context-length=8192", "--mamba-radix-cache-strategy=no_buffer", "--disable-overlap-schedule")
    (problem,) = ENGINES["sglang"].problems(dataclasses.replace(base, extra_args=extra))
    assert problem.field == "spec.engine.extraArgs[1]"
    assert "--mamba-radix-cache-strategy=no_buffer" in problem.message
    assert "--attention-backend=flashinfer" in problem.remedy


def test_a_card_s_flag_that_breaks_a_rule_is_left_out() -> None:
    release = default_release("sglang")
    base = request("sglang", release, "Qwen/Qwen3.5-35B-A3B", 1)
    recommended = ("--mamba-radix-cache-strategy=no_buffer", "--enable-deterministic-inference", "--context-length=4096", "--dp-size=2")
    args = ENGINES["sglang"].launch(dataclasses.replace(base, recommended_args=recommended)).args
    assert "--mamba-radix-cache-strategy=extra_buffer" in args
    assert "--context-length=4096" in args
    assert not {"--enable-deterministic-inference", "--dp-size=2"} & {*args}
    on_hopper = dataclasses.replace(base, recommended_args=recommended, gpu_product=H100)
    assert "--enable-deterministic-inference" in ENGINES["sglang"].launch(on_hopper).args


@pytest.mark.parametrize("extra", [("--attn-dp-size=1",), ("--enable-dp-attention",), ("--dp-size=1", "--enable-dp-attention")])
def test_attention_data_parallelism_over_one_group_is_none(extra: tuple[str, ...]) -> None:
    for release in ("0.5.17", "0.5.23"):
        base = request("sglang", release, "Qwen/Qwen3.5-35B-A3B", 1)
        found = ENGINES["sglang"].problems(dataclasses.replace(base, extra_args=extra))
        assert not [problem for problem in found if "DP attention" in problem.message]
