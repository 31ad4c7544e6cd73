"""Which of SGLang's flags belong to the operator, which releases know which flag, and which recommended flags are of use."""

from __future__ import annotations

from collections.abc import Iterator

from dflash_controller.api.problem import Problem
from dflash_controller.engines.backends import BACKENDS
from dflash_controller.engines.flags import EXTRA_ARGS, Flag, Guard, parsed
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.ranks import RANKS
from dflash_controller.engines.releases import TABLE, version
from dflash_controller.engines.sglang.admin import GRPC_PORT, KEY
from dflash_controller.engines.sglang.names import OPTIONS, PREFILL_GRAPHS, RENAMED
from dflash_controller.engines.sglang.rules import CHECKED
from dflash_controller.engines.sglang.state_cache import CHECKED as STATE_FLAGS

RELEASES = TABLE["sglang"]

_RENAMED_IN = "0.5.20"
_REMOVED = {
    "--disable-piecewise-cuda-graph": "0.5.20",
    "--enforce-piecewise-cuda-graph": "0.5.20",
    "--speculative-skip-dp-mlp-sync": "0.5.23",
}
_REMOVED_VALUES = {(PREFILL_GRAPHS, "tc_piecewise"): "0.5.22"}
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
    engine=RELEASES.engine,
    options=OPTIONS,
    owned=OWNED,
    checked={*RENAMED, *_REMOVED, *_INTRODUCED, *CHECKED, *STATE_FLAGS, KEY, GRPC_PORT},
    instead=RANKS["sglang"].instead,
)


def usable(flag: Flag, request: LaunchRequest) -> bool:
    """Whether this release has the flag, and its authors measured it on this GPU; for flags that a card recommends."""
    return not any(_release_problems(flag, request)) and BACKENDS["sglang"].measured(flag, request)


def release_problems(request: LaunchRequest) -> Iterator[Problem]:
    """Flags of extraArgs that this release does not have, or no longer has."""
    for i, token in enumerate(request.extra_args):
        for flag in parsed([token]):
            for message, remedy in _release_problems(flag, request):
                yield Problem(f"{EXTRA_ARGS}[{i}]", message, f"{remedy}.")


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
