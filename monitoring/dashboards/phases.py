"""Phases and states that state timelines show, in the order of their codes. Pure."""

from __future__ import annotations

from typing import get_args

from dflash_controller.api.status import RolloutPhase, TuningState
from monitoring.dashboards.build import coded

PHASES = ("None", *get_args(RolloutPhase))
PHASE_COLORS = {
    "None": "#808080",
    "Preparing": "light-blue",
    "Canary": "blue",
    "Analyzing": "purple",
    "Progressing": "light-green",
    "Completed": "green",
    "Paused": "yellow",
    "Held": "orange",
    "RollingBack": "light-red",
    "RolledBack": "red",
    "Superseded": "#808080",
    "Suspended": "yellow",
}
TUNED_TOO = "A change of block size by the tuner is a rollout too."
"""What every panel says that shows the phases of rollouts over time."""
TUNER_STATES = get_args(TuningState)
TUNER_COLORS = {"Off": "#808080", "Learning": "light-blue", "Advising": "blue", "Tuning": "green", "Frozen": "purple", "Held": "orange"}


def phase_codes() -> str:
    """Returns the query for the phase of the selected deployments as its position in ``PHASES``."""
    return coded("dflash:rollout_phase", "phase", PHASES)


def tuner_codes() -> str:
    """Returns the query for the state of their tuners as its position in ``TUNER_STATES``."""
    return coded("dflash:tuner_state", "state", TUNER_STATES)
