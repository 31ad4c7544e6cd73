"""The engines' checks after parsing that decide whether an engine starts with DFlash.

Each rule was found in the engines' own resolution code. The engine contract compares it with that code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.engines.hardware import generation
from dflash_controller.engines.releases import version
from testbed.simulator.argv_needs import refusal
from testbed.simulator.option_table import ArgvError

_DEFAULT_BLOCK = 16
Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Host:
    """Facts about the machine and the models. None is unknown, and checks that need the fact pass."""

    gpu_product: str | None = None
    gpus_per_node: int | None = None
    hybrid_target: bool | None = None
    mixture_of_experts: bool | None = None
    kv_heads: int | None = None
    environ: Mapping[str, str] = field(default_factory=dict)

    @property
    def sm(self) -> int | None:
        """Returns the GPU's compute capability without the dot if the product is known."""
        gpu = None if self.gpu_product is None else generation(self.gpu_product)
        return gpu.sm if gpu else None

    @property
    def major(self) -> int | None:
        """Returns its major part, by which SGLang tells SM100 (B200, B300) from SM120 (RTX, GB10)."""
        return None if self.sm is None else self.sm // 10


def check(engine: str, release: str, values: Values, facts: Mapping[str, Any], host: Host) -> None:
    """Raises ArgvError with exit status 1 if the engine would raise after parsing."""
    rules: Callable[[str, Values, Mapping[str, Any], Host], str | None] = _sglang if engine == "sglang" else _vllm
    message = refusal(engine, release, values, facts) or rules(release, values, facts, host)
    if message is None and host.gpus_per_node is not None:
        message = _gpu_refusal(engine, values, host.gpus_per_node)
    if message:
        raise raised(message)


def raised(message: str) -> ArgvError:
    """Returns the error with which an engine ends after a ValueError."""
    return ArgvError(1, f"Traceback (most recent call last):\n  ...\nValueError: {message}\n")


def _sglang(release: str, values: Values, facts: Mapping[str, Any], host: Host) -> str | None:
    now = version(release)
    if values["tp_size"] % values["nnodes"]:
        return "tp_size must be divisible by number of nodes"
    algorithm = (values["speculative_algorithm"] or "").upper()
    if algorithm and algorithm not in (*facts["speculative_algorithms"], "NEXTN"):
        return f"Unknown speculative algorithm name: {algorithm}"
    found = (
        _sglang_attention(now, values, host)
        or _sglang_partitions(values)
        or _sglang_experts(values, host)
        or _sglang_mamba(now, values, host)
        or _sglang_cache(values, host)
        or _sglang_scheduling(now, values)
    )
    return found or (_sglang_dflash(now, values, host) if algorithm == "DFLASH" else None)


def _sglang_attention(now: tuple[int, ...], values: Values, host: Host) -> str | None:
    target = values["attention_backend"]
    prefill, decode = (values[f"{phase}_attention_backend"] or target for phase in ("prefill", "decode"))
    drafts = bool(values["speculative_algorithm"])
    if host.major is not None:
        majors = (10,) if now < version("0.5.18") else (9, 10, 12)
        if prefill == "trtllm_mha" and host.major not in majors:
            return "TRTLLM MHA backend for prefill is only supported on Blackwell GPUs (SM100)."
        if decode == "trtllm_mha" and host.major not in (9, 10, 12):
            return "TRTLLM MHA backend for decode is only supported on Hopper (SM90), Blackwell (SM100) and (SM120) GPUs."
        if prefill == "trtllm_mha" and host.major == 12 and values["kv_cache_dtype"] == "fp8_e4m3":
            return "TRTLLM FMHAv2 prefill on SM120 does not support fp8_e4m3 KV cache or skip-softmax."
        if target == "trtllm_mla" and host.major not in (10, 12):
            return "TRTLLM MLA backend is only supported on Blackwell GPUs (SM100/SM12x)."
    if target == "flex_attention" and drafts:
        return "Speculative decoding is currently not supported with Flex Attention backend"
    deterministic = values["enable_deterministic_inference"] or values["rl_on_policy_target"]
    if deterministic and target not in (None, "fa3", "fa4", "flashinfer", "triton", "ascend", "intel_xpu"):
        return f"Currently only fa3, fa4, flashinfer and triton are supported for deterministic inference, but you're using {target}."
    since = version("0.5.20" if host.hybrid_target else "0.5.19")
    if values["enable_unified_memory"] and now < since and (target != "triton" or host.hybrid_target):
        return "--enable-page-major-kv-layout requires the Triton attention backend for the full-attention layers"
    if values["enable_mis"] and target != "flashinfer":
        return "Multi-item scoring requires flashinfer attention backend for custom attention mask support."
    linear = values["linear_attn_decode_backend"] or values["linear_attn_backend"]
    if host.major == 10 and host.hybrid_target and linear == "flashinfer" and values["mamba_ssm_dtype"] != "bfloat16":
        return f"--linear-attn-decode-backend flashinfer on SM100+ requires --mamba-ssm-dtype bfloat16, got {values['mamba_ssm_dtype']!r}"
    return None


def _sglang_partitions(values: Values) -> str | None:
    tensor, context, experts = values["tp_size"], values["attn_cp_size"], values["ep_size"]
    moe, attention = values["moe_dp_size"], values.get("attn_dp_size") or 1
    if values.get("enable_dp_attention"):
        attention = values["dp_size"]
    if tensor % context or tensor % (attention * context):
        return "tp_size must be divisible by attn_dp_size * attn_cp_size"
    if moe > 1 and (tensor % moe or experts * moe > tensor or (experts > 1 and experts * moe != tensor)):
        return "ep_size * moe_dp_size must be equal to tp_size"
    if context != moe and moe != 1:
        return "attn_cp_size != moe_dp_size is only supported when moe_dp_size == 1"
    if values["moe_dense_tp_size"] not in (None, 1, tensor):
        return "moe_dense_tp_size only supports None, 1, or tp_size currently"
    if values["dcp_size"] > 1 and values["enable_prefill_cp"]:
        return "--dcp-size > 1 does not support --enable-prefill-cp."
    if values["dcp_replicate_q_proj"] and values["dcp_comm_backend"] == "ag_rs":
        return "--dcp-replicate-q-proj only applies to the a2a/fi_a2a DCP communication backend"
    if values["pp_size"] != 1 and values["speculative_algorithm"]:
        return "Currently DFLASH speculative decoding only supports pp_size == 1."
    if values["dwdp_size"] > 1:
        return "DWDP does not support speculative decoding (MTP/draft workers)"
    return None


def _sglang_experts(values: Values, host: Host) -> str | None:
    """Targets with experts must be of an architecture in SGLang's own lists, which no fact of ``host`` tells."""
    backend = values["moe_a2a_backend"]
    if backend in ("deepep_v2", "flashinfer_megamoe") and host.mixture_of_experts is False:
        return f"{backend} MoE is not validated for this model architecture."
    return None


def _sglang_mamba(now: tuple[int, ...], values: Values, host: Host) -> str | None:
    strategy, page, interval = values["mamba_radix_cache_strategy"], values["page_size"], values["mamba_track_interval"]
    if host.hybrid_target is False:
        if strategy not in (None, "auto", "no_buffer") and now >= version("0.5.20"):
            return f"--mamba-radix-cache-strategy={strategy} needs mamba state"
        return None
    if not host.hybrid_target or values["disable_radix_cache"]:
        return None
    if strategy in (None, "auto"):
        paging = page is not None and page > 1
        strategy = "no_buffer" if values["disable_overlap_schedule"] and not paging else "extra_buffer"
        values = {**values, "disable_overlap_schedule": values["disable_overlap_schedule"] or strategy == "no_buffer"}
    if strategy == "no_buffer":
        if page not in (None, 1):
            return "no_buffer only supports page_size=1."
        if not values["disable_overlap_schedule"]:
            return "no_buffer do not support overlap schedule. Try to set disable_overlap_schedule=True."
        return "no_buffer do not support trtllm_mha attention backend." if values["attention_backend"] == "trtllm_mha" else None
    if values["linear_attn_backend"] != "triton" and values["mamba_radix_cache_strategy"] not in (None, "auto"):
        return "extra_buffer is not supported; use no_buffer."
    if values["enable_linear_replayssm"]:
        return "--enable-linear-replayssm requires --mamba-radix-cache-strategy no_buffer"
    drafts = values["speculative_num_draft_tokens"] or (_DEFAULT_BLOCK if now >= version("0.5.20") else 0)
    if values["speculative_algorithm"] and interval < drafts:
        return f"mamba_track_interval ({interval}) must be at least the number of draft tokens ({drafts})."
    return "mamba_track_interval must be divisible by page_size" if page and interval % page else None


def _sglang_cache(values: Values, host: Host) -> str | None:
    dtype, backend = values["kv_cache_dtype"], values["attention_backend"]
    if dtype in ("nvfp4", "mxfp8") and host.major is not None and host.major not in (10, 12):
        return f"--kv-cache-dtype={dtype} requires Blackwell."
    if dtype in ("nvfp4", "fp4_mx_block16") and values["prefill_attention_backend"] is None and values["decode_attention_backend"] is None:
        readers = ("triton", "torch_native", "flex_attention", "trtllm_mha")
        if backend is not None and backend not in readers:
            return f"KV4 MHA expects attention_backend to be one of {readers}, but got {backend}"
    return None


def _sglang_scheduling(now: tuple[int, ...], values: Values) -> str | None:
    chunk = values["chunked_prefill_size"] or 2048
    page = values["page_size"] or 1
    if values["attention_backend"] == "trtllm_mha" and page not in (16, 32, 64, 128):
        page = 64
    if chunk > 0 and chunk % page:
        return "chunked_prefill_size must be divisible by page_size"
    if values["enable_hierarchical_cache"] and values["disable_radix_cache"]:
        return "The arguments enable-hierarchical-cache and disable-radix-cache are mutually exclusive and cannot be used at the same time."
    if values["enable_pdmux"] and chunk > 0:
        return "PD-Multiplexing is not compatible with chunked prefill."
    attention = values.get("enable_dp_attention") or (values.get("attn_dp_size") or 1) > 1
    if values["enable_two_batch_overlap"] and values["moe_a2a_backend"] == "none" and not attention:
        return "When enabling two batch overlap without an EP a2a backend, attention DP is required"
    if values["enable_lora"] and not values["lora_paths"] and not (values["max_lora_rank"] and values["lora_target_modules"]):
        return "When no initial --lora-paths is provided, you need to specify both --max-lora-rank and --lora-target-modules"
    if values["speculative_algorithm"]:
        if values.get("enable_layernorm_sp"):
            return "--enable-layernorm-sp supports speculative decoding only with Muse Spark"
        if values.get("weight_cache_mode") not in (None, "none", "off", "disabled"):
            return "--weight-cache-mode is not supported together with speculative decoding"
        if values.get("enable_watermark"):
            return "--enable-watermark supports speculative algorithms NGRAM, EAGLE, and EAGLE3"
        if values.get("enable_lmcache") and now >= version("0.5.20"):
            return "LMCacheUnifiedRadixCache does not yet support speculative decoding"
        if values.get("speculative_skip_dp_mlp_sync"):
            return "--speculative-skip-dp-mlp-sync is only supported with speculative_algorithm == EAGLE"
    return None


def _sglang_dflash(now: tuple[int, ...], values: Values, host: Host) -> str | None:
    if values["device"] == "cpu":
        return "DFLASH speculative decoding is not supported on cpu."
    if not values["speculative_draft_model_path"]:
        return "DFLASH speculative decoding requires setting --speculative-draft-model-path."
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
    on_trtllm = host.major == 10 and values["attention_backend"] in (None, "trtllm_mha")
    if values["kv_cache_dtype"] == "nvfp4" and on_trtllm and now >= version("0.5.20"):
        return "SM100 native NVFP4 speculative decoding does not yet support DFLASH; use EAGLE/NEXTN or NGRAM."
    if (values["enable_lora"] or values["lora_paths"]) and now < version("0.5.19"):
        return "Currently LoRA is only compatible with NGRAM speculative decoding."
    return None


def _vllm(release: str, values: Values, facts: Mapping[str, Any], host: Host) -> str | None:
    now = version(release)
    tensor, pipeline, nodes = values["tensor_parallel_size"], values["pipeline_parallel_size"], values["nnodes"]
    if tensor % values["decode_context_parallel_size"]:
        return f"tp_size={tensor} must be divisible by dcp_size={values['decode_context_parallel_size']}."
    if (tensor * pipeline) % nodes:
        return "World size must be divisible by nnodes"
    if host.gpus_per_node is not None and tensor * pipeline // nodes > host.gpus_per_node:
        return f"World size ({tensor * pipeline}) is larger than the number of available GPUs ({host.gpus_per_node}) in this node."
    if message := _vllm_ranks(values) or _vllm_target(values, host) or _vllm_scheduling(values):
        return message
    backend = values["attention_backend"]
    if backend and (values["attention_config"] or {}).get("backend"):
        return "attention_backend and attention_config.backend are mutually exclusive"
    if backend and str(backend).upper() not in (*facts["attention_backends"], "AUTO"):
        return f"Unknown attention backend: '{backend}'. Valid options are: {', '.join(facts['attention_backends'])}"
    config = values["speculative_config"]
    if config is None:
        return None
    if message := _speculative_config(now, config, facts):
        return message
    if values["kv_sharing_fast_prefill"]:
        return "Fast prefill optimization for KV sharing is not compatible with EAGLE"
    if pipeline > 1 and now < version("0.31.0"):
        return "Pipeline parallelism is not supported with speculative decoding"
    return _token_budget(now, values, int(config["num_speculative_tokens"]))


def _vllm_ranks(values: Values) -> str | None:
    replicas, local = values["data_parallel_size"], values["data_parallel_size_local"]
    if local is not None and local > replicas:
        return f"data_parallel_size_local ({local}) must be <= data_parallel_size ({replicas})"
    if values["data_parallel_rank"] is not None and replicas == 1:
        return "data_parallel_external_lb can only be set when data_parallel_size > 1"
    if values["data_parallel_hybrid_lb"] and local is None:
        return "data_parallel_size_local must be set to use data_parallel_hybrid_lb."
    if values["data_parallel_external_lb"] and values["data_parallel_rank"] is None:
        return "data_parallel_rank or node_rank must be specified if data_parallel_external_lb is enable."
    if values["enable_elastic_ep"] and not values["enable_eplb"]:
        return "Elastic EP is only supported with enable_eplb=True."
    if (values["enable_dbo"] or values["ubatch_size"] > 1) and values["all2all_backend"] == "allgather_reducescatter":
        return "Microbatching currently only supports the deepep_low_latency, deepep_high_throughput, and nixl_ep all2all backends."
    return None


def _vllm_target(values: Values, host: Host) -> str | None:
    if values["enable_expert_parallel"] and host.mixture_of_experts is False:
        return "Number of experts in the model must be greater than 0 when expert parallelism is enabled."
    size, tensor = values["decode_context_parallel_size"], values["tensor_parallel_size"]
    if size > 1 and host.kv_heads is not None and size > tensor // host.kv_heads:
        return f"Decode context parallelism needs {size} ranks per KV head; {tensor} ranks have {host.kv_heads} heads."
    return None


def _vllm_scheduling(values: Values) -> str | None:
    tokens, length = values["max_num_batched_tokens"], values["max_model_len"]
    if values["enable_chunked_prefill"] is False and tokens and (not isinstance(length, int) or length > int(tokens)):
        return f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length})."
    active, requests = values.get("max_num_active_seqs"), values["max_num_seqs"]
    if active is not None and requests is not None and active > requests:
        return f"max_num_active_seqs ({active}) cannot be greater than max_num_seqs ({requests})."
    return None


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


def _gpu_refusal(engine: str, values: Values, gpus: int) -> str | None:
    """Returns the reason why an engine ends that starts more ranks than its pod has GPUs. The parser accepts most; CUDA does not."""
    if engine == "sglang":
        replicas = 1 if values.get("enable_dp_attention") else values["dp_size"]
        ranks = values["tp_size"] * values["pp_size"] * replicas
        first, step = values["base_gpu_id"], values["gpu_id_step"]
        last = first + (max(1, ranks // values["nnodes"]) - 1) * step
    else:
        local = values["data_parallel_size_local"]
        replicas = values["data_parallel_size"] if local is None else local
        ranks = values["tensor_parallel_size"] * values["pipeline_parallel_size"] * values["prefill_context_parallel_size"] * replicas
        last = max(1, ranks // values["nnodes"]) - 1
    if last < gpus:
        return None
    return f"CUDA error: invalid device ordinal: rank needs device {last}, and the pod has {gpus}"


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
