"""Rules of the rendered command line that hold beyond the golden files."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dflash_controller.api.speculation import Fixed, Off, Schedule
from dflash_controller.engines import ENGINES
from dflash_controller.engines.flags import Flag, index, parsed
from dflash_controller.engines.protocol import Launch, LaunchRequest, ModelRef
from dflash_controller.engines.releases import version
from dflash_controller.engines.sglang.limits import GUARD as SGLANG_GUARD
from dflash_controller.engines.vllm.limits import GUARD as VLLM_GUARD
from testbed.contract.examples import H100, request
from testbed.simulator.argv import parse
from testbed.simulator.option_table import facts, table_names
from tests.support.releases import contract_releases, default_release, floor_release

SGLANG, VLLM = default_release("sglang"), default_release("vllm")


def ask(engine: str, release: str, model: str = "Qwen/Qwen3.5-35B-A3B", **changes: Any) -> LaunchRequest:
    return dataclasses.replace(request(engine, release, model, 1), **changes)


def launch(engine: str, release: str, model: str = "Qwen/Qwen3.5-35B-A3B", **changes: Any) -> Launch:
    return ENGINES[engine].launch(ask(engine, release, model, **changes))


def flags(launched: Launch) -> dict[str, str]:
    return index(parsed(launched.args))


def test_a_command_line_that_is_kept_is_not_that_of_another_request() -> None:
    """Requests that differ in their labels alone have one hash."""
    labels = [{"dflash_deployment": name} for name in ("chat", "code")]
    found = [launch("sglang", SGLANG, metric_labels=own).args for own in (*labels, *labels)]
    assert found[0] != found[1]
    assert found[:2] == found[2:]
    assert [json.loads(flags(launch("sglang", SGLANG, metric_labels=own))["--extra-metric-labels"]) for own in labels] == labels


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_done_with_problems_does_not_reach_who_asks_next(engine: str) -> None:
    wrong = ask(engine, default_release(engine), extra_args=("no flag",))
    first = list(ENGINES[engine].problems(wrong))
    assert len(first) == 1
    ENGINES[engine].problems(wrong).clear()  # type: ignore[attr-defined]
    assert ENGINES[engine].problems(wrong) == first


@given(
    block=st.integers(2, 16),
    concurrency=st.integers(1, 600),
    release=st.sampled_from([floor_release("vllm"), *contract_releases("vllm"), "0.28.0"]),
)
def test_vllm_budgets_hold_a_full_batch(block: int, concurrency: int, release: str) -> None:
    args = flags(launch("vllm", release, speculation=Fixed(block), max_concurrency=concurrency))
    tokens, capture = int(args["--max-num-batched-tokens"]), json.loads(args["--compilation-config"])["max_cudagraph_capture_size"]
    assert tokens - (block - 1) * concurrency >= 8192
    assert tokens >= capture >= block * concurrency
    assert capture % 16 == 0
    assert capture % block == 0


def test_extra_replaces_recommended_replaces_default() -> None:
    recommended = (
        "--attention-backend=flashinfer",
        "--mem-fraction-static=0.8",
        "--max-running-requests=7",
        "--speculative-dflash-block-size=4",
    )
    args = launch("sglang", SGLANG, recommended_args=recommended, extra_args=("--mem-fraction-static=0.6",)).args
    assert "--mem-fraction-static=0.6" in args
    assert "--mem-fraction-static=0.8" not in args
    assert "--attention-backend=flashinfer" in args
    assert "--max-running-requests=32" in args
    assert not any(arg.startswith("--speculative-dflash-block-size") for arg in args)


def test_a_negated_extra_replaces_its_recommended_namesake() -> None:
    args = launch("vllm", VLLM, recommended_args=("--trust-remote-code",), extra_args=("--no-trust-remote-code",)).args
    assert "--no-trust-remote-code" in args
    assert "--trust-remote-code" not in args


def test_order_of_extra_args_does_not_matter() -> None:
    extra = ("--reasoning-parser=qwen3", "--context-length=8192", "--chunked-prefill-size=4096")
    assert launch("sglang", SGLANG, extra_args=extra) == launch("sglang", SGLANG, extra_args=extra[::-1])


def test_recommended_flags_take_the_release_s_names() -> None:
    recommended = (
        "--mamba-scheduler-strategy=no_buffer",
        "--speculative-dflash-draft-window-size=4096",
        "--speculative-draft-kv-cache-dtype=bf16",
        "--disable-overlap-schedule",
    )
    for release in (floor_release("sglang"), *contract_releases("sglang")):
        args = flags(launch("sglang", release, recommended_args=recommended, gpu_product=H100))
        assert args["--mamba-radix-cache-strategy"] == "no_buffer"
        assert args["--speculative-draft-window-size"] == "4096"
        assert ("--speculative-draft-kv-cache-dtype" in args) == (version(release) >= version("0.5.18"))


def test_recommended_flags_that_do_not_fit_are_left_out() -> None:
    recommended = ("--speculative-draft-window-size=8", "--mamba-track-interval=64", "--attention-backend=trtllm_mha")
    args = flags(launch("sglang", SGLANG, recommended_args=recommended, gpu_product=H100, hybrid_target=False))
    assert "--speculative-draft-window-size" not in args
    assert "--mamba-track-interval" not in args
    assert args["--attention-backend"] == "fa3"


def test_off_drops_everything_about_the_drafter() -> None:
    extra = ("--speculative-draft-window-size=4096",)
    off = launch("sglang", SGLANG, speculation=Off(), extra_args=extra)
    assert not any("speculative" in arg for arg in off.args)
    assert "SGLANG_ENABLE_OVERLAP_PLAN_STREAM" not in off.env
    assert not any("spec" in arg for arg in launch("vllm", VLLM, speculation=Off()).args)


def test_latent_attention_keeps_the_engine_s_own_back_end() -> None:
    for target, served in (("moonshotai/Kimi-K2.5", "k"), ("/models/target", "moonshotai/Kimi-K2.5")):
        args = flags(
            launch(
                "sglang",
                SGLANG,
                target=ModelRef(target),
                served_model_name=served,
                recommended_args=(),
                hybrid_target=False,
            )
        )
        assert "--attention-backend" not in args
        assert args["--speculative-draft-attention-backend"] == "fa4"
        vllm = flags(launch("vllm", VLLM, target=ModelRef(target), served_model_name=served, recommended_args=()))
        assert "--attention-backend" not in vllm


def test_environment_follows_the_flags() -> None:
    assert launch("sglang", SGLANG).env == {"SGLANG_ENABLE_OVERLAP_PLAN_STREAM": "1"}
    assert launch("sglang", SGLANG, extra_args=("--enable-lora", "--max-lora-rank=16", "--lora-target-modules=all")).env == {}
    attention = launch("sglang", SGLANG, recommended_args=(), extra_args=("--enable-dp-attention", "--enable-dp-lm-head"))
    assert attention.env == {"SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "0"}


def test_the_kubelet_expands_nothing_that_a_user_wrote() -> None:
    args = launch("sglang", SGLANG, served_model_name="$(HOME)/名前").args
    assert "--served-model-name=$$(HOME)/名前" in args


def test_worker_differs_in_rank_only() -> None:
    sglang = launch("sglang", SGLANG, tensor_parallel=16, nodes=2)
    assert set(sglang.args) ^ set(sglang.worker_args) == {"--node-rank=0", "--node-rank=$(LWS_WORKER_INDEX)"}
    vllm = launch("vllm", VLLM, tensor_parallel=16, nodes=2)
    assert set(vllm.args) ^ set(vllm.worker_args) == {"--node-rank=0", "--node-rank=$(LWS_WORKER_INDEX)", "--headless"}
    assert launch("vllm", VLLM).worker_args == ()


def test_schedule_reaches_the_engine() -> None:
    schedule = Schedule(((1, 4, 7), (5, 32, 15)))
    launched = launch("vllm", "0.26.0", speculation=schedule)
    parsed_argv = parse("vllm", "0.26.0", [*launched.command, *launched.args])
    assert parsed_argv.schedule == schedule.ranges
    assert parsed_argv.block_size == 16


@pytest.mark.parametrize("name", table_names())
def test_guard_refuses_no_other_real_flag(name: str) -> None:
    """A real option that is a prefix of a guarded one would be refused as an abbreviation."""
    guard = SGLANG_GUARD if name.startswith("sglang") else VLLM_GUARD
    guarded = {*guard.owned, *guard.checked}
    real = {option.replace("_", "-") for entry in facts(name)["options"] for option in entry["names"] if option.startswith("--")}
    assert {option for option in real - guarded if any(flag.startswith(option) for flag in guarded)} == set()


@pytest.mark.parametrize("name", table_names())
def test_every_spelling_of_an_owned_flag_is_owned(name: str) -> None:
    engine = ENGINES[name.partition("-")[0]]
    for entry in facts(name)["options"]:
        spellings = {option for option in entry["names"] if not option.startswith("--no-")} - {*entry.get("off", ())}
        assert spellings <= engine.owned_flags().keys() or not spellings & engine.owned_flags().keys(), spellings


def test_owned_flags_exist_somewhere() -> None:
    for engine in ENGINES.values():
        tables = [facts(name) for name in table_names() if name.startswith(engine.name)]
        real = {option for table in tables for entry in table["options"] for option in entry["names"]}
        assert engine.owned_flags().keys() - {"-O"} <= real


@pytest.mark.parametrize(("token", "flag"), [("--a_b=c_d=e", Flag("--a-b", "c_d=e")), ("--a", Flag("--a")), ("--a=", Flag("--a", ""))])
def test_flag_round_trip(token: str, flag: Flag) -> None:
    assert Flag.parse(token) == flag
    assert Flag.parse(str(flag)) == flag
