"""Decides whether the maintenance window lets a rollout start now, and when that changes.

A window starts at the times of its cron expression, in its time zone. Its duration is elapsed time, not wall-clock time. When clocks
change, starts follow Debian's cron, which CronSim reproduces. A start in the skipped hour happens when that hour ends. A start in the
repeated hour counts once, the first time. Expressions whose minute or hour begins with ``*`` follow real time through both changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from dflash_controller.api.defaults import MaintenanceWindow

LOOK_AHEAD_STARTS = 1000
"""Number of starts checked for the end of a window that its next start prolongs: more than two years of daily starts."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The state of a window. ``changes_at`` (UTC) is when an open window closes or a closed one opens.

    ``changes_at`` is None if that never happens, or if an open window does not close within the next LOOK_AHEAD_STARTS starts. A window as
    long as its period is always open.
    """

    open: bool
    changes_at: datetime | None


def opening(window: MaintenanceWindow, now: datetime) -> Opening:
    """Returns the state of the window at ``now`` (with a time zone). The start belongs to the window, the end does not.

    A schedule that names no existing day never opens; ``api.validation.window_problems`` reports it to the user. Raises the errors of
    ZoneInfo for an unknown time zone, which ``window_problems`` finds first.
    """
    length = timedelta(seconds=window.duration_s)
    starts = _starts(window, now - length)
    first = next(starts, None)
    if first is None or first > now:
        return Opening(open=False, changes_at=first)
    return Opening(open=True, changes_at=_end(first + length, starts, length))


def _starts(window: MaintenanceWindow, after: datetime) -> Iterator[datetime]:
    """Yields every start later than ``after``, in order.

    Starts are in UTC, because Python compares two datetimes of one time zone by the wall clock.
    """
    try:
        found = CronSim(window.schedule, after.astimezone(ZoneInfo(window.time_zone)))
    except CronSimError:
        return
    for local in found:
        start = local.astimezone(UTC)
        # CronSim follows the wall clock, so in the second pass of a repeated hour it returns starts of the first pass.
        if start > after:
            yield start


def _end(closes: datetime, starts: Iterator[datetime], length: timedelta) -> datetime | None:
    """Returns when the window really closes. A start before its end, or exactly at it, prolongs it."""
    for count, start in enumerate(starts):
        if start > closes:
            break
        if count == LOOK_AHEAD_STARTS:
            return None
        closes = start + length
    return closes
