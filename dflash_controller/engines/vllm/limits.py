"""What vLLM releases, GPUs and targets cannot do with DFlash, and which flags belong to the operator."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Off, Schedule
from dflash_controller.engines.flags import EXTRA_ARGS, Flag, Guard, index, integer, parsed
from dflash_controller.engines.hardware import Generation, generation
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import TABLE, version

RELEASES = TABLE["vllm"]
SCHEDULE_SINCE = "0.26.0"
_FP8_ON_BLACKWELL_SINCE = "0.33.0"

TOKENS = "--max-num-batched-tokens"
BACKEND = "--attention-backend"
_KV_DTYPE = "--kv-cache-dtype"
_PIPELINE = "--pipeline-parallel-size"
_DATA_PARALLEL = "--data-parallel-size"
_WITHOUT_SPECULATION = ("--enable-dbo", "--kv-sharing-fast-prefill")

_PLAIN_HTTP = "probes, metrics and the Service need plain HTTP on the pod's port"
OWNED = {
    "--compilation-config": "the operator sets the CUDA graph sizes for the block and spec.engine.maxConcurrency",
    "--config": "a file could set any flag",
    "--cudagraph-capture-sizes": "the block and spec.engine.maxConcurrency decide it",
    "--disable-log-stats": "metrics are always on",
    "--grpc": _PLAIN_HTTP,
    "--headless": "spec.parallelism decides it",
    "--host": "the engine listens on every address of its pod",
    "--master-addr": "spec.parallelism decides it",
    "--master-port": "spec.parallelism decides it",
    "--max-cudagraph-capture-size": "the block and spec.engine.maxConcurrency decide it",
    "--max-num-seqs": "spec.engine.maxConcurrency decides it",
    "--model": "spec.target decides it",
    "--nnodes": "spec.parallelism decides it",
    "--node-rank": "spec.parallelism decides it",
    "--port": "spec.service.port decides it",
    "--revision": "spec.target decides it",
    "--served-model-name": "spec.target decides it",
    "--shutdown-timeout": "the operator fits it into the pod's grace period",
    "--spec-method": "spec.drafter decides it",
    "--spec-model": "spec.drafter decides it",
    "--spec-tokens": "spec.blockSize decides it",
    "--speculative-config": "spec.drafter and spec.blockSize decide it",
    "--ssl-certfile": _PLAIN_HTTP,
    "--ssl-keyfile": _PLAIN_HTTP,
    "--tensor-parallel-size": "spec.parallelism decides it",
    "--uds": _PLAIN_HTTP,
}
GUARD = Guard(owned=OWNED, checked={TOKENS, BACKEND, _KV_DTYPE, _PIPELINE, _DATA_PARALLEL, *_WITHOUT_SPECULATION})


def capture_size(request: LaunchRequest) -> int:
    """Tokens up to which CUDA graphs are captured: every step of a full batch, as a multiple of the block and of 16.

    vLLM's default stops at 512 tokens; beyond it a step runs without graphs, 39 % slower at 32 requests of block 16 on an H100.
    """
    step = math.lcm(request.speculation.max_block_size, 16)
    return -(-request.speculation.max_block_size * request.max_concurrency // step) * step


def safe_token_budget(request: LaunchRequest) -> int:
    """Tokens per step that leave 8192 for prefill after each request's look-ahead slots, and hold a full batch of blocks.

    vLLM 0.20 to 0.31 take K slots per request out of the budget and fail at start when nothing is left; 0.33 caps the batch instead.
    """
    drafts = request.speculation.max_block_size - 1
    return max(8192 + drafts * request.max_concurrency, capture_size(request))


def extra_problems(request: LaunchRequest) -> Iterator[Problem]:
    """What extraArgs ask for that this release or GPU cannot do with DFlash."""
    if isinstance(request.speculation, Off):
        return
    for i, token in enumerate(request.extra_args):
        for flag in parsed([token]):
            found = [*_size_problems(flag, request), *_cache_problems(flag, request)]
            if flag.name in _WITHOUT_SPECULATION:
                found.append((f"{flag.name} does not work with speculative decoding", "Remove it"))
            yield from (Problem(f"{EXTRA_ARGS}[{i}]", message, f"{remedy}.") for message, remedy in found)


def _size_problems(flag: Flag, request: LaunchRequest) -> Iterator[tuple[str, str]]:
    number, block = integer(flag.value or ""), request.speculation.max_block_size
    needed = block * request.max_concurrency
    if flag.name == TOKENS and number is not None and number < needed:
        message = f"{number} tokens per step do not hold {request.max_concurrency} requests of block {block}"
        yield message, f"Use {needed} or more; {safe_token_budget(request)} leaves room for prefill"
    if flag.name == _PIPELINE and flag.value != "1":
        yield "DFlash cannot run with pipeline parallelism", "Spread spec.parallelism.tensor over the nodes instead"
    if flag.name == _DATA_PARALLEL and flag.value != "1" and isinstance(request.speculation, Schedule):
        yield "vLLM ignores a schedule of block sizes under data parallelism", "Remove it and raise spec.replicas"


def _cache_problems(flag: Flag, request: LaunchRequest) -> Iterator[tuple[str, str]]:
    if flag.name != _KV_DTYPE:
        return
    dtype = (flag.value or "").lower()
    backend = index(parsed([*request.recommended_args, *request.extra_args])).get(BACKEND, "FLASH_ATTN").upper()
    if "fp4" in dtype:
        yield f"DFlash cannot run on a {flag.value} KV cache", "Use fp8, bfloat16 or auto"
    elif backend == "FLASH_ATTN" and dtype == "fp8_e5m2":
        yield "FLASH_ATTN cannot read an fp8_e5m2 KV cache", "Use fp8"
    elif backend == "FLASH_ATTN" and dtype in ("fp8", "fp8_e4m3") and not _flash_attention_reads_fp8(request):
        message = f"FLASH_ATTN of vLLM {request.release} cannot read a {flag.value} KV cache on {generation(request.gpu_product).value}"
        yield message, "Add --attention-backend=FLASHINFER, or use bfloat16"


def _flash_attention_reads_fp8(request: LaunchRequest) -> bool:
    """On Hopper with FlashAttention 3; on Blackwell with FlashAttention 4, which vLLM 0.33 admits and 0.26 does not."""
    match generation(request.gpu_product):
        case Generation.HOPPER:
            return True
        case Generation.BLACKWELL:
            return version(request.release) >= version(_FP8_ON_BLACKWELL_SINCE)
        case Generation.OTHER:
            return False
