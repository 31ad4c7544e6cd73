"""What SGLang releases, GPUs and targets cannot do with DFlash, and which flags belong to the operator."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Off
from dflash_controller.engines.flags import EXTRA_ARGS, Flag, Guard, index, integer, parsed
from dflash_controller.engines.hardware import Generation, generation
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import TABLE, version

RELEASES = TABLE["sglang"]

STRATEGY = "--mamba-radix-cache-strategy"
WINDOW = "--speculative-draft-window-size"
TARGET_BACKEND = "--attention-backend"
DRAFT_BACKEND = "--speculative-draft-attention-backend"
LORA = ("--enable-lora", "--lora-paths")
DP_ATTENTION = ("--attn-dp-size", "--enable-dp-attention")
_DP_HEAD = "--enable-dp-lm-head"
_PREFILL_GRAPHS = "--cuda-graph-backend-prefill"
_TRACK = "--mamba-track-interval"
_LINEAR = ("--linear-attn-backend", "--linear-attn-decode-backend", "--linear-attn-verify-backend")
_STATE_DTYPE = "--mamba-ssm-dtype"
_PIPELINE = ("--pipeline-parallel-size", "--pp-size")
_KV_DTYPE = "--kv-cache-dtype"
_DISAGGREGATION = "--disaggregation-mode"

# The new names all exist since 0.5.14; 0.5.20 removed the old ones.
RENAMED = {
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--mamba-scheduler-strategy": STRATEGY,
    "--speculative-dflash-draft-window-size": WINDOW,
}
_RENAMED_IN = "0.5.20"
_REMOVED = {
    "--disable-piecewise-cuda-graph": "0.5.20",
    "--enforce-piecewise-cuda-graph": "0.5.20",
    "--speculative-skip-dp-mlp-sync": "0.5.23",
}
_REMOVED_VALUES = {(_PREFILL_GRAPHS, "tc_piecewise"): "0.5.22"}
_INTRODUCED = {
    "--attn-dp-size": "0.5.22",
    "--speculative-domino-candidate-pool-size": "0.5.20",
    "--speculative-draft-kv-cache-dtype": "0.5.18",
    "--speculative-use-block-verification": "0.5.22",
}

_TARGET, _DRAFTER, _BLOCK = "spec.target decides it", "spec.drafter decides it", "spec.blockSize decides it"
_PARALLELISM, _CONCURRENCY = "spec.parallelism decides it", "spec.engine.maxConcurrency decides it"
_PLAIN_HTTP = "probes, metrics and the Service need plain HTTP on the pod's port"
OWNED = {
    "--config": "a file could set any flag",
    "--cuda-graph-max-bs": _CONCURRENCY,
    "--cuda-graph-max-bs-decode": _CONCURRENCY,
    "--dist-init-addr": _PARALLELISM,
    "--enable-metrics": "metrics are always on",
    "--extra-metric-labels": "the operator labels the metrics",
    "--grpc-mode": _PLAIN_HTTP,
    "--host": "the engine listens on every address of its pod",
    "--max-running-requests": _CONCURRENCY,
    "--model": _TARGET,
    "--model-path": _TARGET,
    "--nccl-init-addr": _PARALLELISM,
    "--nnodes": _PARALLELISM,
    "--node-rank": _PARALLELISM,
    "--port": "spec.service.port decides it",
    "--revision": _TARGET,
    "--served-model-name": _TARGET,
    "--smg-grpc-mode": _PLAIN_HTTP,
    "--speculative-algorithm": _DRAFTER,
    "--speculative-dflash-block-size": _BLOCK,
    "--speculative-draft-model": _DRAFTER,
    "--speculative-draft-model-path": _DRAFTER,
    "--speculative-draft-model-revision": _DRAFTER,
    "--speculative-eagle-topk": _BLOCK,
    "--speculative-num-draft-tokens": _BLOCK,
    "--speculative-num-steps": _BLOCK,
    "--ssl-certfile": _PLAIN_HTTP,
    "--ssl-keyfile": _PLAIN_HTTP,
    "--tensor-parallel-size": _PARALLELISM,
    "--tp-size": _PARALLELISM,
}
GUARD = Guard(
    owned=OWNED,
    checked={
        *RENAMED,
        *_REMOVED,
        *_INTRODUCED,
        *_PIPELINE,
        *DP_ATTENTION,
        *LORA,
        *_LINEAR,
        *(_STATE_DTYPE, STRATEGY, WINDOW, TARGET_BACKEND, DRAFT_BACKEND, _DP_HEAD, _PREFILL_GRAPHS, _TRACK, _KV_DTYPE, _DISAGGREGATION),
    },
)

# tc_piecewise prefill graphs crash capture on SM90
_BLACKWELL_ONLY = {
    TARGET_BACKEND: {"trtllm_mha", "trtllm_mla", "cutlass_mla", "fa4"},
    DRAFT_BACKEND: {"trtllm_mha", "fa4"},
    _PREFILL_GRAPHS: {"tc_piecewise"},
}
_NOT_BLACKWELL = {TARGET_BACKEND: {"fa3"}, DRAFT_BACKEND: {"fa3"}}


def usable(flag: Flag, request: LaunchRequest) -> bool:
    """Whether this release, target, GPU and block can have the flag; for flags that a card recommends without knowing them."""
    if any(_release_problems(flag, request)) or not _runs_on(flag, generation(request.gpu_product)):
        return False
    if flag.name in (STRATEGY, _TRACK):
        return request.hybrid_target
    if _wide_state(flag, request):
        return False
    window = integer(flag.value or "") if flag.name == WINDOW else None
    return window is None or window >= request.speculation.max_block_size


def extra_problems(request: LaunchRequest) -> Iterator[Problem]:
    """What extraArgs ask for that this release, target or GPU cannot do."""
    names = set(index(parsed(request.extra_args)))
    for i, token in enumerate(request.extra_args):
        for flag in parsed([token]):
            found = [*_release_problems(flag, request), *_host_problems(flag, request)]
            if not isinstance(request.speculation, Off):
                found += [*_drafting_problems(flag, request), *_parallel_problems(flag, request, names)]
            yield from (Problem(f"{EXTRA_ARGS}[{i}]", message, f"{remedy}.") for message, remedy in found)


def _runs_on(flag: Flag, gpu: Generation) -> bool:
    if flag.value in _BLACKWELL_ONLY.get(flag.name, ()):
        return gpu is Generation.BLACKWELL
    return not (gpu is Generation.BLACKWELL and flag.value in _NOT_BLACKWELL.get(flag.name, ()))


def _wide_state(flag: Flag, request: LaunchRequest) -> bool:
    """On SM100 FlashInfer decodes and verifies linear attention in a bfloat16 state only; the cards recommend it without saying so."""
    dtype = index(parsed([*request.recommended_args, *request.extra_args])).get(_STATE_DTYPE)
    on_blackwell = generation(request.gpu_product) is Generation.BLACKWELL
    return on_blackwell and flag.name in _LINEAR and flag.value == "flashinfer" and dtype != "bfloat16"


def _release_problems(flag: Flag, request: LaunchRequest) -> Iterator[tuple[str, str]]:
    now = version(request.release)
    if flag.name in RENAMED and now >= version(_RENAMED_IN):
        yield f"SGLang {_RENAMED_IN} removed {flag.name}", f"Write {RENAMED[flag.name]}"
    if flag.name in _REMOVED and now >= version(_REMOVED[flag.name]):
        yield f"SGLang {_REMOVED[flag.name]} removed {flag.name}", "Remove it"
    gone = _REMOVED_VALUES.get((flag.name, flag.value or ""))
    if gone and now >= version(gone):
        yield f"SGLang {gone} removed {flag}", "Remove it"
    if now < version(_INTRODUCED.get(flag.name, RELEASES.floor)):
        yield f"SGLang {request.release} does not know {flag.name}", f"Use SGLang {_INTRODUCED[flag.name]} or later"


def _host_problems(flag: Flag, request: LaunchRequest) -> Iterator[tuple[str, str]]:
    gpu = generation(request.gpu_product)
    if not _runs_on(flag, gpu):
        yield f"{flag} does not run on {gpu.value}", "Remove it: the operator chooses what the GPU can run"
    if _wide_state(flag, request):
        yield f"{flag} on {gpu.value} needs a bfloat16 state", f"Remove it, or add {_STATE_DTYPE}=bfloat16"
    if RENAMED.get(flag.name, flag.name) in (STRATEGY, _TRACK) and not request.hybrid_target:
        yield f"{flag.name} needs a target with Mamba state, and {request.target.model} has none", "Remove it"


def _drafting_problems(flag: Flag, request: LaunchRequest) -> Iterator[tuple[str, str]]:
    now, block = version(request.release), request.speculation.max_block_size
    name, number = RENAMED.get(flag.name, flag.name), integer(flag.value or "")
    if name == STRATEGY and flag.value == "extra_buffer_lazy" and now < version("0.5.18"):
        yield "extra_buffer_lazy does not work with DFlash before SGLang 0.5.18", "Use extra_buffer, or SGLang 0.5.18 or later"
    if name == WINDOW and number is not None and number < block:
        yield f"a draft window of {number} is shorter than the block of {block}", f"Use {block} or more"
    if name == _TRACK and number is not None and number < block:
        yield f"an interval of {number} is shorter than the block of {block}", f"Use {block} or more"
    if name == _KV_DTYPE and "fp4" in (flag.value or ""):
        yield f"DFlash cannot run on a {flag.value} KV cache", "Use fp8_e4m3, bf16 or auto"
    if name in LORA and now < version("0.5.19"):
        yield "DFlash cannot serve LoRA adapters before SGLang 0.5.19", "Use SGLang 0.5.19 or later"


def _parallel_problems(flag: Flag, request: LaunchRequest, names: set[str]) -> Iterator[tuple[str, str]]:
    if flag.name in _PIPELINE and flag.value != "1":
        yield "DFlash cannot run with pipeline parallelism on SGLang", "Spread spec.parallelism.tensor over the nodes instead"
    if flag.name in DP_ATTENTION and version(request.release) < version("0.5.23"):
        yield "DFlash cannot run with DP attention before SGLang 0.5.23", "Remove it, or use SGLang 0.5.23 or later"
    elif flag.name in DP_ATTENTION and _DP_HEAD not in names:
        yield f"DFlash with DP attention needs {_DP_HEAD}", f"Add {_DP_HEAD}"
    if flag.name == _DISAGGREGATION and flag.value != "null":
        yield "DFlash with split prefill and decode crashes or is unproven in every SGLang release", "Remove it"
