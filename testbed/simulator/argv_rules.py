"""The engines' checks after parsing that decide whether an engine starts with DFlash.

Each rule was found in the engines' own resolution code. The engine contract compares it with that code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.engines.hardware import Generation, generation
from dflash_controller.engines.releases import version
from testbed.simulator.option_table import ArgvError

_DEFAULT_BLOCK = 16
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about the machine and the models. None is unknown, and checks that need the fact pass."""

    gpu_product: str | None = None
    gpus_per_node: int | None = None
    hybrid_target: bool | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpu(self) -> Generation | None:
        """Returns the GPU's generation if the product is known."""
        return None if self.gpu_product is None else generation(self.gpu_product)


def check(engine: str, release: str, values: Values, facts: Mapping[str, Any], host: Host) -> None:
    """Raises ArgvError with exit status 1 if the engine would raise after parsing."""
    rules: Callable[[str, Values, Mapping[str, Any], Host], str | None] = _sglang if engine == "sglang" else _vllm
    if message := rules(release, values, facts, host):
        raise raised(message)


def raised(message: str) -> ArgvError:
    """Returns the error with which an engine ends after a ValueError."""
    return ArgvError(1, f"Traceback (most recent call last):\n  ...\nValueError: {message}\n")


def _sglang(release: str, values: Values, facts: Mapping[str, Any], host: Host) -> str | None:
    now = version(release)
    if values["attention_backend"] == "trtllm_mha" and host.gpu not in (None, Generation.BLACKWELL) and now < version("0.5.18"):
        return "TRTLLM MHA backend is only supported on Blackwell GPUs (SM100)."
    if values["tp_size"] % values["nnodes"]:
        return "tp_size must be divisible by number of nodes"
    strategy = values["mamba_radix_cache_strategy"]
    if strategy not in (None, "auto", "no_buffer") and host.hybrid_target is False and now >= version("0.5.20"):
        return f"--mamba-radix-cache-strategy={strategy} needs mamba state"
    linear = values["linear_attn_decode_backend"] or values["linear_attn_backend"]
    if host.gpu is Generation.BLACKWELL and host.hybrid_target and linear == "flashinfer" and values["mamba_ssm_dtype"] != "bfloat16":
        return f"--linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got {values['mamba_ssm_dtype']!r}"
    algorithm = (values["speculative_algorithm"] or "").upper()
    if algorithm and algorithm not in (*facts["speculative_algorithms"], "NEXTN"):
        return f"Unknown speculative algorithm name: {algorithm}"
    return _sglang_dflash(now, values, host) if algorithm == "DFLASH" else None


def _sglang_dflash(now: tuple[int, ...], values: Values, host: Host) -> str | None:
    if values["device"] == "cpu":
        return "DFLASH speculative decoding is not supported on cpu."
    if not values["speculative_draft_model_path"]:
        return "DFLASH speculative decoding requires setting --speculative-draft-model-path."
    if values["pp_size"] != 1:
        return "DFLASH speculative decoding only supports pp_size == 1."
    block, alias = values["speculative_num_draft_tokens"], values["speculative_dflash_block_size"]
    if alias is not None and alias <= 0:
        return f"--speculative-dflash-block-size must be positive, got {alias}."
    if None not in (block, alias) and block != alias:
        return "--speculative-num-draft-tokens and --speculative-dflash-block-size must match."
    size = next(number for number in (block, alias, _DEFAULT_BLOCK) if number is not None)
    window = values["speculative_draft_window_size"]
    if window is not None and (window <= 0 or window < size):
        return f"--speculative-draft-window-size ({window}) must be positive and at least the block size ({size})."
    if values["enable_dp_attention"] or (values.get("attn_dp_size") or 1) > 1:
        if now < version("0.5.23"):
            return "DFLASH speculative decoding does not support dp attention."
        if not values["enable_dp_lm_head"] or host.environ.get("SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION") != "0":
            return "DFLASH with dp attention requires --enable-dp-lm-head and SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION=0."
    if values["mamba_radix_cache_strategy"] == "extra_buffer_lazy" and now < version("0.5.18"):
        return "extra_buffer_lazy does not support DFLASH."
    strategy, interval = values["mamba_radix_cache_strategy"], values["mamba_track_interval"]
    if host.hybrid_target and strategy != "no_buffer" and interval < size and now >= version("0.5.20"):
        return f"mamba_track_interval ({interval}) must be at least the number of draft tokens ({size})."
    on_trtllm = host.gpu is Generation.BLACKWELL and values["attention_backend"] in (None, "trtllm_mha")
    if values["kv_cache_dtype"] == "nvfp4" and on_trtllm and now >= version("0.5.20"):
        return "SM100 native NVFP4 speculative decoding does not yet support DFLASH; use EAGLE/NEXTN or NGRAM."
    if (values["enable_lora"] or values["lora_paths"]) and now < version("0.5.19"):
        return "Currently LoRA is only compatible with NGRAM speculative decoding."
    return None


def _vllm(release: str, values: Values, facts: Mapping[str, Any], host: Host) -> str | None:
    now = version(release)
    tensor, pipeline, nodes = values["tensor_parallel_size"], values["pipeline_parallel_size"], values["nnodes"]
    if (tensor * pipeline) % nodes:
        return "World size must be divisible by nnodes"
    if host.gpus_per_node is not None and tensor * pipeline // nodes > host.gpus_per_node:
        return f"World size ({tensor * pipeline}) is larger than the number of available GPUs ({host.gpus_per_node}) in this node."
    backend = values["attention_backend"]
    if backend and str(backend).upper() not in (*facts["attention_backends"], "AUTO"):
        return f"Unknown attention backend: '{backend}'. Valid options are: {', '.join(facts['attention_backends'])}"
    config = values["speculative_config"]
    if config is None:
        return None
    if message := _speculative_config(now, config, facts):
        return message
    if pipeline > 1 and now < version("0.31.0"):
        return "Pipeline parallelism is not supported with speculative decoding"
    return _token_budget(now, values, int(config["num_speculative_tokens"]))


def _speculative_config(now: tuple[int, ...], config: Any, facts: Mapping[str, Any]) -> str | None:
    if not isinstance(config, dict):
        return "speculative_config is not an object"
    if now >= version("0.26.0"):
        config.update({key.replace("-", "_"): config.pop(key) for key in list(config) if "-" in key})
    if unknown := sorted(set(config) - set(facts["speculative_keys"])):
        return f"Unexpected keyword argument {unknown[0]}"
    if config.get("method") not in facts["speculative_methods"]:
        return f"unknown speculative method {config.get('method')!r}"
    drafts = config.get("num_speculative_tokens")
    if not isinstance(drafts, int) or drafts <= 0:
        return f"num_speculative_tokens must be a positive integer, got {drafts!r}"
    if not isinstance(config.get("model"), str):
        return "model is required"
    if (backend := config.get("attention_backend")) and str(backend).upper() not in (*facts["attention_backends"], "AUTO"):
        return f"Unknown attention backend: {backend!r}"
    table = config.get("num_speculative_tokens_per_batch_size") or []
    if any(not isinstance(row, list) or len(row) != 3 for row in table):
        return "num_speculative_tokens_per_batch_size takes [start, end, tokens]"
    return None


def schedule_refusal(table: Sequence[tuple[int, int, int]]) -> str | None:
    """Returns the reason why vLLM's scheduler ends the engine over a table of (first, last, drafts), ascending. The parser accepts the
    table; the scheduler fails later."""
    end = 0
    for first, last, drafts in table:
        if first <= 0 or first > last:
            return f"Batch-size range ({first}, {last}) must be positive, its start no more than its end."
        if drafts < 0:
            return "speculative_token_schedule K values must be >= 0."
        if first <= end:
            return "Batch-size ranges must be non-overlapping and sorted."
        end = last
    if table and table[0][0] != 1:
        return "The first batch-size range must start at 1 so every runtime batch size has a defined schedule."
    return None


def _token_budget(now: tuple[int, ...], values: Values, drafts: int) -> str | None:
    tokens, requests = values["max_num_batched_tokens"], values["max_num_seqs"]
    tokens, requests = int(tokens or 8192), int(requests or 1024)
    if now >= version("0.33.0"):
        return f"max_num_batched_tokens ({tokens}) must exceed {drafts + 1}" if tokens <= drafts + 1 else None
    reserved = (drafts if now >= version("0.28.0") else drafts - 1) * requests
    if tokens <= reserved:
        return f"max_num_scheduled_tokens is {tokens - reserved}"
    return None
