"""Memory that requests hold, and flags that give the concurrency asked for."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from typing import Any

import pytest

from dflash_controller.api.speculation import Fixed, Off
from dflash_controller.engines import ENGINES
from dflash_controller.engines.hardware import accelerator_bytes
from dflash_controller.engines.memory import Holding, holding
from dflash_controller.engines.protocol import LaunchRequest
from testbed.contract.examples import B200, H100, request

GIB = 2**30


def asked(engine: str, model: str = "Qwen/Qwen3.5-9B", tensor: int = 1, **change: Any) -> LaunchRequest:
    release = {"sglang": "0.5.17", "vllm": "0.26.0"}[engine]
    return dataclasses.replace(request(engine, release, model, tensor), **{"gpu_product": H100, **change})


def flag(request: LaunchRequest, name: str, engine: str = "sglang") -> str | None:
    found = [arg.partition("=")[2] for arg in ENGINES[engine].launch(request).args if arg.partition("=")[0] == name]
    return found[0] if found else None


@pytest.mark.parametrize(
    ("product", "gib"),
    [
        (H100, 78.4),
        ("NVIDIA-A100-SXM4-40GB", 39.2),
        ("NVIDIA-H100-NVL", 93),
        ("NVIDIA-H200", 140),
        (B200, 178),
        ("NVIDIA-B200-MIG-1g.23gb", 22.5),
        ("NVIDIA-GH200-480GB", 95),
        ("NVIDIA-L40S", 44),
        ("something-else", None),
    ],
)
def test_the_memory_of_a_product_is_read_from_its_label(product: str, gib: float | None) -> None:
    found = accelerator_bytes(product)
    assert found is None if gib is None else found is not None and found / GIB == pytest.approx(gib, abs=0.1)


def test_sglang_on_a_hybrid_gets_the_slots_for_the_concurrency_asked_for() -> None:
    # Measured: 83 slots at 5 a request by SGLang's own division, so 16 requests; 32 need 160.
    assert flag(asked("sglang"), "--max-mamba-cache-size") == "160"
    assert flag(asked("sglang", speculation=Fixed(8), max_concurrency=48), "--max-mamba-cache-size") == "240"
    assert flag(asked("sglang", speculation=Off()), "--max-mamba-cache-size") == "160"


def test_a_dense_target_gets_no_slots() -> None:
    assert flag(asked("sglang", "Qwen/Qwen3-8B"), "--max-mamba-cache-size") is None


@pytest.mark.parametrize(
    ("extra", "slots"),
    [
        (("--disable-overlap-schedule",), "128"),
        (("--mamba-radix-cache-strategy=no_buffer", "--disable-overlap-schedule"), "96"),
        (("--disable-radix-cache",), None),
        (("--mamba-full-memory-ratio=14",), None),
        (("--max-mamba-cache-size=200",), "200"),
    ],
)
def test_slots_follow_the_flags_that_sglang_counts_them_by(extra: tuple[str, ...], slots: str | None) -> None:
    assert flag(asked("sglang", extra_args=extra), "--max-mamba-cache-size") == slots


def test_where_not_all_fit_sglang_gets_the_slots_that_fit_and_the_estimate_says_so() -> None:
    crowded = asked("sglang", max_concurrency=60)
    fit = ENGINES["sglang"].fit(crowded)
    assert fit is not None
    assert fit.asked == 60
    assert 30 <= fit.fitting <= 36
    assert flag(crowded, "--max-mamba-cache-size") == str(5 * fit.fitting)
    assert any("--mamba-ssm-dtype=bfloat16" in remedy for remedy in fit.remedies)
    halved = dataclasses.replace(crowded, extra_args=("--mamba-ssm-dtype=bfloat16",))
    assert flag(halved, "--max-mamba-cache-size") == "300"


def test_the_estimate_for_sglang_agrees_with_what_was_measured_on_an_h100() -> None:
    fit = ENGINES["sglang"].fit(asked("sglang"))
    assert fit is not None
    assert fit.available == pytest.approx(39.3e9, rel=0.05)


def test_a_target_of_unknown_shape_leaves_the_division_to_sglang() -> None:
    unknown = asked("sglang", cache=None)
    assert ENGINES["sglang"].fit(unknown) is None
    assert flag(unknown, "--max-mamba-cache-size") is None
    assert flag(asked("sglang", gpu_product="something-else"), "--max-mamba-cache-size") is None
    assert flag(asked("sglang", weight_bytes=0), "--max-mamba-cache-size") is None


def test_ranks_divide_the_state_and_copy_keys_of_few_heads() -> None:
    one, eight = (holding(asked("sglang", "Qwen/Qwen3.5-397B-A17B", ranks), "", "", drafts=True) for ranks in (1, 8))
    assert one is not None
    assert eight is not None
    assert eight.state == one.state / 8
    assert eight.token == 30_720 / 2 + 24_576 / 8  # two heads of the target: four ranks hold the same one
    assert holding(asked("sglang"), "bfloat16", "fp8_e4m3", drafts=False) == Holding((50_331_648 / 2) + 1_179_648, 32_768 / 2)


def test_vllm_holds_a_state_for_each_token_of_the_block() -> None:
    # Measured: 2.3 % of the cache per request at 16 and 0.95 % at 8, so 43 and 105 requests, with 8.7 GB less for the cache at 16.
    large, small = (ENGINES["vllm"].fit(asked("vllm", speculation=Fixed(block), max_concurrency=500)) for block in (16, 8))
    assert large is not None
    assert small is not None
    assert large.fitting == pytest.approx(43 * 51 / 42.4, rel=0.1)
    assert small.fitting == pytest.approx(105, rel=0.15)


def test_vllm_captures_whole_blocks_and_every_full_batch() -> None:
    for block, concurrency in ((16, 32), (8, 64), (10, 3), (1, 32), (16, 1)):
        speculation = Off() if block == 1 else Fixed(block)
        config = json.loads(flag(asked("vllm", speculation=speculation, max_concurrency=concurrency), "--compilation-config", "vllm") or "")
        sizes = config["cudagraph_capture_sizes"]
        assert sizes == sorted(set(sizes))
        assert config["max_cudagraph_capture_size"] == sizes[-1] >= block * concurrency
        assert all(size % block == 0 for size in sizes)
        batches = [size // block for size in sizes]
        assert all(after <= max(before + 1, before * 1.25) for before, after in pairwise(batches) if after <= concurrency)
    assert len(json.loads(flag(asked("vllm"), "--compilation-config", "vllm") or "")["cudagraph_capture_sizes"]) == 20


def test_vllm_gets_no_graph_beyond_the_users_own_token_budget() -> None:
    budget = asked("vllm", speculation=Fixed(10), trained_block_size=16, max_concurrency=3, extra_args=("--max-num-batched-tokens=64",))
    config = json.loads(flag(budget, "--compilation-config", "vllm") or "")
    assert config == {"cudagraph_capture_sizes": [10, 20, 30], "max_cudagraph_capture_size": 30}


def test_vllm_sets_nothing_aside_for_graphs_by_the_old_runners_estimate() -> None:
    name = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
    assert ENGINES["vllm"].launch(asked("vllm")).env.get(name) == "0"
    assert name not in ENGINES["vllm"].launch(asked("vllm", extra_args=("--gpu-memory-utilization=0.97",))).env
    assert name not in ENGINES["vllm"].launch(asked("vllm", release="0.33.0")).env
    assert name not in ENGINES["vllm"].launch(asked("vllm", "Qwen/Qwen3-8B")).env
