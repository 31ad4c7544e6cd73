"""Which of vLLM's flags belong to the operator."""

from __future__ import annotations

from dflash_controller.engines.flags import Guard
from dflash_controller.engines.options import OPTIONS
from dflash_controller.engines.ranks import RANKS
from dflash_controller.engines.releases import TABLE
from dflash_controller.engines.vllm.rules import CHECKED

RELEASES = TABLE["vllm"]
SCHEDULE_SINCE = "0.26.0"

_PLAIN_HTTP = "probes, metrics and the Service need plain HTTP on the pod's port"
OWNED = {
    "--compilation-config": "the operator sets the CUDA graph sizes for the block and spec.engine.maxConcurrency",
    "--config": "a file could set any flag",
    "--cudagraph-capture-sizes": "the block and spec.engine.maxConcurrency decide it",
    "--disable-log-stats": "metrics are always on",
    "--grpc": _PLAIN_HTTP,
    "--headless": "spec.parallelism decides it",
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
SHORT = {
    "-O": OWNED["--compilation-config"],
    "-cc": OWNED["--compilation-config"],
    "-n": OWNED["--nnodes"],
    "-r": OWNED["--node-rank"],
    "-sc": OWNED["--speculative-config"],
    "-tp": OWNED["--tensor-parallel-size"],
}
GUARD = Guard(engine=RELEASES.engine, options=OPTIONS["vllm"], owned=OWNED, checked=CHECKED, instead=RANKS["vllm"].instead)
