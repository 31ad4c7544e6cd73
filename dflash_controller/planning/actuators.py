"""The ways in which engines get another block size, and whether each may be chosen for a revision.

What the tuner decides is a speculation. A restart brings any of them, as a new revision. An engine that changes the block size by itself is
told once how to: such a way is one more actuator here, one more kind of speculation, and a price that is known before Auto chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.speculation import Schedule
from dflash_controller.engines import ENGINES
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.tuner.schedule_price import SchedulePrice


class Actuator(Protocol):
    """One way in which the engine gets another block size."""

    def unavailable(self, stable: Revision, tuning: TuningPolicy, price: SchedulePrice | None) -> str:
        """Returns why it is not chosen, in a few words; empty if it may be. ``price`` is how much longer its steps take, if known."""


class Restart:
    """A new revision, one replica after the other."""

    def unavailable(self, stable: Revision, tuning: TuningPolicy, price: SchedulePrice | None) -> str:
        return ""


class EngineSchedule:
    """The engine follows a table of block sizes by itself.

    With actuator Auto it is chosen only if its price is known for this kind of machine. With Schedule the user has chosen it.
    """

    def unavailable(self, stable: Revision, tuning: TuningPolicy, price: SchedulePrice | None) -> str:
        if tuning.actuator == "Restart":
            return "spec.tuning.actuator is Restart"
        table = Schedule(((1, stable.resolved.max_concurrency, stable.resolved.trained_block_size - 1),))
        if problems := ENGINES[stable.resolved.engine].problems(stable.resolved.launch_request(table)):
            return problems[0].message
        if tuning.actuator == "Auto" and price is None:
            return "its price is not known for this engine and kind of target"
        return ""


ACTUATORS: Mapping[str, Actuator] = {"Restart": Restart(), "Schedule": EngineSchedule()}
"""By the value of ``spec.tuning.actuator`` that names it."""
