"""Concurrency told from steps against Little's law (Little 1961): requests that end per second × how long each was decoded.

Requests' steps per second × the time of one must come to the same, over a time that is long beside one request. What is in flight at either
end of that time is counted by one of the two alone: engines count steps as they happen, and a request's duration when it ends. Where they
differ by more than that explains, a counter does not mean what it is taken for: another release, ranks counted twice, a series dropped on
the way. Both are blind to passes counted wrongly, which looks like idle time or like a load that moves. Engines' gauges of running requests
are no witness: SGLang's showed 20 of 32. Pure.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

MORE, LESS = 0.15, 0.5
"""Parts by which requests that ended may tell more, and less, than steps do, apart from what is in flight. Less is usual where clients
break off: their requests leave steps behind, and neither engine counts them for certain when they end."""
_IN_FLIGHT = 2.0
"""Mean durations that a request in flight may have behind it. It is half of one where all last equally long, a whole one where durations
scatter as much as their mean, two where their variance is three times that."""
_LIVES = 20.0
"""Mean durations of a request that are looked at together."""
_LEAST_REQUESTS = 10.0
_KEPT = 40


@dataclass(frozen=True, slots=True)
class Counted:
    """What a window counts."""

    seconds: float
    batch: float
    """Requests in a step, mean over the steps."""
    steps: float
    """Requests' steps, as they happened."""
    step_seconds: float
    """Time that ``told_steps`` took."""
    told_steps: float
    requests: float
    """That ended."""
    lived_s: float
    """For how long they were decoded, in all."""


class LittlesLaw:
    """Follows one pod."""

    def __init__(self) -> None:
        self._kept: deque[Counted] = deque(maxlen=_KEPT)

    def clear(self) -> None:
        """Forget what was seen: requests waited within their decoding, which no step counts."""
        self._kept.clear()

    def contradicts(self, new: Counted) -> bool:
        """Whether the concurrency of this window, with those before it, cannot be right. False also where too little was seen to say."""
        self._kept.append(new)
        seconds = steps = step_seconds = told = requests = lived = most = 0.0
        enough = False
        for one in reversed(self._kept):
            most = max(most, one.batch)
            if enough:
                # Of this one only what was in flight at its end.
                break
            seconds += one.seconds
            steps, step_seconds, told = steps + one.steps, step_seconds + one.step_seconds, told + one.told_steps
            requests, lived = requests + one.requests, lived + one.lived_s
            enough = requests >= _LEAST_REQUESTS and seconds * requests >= _LIVES * lived
        else:
            return False
        if told <= 0 or new.batch <= 0:
            return False
        own_s = step_seconds / told
        by_steps = steps * own_s
        # Beside what is in flight, the last step of a request may be counted by one of the two only.
        unknown = _IN_FLIGHT * most * lived / requests + requests * own_s
        return lived - by_steps > MORE * by_steps + unknown or by_steps - lived > LESS * by_steps + unknown
