"""The parts of the spec that steer the operator: tuning of the block size, and rollouts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from dflash_controller.api import patterns
from dflash_controller.api.gates import Analysis
from dflash_controller.api.schema import LIVE, POLICY, Duration, DurationOrZero, IntOrPercent, Model

MAX_BLOCK_SIZE = 64

BlockSize = Annotated[int, Field(ge=1, le=MAX_BLOCK_SIZE)]
"""One known token and B - 1 drafts; 1 means that nothing is drafted."""


class Exploration(Model):
    """Trials of block sizes whose gain is not known."""

    enabled: Annotated[bool | None, POLICY] = Field(
        None,
        description="With mode Auto, try a block size on one replica if its gain is not known and knowing it is expected to be worth more "
        "than the trial. Never where one replica without surge serves. Default true.",
    )
    max_trials_per_week: Annotated[int | None, POLICY] = Field(
        None,
        ge=0,
        le=100,
        description="Most such trials of one block size at one kind of load (concurrency within a factor of 1.4) in seven days, and "
        "never more than 2 trials in 24 hours. One that ends in a change counts for maxChangesPerDay. Default 1.",
    )


class Tuning(Model):
    """How the block size follows the load."""

    mode: Annotated[Literal["Off", "Advise", "Auto"] | None, POLICY] = Field(
        None,
        description="Off runs blockSize. Advise decides and reports, but changes nothing. Auto acts. Default Advise. "
        "Going from Auto to Advise is the emergency brake: the active block size stays; a replica on trial goes back to it.",
    )
    block_sizes: Annotated[tuple[BlockSize, ...], POLICY] = Field(
        (),
        max_length=8,
        description="Block sizes to choose from, ascending, none above the drafter's trained block size; 1 stands for speculation off. "
        "Default 8 and 16, up to the trained block size.",
    )
    actuator: Annotated[Literal["Auto", "Schedule", "Restart"] | None, POLICY] = Field(
        None,
        description="How a change is made. Schedule: the engine picks the block size by load from a table (vLLM 0.26 and later). "
        "Restart: a new revision. Auto (default) uses Schedule if the engine supports it.",
    )
    min_gain_percent: Annotated[float | None, POLICY] = Field(
        None, ge=0, le=1000, description="Smallest expected gain in tokens per second that is worth a change. Default 5."
    )
    window: Annotated[Duration | None, POLICY] = Field(None, description="Time span of traffic that one decision uses. Default 5m.")
    min_dwell: Annotated[DurationOrZero | None, POLICY] = Field(None, description="Shortest time between two changes. Default 30m.")
    max_changes_per_day: Annotated[int | None, POLICY] = Field(None, ge=0, le=1000, description="Most changes in any 24 hours. Default 4.")
    allow_downtime: Annotated[bool | None, POLICY] = Field(
        None,
        description="Let a change take the last serving replica down (replicas 1 without surge). Default false.",
    )
    exploration: Exploration = Field(default_factory=Exploration, description="Trials of block sizes whose gain is not known.")


class Probe(Model):
    """Greedy prompts that the operator itself sends to one candidate pod and one stable pod, paired by prompt."""

    enabled: Annotated[bool | None, POLICY] = Field(None, description="Whether the probe runs. Default true.")
    prompts: Annotated[int | None, POLICY] = Field(None, ge=8, le=1024, description="Number of prompts. Default 64.")
    max_tokens: Annotated[int | None, POLICY] = Field(None, ge=16, le=4096, description="Output tokens per prompt. Default 256.")
    prompts_per_minute: Annotated[int | None, POLICY] = Field(
        None,
        ge=1,
        le=6000,
        description="Pace, so that the probe does not disturb users; a prompt sent to both sides counts once. Default 60.",
    )
    timeout: Annotated[Duration | None, POLICY] = Field(None, description="Longest time one prompt may take. Default 60s.")
    max_mismatch_percent: Annotated[float | None, POLICY] = Field(
        None,
        ge=0,
        le=100,
        description="Largest share of prompts whose text may differ from stable's; a drafter must not change text. Prompts to which "
        "an engine gives two answers (a near tie) are left out. Default 5.",
    )


class RolloutWindow(Model):
    """When rollouts may start. One that is under way is carried on."""

    schedule: Annotated[Annotated[str, StringConstraints(min_length=9, max_length=120, pattern=patterns.CRON)], POLICY] = Field(
        description="Start of the window as a cron expression of five fields, for instance '0 22 * * 1-5'."
    )
    duration: Annotated[Duration, POLICY] = Field(description="Length of the window, for instance 4h.")
    time_zone: Annotated[Annotated[str, StringConstraints(max_length=64, pattern=patterns.TIME_ZONE)] | None, POLICY] = Field(
        None, description="Time zone of the schedule, for instance Europe/Berlin. Default Etc/UTC."
    )


class Rollout(Model):
    """How one revision replaces another."""

    max_surge: Annotated[IntOrPercent | None, LIVE] = Field(
        None,
        description="Replicas above spec.replicas during a rollout, as a number or a percentage (rounded up). "
        "Each needs free accelerators. Default 0.",
    )
    max_unavailable: Annotated[IntOrPercent | None, LIVE] = Field(
        None, description="Replicas that may be missing during a rollout, as a number or a percentage (rounded down). Default 1."
    )
    analysis: Analysis = Field(default_factory=Analysis, description="What a candidate is judged by.")
    probe: Probe = Field(default_factory=Probe, description="The operator's own paired prompts.")
    on_inconclusive: Annotated[Literal["Hold", "Promote", "Rollback"] | None, POLICY] = Field(
        None, description="What to do if the analysis is inconclusive at the deadline. Default Hold."
    )
    automatic_rollback: Annotated[bool | None, POLICY] = Field(
        None, description="Roll back when the candidate fails; false holds the rollout for your decision. Default true."
    )
    deadline: Annotated[Duration | None, POLICY] = Field(
        None, description="Longest time for a verdict, counted from the candidate's first Ready replica. Default 2h."
    )
    paused: Annotated[bool | None, POLICY] = Field(
        None, description="Pause the rollout; a candidate that fails is rolled back all the same. Default false."
    )
    window: RolloutWindow | None = Field(None, description="When rollouts may start. Absent: at any time.")
    history_limit: Annotated[int | None, POLICY] = Field(None, ge=1, le=50, description="Old revisions to keep for rollback. Default 10.")
