"""Command lines that must not run, and unusual ones that may: which release's parser refuses them, and whether we do.

A case names the releases whose own parser and resolution refuse it, with a part of the message. ``ours`` holds what they accept although it
cannot work: a launch request that ``Engine.problems`` must refuse.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.api.speculation import Fixed, Schedule, Speculation
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import TABLE, version
from testbed.contract.examples import B200, H100, request

SGLANG, VLLM = TABLE["sglang"].tested, TABLE["vllm"].tested


@dataclass(frozen=True, slots=True)
class Case:
    """One case. ``args`` follow a base command line that is accepted; ``refused`` maps each release to a part of the engine's message."""

    name: str
    engine: str
    args: Sequence[str]
    refused: Mapping[str, str] = field(default_factory=dict)
    ours: LaunchRequest | None = None
    gpu: str = B200
    env: Mapping[str, str] = field(default_factory=dict)
    dense: bool = False
    drafter: bool = True
    speculative: Mapping[str, Any] | None = None
    """vLLM: changes to the base speculative configuration; None removes a key."""

    def command(self, target: str, drafter: str) -> list[str]:
        """Returns the arguments after the entry point."""
        if self.engine == "sglang":
            base = [f"--model-path={target}", "--speculative-algorithm=DFLASH", "--mem-fraction-static=0.75"]
            return [*base, *([f"--speculative-draft-model-path={drafter}"] if self.drafter else []), *self.args]
        config = {"method": "dflash", "model": drafter, "num_speculative_tokens": 15, **(self.speculative or {})}
        kept = {key: value for key, value in config.items() if value is not None}
        return [target, f"--speculative-config={json.dumps(kept)}", "--max-num-batched-tokens=16384", "--max-num-seqs=64", *self.args]


def _everywhere(releases: Sequence[str], piece: str) -> dict[str, str]:
    return dict.fromkeys(releases, piece)


def _since(first: str, releases: Sequence[str], piece: str) -> dict[str, str]:
    return _everywhere([release for release in releases if version(release) >= version(first)], piece)


def _before(first: str, releases: Sequence[str], piece: str) -> dict[str, str]:
    return _everywhere([release for release in releases if version(release) < version(first)], piece)


def _sglang(
    *extra: str, speculation: Speculation | None = None, gpu: str = B200, hybrid: bool = True, release: str = SGLANG[-1], nodes: int = 1
) -> LaunchRequest:
    base = request("sglang", release, "Qwen/Qwen3.5-35B-A3B", 1)
    return dataclasses.replace(
        base, extra_args=extra, speculation=speculation or base.speculation, gpu_product=gpu, hybrid_target=hybrid, nodes=nodes
    )


def _vllm(*extra: str, speculation: Speculation | None = None, release: str = VLLM[-1], gpu: str = B200, nodes: int = 1) -> LaunchRequest:
    base = request("vllm", release, "Qwen/Qwen3.5-35B-A3B", 1)
    return dataclasses.replace(base, extra_args=extra, speculation=speculation or base.speculation, gpu_product=gpu, nodes=nodes)


def _s(name: str, *args: str, refused: Mapping[str, str] | None = None, ours: LaunchRequest | None = None, **more: Any) -> Case:
    return Case(name, "sglang", args, refused or {}, ours, **more)


def _v(name: str, *args: str, refused: Mapping[str, str] | None = None, ours: LaunchRequest | None = None, **more: Any) -> Case:
    return Case(name, "vllm", args, refused or {}, ours, **more)


CASES: tuple[Case, ...] = (
    # SGLang: syntax
    _s("unknown flag", "--no-such-flag=1", refused=_everywhere(SGLANG, "unrecognized arguments")),
    _s("not a number", "--tp-size=x", refused=_everywhere(SGLANG, "invalid int value")),
    _s("broken metric labels", '--extra-metric-labels={"a":', refused=_everywhere(SGLANG, "invalid")),
    _s("underscores", "--mem_fraction_static=0.8", refused=_everywhere(SGLANG, "unrecognized arguments")),
    _s("not a choice", "--kv-cache-dtype=fp7", refused=_everywhere(SGLANG, "invalid choice")),
    _s(
        "removed mamba name",
        "--mamba-scheduler-strategy=extra_buffer",
        refused=_since("0.5.20", SGLANG, "unrecognized"),
        ours=_sglang("--mamba-scheduler-strategy=extra_buffer"),
    ),
    _s(
        "removed window name",
        "--speculative-dflash-draft-window-size=4096",
        refused=_since("0.5.20", SGLANG, "unrecognized"),
        ours=_sglang("--speculative-dflash-draft-window-size=4096"),
    ),
    _s(
        "removed graph size name",
        "--cuda-graph-max-bs=48",
        refused=_since("0.5.20", SGLANG, "ambiguous"),
        ours=_sglang("--cuda-graph-max-bs=48"),
    ),
    _s(
        "removed prefill graphs",
        "--cuda-graph-backend-prefill=tc_piecewise",
        refused=_since("0.5.22", SGLANG, "tc_piecewise was removed"),
        ours=_sglang("--cuda-graph-backend-prefill=tc_piecewise"),
    ),
    _s("abbreviation of a checked flag", "--speculative-draft-window=4096", ours=_sglang("--speculative-draft-window=4096")),
    _s("abbreviation of an owned flag", "--max-running=4", ours=_sglang("--max-running=4")),
    _s("owned flag", "--speculative-num-draft-tokens=8", ours=_sglang("--speculative-num-draft-tokens=8")),
    # SGLang: DFlash
    _s(
        "block 0 by alias",
        "--speculative-dflash-block-size=0",
        refused=_everywhere(SGLANG, "positive"),
        ours=_sglang(speculation=Fixed(0)),
    ),
    _s("block 0", "--speculative-num-draft-tokens=0", ours=_sglang(speculation=Fixed(0))),
    _s("block 1", "--speculative-num-draft-tokens=1", ours=_sglang(speculation=Fixed(1))),
    _s("block above the trained one", "--speculative-num-draft-tokens=32", ours=_sglang(speculation=Fixed(32))),
    _s("two blocks", "--speculative-num-draft-tokens=8", "--speculative-dflash-block-size=16", refused=_everywhere(SGLANG, "they differ")),
    _s(
        "window below the block",
        "--speculative-num-draft-tokens=16",
        "--speculative-draft-window-size=8",
        refused=_everywhere(SGLANG, "must be >="),
        ours=_sglang("--speculative-draft-window-size=8"),
    ),
    _s("no drafter", drafter=False, refused=_everywhere(SGLANG, "requires setting --speculative-draft-model-path")),
    _s("unknown algorithm", "--speculative-algorithm=DFLASHX", refused=_everywhere(SGLANG, "Unknown speculative algorithm")),
    _s("pipeline parallel", "--pp-size=2", refused=_everywhere(SGLANG, "pp_size == 1"), ours=_sglang("--pp-size=2")),
    _s(
        "DP attention",
        "--tp-size=2",
        "--dp-size=2",
        "--enable-dp-attention",
        refused=_everywhere(SGLANG, "dp attention"),
        ours=_sglang("--dp-size=2", "--enable-dp-attention"),
    ),
    _s(
        "lazy buffer",
        "--mamba-radix-cache-strategy=extra_buffer_lazy",
        refused=_before("0.5.18", SGLANG, "extra_buffer_lazy unsupported"),
        ours=_sglang("--mamba-radix-cache-strategy=extra_buffer_lazy", release="0.5.17"),
    ),
    _s(
        "short track interval",
        "--mamba-radix-cache-strategy=extra_buffer",
        "--mamba-track-interval=8",
        refused=_since("0.5.20", SGLANG, "AssertionError"),
        ours=_sglang("--mamba-track-interval=8"),
    ),
    _s(
        "FlashInfer decode of a float32 state",
        "--linear-attn-decode-backend=flashinfer",
        refused=_everywhere(SGLANG, "--mamba-ssm-dtype bfloat16"),
        ours=_sglang("--linear-attn-decode-backend=flashinfer"),
    ),
    _s(
        "Mamba buffer for a dense target",
        "--mamba-radix-cache-strategy=extra_buffer",
        dense=True,
        refused=_since("0.5.20", SGLANG, "mamba"),
        ours=_sglang("--mamba-radix-cache-strategy=extra_buffer", hybrid=False),
    ),
    _s(
        "LoRA",
        "--enable-lora",
        "--lora-paths",
        "a=/a",
        "--max-lora-rank=16",
        "--lora-target-modules",
        "all",
        refused=_before("0.5.19", SGLANG, "only compatible with NGRAM"),
        ours=_sglang("--enable-lora", release="0.5.17"),
    ),
    _s(
        "trtllm_mha on Hopper",
        "--attention-backend=trtllm_mha",
        gpu=H100,
        refused=_before("0.5.19", SGLANG, "SM100"),
        ours=_sglang("--attention-backend=trtllm_mha", gpu=H100, release="0.5.17"),
    ),
    _s("NVFP4 cache", "--kv-cache-dtype=nvfp4", refused=_since("0.5.20", SGLANG, "NVFP4"), ours=_sglang("--kv-cache-dtype=nvfp4")),
    _s(
        "GPUs not spread evenly",
        "--tp-size=3",
        "--nnodes=2",
        "--node-rank=0",
        "--dist-init-addr=leader:20000",
        refused=_everywhere(SGLANG, "divisible by number of nodes"),
        ours=_sglang(nodes=2),
    ),
    # vLLM: syntax
    _v("unknown flag", "--no-such-flag=1", refused=_everywhere(VLLM, "unrecognized arguments")),
    _v("not a number", "--max-num-seqs=x", refused=_everywhere(VLLM, "invalid")),
    _v("broken compilation config", '--compilation-config={"max":', refused=_everywhere(VLLM, "json_invalid")),
    _v("unknown compilation key", '--compilation-config={"no_such_key":1}', refused=_everywhere(VLLM, "unexpected_keyword")),
    _v("underscores", "--max_num_seqs=32"),
    _v("dotted option", "--hf-overrides.rope_theta=1000000"),
    _v("human-readable size", "--max-num-batched-tokens=16k"),
    _v("switch off", "--no-enable-prefix-caching"),
    _v("unknown back end", "--attention-backend=NOPE", refused=_everywhere(VLLM, "NOPE")),
    _v("abbreviation of an owned flag", "--max-num-se=32", ours=_vllm("--max-num-se=32")),
    _v(
        "owned dotted flag",
        "--speculative-config.num_speculative_tokens=3",
        ours=_vllm("--speculative-config.num_speculative_tokens=3"),
        refused=_everywhere(VLLM, ""),
    ),
    # vLLM: speculative configuration
    _v("unknown key", speculative={"disable_by_batch_size": 8}, refused=_everywhere(VLLM, "disable_by_batch_size")),
    _v("drafts not a number", speculative={"num_speculative_tokens": "many"}, refused=_everywhere(VLLM, "num_speculative_tokens")),
    _v("no drafts", speculative={"num_speculative_tokens": 0}, refused=_everywhere(VLLM, "greater than 0")),
    _v("drafts missing", speculative={"num_speculative_tokens": None}, refused=_everywhere(VLLM, "num_speculative_tokens")),
    _v("unknown method", speculative={"method": "dflashx"}, refused=_everywhere(VLLM, "dflash")),
    _v("unknown draft back end", speculative={"attention_backend": "NOPE"}, refused=_everywhere(VLLM, "NOPE")),
    _v("dashes in keys", speculative={"num_speculative_tokens": None, "num-speculative-tokens": 15}),
    _v("drafts above the trained block", speculative={"num_speculative_tokens": 31}, ours=_vllm(speculation=Fixed(32)), refused={}),
    _v("schedule", speculative={"num_speculative_tokens_per_batch_size": [[1, 8, 15], [9, 64, 7]]}),
    _v(
        "schedule with a gap",
        speculative={"num_speculative_tokens_per_batch_size": [[1, 8, 15], [10, 64, 7]]},
        ours=_vllm(speculation=Schedule(((1, 8, 15), (10, 64, 7)))),
    ),
    _v(
        "schedule above the block",
        speculative={"num_speculative_tokens_per_batch_size": [[1, 8, 31], [9, 64, 7]]},
        ours=_vllm(speculation=Schedule(((1, 8, 31), (9, 64, 7)))),
    ),
    _v(
        "schedule not from 1",
        speculative={"num_speculative_tokens_per_batch_size": [[2, 8, 15]]},
        ours=_vllm(speculation=Schedule(((2, 8, 15),))),
    ),
    _v(
        "schedule entry of two",
        speculative={"num_speculative_tokens_per_batch_size": [[1, 8]]},
        refused=_everywhere(VLLM, "Field required"),
    ),
    _v(
        "schedule under data parallelism",
        "--data-parallel-size=2",
        speculative={"num_speculative_tokens_per_batch_size": [[1, 64, 7]]},
        ours=_vllm("--data-parallel-size=2", speculation=Schedule(((1, 64, 7),))),
    ),
    # vLLM: sizes
    _v(
        "token budget below the batch",
        "--max-num-batched-tokens=1024",
        "--max-num-seqs=256",
        "--max-model-len=1024",
        refused=_before("0.33.0", VLLM, "max_num_scheduled_tokens"),
        ours=_vllm("--max-num-batched-tokens=511"),
    ),
    _v(
        "pipeline parallel",
        "--pipeline-parallel-size=2",
        "--nnodes=2",
        "--node-rank=0",
        "--master-addr=leader",
        refused=_before("0.31.0", VLLM, "ipeline"),
        ours=_vllm("--pipeline-parallel-size=2"),
    ),
    _v("more GPUs than a node has", "--tensor-parallel-size=16", refused=_everywhere(VLLM, "larger than")),
    _v(
        "GPUs not spread evenly",
        "--tensor-parallel-size=3",
        "--nnodes=2",
        "--node-rank=0",
        "--master-addr=leader",
        refused=_everywhere(VLLM, "nnodes"),
        ours=_vllm(nodes=2),
    ),
    _v(
        "fp8 cache on Blackwell",
        "--kv-cache-dtype=fp8",
        "--attention-backend=FLASH_ATTN",
        ours=_vllm("--kv-cache-dtype=fp8", release="0.26.0"),
    ),
    _v("fp8 cache on Hopper", "--kv-cache-dtype=fp8", gpu=H100),
)
