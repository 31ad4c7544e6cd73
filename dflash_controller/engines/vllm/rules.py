"""Combinations that vLLM refuses or cannot run with DFlash, over the whole merged command line.

Each rule names vLLM's own check. The engine contract compares them with the real configuration.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from dflash_controller.engines import listen
from dflash_controller.engines.backends import BACKENDS
from dflash_controller.engines.command_line import Broken, CommandLine, Rule
from dflash_controller.engines.flags import Flag
from dflash_controller.engines.hardware import DATACENTER_BLACKWELL, gpu_name, latent_attention
from dflash_controller.engines.needs import NEEDS
from dflash_controller.engines.needs import broken as broken_needs
from dflash_controller.engines.ranks import RANKS
from dflash_controller.engines.vllm.sizes import TOKENS, safe_token_budget

BACKEND = "--attention-backend"
_KV_DTYPE = "--kv-cache-dtype"
_ATTENTION = "--attention-config"
_CHUNKED = "--enable-chunked-prefill"
_EXECUTOR = "--distributed-executor-backend"
_EXPERTS = "--enable-expert-parallel"
_DECODE_CONTEXT = "--decode-context-parallel-size"
_WITHOUT_SPECULATION = ("--enable-dbo", "--kv-sharing-fast-prefill")
"""config/vllm.py: refused with speculative decoding."""
_FP8_ON_BLACKWELL_SINCE = "0.33.0"
_BACKENDS = BACKENDS["vllm"]


def _ranks(line: CommandLine) -> Iterator[Broken]:
    """config/parallel.py."""
    yield from RANKS["vllm"].broken(line)
    executor, tensor = line.get(_EXECUTOR), line.request.tensor_parallel
    if executor in ("ray", "external_launcher") or (executor == "uni" and tensor > 1):
        message = f"{_EXECUTOR}={executor} does not start the {tensor} ranks in the replica's pods"
        yield Broken((_EXECUTOR,), message, f"Remove {_EXECUTOR}")
    if line.get("--api-server-count") == "0":
        yield Broken(("--api-server-count",), "--api-server-count=0 serves no HTTP, which probes and the Service need", "Use 1 or more")


def _experts(line: CommandLine) -> Iterator[Broken]:
    """config/model.py, _verify_with_expert_parallelism: a target without experts does not start."""
    if line.on(_EXPERTS) and line.request.mixture_of_experts is False:
        message = f"{_EXPERTS} needs a mixture of experts, and {line.request.target.model} is not known as one"
        yield Broken((_EXPERTS,), message, f"Remove {_EXPERTS}, or set spec.target.mixtureOfExperts to true if it is one")


def _decode_context(line: CommandLine) -> Iterator[Broken]:
    """config/model.py, verify_with_parallel_config: the ranks that hold the same heads share the context, so there must be such ranks.

    Targets with latent attention have one head. Where the heads are not known the engine decides.
    """
    size, heads, tensor = line.number(_DECODE_CONTEXT) or 1, line.request.kv_heads, line.request.tensor_parallel
    if size == 1 or heads is None or latent_attention(line.request) or tensor % size:
        return
    most = tensor // heads
    if most < 2 or size > most:
        message = (
            f"{_DECODE_CONTEXT}={size} splits the context of each KV head over {size} ranks, and spec.parallelism.tensor={tensor} "
            f"gives each of the {heads} heads {max(most, 1)}"
        )
        more = f", or raise spec.parallelism.tensor to {heads * size}"
        yield Broken((_DECODE_CONTEXT,), message, (f"Use {most} or less" if most > 1 else f"Remove {_DECODE_CONTEXT}") + more)


def _needs(line: CommandLine) -> Iterator[Broken]:
    """needs.yaml."""
    yield from broken_needs(line, NEEDS["vllm"])


def _gpu(line: CommandLine) -> Iterator[Broken]:
    """backends.yaml; config/attention.py takes the back end from one of two options."""
    backend = line.get(BACKEND)
    if backend and _BACKENDS.runs(Flag(BACKEND, backend), line.request) is False:
        message = f"{BACKEND}={line.values[BACKEND]} does not run on {gpu_name(line.request)}"
        yield Broken((BACKEND,), message, f"Remove {BACKEND}: the operator or vLLM chooses what the GPU can run")
    for name, second in (
        (f"{_ATTENTION}.backend", line.get(f"{_ATTENTION}.backend")),
        (_ATTENTION, _object(line.get(_ATTENTION)).get("backend")),
    ):
        if second and backend:
            yield Broken((name,), f"{name} sets the attention back end a second time", f"Write {BACKEND} instead")
        elif second and _BACKENDS.runs(Flag(BACKEND, str(second)), line.request) is False:
            yield Broken((name,), f"{name}: {second} does not run on {gpu_name(line.request)}", f"Remove {name}")


def _object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (RecursionError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _sizes(line: CommandLine) -> Iterator[Broken]:
    """config/scheduler.py and config/vllm.py."""
    tokens = line.number(TOKENS)
    needed = line.block * line.request.max_concurrency
    if line.speculates and tokens is not None and tokens < needed:
        message = f"{TOKENS}: {tokens} tokens per step do not hold {line.request.max_concurrency} requests of block {line.block}"
        yield Broken((TOKENS,), message, f"Use {needed} or more; {safe_token_budget(line.request)} leaves room for prefill")
    length = line.number("--max-model-len")
    if _CHUNKED in line.values and not line.on(_CHUNKED) and tokens is not None and (length is None or length > tokens):
        shown = f"{length} tokens" if length else "as long as the target allows"
        message = f"{_CHUNKED}: without chunked prefill {TOKENS}={tokens} must hold a whole prompt, here {shown}"
        remedy = f"Add --max-model-len and {TOKENS} of at least that, or leave chunked prefill on"
        yield Broken((_CHUNKED, TOKENS, "--max-model-len"), message, remedy)
    active = line.number("--max-num-active-seqs")
    if active is not None and active > line.request.max_concurrency:
        message = f"--max-num-active-seqs={active} is more than the {line.request.max_concurrency} of spec.engine.maxConcurrency"
        yield Broken(("--max-num-active-seqs",), message, "Remove --max-num-active-seqs, or raise spec.engine.maxConcurrency")


def _drafting(line: CommandLine) -> Iterator[Broken]:
    if not line.speculates:
        return
    for name in _WITHOUT_SPECULATION:
        if line.on(name):
            yield Broken((name,), f"{name} does not work with speculative decoding", f"Remove {name}")
    if (line.number("--ubatch-size") or 0) > 1:
        yield Broken(("--ubatch-size",), "--ubatch-size does not work with speculative decoding", "Remove --ubatch-size")


def _cache(line: CommandLine) -> Iterator[Broken]:
    """v1/attention/backends/flash_attn.py, supports_kv_cache_dtype."""
    dtype, written = line.get(_KV_DTYPE), line.values.get(_KV_DTYPE)
    flash = line.get(BACKEND) == "flash_attn"
    names = (_KV_DTYPE, BACKEND)
    if not line.speculates or written is None:
        return
    if "fp4" in dtype:
        yield Broken(names, f"{_KV_DTYPE}={written}: DFlash cannot run on this KV cache", "Use fp8, bfloat16 or auto")
    elif flash and dtype == "fp8_e5m2":
        yield Broken(names, f"{_KV_DTYPE}={written}: FLASH_ATTN cannot read this KV cache", "Use fp8")
    elif flash and dtype in ("fp8", "fp8_e4m3") and not _flash_attention_reads_fp8(line):
        message = f"{_KV_DTYPE}={written}: FLASH_ATTN of vLLM {line.request.release} cannot read this KV cache on {gpu_name(line.request)}"
        yield Broken(names, message, f"Add {BACKEND}=FLASHINFER, or use bfloat16")


def _flash_attention_reads_fp8(line: CommandLine) -> bool:
    """On Hopper with FlashAttention 3; on SM100 with FlashAttention 4, which vLLM 0.33 admits and 0.26 does not.

    On an unknown GPU vLLM decides.
    """
    if line.sm is None or line.sm == 90:
        return True
    return line.sm in DATACENTER_BLACKWELL and line.at_least(_FP8_ON_BLACKWELL_SINCE)


def _listen(line: CommandLine) -> Iterator[Broken]:
    yield from listen.broken(line, listen.ONE_SOCKET)


RULES: tuple[Rule, ...] = (_ranks, _experts, _decode_context, _needs, _gpu, _sizes, _drafting, _cache, _listen)
CHECKED = frozenset(
    {
        *RANKS["vllm"].checked,
        *_WITHOUT_SPECULATION,
        *(name for need in NEEDS["vllm"] for name in need.names),
        BACKEND,
        TOKENS,
        listen.HOST,
        _ATTENTION,
        _CHUNKED,
        _EXECUTOR,
        _EXPERTS,
        _KV_DTYPE,
        "--api-server-count",
        "--max-model-len",
        "--max-num-active-seqs",
        "--ubatch-size",
    }
)
"""Flags that a rule reads: extraArgs may carry them in full only."""
