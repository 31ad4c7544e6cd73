"""The spec of a DFlashDeployment, as the user writes it.

Only what was written is in a Spec: a scalar that is None was left out, and its default is found through
``dflash_controller.api.defaults``. ``as_written`` gives the user's own input back.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from dflash_controller.api import patterns
from dflash_controller.api.pod_types import (
    Affinity,
    EmptyDir,
    EnvVar,
    EnvVarSource,
    HostPath,
    HuggingFace,
    PersistentVolumeClaim,
    PodMetadata,
    PodTemplate,
    ResourceList,
    Resources,
    Scheduling,
    SecretKeyRef,
    Storage,
    Toleration,
    TopologySpreadConstraint,
)
from dflash_controller.api.policy_types import BlockSize, Exploration, Probe, Rollout, RolloutWindow, Tuning
from dflash_controller.api.schema import (
    LIVE,
    POLICY,
    REVISION,
    SERVER_DEFAULT_KEY,
    AnnotationValue,
    FieldClass,
    GitRevision,
    ImageName,
    LabelValue,
    Model,
    ModelId,
    QualifiedName,
    Quantity,
    ResourceName,
    leaves,
    list_map,
)

__all__ = [
    "Accelerator",
    "Affinity",
    "Drafter",
    "EmptyDir",
    "Engine",
    "EnvVar",
    "EnvVarSource",
    "Exploration",
    "HostPath",
    "HuggingFace",
    "Parallelism",
    "PersistentVolumeClaim",
    "PodMetadata",
    "PodTemplate",
    "Probe",
    "Rdma",
    "ResourceList",
    "Resources",
    "Rollout",
    "RolloutWindow",
    "Scheduling",
    "SecretKeyRef",
    "Service",
    "Spec",
    "Storage",
    "Target",
    "Toleration",
    "TopologySpreadConstraint",
    "Tuning",
    "as_written",
    "field_classes",
]


class Target(Model):
    """The model that is served."""

    model: Annotated[ModelId, REVISION] = Field(
        description="Hugging Face repository, for instance Qwen/Qwen3.5-9B. Also the served model name."
    )
    revision: Annotated[GitRevision | None, REVISION] = Field(
        None,
        description="Commit, tag or branch. Default: the repository's main branch. "
        "A branch or tag is resolved to its commit when a revision is made; restartId resolves it again.",
    )
    hybrid: Annotated[bool | None, REVISION] = Field(
        None,
        description="The target mixes attention with recurrent layers (Mamba, gated delta net). "
        "Only needed where the catalog does not know it.",
    )
    mixture_of_experts: Annotated[bool | None, POLICY] = Field(
        None, description="The target is a mixture of experts; widens the tuner's margin. Only needed where the catalog does not know it."
    )
    weight_size: Annotated[Quantity | None, REVISION] = Field(
        None,
        description="Size of the weights, for instance 18Gi; sets the start-up budget. Only needed where the catalog does not know it.",
    )


class Drafter(Model):
    """The DFlash drafter trained for the target."""

    model: Annotated[ModelId | None, REVISION] = Field(
        None, description="Hugging Face repository, for instance z-lab/Qwen3.5-9B-DFlash. Default: the catalog's drafter for the target."
    )
    revision: Annotated[GitRevision | None, REVISION] = Field(
        None,
        description="Commit, tag or branch. Default: the repository's main branch. "
        "A branch or tag is resolved to its commit when a revision is made; restartId resolves it again. "
        "Drafters are retrained under the same name: pin a commit.",
    )
    trained_block_size: Annotated[BlockSize | None, REVISION] = Field(
        None,
        description="Block size the drafter was trained with, the largest it can serve. "
        "Only needed where neither the catalog nor the drafter's config.json says it.",
    )
    weight_size: Annotated[Quantity | None, REVISION] = Field(
        None, description="Size of the weights, for instance 2Gi. Only needed where the catalog does not know it."
    )


class Engine(Model):
    """The inference engine."""

    name: Annotated[Literal["sglang", "vllm"] | None, REVISION] = Field(None, description="sglang (default) or vllm.")
    version: Annotated[Annotated[str, StringConstraints(max_length=32, pattern=patterns.ENGINE_RELEASE)] | None, REVISION] = Field(
        None,
        description="Engine release (major.minor.patch); decides the command line. "
        "Default: the newest release this operator was tested with.",
    )
    image: Annotated[ImageName | None, REVISION] = Field(
        None, description="Container image that holds this release. Default: the engine's own image of the version."
    )
    extra_args: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=3, max_length=1024, pattern=patterns.EXTRA_ARG)], ...], REVISION
    ] = Field(
        (),
        max_length=64,
        description="More flags for the engine, one --flag or --flag=value each. Flags the operator sets itself are refused, "
        "and so is every abbreviation of one.",
    )
    env: Annotated[tuple[EnvVar, ...], REVISION] = Field(
        (), max_length=64, description="Environment variables of the engine container.", json_schema_extra=list_map("name")
    )
    max_concurrency: Annotated[int | None, REVISION] = Field(
        None, ge=1, le=4096, description="Most requests in service at once per replica; CUDA graphs are captured up to it. Default 32."
    )


class Parallelism(Model):
    """How one replica is spread over accelerators. Pipeline parallelism does not exist for DFlash."""

    tensor: Annotated[int | None, REVISION] = Field(
        None,
        ge=1,
        le=256,
        description="Accelerators per replica, over all its nodes. Default: what the catalog recommends for the target, else 1.",
    )
    nodes: Annotated[int | None, REVISION] = Field(
        None, ge=1, le=32, description="Nodes per replica; above 1 it needs LeaderWorkerSet in the cluster. Default 1."
    )


class Rdma(Model):
    """Network devices for replicas that span nodes."""

    resource: Annotated[ResourceName, REVISION] = Field(
        description="Extended resource of the device plugin, for instance rdma/hca_shared_devices_a."
    )
    count: Annotated[int, REVISION] = Field(ge=1, le=64, description="Devices per pod.")


class Accelerator(Model):
    """The hardware a replica runs on."""

    resource: Annotated[ResourceName | None, REVISION] = Field(None, description="Extended resource to request. Default nvidia.com/gpu.")
    product: Annotated[LabelValue | None, REVISION] = Field(
        None, description="Value of the node label nvidia.com/gpu.product; decides attention backends. Default NVIDIA-B200."
    )
    rdma: Rdma | None = Field(None, description="RDMA devices, for replicas over several nodes.")


class Service(Model):
    """The Service in front of all engine pods."""

    port: Annotated[int | None, REVISION] = Field(
        None, ge=1024, le=65535, description="Port of the Service and of the engine. Default: the engine's own (sglang 30000, vllm 8000)."
    )
    type: Annotated[Literal["ClusterIP", "NodePort", "LoadBalancer"] | None, LIVE] = Field(None, description="Default ClusterIP.")
    annotations: Annotated[dict[QualifiedName, AnnotationValue] | None, LIVE] = Field(
        None, max_length=32, description="Annotations of the Service."
    )


class Spec(Model):
    """What to serve, on what, and how it may change."""

    target: Target = Field(description="The model that is served.")
    drafter: Drafter = Field(
        default_factory=Drafter, description="The DFlash drafter trained for the target. May be left out where the catalog knows it."
    )
    engine: Engine = Field(default_factory=Engine, description="The inference engine and its release.")
    replicas: Annotated[int | None, LIVE] = Field(
        None, ge=0, le=1000, description="Number of replicas, each one engine. Default 1.", json_schema_extra={SERVER_DEFAULT_KEY: 1}
    )
    parallelism: Parallelism = Field(default_factory=Parallelism, description="How one replica is spread over accelerators.")
    accelerator: Accelerator = Field(default_factory=Accelerator, description="The hardware a replica runs on.")
    block_size: Annotated[BlockSize | None, REVISION] = Field(
        None,
        description="Tokens per verify step: one known token and the rest drafted; 1 serves without speculation. "
        "Default: the drafter's trained block size. With tuning Off it is what runs; otherwise it is where tuning starts.",
    )
    tuning: Tuning = Field(default_factory=Tuning, description="How the block size follows the load.")
    rollout: Rollout = Field(default_factory=Rollout, description="How one revision replaces another.")
    storage: Storage | None = Field(None, description="Where weights are stored. Default: each engine downloads them itself.")
    hugging_face: HuggingFace | None = Field(None, description="Access to Hugging Face.")
    scheduling: Scheduling = Field(default_factory=Scheduling, description="Which nodes the engine pods may run on.")
    pod_template: PodTemplate = Field(default_factory=PodTemplate, description="What can be added to the engine pods.")
    service: Service = Field(default_factory=Service, description="The Service in front of all engine pods.")
    suspend: Annotated[bool | None, POLICY] = Field(
        None,
        description="Stop every write to child objects, rollback and repair too; pods keep serving, the status is updated. Default false.",
    )
    restart_id: Annotated[Annotated[str, StringConstraints(max_length=63, pattern=patterns.RESTART_ID)] | None, REVISION] = Field(
        None,
        description="Any text; a new one restarts all engines within the rollout's budget, "
        "with branches and operator defaults resolved anew.",
    )


def as_written(spec: Spec) -> dict[str, Any]:
    """The user's own input, camelCase, without the fields that were left out."""
    return spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)


def field_classes() -> dict[str, FieldClass | None]:
    """The class of every leaf of the spec by its JSON path (``engine.env[].name``); None where a declaration was forgotten."""
    return dict(leaves(Spec))
