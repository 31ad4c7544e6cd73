"""The status of a DFlashDeployment: what the operator found and decided. Written only by the operator, only on change."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints

from dflash_controller.api.schema import Model, list_map

Name = Annotated[str, StringConstraints(max_length=253)]
Text = Annotated[str, StringConstraints(max_length=1024)]
Reason = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z]([A-Za-z0-9]*)$")]
Time = Annotated[str, StringConstraints(max_length=40), Field(json_schema_extra={"format": "date-time"})]

RolloutPhase = Literal[
    "Preparing",
    "Canary",
    "Analyzing",
    "Progressing",
    "Completed",
    "Paused",
    "Held",
    "RollingBack",
    "RolledBack",
    "Superseded",
    "Suspended",
]
RevisionState = Literal["Candidate", "Stable", "Failed", "Superseded", "Retired"]
TuningState = Literal["Off", "Advising", "Tuning", "Learning", "Frozen", "Held"]
Verdict = Literal["Successful", "Failed", "Inconclusive", "Error"]


class Condition(Model):
    """As in meta/v1, one per type."""

    type: Annotated[str, StringConstraints(max_length=64)] = Field(description="Kind of condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="True, False or Unknown.")
    observed_generation: int | None = Field(None, ge=0, description="Generation of the spec that the condition is about.")
    last_transition_time: Time = Field(description="When status last changed.")
    reason: Reason = Field(description="The cause as one word, from a documented list.")
    message: Text = Field(description="The cause in a sentence, with what to do, if anything.")


class Notice(Model):
    """Something worth knowing that is not wrong: it changes no condition."""

    reason: Reason = Field(description="One word, from a documented list.")
    message: Text = Field(description="The notice in a sentence.")


class SpeculationStatus(Model):
    """What the stable revision drafts."""

    mode: Literal["Off", "Fixed", "Schedule"] = Field(description="Off, one block size, or a block size by load.")
    block_size: int | None = Field(None, description="Block size, with mode Fixed.")
    ranges: tuple[Annotated[tuple[int, ...], Field(max_length=3)], ...] = Field(
        (), max_length=64, description="Rows of lowest requests, highest requests, drafts per step; with mode Schedule."
    )
    label: Annotated[str, StringConstraints(max_length=63)] = Field(description="The same in one word: off, 16, schedule-16.")


class MetricsStatus(Model):
    """What the engines of the stable revision measure; refreshed when a figure leaves 10 % of the value shown."""

    acceptance_length: float | None = Field(
        None, description="Tokens committed per verify step, bonus token included: 1 up to the block size."
    )
    concurrency: float | None = Field(None, description="Requests in service per replica while busy.")
    tokens_per_second: float | None = Field(None, description="Output tokens per second, all replicas together.")
    step_time_milliseconds: float | None = Field(None, description="Milliseconds per verify step.")
    block_size: float | None = Field(None, description="Block size the engines themselves report.")
    request_capacity: float | None = Field(
        None,
        description="Requests that the memory of one replica holds at once: slots of state, or KV cache at the present length.",
    )
    measured_at: Time | None = Field(
        None,
        description="When these were refreshed. Without traffic tokensPerSecond is 0, and the others keep the values of the last traffic.",
    )


class TuningStatus(Model):
    """The tuner's last decision and what it was made from."""

    state: TuningState = Field(description="What the tuner is doing.")
    recommendation: Annotated[str, StringConstraints(max_length=63)] | None = Field(
        None, description="Speculation it would choose: off, 16, schedule-16."
    )
    reason: Reason | None = Field(None, description="The reason as one word, from a documented list.")
    message: Text | None = Field(None, description="Why, in a sentence.")
    inputs: dict[str, Any] | None = Field(
        None,
        max_length=64,
        description="Numbers behind the decision.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    decided_at: Time | None = Field(None, description="When it was decided.")
    next_change_allowed_at: Time | None = Field(None, description="No change before this time.")


class MetricVerdict(Model):
    """What the analysis says about one metric."""

    metric: Annotated[str, StringConstraints(max_length=64)] = Field(description="Name of the metric, as in spec.rollout.analysis.")
    verdict: Verdict = Field(description="Successful, Failed, Inconclusive or Error.")
    candidate: float | None = Field(None, description="Value of the candidate.")
    stable: float | None = Field(None, description="Value of the stable revision at the same time.")
    limit: float | None = Field(None, description="The limit that applied.")
    samples: float | None = Field(None, description="Samples of the candidate.")
    stable_samples: float | None = Field(None, description="Samples of the stable revision.")
    age_seconds: float | None = Field(None, description="Age of the newest input when it was judged.")
    gates: bool | None = Field(None, description="False if the metric is only shown and not judged for this change.")
    message: Text | None = Field(None, description="The result in a sentence.")


class RolloutStatus(Model):
    """The rollout under way, or the last one."""

    phase: RolloutPhase = Field(description="Phase of the rollout.")
    revision: Name | None = Field(None, description="Name of the revision that is rolled out.")
    reason: Reason | None = Field(None, description="Why it is in this phase, from a documented list.")
    step: Annotated[str, StringConstraints(max_length=128)] | None = Field(None, description="What the rollout waits for.")
    message: Text | None = Field(None, description="The phase in a sentence.")
    started_at: Time | None = Field(None, description="When it began.")
    finished_at: Time | None = Field(None, description="When it ended.")
    updated_replicas: int | None = Field(None, description="Serving replicas of the candidate.")
    analyzed_at: Time | None = Field(None, description="When the verdicts below were made; they are updated once a minute.")
    analysis: tuple[MetricVerdict, ...] = Field((), max_length=16, description="Verdicts by metric.", json_schema_extra=list_map("metric"))


class RevisionStatus(Model):
    """One revision that is kept."""

    name: Name = Field(description="Name of its ControllerRevision and of its workload.")
    number: int = Field(description="Sequence number; the stable one with the highest number is active.")
    state: RevisionState = Field(description="Candidate, Stable, Failed, Superseded or Retired.")
    engine: Annotated[str, StringConstraints(max_length=64)] | None = Field(None, description="Engine and release.")
    speculation: Annotated[str, StringConstraints(max_length=63)] | None = Field(None, description="off, 16, schedule-16.")
    drafter_revision: Annotated[str, StringConstraints(max_length=200)] | None = Field(None, description="Revision of the drafter.")
    origin: Literal["User", "Tuner", "Rollback"] | None = Field(None, description="Who last requested it.")
    reason: Reason | None = Field(None, description="Why it has its state, from a documented list.")
    replicas: int | None = Field(None, description="Its engine pods.")
    ready_replicas: int | None = Field(None, description="Its serving engine pods.")


class Status(Model):
    """What the operator found and decided."""

    observed_generation: int | None = Field(None, ge=0, description="Generation of the spec that this status is about.")
    conditions: tuple[Condition, ...] = Field((), max_length=16, description="Conditions by type.", json_schema_extra=list_map("type"))
    notices: tuple[Notice, ...] = Field(
        (), max_length=16, description="Things worth knowing that are not wrong.", json_schema_extra=list_map("reason")
    )
    replicas: int | None = Field(None, ge=0, description="Engine pods of all revisions that are not terminating.")
    ready_replicas: int | None = Field(None, ge=0, description="Serving engine pods of all revisions.")
    serving: Annotated[str, StringConstraints(max_length=16)] | None = Field(None, description="Serving and desired replicas, as 2/3.")
    selector: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        None, description="Label selector of the engine pods, for the scale subresource."
    )
    engine: Annotated[str, StringConstraints(max_length=64)] | None = Field(None, description="Active engine and release.")
    stable_revision: Name | None = Field(None, description="Name of the active revision.")
    candidate_revision: Name | None = Field(None, description="Name of the revision under test.")
    speculation: SpeculationStatus | None = Field(None, description="What the stable revision drafts.")
    drafter: Annotated[str, StringConstraints(max_length=200)] | None = Field(None, description="Active drafter.")
    drafter_revision: Annotated[str, StringConstraints(max_length=200)] | None = Field(None, description="Revision of the active drafter.")
    startup_budget_seconds: int | None = Field(
        None, ge=0, description="How long an engine may take to become Ready before it is restarted."
    )
    startup_budget_reason: Annotated[str, StringConstraints(max_length=512)] | None = Field(
        None, description="What the start-up budget is made of: bytes, rate and whether it was measured, and time to compile."
    )
    effective_max_concurrency: int | None = Field(
        None,
        ge=0,
        description="Requests that one replica serves at once: spec.engine.maxConcurrency, or what its memory holds.",
    )
    metrics: MetricsStatus | None = Field(None, description="What the engines measure.")
    tuning: TuningStatus | None = Field(None, description="The tuner's last decision.")
    rollout: RolloutStatus | None = Field(None, description="The rollout under way, or the last one.")
    revisions: tuple[RevisionStatus, ...] = Field(
        (), max_length=64, description="Revisions that are kept, newest first.", json_schema_extra=list_map("name")
    )
