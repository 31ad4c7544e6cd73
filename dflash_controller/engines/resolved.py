"""Everything that decides an engine process, with nothing left to look up: what a revision stores beside the user's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Annotated, Any, get_type_hints

from dflash_controller.api import defaults as api
from dflash_controller.api.speculation import Speculation
from dflash_controller.catalog.catalog import CacheSizes
from dflash_controller.engines.protocol import LaunchRequest, ModelRef
from dflash_controller.engines.releases import TABLE
from dflash_controller.model.change import Part

TARGET_PATH = "/models/target"
DRAFTER_PATH = "/models/drafter"
"""Where engine containers find fetched weights, at every revision alike. vLLM's compile cache is keyed by them, and so survives a change of
drafter."""


@dataclass(frozen=True, slots=True)
class OperatorDefaults:
    """What the operator's settings add where spec and catalog say nothing."""

    versions: Mapping[str, str] = field(default_factory=lambda: {name: releases.default for name, releases in TABLE.items()})
    images: Mapping[str, str] = field(
        default_factory=lambda: {"sglang": "lmsysorg/sglang:v{version}", "vllm": "vllm/vllm-openai:v{version}"}
    )
    """Image by engine; ``{version}`` is replaced by the engine version."""
    gpu_product: str = api.ACCELERATOR_PRODUCT
    gpu_resource: str = api.ACCELERATOR_RESOURCE
    gpu_bytes: int = 192_000_000_000
    """Memory of one accelerator (B200); bounds the weights of a model whose size nobody knows."""
    load_bytes_per_s: int = 500_000_000
    """Weights from a hub or a network file system; local disks are several times faster."""
    pod_ip_families: tuple[str, ...] = ()
    """Families of the cluster's pod network, the primary one first; empty: unknown. Engines listen accordingly."""
    fetch_image: str = ""
    """Image with ``dflash-fetch``; empty: engines download their weights by themselves."""
    fetch_makes_cache: bool = True
    """Whether that image makes the directory for what engines write. Images of earlier releases do not, and stay with their revisions."""
    host_path_roots: tuple[str, ...] = ()
    """Node directories below which ``storage.hostPath`` is allowed: a permission of today, never stored with a revision."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What a change of a resolved value does to performance. Every field of ``Resolved`` declares one."""

    part: Part | None
    """The part of the engine process that then differs, by which the candidate is judged. None: performance stays as it is."""
    step_time: bool = False
    """Step times change with it, so what the tuner learned about them no longer holds."""


_NONE = Effect(None)
_ENGINE = Effect(Part.ENGINE)
_ENGINE_STEPS = Effect(Part.ENGINE, step_time=True)
_TARGET = Effect(Part.TARGET, step_time=True)
_DRAFTER = Effect(Part.DRAFTER)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The user's inputs with catalog and operator defaults filled in, once per revision.

    A later operator release or catalog changes nothing here, so it restarts nothing. Each field declares its ``Effect``.
    """

    engine: Annotated[str, _ENGINE_STEPS]
    version: Annotated[str, _ENGINE_STEPS]
    image: Annotated[str, _ENGINE]
    dialect: Annotated[str, _ENGINE]
    """The contract-tested release whose command-line rules apply to ``version``."""
    tested: Annotated[bool, _NONE]
    """The version itself is contract-tested."""
    target: Annotated[ModelRef, _TARGET]
    drafter: Annotated[ModelRef, _DRAFTER]
    served_model_name: Annotated[str, _NONE]
    trained_block_size: Annotated[int, _NONE]
    weight_bytes: Annotated[int, _NONE]
    """Target and drafter together; where unknown, what the accelerators can hold."""
    load_bytes_per_s: Annotated[int, _NONE]
    """Rate at which weights are assumed to arrive."""
    hybrid: Annotated[bool, _NONE]
    mixture_of_experts: Annotated[bool, _NONE]
    recommended_args: Annotated[tuple[str, ...], _ENGINE]
    extra_args: Annotated[tuple[str, ...], _ENGINE_STEPS]
    port: Annotated[int, _NONE]
    tensor_parallel: Annotated[int, _ENGINE_STEPS]
    nodes: Annotated[int, _ENGINE_STEPS]
    max_concurrency: Annotated[int, _ENGINE_STEPS]
    gpu_product: Annotated[str, _ENGINE_STEPS]
    gpu_resource: Annotated[str, _ENGINE]
    grace_period_s: Annotated[int, _NONE]
    """From the order to stop until the kubelet kills."""
    metric_labels: Annotated[Mapping[str, str], _NONE]
    defaults: Annotated[OperatorDefaults, _NONE]
    """Those it was resolved with; a later user change that leaves ``restartId`` alone uses them again."""
    cache: Annotated[CacheSizes | None, _NONE] = None
    """What requests hold in memory; None: not known."""
    weights_known: Annotated[bool, _NONE] = False
    """Whether ``weight_bytes`` is the models' size, and not what the accelerators can hold."""
    fetch_image: Annotated[str | None, _NONE] = None
    """Image of the init container that fetches target and drafter, which engines then load from paths; None: engines download by name."""
    load_measured: Annotated[bool, _NONE] = False
    """Whether ``load_bytes_per_s`` was measured at earlier starts from the same storage, and not assumed."""
    fetch_bytes_per_s: Annotated[int | None, _NONE] = None
    """Rate at which earlier fetches into the same storage arrived; None: not measured."""

    @property
    def writes_cache_only(self) -> bool:
        """Whether engines see the weights and their caches alone, and not the whole storage, in which they could change weights."""
        return bool(self.fetch_image) and self.defaults.fetch_makes_cache

    @property
    def gpus_per_pod(self) -> int:
        """Accelerators of one node of a replica."""
        return self.tensor_parallel // self.nodes

    @property
    def pre_stop_s(self) -> int:
        """Pause in which endpoints forget the pod while the engine still answers.

        It is longer than both engines keep an idle connection (5 s: ``VLLM_HTTP_TIMEOUT_KEEP_ALIVE``, SGLang's ``timeout_keep_alive``), so
        a client's pool has none left to this pod, except those that are in constant use.
        """
        return min(15, self.grace_period_s // 4)

    @property
    def drain_s(self) -> int:
        """Time for requests in service: the grace period less the pause and what an engine needs to end (SGLang waits 15 s)."""
        return self.grace_period_s - self.pre_stop_s - min(30, self.grace_period_s // 3)

    def launch_request(self, speculation: Speculation) -> LaunchRequest:
        """The engine's view: the command line of this revision with a speculation."""
        return LaunchRequest(
            release=self.version,
            target=self.target,
            drafter=self.drafter,
            served_model_name=self.served_model_name,
            speculation=speculation,
            trained_block_size=self.trained_block_size,
            tensor_parallel=self.tensor_parallel,
            nodes=self.nodes,
            port=self.port,
            max_concurrency=self.max_concurrency,
            gpu_product=self.gpu_product,
            hybrid_target=self.hybrid,
            recommended_args=self.recommended_args,
            extra_args=self.extra_args,
            metric_labels=self.metric_labels,
            shutdown_timeout_s=self.drain_s,
            cache=self.cache,
            kv_heads=self.cache.kv_heads if self.cache else None,
            weight_bytes=self.weight_bytes if self.weights_known else 0,
            pod_ip_families=self.defaults.pod_ip_families,
            mixture_of_experts=self.mixture_of_experts,
            target_path=TARGET_PATH if self.fetch_image else None,
            drafter_path=DRAFTER_PATH if self.fetch_image else None,
        )

    def to_json(self) -> dict[str, Any]:
        """JSON-able form for the ControllerRevision."""
        data: dict[str, Any] = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        del data["defaults"]["host_path_roots"]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Resolved:
        """The inverse of ``to_json``. Fields of a newer operator are ignored; raises TypeError where one without a default is missing."""
        values = {item.name: data[item.name] for item in fields(cls) if item.name in data}
        for name in ("target", "drafter"):
            values[name] = ModelRef(**values[name])
        for name in ("recommended_args", "extra_args"):
            values[name] = tuple(values[name])
        if values.get("cache") is not None:
            values["cache"] = CacheSizes(**values["cache"])
        stored = {item.name: data["defaults"][item.name] for item in fields(OperatorDefaults) if item.name in data["defaults"]}
        families, makes_cache = tuple(stored.get("pod_ip_families", ())), stored.get("fetch_makes_cache", False)
        values["defaults"] = OperatorDefaults(**stored | {"pod_ip_families": families, "fetch_makes_cache": makes_cache})
        return cls(**values)


def _effects() -> dict[str, Effect | None]:
    hints = get_type_hints(Resolved, include_extras=True)
    return {
        item.name: next((found for found in getattr(hints[item.name], "__metadata__", ()) if isinstance(found, Effect)), None)
        for item in fields(Resolved)
    }


EFFECTS: Mapping[str, Effect | None] = _effects()
"""What each field of ``Resolved`` declares; None where it declares nothing."""
PART_OF_FIELD: Mapping[str, Part] = {name: effect.part for name, effect in EFFECTS.items() if effect and effect.part}
"""Fields whose change is judged, with the part of the engine process that they belong to."""
STEP_TIME_FIELDS = tuple(name for name, effect in EFFECTS.items() if effect and effect.step_time)
"""Fields that step times depend on: a change of any of them makes another curve."""
