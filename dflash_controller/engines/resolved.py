"""Everything that decides an engine process, with nothing left to look up: what a revision stores beside the user's inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from dflash_controller.api import defaults as api
from dflash_controller.api.speculation import Speculation
from dflash_controller.engines.protocol import LaunchRequest, ModelRef


@dataclass(frozen=True, slots=True)
class OperatorDefaults:
    """What the operator's settings add where spec and catalog say nothing."""

    versions: Mapping[str, str] = field(default_factory=lambda: {"sglang": "0.5.23", "vllm": "0.33.0"})
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
    host_path_roots: tuple[str, ...] = ()
    """Node directories below which ``storage.hostPath`` is allowed: a permission of today, never stored with a revision."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The user's inputs with catalog and operator defaults filled in, once per revision.

    A later operator release or catalog changes nothing here, so it restarts nothing.
    """

    engine: str
    version: str
    image: str
    dialect: str
    """The contract-tested release whose command-line rules apply to ``version``."""
    tested: bool
    """The version itself is contract-tested."""
    target: ModelRef
    drafter: ModelRef
    served_model_name: str
    trained_block_size: int
    weight_bytes: int
    """Target and drafter together; where unknown, what the accelerators can hold."""
    load_bytes_per_s: int
    """Rate at which weights are assumed to arrive."""
    hybrid: bool
    mixture_of_experts: bool
    recommended_args: tuple[str, ...]
    extra_args: tuple[str, ...]
    port: int
    tensor_parallel: int
    nodes: int
    max_concurrency: int
    gpu_product: str
    gpu_resource: str
    grace_period_s: int
    """From the order to stop until the kubelet kills."""
    metric_labels: Mapping[str, str]
    defaults: OperatorDefaults
    """Those it was resolved with; a later user change that leaves ``restartId`` alone uses them again."""

    @property
    def gpus_per_pod(self) -> int:
        """Accelerators of one node of a replica."""
        return self.tensor_parallel // self.nodes

    @property
    def pre_stop_s(self) -> int:
        """Pause in which endpoints forget the pod while the engine still answers."""
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
        stored = values["defaults"]
        values["defaults"] = OperatorDefaults(**{item.name: stored[item.name] for item in fields(OperatorDefaults) if item.name in stored})
        return cls(**values)
