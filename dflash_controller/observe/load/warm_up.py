"""Whether an engine process has served enough load for its step times to be learned. Pure.

Engines compile kernels while they serve: Triton and FlashInfer do so when the first request of a shape comes, a shape being a range of
batch sizes or of prompt lengths. Steps last longer meanwhile. On an H200 vLLM 0.26 compiled five kernels in the first minute under load.
The first token took 192 ms at 8 clients in it (68 ms later, in another engine), and the tuner drew a wrong curve from its step times:
docs/real-engines.md, "The tuner advised wrongly at first".

So it is load that warms an engine and not time: one that is idle for an hour after it became Ready is as slow at its first requests as any.
The time under load is told by the engine's own counter of passes, which only a new process sets back. A restart of the operator or a gap in
the metrics does not, and with several replicas each one counts for itself.

A batch size that the process has not run yet needs other kernels. They are specialised by powers of two, as are most graphs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

LEVEL = 0.25
"""Part of the warm-up that a process must have served at a level of load, or above. Chosen, not measured: one or two load samples."""
_ENOUGH = 0.9
"""Of these times. Windows under full load are busy for a little less than they last, and one more would be left out for that."""
_ALIKE = 0.1
"""Doublings by which a mean batch may exceed a power of two without being of the next level: 7 %, more than the error of the mean."""
_LONGEST_STEP_S = 0.2
"""Passes count for no more than this. (Steps of the largest targets measured last 0.1 s.) One that stands still for a minute because it
compiles shows that one pass was served, not a minute of load."""


@dataclass(slots=True)
class _Level:
    passes: float = 0.0
    step_s: float = _LONGEST_STEP_S
    """The shortest seen. With it the passes count, so that time spent on compiling does not."""

    @property
    def served_s(self) -> float:
        return self.passes * self.step_s


class WarmUp:
    """Follows one pod. ``warm_up_s``: seconds under load that a process must have served; 0: every process is warm."""

    def __init__(self, warm_up_s: float) -> None:
        self._warm_up_s = _ENOUGH * warm_up_s
        self._total = 0.0
        """Passes of the process at the end of the last window."""
        self._levels: defaultdict[int, _Level] = defaultdict(_Level)
        """What this process has served, by the batch's power of two."""

    def lasts(self, total: float, passes: float, step_s: float, batch: float) -> bool:
        """Take a window with ``passes``, and return whether the process was in its warm-up when it began.

        ``total`` are the passes of the process at the window's end; a fall means another process. Those that no window told of (before the
        operator's start, or in a gap of the metrics) count with the step time and the load of this one.
        """
        if total < self._total:
            self._total = 0.0
            self._levels.clear()
        place = math.ceil(math.log2(max(1.0, batch)) - _ALIKE)
        level = self._levels[place]
        level.step_s = min(level.step_s, step_s)
        level.passes += max(0.0, total - passes - self._total)
        served_s = sum(one.served_s for one in self._levels.values())
        at_level_s = sum(one.served_s for known, one in self._levels.items() if known >= place)
        level.passes += passes
        self._total = total
        return served_s < self._warm_up_s or at_level_s < LEVEL * self._warm_up_s
