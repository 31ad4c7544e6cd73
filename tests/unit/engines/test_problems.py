"""What is refused before a pod exists, with the field and the remedy."""

import dataclasses
from typing import Any

import pytest

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Fixed, Off, Schedule
from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import LaunchRequest
from testbed.contract.cases import CASES
from testbed.contract.examples import H100, examples, request
from tests.support.releases import default_release

SGLANG, VLLM = default_release("sglang"), default_release("vllm")

EXTRA = "spec.engine.extraArgs[0]"


def ask(engine: str, release: str, **changes: Any) -> LaunchRequest:
    return dataclasses.replace(request(engine, release, "Qwen/Qwen3.5-35B-A3B", 1), **changes)


def problems(engine: str, release: str, **changes: Any) -> list[Problem]:
    found = list(ENGINES[engine].problems(ask(engine, release, **changes)))
    if found:
        with pytest.raises(ValueError, match=r"spec\."):
            ENGINES[engine].launch(ask(engine, release, **changes))
    return found


def only(engine: str, release: str, **changes: Any) -> Problem:
    (problem,) = problems(engine, release, **changes)
    assert problem.remedy.endswith(".")
    assert problem.remedy[0].isupper()
    return problem


@pytest.mark.parametrize("example", list(examples()), ids=lambda e: e.name)
def test_golden_requests_have_no_problem(example: Any) -> None:
    assert list(ENGINES[example.engine].problems(example.request)) == []


@pytest.mark.parametrize("case", [case for case in CASES if case.ours], ids=lambda c: f"{c.engine}: {c.name}")
def test_what_parsers_let_through_is_refused_here(case: Any) -> None:
    assert ENGINES[case.engine].problems(case.ours)


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
@pytest.mark.parametrize("block", [-1, 0, 1, 17, 32])
def test_block_outside_the_trained_one(engine: str, block: int) -> None:
    problem = only(engine, default_release(engine), speculation=Fixed(block))
    assert problem.field == "spec.blockSize"
    assert "2 to 16" in problem.message


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        (((2, 8, 15),), "does not continue at 1"),
        (((1, 8, 15), (10, 32, 7)), "does not continue at 9"),
        (((1, 8, 15), (8, 32, 7)), "does not continue at 9"),
        (((1, 8, 15), (9, 8, 7)), "does not continue at 9"),
        (((1, 8, 16),), "outside 0 to 15"),
        (((1, 8, -1),), "outside 0 to 15"),
        (((1, 32, 0),), "never drafts"),
        ((), "never drafts"),
    ],
)
def test_broken_schedule(ranges: tuple[tuple[int, int, int], ...], message: str) -> None:
    problem = only("vllm", VLLM, speculation=Schedule(ranges))
    assert problem.field == "spec.tuning.actuator"
    assert message in problem.message


def test_schedule_needs_vllm_026() -> None:
    schedule = Schedule(((1, 8, 15), (9, 32, 0)))
    assert problems("vllm", "0.26.0", speculation=schedule) == []
    assert "0.26.0 or later" in only("vllm", "0.25.1", speculation=schedule).remedy
    assert "no schedule" in only("sglang", SGLANG, speculation=schedule).message


@pytest.mark.parametrize(
    ("engine", "token", "message"),
    [
        ("sglang", "--model-path=x", "belongs to the operator"),
        ("sglang", "--max_running_requests=8", "belongs to the operator"),
        ("sglang", "--spec", "abbreviation of"),
        ("sglang", "--max-running=8", "abbreviation of --max-running-requests"),
        ("sglang", "--mamba-track=8", "abbreviation of --mamba-track-interval"),
        ("sglang", "-tp=2", "is not one flag"),
        ("sglang", "--mem-fraction-static 0.8", "is not one flag"),
        ("sglang", "", "is not one flag"),
        ("vllm", "--max-num-seqs=8", "belongs to the operator"),
        ("vllm", "--speculative_config={}", "belongs to the operator"),
        ("vllm", "--speculative-config.model=x", "belongs to the operator"),
        ("vllm", "--compilation-config.mode=3", "belongs to the operator"),
        ("vllm", "--spec-model=x", "belongs to the operator"),
        ("vllm", "--speculative-c.model=x", "abbreviation of --speculative-config"),
        ("vllm", "--max-num-b=1", "abbreviation of --max-num-batched-tokens"),
        ("vllm", "--config=/x.yaml", "a file could set any flag"),
    ],
)
def test_flags_that_are_not_the_users(engine: str, token: str, message: str) -> None:
    problem = only(engine, default_release(engine), extra_args=(token,))
    assert problem.field == EXTRA
    assert message in str(problem)


@pytest.mark.parametrize(
    ("engine", "token"),
    [
        ("sglang", "--context-length=8192"),
        ("sglang", "--reasoning-parser=qwen3"),
        ("vllm", "--max-model-len=8192"),
        ("vllm", "--tool_call_parser=x"),
    ],
)
def test_other_flags_are_the_users(engine: str, token: str) -> None:
    assert problems(engine, default_release(engine), extra_args=(token,)) == []


@pytest.mark.parametrize(
    ("release", "token", "message"),
    [
        ("0.5.20", "--mamba-scheduler-strategy=extra_buffer", "0.5.20 removed"),
        ("0.5.23", "--speculative-skip-dp-mlp-sync", "0.5.23 removed"),
        ("0.5.22", "--cuda-graph-backend-prefill=tc_piecewise", "0.5.22 removed"),
        ("0.5.17", "--speculative-draft-kv-cache-dtype=fp8_e4m3", "does not know"),
        ("0.5.17", "--mamba-radix-cache-strategy=extra_buffer_lazy", "before SGLang 0.5.18"),
        ("0.5.17", "--lora-paths=a=/a", "before SGLang 0.5.19"),
        (SGLANG, "--pp-size=2", "multiplies the ranks"),
        (SGLANG, "--pipeline-parallel-size=2", "multiplies the ranks"),
        (SGLANG, "--disaggregation-mode=decode", "split prefill"),
        (SGLANG, "--speculative-draft-window-size=15", "shorter than the block of 16"),
        (SGLANG, "--mamba-track-interval=15", "shorter than the block of 16"),
        (SGLANG, "--attention-backend=fa3", "does not run on Blackwell"),
        (SGLANG, "--kv-cache-dtype=nvfp4", "KV cache"),
        (SGLANG, "--linear-attn-decode-backend=flashinfer", "bfloat16 state"),
    ],
)
def test_sglang_releases(release: str, token: str, message: str) -> None:
    problem = only("sglang", release, extra_args=(token,))
    assert problem.field == EXTRA
    assert message in problem.message


@pytest.mark.parametrize("token", ["--attention-backend=trtllm_mha", "--cuda-graph-backend-prefill=tc_piecewise"])
def test_blackwell_kernels_on_hopper(token: str) -> None:
    assert "does not run on Hopper" in only("sglang", "0.5.17", extra_args=(token,), gpu_product=H100).message
    assert problems("sglang", "0.5.17", extra_args=(token,)) == []


def test_mamba_flags_need_mamba_state() -> None:
    problem = only("sglang", SGLANG, extra_args=("--mamba-radix-cache-strategy=extra_buffer",), hybrid_target=False)
    assert "needs a target with Mamba state" in problem.message


def test_drafter_flags_are_not_looked_at_while_speculation_is_off() -> None:
    assert problems("sglang", SGLANG, speculation=Off(), extra_args=("--speculative-draft-window-size=4",)) == []
    assert problems("vllm", VLLM, speculation=Off(), extra_args=("--max-num-batched-tokens=64",)) == []


@pytest.mark.parametrize(
    ("release", "token", "message"),
    [
        (VLLM, "--max-num-batched-tokens=511", "do not hold 32 requests of block 16"),
        (VLLM, "--max_num_batched_tokens=0.5k", "do not hold 32 requests of block 16"),
        (VLLM, "--pipeline-parallel-size=2", "multiplies the ranks"),
        (VLLM, "--enable-dbo", "speculative decoding"),
        (VLLM, "--kv-cache-dtype=nvfp4", "KV cache"),
        (VLLM, "--kv-cache-dtype=fp8_e5m2", "KV cache"),
        ("0.26.0", "--kv-cache-dtype=fp8", "FLASH_ATTN of vLLM 0.26.0"),
    ],
)
def test_vllm_releases(release: str, token: str, message: str) -> None:
    problem = only("vllm", release, extra_args=(token,))
    assert problem.field == EXTRA
    assert message in problem.message


def test_vllm_fp8_cache_where_the_kernels_read_it() -> None:
    assert problems("vllm", "0.33.0", extra_args=("--kv-cache-dtype=fp8",)) == []
    assert problems("vllm", "0.26.0", extra_args=("--kv-cache-dtype=fp8",), gpu_product=H100) == []
    assert problems("vllm", "0.26.0", extra_args=("--kv-cache-dtype=fp8", "--attention-backend=FLASHINFER")) == []
    chosen = ("--kv-cache-dtype=fp8", "--attention-backend=FLASH_ATTN")
    assert "Ada (SM89)" in only("vllm", VLLM, extra_args=chosen, gpu_product="NVIDIA-L40S").message
    assert problems("vllm", VLLM, extra_args=("--kv-cache-dtype=fp8",), gpu_product="NVIDIA-L40S") == []


def test_vllm_schedule_under_data_parallelism() -> None:
    schedule = Schedule(((1, 32, 7),))
    assert problems("vllm", VLLM, speculation=schedule, extra_args=("--data-parallel-size=1",)) == []
    assert "multiplies the ranks" in only("vllm", VLLM, speculation=schedule, extra_args=("--data-parallel-size=2",)).message


@pytest.mark.parametrize(
    ("extra", "changes", "message"),
    [
        (("--page-size=96",), {}, "linear-attention chunk"),
        (("--page-size=96",), {"gpu_product": H100}, "linear-attention chunk"),
        (("--page-size=96",), {"gpu_product": H100, "hybrid_target": False}, "does not divide the prefill chunk"),
        (("--page-size=96", "--chunked-prefill-size=1000"), {"gpu_product": H100}, "linear-attention chunk"),
        (("--page-size=0",), {}, "less than 1"),
        (("--moe-a2a-backend=pplx",), {"mixture_of_experts": False}, "needs a mixture of experts"),
        (("--prefill-attention-backend=cutedsl_mla",), {"gpu_product": H100}, "decodes only"),
    ],
)
def test_one_cause_is_one_problem(extra: tuple[str, ...], changes: dict[str, Any], message: str) -> None:
    assert message in only("sglang", SGLANG, extra_args=extra, **changes).message


def test_the_advice_for_a_prefill_kernel_suits_the_target() -> None:
    """A gated delta net has no use for it in any phase; Kimi delta attention has, for prefill."""
    extra = ("--linear-attn-decode-backend=flashkda",)
    assert only("sglang", SGLANG, extra_args=extra, gpu_product=H100).remedy == "Remove --linear-attn-decode-backend."
    kimi = only("sglang", SGLANG, extra_args=extra, gpu_product=H100, served_model_name="moonshotai/Kimi-Linear-48B-A3B-Instruct")
    assert kimi.remedy == "Set --linear-attn-prefill-backend instead."


def test_two_causes_on_one_flag_are_two_problems() -> None:
    """Without the overlap schedule the strategy would still not suit the back end."""
    found = problems("sglang", SGLANG, extra_args=("--mamba-radix-cache-strategy=no_buffer",))
    assert [problem.field for problem in found] == [EXTRA, EXTRA]
    assert "overlap schedule" in found[0].message
    assert "trtllm_mha" in found[1].message


def test_a_combination_is_judged_once_its_flags_are_right_by_themselves() -> None:
    (problem,) = problems("sglang", SGLANG, extra_args=("--page-size=96", "--mamba-track-interval=100"))
    assert problem.field == EXTRA
    assert "--mamba-track-interval=100" in only("sglang", SGLANG, extra_args=("--page-size=64", "--mamba-track-interval=100")).message


@pytest.mark.parametrize("flag", ["--enable-expert-parallel", "--enable_expert_parallel"])
def test_expert_parallelism_needs_experts(flag: str) -> None:
    problem = only("vllm", VLLM, extra_args=(flag,), mixture_of_experts=False)
    assert "needs a mixture of experts" in problem.message
    assert "spec.target.mixtureOfExperts" in problem.remedy
    assert problems("vllm", VLLM, extra_args=(flag,), mixture_of_experts=True) == []
    assert problems("vllm", VLLM, extra_args=(flag,), mixture_of_experts=None) == []
    assert problems("vllm", VLLM, extra_args=("--no-enable-expert-parallel",), mixture_of_experts=False) == []


@pytest.mark.parametrize(
    ("size", "tensor", "heads", "refused"),
    [(2, 4, 8, True), (2, 8, 8, True), (2, 8, 4, False), (4, 8, 4, True), (2, 4, 2, False), (4, 8, 2, False), (2, 2, None, False)],
)
def test_decode_context_parallelism_needs_ranks_with_the_same_heads(size: int, tensor: int, heads: int | None, refused: bool) -> None:
    found = problems("vllm", VLLM, extra_args=(f"--decode-context-parallel-size={size}",), tensor_parallel=tensor, kv_heads=heads)
    assert bool(found) == refused
    if heads and refused:
        assert f"spec.parallelism.tensor to {heads * size}" in found[0].remedy


def test_latent_attention_has_one_head_for_every_rank() -> None:
    changes: dict[str, Any] = {"served_model_name": "deepseek-ai/DeepSeek-V3", "tensor_parallel": 8, "kv_heads": 128}
    assert problems("vllm", VLLM, extra_args=("--decode-context-parallel-size=8",), **changes) == []


@pytest.mark.parametrize("release", ["0.5.17", "0.5.19", SGLANG])
@pytest.mark.parametrize("dtype", ["nvfp4", "fp4_mx_block16", "mxfp8"])
@pytest.mark.parametrize("gpu", [H100, "NVIDIA-B200", "NVIDIA-GB10", "unknown"])
def test_dflash_runs_on_no_block_scaled_cache(release: str, dtype: str, gpu: str) -> None:
    problem = only("sglang", release, extra_args=(f"--kv-cache-dtype={dtype}",), gpu_product=gpu)
    assert "DFlash cannot run on this KV cache" in problem.message


@pytest.mark.parametrize("release", ["0.5.17", "0.5.19", SGLANG])
def test_fp4_mx_block16_without_dflash_is_decided_by_the_back_end(release: str) -> None:
    changes: dict[str, Any] = {"speculation": Off(), "hybrid_target": False}
    asked = ("--kv-cache-dtype=fp4_mx_block16",)
    for gpu in ("NVIDIA-B200", "NVIDIA-B300-SXM6-AC"):
        assert problems("sglang", release, extra_args=asked, gpu_product=gpu, **changes) == []
    on_hopper = only("sglang", release, extra_args=asked, gpu_product=H100, **changes)
    assert "--attention-backend=fa3 cannot read this KV cache" in on_hopper.message
    assert "--attention-backend=triton" in on_hopper.remedy
    assert problems("sglang", release, extra_args=(*asked, "--attention-backend=triton"), gpu_product=H100, **changes) == []
    assert "does not run on Hopper" in only("sglang", release, extra_args=("--kv-cache-dtype=nvfp4",), gpu_product=H100, **changes).message


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_shape(engine: str) -> None:
    release = default_release(engine)
    assert only(engine, release, tensor_parallel=9, nodes=2).field == "spec.parallelism.tensor"
    assert only(engine, release, max_concurrency=0).field == "spec.engine.maxConcurrency"


def test_old_release_is_the_only_problem_named() -> None:
    assert only("vllm", "0.20.0", speculation=Fixed(99)).field == "spec.engine.version"
