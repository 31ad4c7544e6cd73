"""What the rest of the operator asks of an inference engine. Pure: no engine is imported, nothing is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dflash_controller.api.problem import Problem
from dflash_controller.api.speculation import Speculation
from dflash_controller.catalog.catalog import CacheSizes
from dflash_controller.engines.probe_reading import Reading
from dflash_controller.model.hub import is_commit
from dflash_controller.model.metric_schema import MetricSchema

RENDERED = 1024
"""Command lines that an engine keeps: each reconcile asks for those of all revisions of a deployment again. A few MiB at most."""


@dataclass(frozen=True, slots=True)
class ModelRef:
    """A Hugging Face repository at a revision (commit, tag or branch; None = the default branch)."""

    model: str
    revision: str | None = None

    @property
    def pinned(self) -> bool:
        """The revision is a commit, which never moves."""
        return is_commit(self.revision)


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Everything that decides an engine's command line. One request, one argv: nothing else may leak in."""

    release: str
    """Engine version, for instance ``0.5.23``."""
    target: ModelRef
    drafter: ModelRef
    served_model_name: str
    speculation: Speculation
    trained_block_size: int
    tensor_parallel: int
    """Over all nodes of the replica."""
    nodes: int
    port: int
    max_concurrency: int
    """Requests in service at once per replica."""
    gpu_product: str
    """Value of the node label ``nvidia.com/gpu.product``, for instance ``NVIDIA-B200``."""
    hybrid_target: bool
    """The target mixes attention with Mamba or gated-delta-net layers (Qwen3.5 and its kin)."""
    recommended_args: tuple[str, ...] = ()
    """Flags the drafter's card recommends, ``--flag=value``; a flag in extra_args replaces its namesake here."""
    extra_args: tuple[str, ...] = ()
    metric_labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    """Requests are equal only with equal ones, although no hash is made of them."""
    shutdown_timeout_s: int = 120
    cache: CacheSizes | None = None
    """What requests hold in memory; None: not known."""
    weight_bytes: int = 0
    """Target and drafter together; 0: not known."""
    pod_ip_families: tuple[str, ...] = ()
    """IPv4, IPv6 or both, the family of ``status.podIP`` first; empty: unknown, so the engine listens on both."""
    mixture_of_experts: bool | None = None
    """None: not known."""
    kv_heads: int | None = None
    """Key-value heads of the target's attention; None: not known."""
    target_path: str | None = None
    """Where the target's files are in the container; None: the engine downloads them by name and revision."""
    drafter_path: str | None = None

    @property
    def target_source(self) -> ModelRef:
        """What the command line names: the path, or the repository at its revision."""
        return ModelRef(self.target_path) if self.target_path else self.target

    @property
    def drafter_source(self) -> ModelRef:
        """See ``target_source``."""
        return ModelRef(self.drafter_path) if self.drafter_path else self.drafter


@dataclass(frozen=True, slots=True)
class Launch:
    """A rendered command line. ``worker_args`` is for ranks > 0 of a multi-node replica, else empty."""

    command: tuple[str, ...]
    args: tuple[str, ...]
    worker_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    pod_fields: Mapping[str, str] = field(default_factory=dict)
    """Variables whose value is a field of the pod, for instance ``metadata.uid``."""
    worker_outlives: int | None = None
    """Port of rank 0 that is open until its process ends. Ranks > 0 of this release end at once when they are told to, so their pods wait
    for rank 0. None: the engine's ranks wait by themselves, or there are none."""


@dataclass(frozen=True, slots=True)
class Probes:
    """HTTP paths the kubelet asks; ``worker`` is None where ranks > 0 serve no HTTP."""

    startup: str
    readiness: str
    liveness: str
    worker: str | None
    timeout_s: int


@dataclass(frozen=True, slots=True)
class ReleaseProfile:
    """The release whose command line is rendered for a requested version."""

    release: str
    """The contract-tested release whose rules apply."""
    tested: bool
    """False: nearest older dialect, condition reason EngineReleaseUntested."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Whether the requests that are asked for fit in the accelerators' memory, by an estimate. Bytes are those of one accelerator."""

    asked: int
    """``spec.engine.maxConcurrency``."""
    fitting: int
    """Requests that fit, at most ``asked``."""
    needed: int
    """What the asked requests hold: state, and keys and values of ``LEAST_CONTEXT`` tokens each."""
    available: int
    """What weights and work space leave."""
    remedies: tuple[str, ...] = ()
    """Imperatives without their full stop, of which each would help."""


class Engine(Protocol):
    """One inference engine, all its releases."""

    name: str
    default_port: int
    metric_schema: MetricSchema
    """Series and formulas of every release."""

    def dialect(self, version: str) -> ReleaseProfile | Problem:
        """The dialect for a version; a Problem where the release cannot run DFlash at all or is not a version."""

    def problems(self, request: LaunchRequest) -> Sequence[Problem]:
        """Combinations this release cannot do. Empty means launch() may be called."""

    def unknown_flags(self, arguments: Sequence[str], release: str) -> Sequence[Problem]:
        """Flags of extraArgs that the parser of the release, or of the nearest older tested one, does not take, or not with a value.

        They are not among ``problems()``: a newer release, or an image of one's own, may know them.
        """

    def launch(self, request: LaunchRequest) -> Launch:
        """The command line. Raises ValueError where problems() is not empty."""

    def administered_by_clients(self, words: Sequence[str], variables: Mapping[str, str | None]) -> str:
        """Why clients reach endpoints that administer an engine which was started so; empty where they do not.

        ``words`` are command and arguments of its container, ``variables`` its environment, None for a value that comes from elsewhere.
        """

    def fit(self, request: LaunchRequest) -> Fit | None:
        """Whether the asked concurrency fits in memory; None where target or accelerator are not known well enough to say."""

    def slots_per_request(self, request: LaunchRequest) -> int:
        """Slots of state that the engine counts for each request it serves; 0 where it does not count requests by them."""

    def slots_flag(self, request: LaunchRequest) -> str:
        """The flag that holds slots of state for the asked concurrency; empty where requests are not counted by them."""

    def held_per_request(self, request: LaunchRequest, context: float) -> float | None:
        """Bytes of one accelerator that a request of ``context`` tokens holds; None where the target's shape is not known."""

    def probes(self, release: str) -> Probes:
        """The endpoints of that release."""

    def owned_flags(self) -> Mapping[str, str]:
        """Every flag (all spellings, all releases) that extraArgs may not set, with the field (or reason) that decides it."""

    def probe_reading(self) -> Reading:
        """A reader of one answer to a prompt of the probe."""

    def cache_environment(self, folder: str) -> Mapping[str, str]:
        """Variables that put the engine's own cache of compiled kernels into a folder."""
