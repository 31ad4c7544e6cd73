"""Launch requests with golden command lines: the seed models, and the variants that change the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dflash_controller.api.speculation import Fixed, Off, Schedule
from dflash_controller.catalog import Catalog
from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import LaunchRequest, ModelRef
from dflash_controller.engines.releases import TABLE, version

SEEDS: Mapping[str, tuple[str, int]] = {
    "9b": ("Qwen/Qwen3.5-9B", 1),
    "27b": ("Qwen/Qwen3.5-27B", 1),
    "35b-a3b": ("Qwen/Qwen3.5-35B-A3B", 1),
    "397b-a17b": ("Qwen/Qwen3.5-397B-A17B", 8),
}
BETWEEN: Mapping[str, str] = {"sglang": "0.5.21", "vllm": "0.29.0"}
"""An untested release per engine that lies between two tested ones."""
RELEASES: Mapping[str, tuple[str, ...]] = {
    engine: tuple(sorted({found.floor, BETWEEN[engine], *found.tested}, key=version)) for engine, found in TABLE.items()
}
H100 = "NVIDIA-H100-80GB-HBM3"
B200 = "NVIDIA-B200"
A100 = "NVIDIA-A100-SXM4-80GB"
L40S = "NVIDIA-L40S"
B300 = "NVIDIA-B300-SXM6-AC"
RTX_PRO_6000 = "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"
GB10 = "NVIDIA-GB10"


@dataclass(frozen=True, slots=True)
class Example:
    """One launch request. ``name`` is ``<engine>-<release>/<what>``, the name of the golden file without its ending."""

    name: str
    engine: str
    request: LaunchRequest


def request(engine: str, release: str, model: str, tensor: int) -> LaunchRequest:
    """Returns the operator's request for a catalogued target with nothing else set."""
    pair = Catalog.load().find(model)
    if pair is None or pair.trained_block_size is None:
        raise LookupError(model)
    return LaunchRequest(
        release=release,
        target=ModelRef(model),
        drafter=ModelRef(pair.drafter),
        served_model_name=model,
        speculation=Fixed(16),
        trained_block_size=pair.trained_block_size,
        tensor_parallel=tensor,
        nodes=1,
        port=ENGINES[engine].default_port,
        max_concurrency=32,
        gpu_product=B200,
        hybrid_target=pair.hybrid,
        mixture_of_experts=pair.moe,
        recommended_args=pair.recommended_args(engine),
        cache=pair.cache,
        weight_bytes=pair.target_bytes + pair.drafter_bytes,
        metric_labels={"dflash_deployment": "qwen", "dflash_namespace": "serving"},
    )


def examples() -> Iterator[Example]:
    """Yields all examples: every seed on every release, the variants on the contract-tested ones."""
    for engine, releases in RELEASES.items():
        for release in releases:
            prefix = f"{engine}-{release}"
            for name, (model, tensor) in SEEDS.items():
                yield Example(f"{prefix}/{name}", engine, request(engine, release, model, tensor))
            dialect = ENGINES[engine].dialect(release)
            if getattr(dialect, "tested", False):
                for name, variant in _variants(engine, release).items():
                    yield Example(f"{prefix}/{name}", engine, variant)


def _variants(engine: str, release: str) -> dict[str, LaunchRequest]:
    small = request(engine, release, *SEEDS["35b-a3b"])
    large = request(engine, release, *SEEDS["397b-a17b"])
    plain = request(engine, release, "Qwen/Qwen3-8B", 1)
    extra = (
        ("--context-length=65536", "--mem-fraction-static=0.7")
        if engine == "sglang"
        else ("--max-model-len=65536", "--max_num_batched_tokens=16k")
    )
    change = dataclasses.replace
    variants = {
        "block-8": change(small, speculation=Fixed(8)),
        "dense": plain,
        "h100": change(small, gpu_product=H100),
        "h100-dense": change(plain, gpu_product=H100),
        "off": change(small, speculation=Off()),
        "other-gpu": change(plain, gpu_product="NVIDIA-L40S"),
        "pinned": change(
            small, target=ModelRef(small.target.model, "4" * 40), drafter=ModelRef(small.drafter.model, "d" * 40), extra_args=extra
        ),
        "two-nodes": change(large, tensor_parallel=16, nodes=2, max_concurrency=128),
    }
    if engine == "vllm":
        variants["schedule"] = change(small, speculation=Schedule(((1, 4, 7), (5, 16, 15), (17, 32, 7))))
    else:
        variants["bf16-state"] = change(small, extra_args=("--mamba-ssm-dtype=bfloat16",))
    return variants
