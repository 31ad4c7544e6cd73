"""The parts of the spec that shape the pods: where they run, what they mount, and the closed list of extras."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from dflash_controller.api import patterns
from dflash_controller.api.schema import (
    REVISION,
    AbsolutePath,
    AnnotationValue,
    DataKey,
    ImageName,
    LabelValue,
    Model,
    QualifiedName,
    Quantity,
    SubdomainName,
    list_map,
)


class SecretKeyRef(Model):
    """A key of a Secret in the deployment's namespace."""

    name: SubdomainName = Field(description="Name of the Secret, in the same namespace.")
    key: DataKey = Field(description="Key inside the Secret.")


class ConfigMapKeyRef(Model):
    """A key of a ConfigMap in the deployment's namespace."""

    name: SubdomainName = Field(description="Name of the ConfigMap, in the same namespace.")
    key: DataKey = Field(description="Key inside the ConfigMap.")


class FieldRef(Model):
    """A field of the pod itself."""

    field_path: Literal["metadata.name", "metadata.namespace", "spec.nodeName", "status.hostIP", "status.podIP"] = Field(
        description="Field of the pod whose value the variable takes."
    )


class EnvVarSource(Model):
    """Where a variable's value comes from. Exactly one of the fields."""

    secret_key_ref: SecretKeyRef | None = Field(None, description="Take the value from a Secret.")
    config_map_key_ref: ConfigMapKeyRef | None = Field(None, description="Take the value from a ConfigMap.")
    field_ref: FieldRef | None = Field(None, description="Take the value from the pod.")


class EnvVar(Model):
    """One environment variable of the engine container."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=patterns.VARIABLE_NAME)] = Field(
        description="Name of the variable."
    )
    value: Annotated[str, StringConstraints(max_length=4096)] | None = Field(
        None, description="Value. Kubernetes expands $(NAME) of variables listed before it."
    )
    value_from: EnvVarSource | None = Field(None, description="Source of the value, instead of value.")


class EmptyDir(Model):
    """Scratch space of the node, gone with the pod: each pod downloads the weights anew."""

    size_limit: Annotated[Quantity | None, REVISION] = Field(None, description="Largest size, for instance 200Gi. Absent: no limit.")


class PersistentVolumeClaim(Model):
    """An existing claim; ReadWriteMany lets all replicas share one download."""

    claim_name: Annotated[SubdomainName, REVISION] = Field(description="Name of the claim, in the same namespace.")
    read_only: Annotated[bool | None, REVISION] = Field(
        None, description="Mount it read-only: it must already contain the weights, and nothing is downloaded. Default false."
    )


class HostPath(Model):
    """A directory of the node. Only below the roots that the operator's settings allow; by default there is none."""

    path: Annotated[AbsolutePath, REVISION] = Field(description="Absolute path on the node, for instance /mnt/models.")


class ImageVolume(Model):
    """An image that holds the weights, as in a pod's volumes. The kubelet pulls it, with podTemplate.imagePullSecrets."""

    reference: Annotated[ImageName, REVISION] = Field(
        description="Image or artifact that holds a Hugging Face cache in huggingface/; best with a digest."
    )
    pull_policy: Annotated[Literal["Always", "IfNotPresent", "Never"] | None, REVISION] = Field(
        None, description="When the kubelet pulls it. Default: Always for the tag latest, else IfNotPresent."
    )


class Storage(Model):
    """Where weights are kept. Exactly one of the fields; without storage the engine downloads by itself."""

    empty_dir: EmptyDir | None = Field(None, description="Scratch space of the node; the weights are downloaded for each pod.")
    persistent_volume_claim: PersistentVolumeClaim | None = Field(None, description="An existing PersistentVolumeClaim.")
    host_path: HostPath | None = Field(None, description="A directory of the node, where the operator's settings allow it.")
    image: ImageVolume | None = Field(
        None, description="An image that holds the weights, mounted read-only. Needs image volumes in the cluster (Kubernetes 1.31)."
    )


class HuggingFace(Model):
    """Access to Hugging Face."""

    token_secret_ref: Annotated[SecretKeyRef, REVISION] = Field(
        description="Secret key with a read token, for gated or private models. It is mounted as a file, never put into the command line."
    )


class Toleration(Model):
    """As in a pod's tolerations."""

    key: QualifiedName | None = Field(None, description="Taint key; absent with operator Exists: every taint.")
    operator: Literal["Equal", "Exists"] | None = Field(None, description="Equal (default) compares the value, Exists does not.")
    value: LabelValue | None = Field(None, description="Taint value, with operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(None, description="Taint effect; absent: all effects.")
    toleration_seconds: int | None = Field(
        None, ge=0, le=2**31 - 1, description="How long a NoExecute taint is tolerated; absent: for ever."
    )


class LabelSelectorRequirement(Model):
    """One expression of a label selector."""

    key: QualifiedName = Field(description="Label key.")
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"] = Field(description="How the key's value relates to values.")
    values: tuple[LabelValue, ...] = Field((), max_length=16, description="Values for In and NotIn.")


class LabelSelector(Model):
    """As in apps/v1; all parts must match."""

    match_labels: dict[QualifiedName, LabelValue] | None = Field(None, max_length=16, description="Labels that must be equal.")
    match_expressions: tuple[LabelSelectorRequirement, ...] = Field((), max_length=16, description="Expressions that must hold.")


class TopologySpreadConstraint(Model):
    """As in a pod's topologySpreadConstraints."""

    max_skew: int = Field(ge=1, le=1000, description="Largest difference in pods between two topology domains.")
    topology_key: QualifiedName = Field(description="Node label whose values are the domains.")
    when_unsatisfiable: Literal["DoNotSchedule", "ScheduleAnyway"] = Field(description="What to do when the constraint cannot be met.")
    label_selector: LabelSelector | None = Field(None, description="Pods to count. Absent: the engine pods of this deployment.")
    min_domains: int | None = Field(None, ge=1, le=1000, description="Smallest number of domains; with DoNotSchedule only.")
    node_affinity_policy: Literal["Honor", "Ignore"] | None = Field(None, description="Whether node affinity narrows the domains.")
    node_taints_policy: Literal["Honor", "Ignore"] | None = Field(None, description="Whether taints narrow the domains.")


FreeObject = Annotated[dict[str, Any], Field(json_schema_extra={"x-kubernetes-preserve-unknown-fields": True})]
"""An object whose inside Kubernetes itself checks when the pod is created."""


class Affinity(Model):
    """As in a pod's affinity; the inside is checked when the pod is created."""

    node_affinity: FreeObject | None = Field(None, max_length=8, description="As in core/v1 NodeAffinity.")
    pod_affinity: FreeObject | None = Field(None, max_length=8, description="As in core/v1 PodAffinity.")
    pod_anti_affinity: FreeObject | None = Field(None, max_length=8, description="As in core/v1 PodAntiAffinity.")


class Scheduling(Model):
    """Which nodes the engine pods may run on."""

    node_selector: Annotated[dict[QualifiedName, LabelValue] | None, REVISION] = Field(
        None, max_length=32, description="Node labels the nodes must have, besides the accelerator's product label."
    )
    tolerations: Annotated[tuple[Toleration, ...], REVISION] = Field(
        (),
        max_length=32,
        description="Taints the pods tolerate. The accelerator's own taint (its resource name as key) is tolerated already.",
    )
    affinity: Annotated[Affinity | None, REVISION] = Field(None, description="Affinity of the engine pods.")
    topology_spread_constraints: Annotated[tuple[TopologySpreadConstraint, ...], REVISION] = Field(
        (),
        max_length=8,
        description="How replicas spread over zones or nodes.",
        json_schema_extra=list_map("topologyKey", "whenUnsatisfiable"),
    )
    priority_class_name: Annotated[SubdomainName | None, REVISION] = Field(None, description="PriorityClass of the engine pods.")
    scheduler_name: Annotated[SubdomainName | None, REVISION] = Field(None, description="Scheduler; absent: the cluster's default.")
    runtime_class_name: Annotated[SubdomainName | None, REVISION] = Field(None, description="RuntimeClass, for instance nvidia.")


class PodMetadata(Model):
    """Labels and annotations added to the engine pods."""

    labels: Annotated[dict[QualifiedName, LabelValue] | None, REVISION] = Field(
        None, max_length=32, description="Extra labels. Keys below serving.dflash.io/ and app.kubernetes.io/managed-by are the operator's."
    )
    annotations: Annotated[dict[QualifiedName, AnnotationValue] | None, REVISION] = Field(
        None, max_length=32, description="Extra annotations. Keys below serving.dflash.io/ are the operator's."
    )


class LocalObjectReference(Model):
    """A Secret in the deployment's namespace."""

    name: SubdomainName = Field(description="Name of the Secret, in the same namespace.")


class ResourceList(Model):
    """Node resources besides the accelerators."""

    cpu: Annotated[Quantity | None, REVISION] = Field(None, description="CPU, for instance 16.")
    memory: Annotated[Quantity | None, REVISION] = Field(None, description="Memory, for instance 128Gi.")
    ephemeral_storage: Annotated[Quantity | None, REVISION] = Field(
        None, alias="ephemeral-storage", description="Local scratch space, for instance 50Gi."
    )


class Resources(Model):
    """CPU and memory of the engine container. Accelerators follow from parallelism and accelerator."""

    requests: ResourceList | None = Field(None, description="What the scheduler reserves.")
    limits: ResourceList | None = Field(None, description="What the container may use at most.")


class PodSecurityContext(Model):
    """The user that all containers of a pod run as."""

    run_as_non_root: Annotated[bool | None, REVISION] = Field(
        None, description="Refuse to start a container as root. Namespaces that enforce the restricted Pod Security Standard need true."
    )
    run_as_user: Annotated[int | None, REVISION] = Field(None, ge=0, le=2147483647, description="User, instead of the image's.")
    run_as_group: Annotated[int | None, REVISION] = Field(None, ge=0, le=2147483647, description="Group, instead of the image's.")
    fs_group: Annotated[int | None, REVISION] = Field(
        None, ge=0, le=2147483647, description="Group that owns the volumes, so that a user other than root can write to them."
    )


class PodTemplate(Model):
    """The closed list of things a user may add to the engine pods."""

    metadata: PodMetadata | None = Field(None, description="Labels and annotations added to the engine pods.")
    image_pull_secrets: Annotated[tuple[LocalObjectReference, ...], REVISION] = Field(
        (), max_length=8, description="Secrets for pulling the engine image.", json_schema_extra=list_map("name")
    )
    termination_grace_period_seconds: Annotated[int | None, REVISION] = Field(
        None,
        ge=30,
        le=86400,
        description="How long a stopping pod may finish its requests; at least as long as the longest one. Default 600.",
    )
    resources: Resources | None = Field(None, description="CPU and memory of the engine container.")
    security_context: PodSecurityContext | None = Field(
        None, description="User and group of the engine pods. Without it they run as the user of the engine's image, which may be root."
    )
    read_only_root_filesystem: Annotated[bool | None, REVISION] = Field(
        None,
        description="Let the engine write to volumes only. /tmp and the home directory become scratch volumes of the pod. Engines of other "
        "images may write elsewhere: try it first. Default false.",
    )
