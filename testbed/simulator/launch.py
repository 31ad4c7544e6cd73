"""Derives the engine from a container: engine and release from annotations, image or command, the rest from the parsed command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from testbed.nodes import memory_bytes
from testbed.simulator.argv import Host, ParsedArgv, parse
from testbed.simulator.argv_rules import raised, schedule_refusal
from testbed.simulator.cache_blocks import DEFAULT_UTILIZATION, DENSE, CacheBlocks, Memory, graph_bytes, hybrid_cache
from testbed.simulator.settings import EngineSettings, version
from testbed.simulator.state_slots import DEFAULT_RATIO, DEFAULT_SHARE, Division, own_slots

ANNOTATION_ENGINE = "sim/engine"
ANNOTATION_RELEASE = "sim/release"
ANNOTATION_READY_AFTER = "sim/ready-after"
ENV_RELEASE = "DFLASH_SIM_RELEASE"
ENV_STARTUP = "DFLASH_SIM_STARTUP_SECONDS"
ENGINE_CONTAINER = "engine"
PRODUCT_LABEL = "nvidia.com/gpu.product"
DEFAULT_PRODUCT = "NVIDIA-B200"
"""The accelerator of an engine whose pod asks for none: the published step times are its own."""

ENV_ESTIMATE = "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"
GRAPHS_MEASURED_SINCE = (0, 33, 0)
"""Release of vLLM from which graphs of hybrid targets are measured and not estimated."""

_TAG_RELEASE = re.compile(r"v?(\d+\.\d+\.\d+)")
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


@dataclass(frozen=True, slots=True)
class Process:
    """A container's command and its environment, with variables expanded."""

    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    gpus: int | None = None
    """GPUs that the container may use; None if it asks for none."""
    product: str = DEFAULT_PRODUCT
    """The accelerator, as nodes are labelled with it."""


class UnknownEngine(ValueError):
    """Neither annotation nor image nor command names the engine and release."""


def expand(text: str, env: Mapping[str, str]) -> str:
    """Expands ``$(VAR)`` as the kubelet does: an unknown variable stays as written, ``$$`` is one dollar."""
    return _REFERENCE.sub(lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]), text)


def pre_stop_s(pod: Mapping[str, Any]) -> float:
    """Returns the seconds between the stop order and SIGTERM: the preStop pause of the engine container."""
    container: Mapping[str, Any] = next((c for c in pod["spec"]["containers"] if c["name"] == ENGINE_CONTAINER), {})
    return float((container.get("lifecycle", {}).get("preStop", {}).get("sleep") or {}).get("seconds", 0))


def process_of(pod: Mapping[str, Any]) -> Process | None:
    """Returns the engine container's process of a Pod as the API returns it; None for a pod without one."""
    container = next((c for c in pod["spec"]["containers"] if c["name"] == ENGINE_CONTAINER), None)
    if container is None:
        return None
    env: dict[str, str] = {}
    for entry in container.get("env") or ():
        if "value" in entry:
            env[entry["name"]] = expand(entry["value"], env)
        else:
            path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = _field(pod, path) if path else None
            if value is not None:
                env[entry["name"]] = value
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    return Process(
        command=tuple(expand(word, env) for word in words),
        env=env,
        image=container.get("image", ""),
        annotations=pod["metadata"].get("annotations") or {},
        gpus=_gpus(container),
        product=(pod["spec"].get("nodeSelector") or {}).get(PRODUCT_LABEL, DEFAULT_PRODUCT),
    )


def _gpus(container: Mapping[str, Any]) -> int | None:
    limits: Mapping[str, Any] = (container.get("resources") or {}).get("limits") or {}
    counts = [int(count) for name, count in limits.items() if name.startswith("nvidia.com/") or name.endswith("/gpu")]
    return sum(counts) if counts else None


def _field(pod: Mapping[str, Any], path: str) -> str | None:
    """Returns a downward API field: metadata.labels['x'] and similar, or a plain path."""
    indexed = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
    if indexed:
        value = (pod["metadata"].get(indexed[1]) or {}).get(indexed[2])
    else:
        value = pod
        for part in path.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else str(value)


def identify(process: Process) -> tuple[str, str]:
    """Returns engine (annotation, else image, else command) and release (annotation, else DFLASH_SIM_RELEASE, else tag). Raises
    UnknownEngine."""
    repository, _, tag = process.image.rpartition(":")
    head = " ".join(process.command[:4])  # includes the program of ``python3 -c``
    engine = process.annotations.get(ANNOTATION_ENGINE) or next(
        (name for name in ("sglang", "vllm") if name in repository.lower()),
        "sglang" if "sglang" in head else "vllm" if "vllm" in head else "",
    )
    if engine not in ("sglang", "vllm"):
        raise UnknownEngine(f"neither annotation {ANNOTATION_ENGINE}, image {process.image!r} nor command {head!r} names sglang or vllm")
    match = _TAG_RELEASE.search(tag)
    release = process.annotations.get(ANNOTATION_RELEASE) or process.env.get(ENV_RELEASE) or (match[1] if match else "")
    if not release:
        raise UnknownEngine(f"neither {ANNOTATION_RELEASE}, {ENV_RELEASE} nor the tag of image {process.image!r} is a release")
    return engine, release


def settings_of(process: Process) -> EngineSettings:
    """Returns the engine settings from its command line. An untested release uses the nearest older one. Raises UnknownEngine or
    ArgvError."""
    engine, release = identify(process)
    switches = frozenset((name, value) for name, value in process.env.items() if name.startswith(("SGLANG_", "VLLM_")))
    return _settings(engine, release, process.command, switches, process.gpus, process.product)


@lru_cache(maxsize=1024)
def _settings(
    engine: str, release: str, command: tuple[str, ...], switches: frozenset[tuple[str, str]], gpus: int | None, product: str
) -> EngineSettings:
    environ = dict(switches)
    argv = parse(engine, release, command, Host(gpus_per_node=gpus, environ=environ))
    if message := schedule_refusal(argv.schedule or ()):
        raise raised(message)
    try:
        cache = _cache(argv, environ, product) if engine == "vllm" else None
        slots = _state_slots(argv, product) if engine == "sglang" else 0
    except ValueError as error:
        raise raised(str(error)) from None
    return EngineSettings(
        engine=engine,
        release=release,
        target=argv.target,
        served_model_name=argv.served_model_name,
        port=argv.port,
        block_size=argv.block_size,
        schedule=argv.schedule or (),
        drafter=argv.drafter,
        drafter_revision=argv.drafter_revision,
        tensor_parallel=argv.tensor_parallel,
        max_concurrency=argv.max_concurrency,
        state_slots=slots,
        slots_per_request=argv.slots_per_request if engine == "sglang" else 0,
        cache=cache,
        memory_share=argv.memory_share or DEFAULT_UTILIZATION,
        metrics_enabled=argv.metrics_enabled,
        nodes=argv.nodes,
        node_rank=argv.node_rank,
        meets_at=argv.meets_at,
        extra_metric_labels=dict(argv.extra_metric_labels),
        shutdown_timeout_s=argv.shutdown_timeout_s or 0.0,
        decode_log_interval=argv.decode_log_interval,
        metrics_of_all_schedulers=argv.metrics_of_all_schedulers,
        argv=command,
        access=argv.access,
    )


def _cache(argv: ParsedArgv, environ: Mapping[str, str], product: str) -> CacheBlocks:
    """Returns vLLM's cache. Raises ValueError where it holds no request.

    That of a target whose sizes are not known is as large as the recorded one, and so is that of an accelerator of which no size is known.
    """
    pair, accelerator = argv.pair, memory_bytes(product)
    if pair is None or not pair.hybrid or pair.cache is None or accelerator is None:
        return DENSE
    graphs = graph_bytes(
        argv.captured_tokens,
        measured=version(argv.release) >= GRAPHS_MEASURED_SINCE,
        estimated=environ.get(ENV_ESTIMATE) != "0",
    )
    memory = Memory(accelerator, argv.memory_share or DEFAULT_UTILIZATION, argv.tensor_parallel, graphs)
    return hybrid_cache(pair, argv.block_size, memory, half_state=argv.half_state, prefixes=argv.caches_prefixes)


def _state_slots(argv: ParsedArgv, product: str) -> int:
    """Returns SGLang's slots of state; 0 for a target without state or of unknown sizes.

    Raises ValueError where the weights leave no memory.
    """
    pair, accelerator = argv.pair, memory_bytes(product)
    if argv.state_slots is not None or pair is None or not pair.hybrid or accelerator is None:
        return argv.state_slots or 0
    division = Division(
        accelerator,
        argv.memory_share or DEFAULT_SHARE,
        argv.state_ratio or DEFAULT_RATIO,
        argv.tensor_parallel,
        half_state=argv.half_state,
    )
    return own_slots(pair, argv.block_size, argv.slots_per_request, division)


def startup_s(process: Process, default: float) -> float:
    """Returns the seconds from start to readiness: annotation sim/ready-after (kwok reads it too), else DFLASH_SIM_STARTUP_SECONDS, else
    ``default``."""
    said = process.annotations.get(ANNOTATION_READY_AFTER) or process.env.get(ENV_STARTUP)
    return float(said) if said else default
