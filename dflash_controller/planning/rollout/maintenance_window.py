"""The maintenance window: whether a rollout may start now, and when that changes.

A window begins at the times its cron expression names, in its time zone, and lasts its duration on the clock, not on the wall. Where
clocks change, starts are those of Debian's cron, which CronSim reproduces: a start in the hour that is skipped is made up for when the
hour ends, and one in the hour that comes twice counts once, the first time; expressions that begin with ``*`` in their minute or hour
follow real time through both.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dflash_controller.api.defaults import MaintenanceWindow

LOOK_AHEAD_STARTS = 1000
"""Starts looked at to find the end of an open window whose next start comes before it: more than two years of daily ones."""


@dataclass(frozen=True, slots=True)
class Opening:
    """``changes_at`` (UTC) is when an open window closes, or when a closed one opens next.

    None: never, or, for an open window, not within the next LOOK_AHEAD_STARTS starts (one as long as its period is always open).
    """

    open: bool
    changes_at: datetime | None


def opening(window: MaintenanceWindow, now: datetime) -> Opening:
    """The state of the window at ``now`` (with a time zone). The start belongs to the window, the end does not.

    A schedule that names no day there is never opens; ``api.validation.window_problems`` tells its author. Raises what ZoneInfo
    raises for an unknown time zone, which the same function finds first.
    """
    length = timedelta(seconds=window.duration_s)
    starts = _starts(window, now - length)
    first = next(starts, None)
    if first is None or first > now:
        return Opening(open=False, changes_at=first)
    return Opening(open=True, changes_at=_end(first + length, starts, length))


def _starts(window: MaintenanceWindow, after: datetime) -> Iterator[datetime]:
    """Every start later than ``after``, in order and in UTC: datetimes of one time zone would be compared by the wall clock."""
    try:
        found = CronSim(window.schedule, after.astimezone(ZoneInfo(window.time_zone)))
    except CronSimError:
        return
    for local in found:
        start = local.astimezone(UTC)
        # CronSim goes by the wall clock, so in the second pass of a doubled hour it names starts of the first.
        if start > after:
            yield start


def _end(closes: datetime, starts: Iterator[datetime], length: timedelta) -> datetime | None:
    """When the window really closes: a start before its end, or right at it, prolongs it."""
    for count, start in enumerate(starts):
        if start > closes:
            break
        if count == LOOK_AHEAD_STARTS:
            return None
        closes = start + length
    return closes
