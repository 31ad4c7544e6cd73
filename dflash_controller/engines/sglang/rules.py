"""Combinations that SGLang refuses or cannot run with DFlash, over the whole merged command line.

Each rule names SGLang's own check; paths are inside the wheel of 0.5.23 unless a release is named. The engine contract compares each with
the real argument resolution.
"""

from __future__ import annotations

from collections.abc import Iterator

from dflash_controller.engines import listen
from dflash_controller.engines.backends import BACKENDS
from dflash_controller.engines.command_line import Broken, CommandLine, Rule
from dflash_controller.engines.flags import Flag
from dflash_controller.engines.hardware import DATACENTER_BLACKWELL, gpu_name, latent_attention
from dflash_controller.engines.needs import NEEDS
from dflash_controller.engines.needs import broken as broken_needs
from dflash_controller.engines.ranks import RANKS
from dflash_controller.engines.sglang.names import (
    DECODE_BACKEND,
    DISAGGREGATION,
    DP_HEAD,
    DRAFT_BACKEND,
    KV_DTYPE,
    LINEAR,
    LORA,
    NO_OVERLAP,
    PREFILL_BACKEND,
    STATE_DTYPE,
    STRATEGY,
    TARGET_BACKEND,
    TRACK,
    WINDOW,
    attention_data_parallel,
)

_BACKENDS = BACKENDS["sglang"]
_CHUNK = "--chunked-prefill-size"
_PAGE = "--page-size"
_EXCHANGE = "--moe-a2a-backend"
_SCAN_CHUNK = 64
"""Tokens per chunk of the linear-attention kernels (FLA_CHUNK_SIZE), which page sizes must fit."""
_PAGES = {"trtllm_mha": (16, 32, 64, 128), "hpc_ops": (64,), "trtllm_mla": (32, 64), "cutedsl_mla": (32, 64)}
"""srt/arg_groups/overrides.py, _page_size_constraints: page sizes of a back end; any other becomes 64."""
_OTHER_PAGE = 64
_LEAST_CHUNK = 2048
"""srt/arg_groups/memory_hook.py: SGLang chooses 2048, 4096, 8192 or 16384 by the GPU's memory."""
_LEAST_BLOCK_SCALED = {"nvfp4": DATACENTER_BLACKWELL | {120, 121}, "mxfp8": DATACENTER_BLACKWELL | {120, 121}}
"""srt/arg_groups/kv_cache_hook.py: compute capabilities whose tensor cores read the cache."""
_BLOCK_SCALED = frozenset({"nvfp4", "fp4_mx_block16", "fp4_e2m1", "mxfp8"})
"""KV caches with a scale per block of values."""
_FP4_MX_BACKENDS = frozenset({"triton", "torch_native", "flex_attention", "trtllm_mha"})
"""srt/layers/quantization/fp4_kv_cache_quant_method.py, KV_CACHE_ATTENTION_ACCESS_REGISTRY: who reads fp4_mx_block16, on every GPU."""
_KDA_ONLY = frozenset({"flashkda", "nvidia_kda", "ptx_kda", "helion"})
"""srt/layers/attention/linear/gdn_backend.py: back ends of Kimi delta attention, unknown to gated delta nets."""

_WITHOUT_SPECULATION = {
    "--enable-kv-cache-sharding": "srt/arg_groups/kv_shard_hook.py",
    "--enable-lmcache": "srt/arg_groups/kv_cache_hook.py",
    "--enable-return-aux-hidden-states": "srt/arg_groups/validation_hook.py",
    "--enable-watermark": "srt/arg_groups/validation_hook.py",
    "--speculative-skip-dp-mlp-sync": "0.5.17 srt/server_args.py",
    "--weight-cache-mode": "srt/arg_groups/model_path_hook.py",
}
"""Switches that SGLang refuses with DFlash, and where."""
_NO_VERIFY = {"flex_attention", "hpc_ops"}
"""srt/arg_groups/attention_hook.py and srt/layers/attention/attention_registry.py: no speculative decoding."""
_DETERMINISTIC = {"fa3", "fa4", "flashinfer", "triton"}
"""srt/arg_groups/attention_hook.py, _handle_deterministic_inference."""


def _target(line: CommandLine) -> str:
    return line.get(PREFILL_BACKEND) or line.get(TARGET_BACKEND)


def _ranks(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/parallel_hook.py."""
    inside = frozenset({"--dp-size"}) if line.on("--enable-dp-attention") else frozenset()
    found = list(RANKS["sglang"].broken(line, inside))
    yield from found
    if found:
        return
    tensor = line.request.tensor_parallel

    def size(name: str) -> int:
        return line.number(name) or 1

    attention = attention_data_parallel(line) * size("--attn-cp-size")
    experts = size("--ep-size") * size("--moe-dp-size")
    if tensor % attention:
        names = ("--attn-cp-size", "--attn-dp-size", "--dp-size")
        yield Broken(
            names, f"--attn-cp-size and attention data parallelism together take {attention} of {tensor} GPUs", "Lower one of them"
        )
    if experts > tensor or (size("--moe-dp-size") > 1 and size("--ep-size") > 1 and experts != tensor):
        message = f"--moe-dp-size times --ep-size is {experts}, and must be the {tensor} GPUs of spec.parallelism.tensor"
        yield Broken(("--moe-dp-size", "--ep-size"), message, "Change one of them")
    if size("--moe-dp-size") not in (1, size("--attn-cp-size")):
        yield Broken(("--moe-dp-size",), "--moe-dp-size must be 1 or equal --attn-cp-size", "Remove --moe-dp-size")
    if size("--dcp-size") > 1 and line.on("--enable-prefill-cp"):
        message = "--enable-prefill-cp does not work with --dcp-size"
        yield Broken(("--enable-prefill-cp", "--dcp-size"), message, "Remove one of them")
    if line.on("--dcp-replicate-q-proj") and line.get("--dcp-comm-backend") == "ag_rs":
        message = "--dcp-replicate-q-proj does not work with --dcp-comm-backend=ag_rs"
        yield Broken(("--dcp-replicate-q-proj", "--dcp-comm-backend"), message, "Use --dcp-comm-backend=a2a")
    if size("--moe-dense-tp-size") not in (1, tensor):
        yield Broken(("--moe-dense-tp-size",), f"--moe-dense-tp-size must be 1 or {tensor}", "Use 1 or remove --moe-dense-tp-size")


def _attention_data_parallel(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/speculative_hook.py, _handle_dflash."""
    names = ("--attn-dp-size", "--enable-dp-attention")
    if not line.speculates or attention_data_parallel(line) <= 1:
        return
    first = next(name for name in names if line.on(name))
    if not line.at_least("0.5.23"):
        yield Broken(
            names, f"{first}: DFlash cannot run with DP attention before SGLang 0.5.23", f"Remove {first}, or use SGLang 0.5.23 or later"
        )
        return
    if not line.on(DP_HEAD):
        yield Broken(names, f"{first}: DFlash with DP attention needs {DP_HEAD}", f"Add {DP_HEAD}")
    if (line.number("--attn-cp-size") or 1) != 1:
        message = "--attn-cp-size: DFlash with DP attention cannot run with context parallelism"
        yield Broken(("--attn-cp-size", *names), message, "Remove --attn-cp-size")


def _gpu(line: CommandLine) -> Iterator[Broken]:
    """backends.yaml."""
    for name in sorted(_BACKENDS.options & line.values.keys()):
        if _BACKENDS.runs(Flag(name, line.values[name]), line.request) is False:
            message = f"{name}={line.values[name]} does not run on {gpu_name(line.request)}"
            yield Broken((name,), message, f"Remove {name}: the operator or SGLang chooses what the GPU can run")


def _attention(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/attention_hook.py."""
    for name in (TARGET_BACKEND, PREFILL_BACKEND, DECODE_BACKEND):
        if line.speculates and line.get(name) in _NO_VERIFY:
            yield Broken((name,), f"{name}={line.get(name)} has no speculative decoding", f"Remove {name}")
    if "trtllm_mha" in (_target(line), line.get(DECODE_BACKEND)) and line.sm in (120, 121) and line.get(KV_DTYPE) == "fp8_e4m3":
        message = f"{KV_DTYPE}=fp8_e4m3: trtllm_mha cannot read it on {gpu_name(line.request)}"
        yield Broken((KV_DTYPE, TARGET_BACKEND), message, f"Use another {TARGET_BACKEND}, or remove {KV_DTYPE}")
    for name in ("--enable-deterministic-inference", "--rl-on-policy-target"):
        if line.on(name) and (backend := line.get(TARGET_BACKEND)) and backend not in _DETERMINISTIC:
            message = f"{name} does not work with {TARGET_BACKEND}={backend}"
            yield Broken((name, TARGET_BACKEND), message, f"Add {TARGET_BACKEND}=fa4, flashinfer or triton, or remove {name}")
    if line.on("--enable-mis") and line.get(TARGET_BACKEND) not in ("", "flashinfer"):
        message = f"--enable-mis needs {TARGET_BACKEND}=flashinfer, and the command line has {line.get(TARGET_BACKEND)}"
        yield Broken(("--enable-mis", TARGET_BACKEND), message, f"Add {TARGET_BACKEND}=flashinfer, or remove --enable-mis")
    unified_since = "0.5.20" if line.request.hybrid_target else "0.5.19"
    if line.on("--enable-unified-memory") and not line.at_least(unified_since) and not _triton_everywhere(line):
        message = f"--enable-unified-memory needs {TARGET_BACKEND}=triton and triton for linear attention before SGLang {unified_since}"
        yield Broken(("--enable-unified-memory", TARGET_BACKEND), message, "Remove --enable-unified-memory")


def _triton_everywhere(line: CommandLine) -> bool:
    linear = ("--linear-attn-prefill-backend", "--linear-attn-decode-backend", "--linear-attn-backend")
    return all(line.get(name, "triton") == "triton" for name in (TARGET_BACKEND, *linear))


def _mamba(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/mamba_hook.py and overrides.py, _mamba_radix_cache_resolution."""
    strategy = line.get(STRATEGY, "auto")
    if not line.request.hybrid_target:
        if STRATEGY in line.values and strategy not in ("auto", "no_buffer"):
            message = f"{STRATEGY}={strategy} needs a target with Mamba state, and {line.request.target.model} has none"
            yield Broken((STRATEGY,), message, f"Remove {STRATEGY}")
        if TRACK in line.values:
            message = f"{TRACK} needs a target with Mamba state, and {line.request.target.model} has none"
            yield Broken((TRACK,), message, f"Remove {TRACK}")
        return
    page = line.number(_PAGE)
    if page and page > 0 and page % _SCAN_CHUNK and _SCAN_CHUNK % page:
        yield Broken((_PAGE,), f"{_PAGE}={page} does not fit the {_SCAN_CHUNK} tokens of a linear-attention chunk", f"Use {_SCAN_CHUNK}")
    if line.on("--disable-radix-cache"):
        return
    if strategy == "no_buffer" or (strategy == "auto" and line.on(NO_OVERLAP) and (page or 1) == 1):
        yield from _no_buffer(line, strategy, page)
    else:
        yield from _extra_buffer(line, strategy, page)


def _no_buffer(line: CommandLine, strategy: str, page: int | None) -> Iterator[Broken]:
    shown = f"{STRATEGY}={strategy}"
    if not line.on(NO_OVERLAP):
        message = f"{shown} does not work with the overlap schedule"
        yield Broken((STRATEGY, NO_OVERLAP), message, f"Remove {STRATEGY}, or add {NO_OVERLAP}")
    if _target(line) == "trtllm_mha":
        message = f"{shown} does not work with {TARGET_BACKEND}=trtllm_mha, which runs on {gpu_name(line.request)}"
        remedy = f"Remove {STRATEGY}, or add {TARGET_BACKEND}=flashinfer or triton"
        yield Broken((STRATEGY, TARGET_BACKEND, PREFILL_BACKEND, NO_OVERLAP), message, remedy)
    if (page or 1) != 1:
        yield Broken((_PAGE, STRATEGY), f"{_PAGE}={page} does not work with {shown}", f"Remove {_PAGE} or {STRATEGY}")


def _extra_buffer(line: CommandLine, strategy: str, page: int | None) -> Iterator[Broken]:
    interval = line.number(TRACK)
    if interval is not None and interval < line.block and line.speculates:
        yield Broken((TRACK,), f"{TRACK}={interval} is shorter than the block of {line.block}", f"Use {line.block} or more")
    if page and (interval or 256) % page:
        yield Broken((_PAGE, TRACK), f"{TRACK}={interval or 256} is no multiple of {_PAGE}={page}", f"Make {TRACK} a multiple of {_PAGE}")
    if line.get("--linear-attn-backend", "triton") != "triton" and STRATEGY in line.values:
        message = f"--linear-attn-backend={line.get('--linear-attn-backend')} does not work with {STRATEGY}={strategy}"
        phase = "prefill" if line.get("--linear-attn-backend") in _KDA_ONLY else "decode"
        yield Broken(("--linear-attn-backend", STRATEGY), message, f"Set --linear-attn-{phase}-backend instead")
    if line.on("--enable-linear-replayssm"):
        message = f"--enable-linear-replayssm does not work with {STRATEGY}={strategy}"
        yield Broken(("--enable-linear-replayssm", STRATEGY), message, "Remove --enable-linear-replayssm")
    if strategy == "extra_buffer_lazy" and line.speculates and not line.at_least("0.5.18"):
        message = f"{STRATEGY}={strategy} does not work with DFlash before SGLang 0.5.18"
        yield Broken((STRATEGY,), message, "Use extra_buffer, or SGLang 0.5.18 or later")


def _linear_family(line: CommandLine) -> Iterator[Broken]:
    """srt/layers/attention/linear/gdn_backend.py: hybrid targets without latent attention (Qwen3.5 and its kin) have gated delta nets."""
    if not line.request.hybrid_target or latent_attention(line.request):
        return
    for name in ("--linear-attn-backend", "--linear-attn-prefill-backend", "--linear-attn-decode-backend", "--linear-attn-verify-backend"):
        if line.get(name) in _KDA_ONLY:
            message = f"{name}={line.get(name)} is for Kimi delta attention, and {line.request.target.model} has gated delta nets"
            yield Broken((name,), message, f"Remove {name}")


def _linear_state(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/attention_hook.py: on SM100 FlashInfer decodes and verifies linear attention in a bfloat16 state only."""
    if line.sm not in DATACENTER_BLACKWELL or line.get(STATE_DTYPE) == "bfloat16":
        return
    for name in LINEAR:
        if line.get(name) == "flashinfer":
            message = f"{name}=flashinfer on {gpu_name(line.request)} needs a bfloat16 state"
            yield Broken((name,), message, f"Remove {name}, or add {STATE_DTYPE}=bfloat16")


def _drafting(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/speculative_hook.py."""
    if not line.speculates:
        return
    window = line.number(WINDOW)
    if window is not None and window < line.block:
        yield Broken((WINDOW,), f"{WINDOW}={window} is shorter than the block of {line.block}", f"Use {line.block} or more")
    if "--speculative-draft-sink-size" in line.values and WINDOW not in line.values:
        yield Broken(("--speculative-draft-sink-size",), f"--speculative-draft-sink-size needs {WINDOW}", f"Add {WINDOW}")
    for name in LORA:
        if line.on(name) and not line.at_least("0.5.19"):
            message = f"{name}: DFlash cannot serve LoRA adapters before SGLang 0.5.19"
            yield Broken((name,), message, "Use SGLang 0.5.19 or later")
    if line.get(DISAGGREGATION, "null") != "null":
        message = f"{DISAGGREGATION}: DFlash with split prefill and decode crashes or is unproven in every SGLang release"
        yield Broken((DISAGGREGATION,), message, f"Remove {DISAGGREGATION}")
    initial = any(line.on(name) for name in ("--lora-paths", "--max-lora-rank")) and any(
        line.on(name) for name in ("--lora-paths", "--lora-target-modules")
    )
    if line.on("--enable-lora") and not initial:
        message = "--enable-lora needs --lora-paths, or --max-lora-rank and --lora-target-modules"
        yield Broken(("--enable-lora",), message, "Add them")
    if line.on("--enable-layernorm-sp") and "muse" not in line.request.target.model.lower():
        yield Broken(("--enable-layernorm-sp",), "--enable-layernorm-sp does not work with DFlash", "Remove --enable-layernorm-sp")
    for name in _WITHOUT_SPECULATION:
        if line.on(name) and line.get(name) not in ("none", "off", "disabled"):
            yield Broken((name,), f"{name} does not work with DFlash", f"Remove {name}")
    for name in ("--speculative-moe-runner-backend", "--speculative-moe-a2a-backend"):
        if line.get(name).startswith("lora") or line.get(name) == "deepep_v2":
            yield Broken((name,), f"{name}={line.get(name)} does not run a drafter", f"Remove {name}")


def _cache(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/kv_cache_hook.py, handle_kv4_compatibility and handle_mxfp8_kv_cache_compatibility.

    No release runs DFlash on a block-scaled cache, whatever the GPU: DFlash commits a block through ``set_kv_buffer_prefix_valid``
    (srt/speculative/dflash_worker_v2.py), which MHATokenToKVPoolFP4 inherits from the unscaled pool and MHATokenToKVPoolMXFP8 refuses
    (srt/mem_cache/memory_pool.py). Without speculation the GPU and the back end decide.
    """
    dtype = line.get(KV_DTYPE)
    if dtype not in _BLOCK_SCALED:
        return
    shown = f"{KV_DTYPE}={dtype}"
    if line.speculates:
        yield Broken((KV_DTYPE,), f"{shown}: DFlash cannot run on this KV cache", "Use fp8_e4m3, bf16 or auto")
    elif line.sm is not None and line.sm not in _LEAST_BLOCK_SCALED.get(dtype, {line.sm}):
        yield Broken((KV_DTYPE,), f"{shown} does not run on {gpu_name(line.request)}", "Use fp8_e4m3, bf16 or auto")
    elif dtype == "fp4_mx_block16" and not latent_attention(line.request):
        for name in (TARGET_BACKEND, DECODE_BACKEND):
            if line.get(name) and line.get(name) not in _FP4_MX_BACKENDS:
                message = f"{shown}: {name}={line.get(name)} cannot read this KV cache"
                yield Broken((KV_DTYPE, name), message, f"Add {name}=triton, or use fp8_e4m3, bf16 or auto")


def _page(line: CommandLine) -> int:
    """Returns the page size that SGLang resolves to."""
    written = line.number(_PAGE)
    for name in (TARGET_BACKEND, PREFILL_BACKEND, DECODE_BACKEND):
        if (pages := _PAGES.get(line.get(name))) and written not in pages:
            return _OTHER_PAGE
    return written or 1


def _schedule(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/validation_hook.py and serving_hook.py."""
    if line.on("--device") and not line.get("--device").startswith("cuda"):
        yield Broken(("--device",), f"--device={line.get('--device')}: the pods of a DFlashDeployment have NVIDIA GPUs", "Remove --device")
    chunk = line.number(_CHUNK)
    page = _page(line)
    if chunk is not None and chunk > 0 and page > 0 and chunk % page:
        yield Broken((_CHUNK, _PAGE), f"{_CHUNK}={chunk} is no multiple of the page size of {page}", f"Use a multiple of {page}")
    elif chunk is None and page > 0 and _LEAST_CHUNK % page:
        message = f"{_PAGE}={page} does not divide the prefill chunk, which SGLang chooses as a power of two of at least {_LEAST_CHUNK}"
        yield Broken((_PAGE,), message, f"Use a power of two, or add {_CHUNK} with a multiple of {page}")
    if line.on("--enable-hierarchical-cache") and line.on("--disable-radix-cache"):
        message = "--enable-hierarchical-cache does not work with --disable-radix-cache"
        yield Broken(("--enable-hierarchical-cache", "--disable-radix-cache"), message, "Remove one of them")
    if line.on("--enable-pdmux") and (chunk is None or chunk > 0):
        yield Broken(("--enable-pdmux",), "--enable-pdmux does not work with chunked prefill", f"Add {_CHUNK}=-1, or remove --enable-pdmux")
    if line.on("--enable-two-batch-overlap") and attention_data_parallel(line) == 1 and line.get(_EXCHANGE, "none") == "none":
        message = "--enable-two-batch-overlap needs DP attention or --moe-a2a-backend"
        yield Broken(("--enable-two-batch-overlap",), message, "Remove --enable-two-batch-overlap")


def _experts(line: CommandLine) -> Iterator[Broken]:
    """srt/arg_groups/moe_hook.py: a target without experts has nothing to exchange; the checks of several back ends refuse it."""
    backend = line.get(_EXCHANGE, "none")
    if backend != "none" and line.request.mixture_of_experts is False:
        message = f"{_EXCHANGE}={backend} needs a mixture of experts, and {line.request.target.model} is not known as one"
        yield Broken((_EXCHANGE,), message, f"Remove {_EXCHANGE}, or set spec.target.mixtureOfExperts to true if it is one")


def _needs(line: CommandLine) -> Iterator[Broken]:
    """needs.yaml."""
    yield from broken_needs(line, NEEDS["sglang"])


def _listen(line: CommandLine) -> Iterator[Broken]:
    yield from listen.broken(line, listen.ONE_SOCKET if (line.number("--tokenizer-worker-num") or 1) > 1 else listen.ASYNCIO)


RULES: tuple[Rule, ...] = (
    _ranks,
    _experts,
    _linear_family,
    _needs,
    _attention_data_parallel,
    _gpu,
    _attention,
    _mamba,
    _linear_state,
    _drafting,
    _cache,
    _schedule,
    _listen,
)
CHECKED = frozenset(
    {
        *_BACKENDS.options,
        *RANKS["sglang"].checked,
        *_WITHOUT_SPECULATION,
        *(name for need in NEEDS["sglang"] for name in need.names),
        *LINEAR,
        *LORA,
        DECODE_BACKEND,
        DISAGGREGATION,
        DP_HEAD,
        DRAFT_BACKEND,
        KV_DTYPE,
        NO_OVERLAP,
        PREFILL_BACKEND,
        STATE_DTYPE,
        STRATEGY,
        TARGET_BACKEND,
        TRACK,
        WINDOW,
        _CHUNK,
        _PAGE,
        listen.HOST,
        "--device",
        "--disable-radix-cache",
        "--enable-deterministic-inference",
        "--enable-hierarchical-cache",
        "--enable-layernorm-sp",
        "--enable-dp-attention",
        "--enable-linear-replayssm",
        "--enable-mis",
        "--enable-pdmux",
        "--enable-two-batch-overlap",
        "--enable-unified-memory",
        "--linear-attn-prefill-backend",
        "--lora-target-modules",
        "--max-lora-rank",
        _EXCHANGE,
        "--rl-on-policy-target",
        "--speculative-draft-sink-size",
        "--speculative-moe-a2a-backend",
        "--speculative-moe-runner-backend",
        "--tokenizer-worker-num",
    }
)
"""Flags that a rule reads: extraArgs may carry them in full only."""
