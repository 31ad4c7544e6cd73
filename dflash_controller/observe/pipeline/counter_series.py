"""What is kept of the engines' counters for judging a candidate. Pure: the times are given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_controller.model.counters import CounterSeries, CounterSnapshot, Histogram
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.pipeline.source import Target

_GROWING = ("passes", "requests", "failed", "prompt_tokens", "cached_tokens", "generated_tokens")
"""Counters that never fall while a process lives, in every dialect. (SGLang's decode time is a difference and may.)"""
_COUNTERS = (*_GROWING, "steps", "committed", "decode_seconds")
_HISTOGRAMS = ("time_to_first_token", "time_per_token", "latency")


@dataclass(slots=True)
class _ProcessIncarnation:
    ready_at_s: float
    readings: list[CounterSnapshot]


@dataclass(slots=True)
class _Pod:
    key: Key
    revision: str
    lives: list[_ProcessIncarnation] = field(default_factory=list)


class CounterSeriesStore:
    """The readings of the fleet's pods, by pod and life of its process.

    A deployment under trial keeps all readings of the last ``depth_s`` seconds, those of its pods that are gone included: with one replica
    they are the "before". Any other keeps the last ``recent_s`` of the pods it has, for a trial may begin at any time. A deployment without
    any pod keeps what it has until it is ``depth_s`` old: it may be between its old pod and its new one.
    """

    def __init__(self, recent_s: float = 300.0, depth_s: float = 9000.0) -> None:
        self._recent_s = recent_s
        self._depth_s = depth_s
        self._pods: dict[str, _Pod] = {}

    def take(self, now_s: float, targets: Collection[Target], readings: Mapping[str, Sequence[CounterSnapshot]]) -> None:
        """Take a round's readings by pod uid, oldest first. ``now_s``: seconds since the epoch."""
        for target in targets:
            new = readings.get(target.uid)
            if new:
                self._extend(target, new)
        present = {target.uid for target in targets}
        seen = {target.key for target in targets}
        on_trial = {target.key for target in targets if target.on_trial}
        for uid, pod in list(self._pods.items()):
            if pod.key in seen - on_trial and uid not in present:
                del self._pods[uid]
                continue
            kept = self._depth_s if pod.key in on_trial or pod.key not in seen else self._recent_s
            pod.lives = [life for life in pod.lives if _trim(life, now_s - kept)]
            if not pod.lives:
                del self._pods[uid]

    def of(self, key: Key, revision: str) -> tuple[CounterSeries, ...]:
        """The traces of a revision's pods, each pod's lives in order."""
        return tuple(
            CounterSeries(uid, life.ready_at_s, _complete(life.readings))
            for uid, pod in sorted(self._pods.items())
            if (pod.key, pod.revision) == (key, revision)
            for life in pod.lives
        )

    def _extend(self, target: Target, new: Iterable[CounterSnapshot]) -> None:
        pod = self._pods.setdefault(target.uid, _Pod(target.key, target.revision))
        first = pod.lives[0].readings[0].at_s if pod.lives else None
        earlier = [one for one in new if first is not None and one.at_s < first]
        if earlier:
            # History that arrives late is put in front: everything is told again in order.
            lives, pod.lives = pod.lives, []
            for one in earlier:
                _add(pod, lives[0].ready_at_s, one)
            for life in lives:
                for one in life.readings:
                    _add(pod, life.ready_at_s, one)
        for one in new:
            _add(pod, target.ready_at_s, one)


def _add(pod: _Pod, ready_at_s: float, new: CounterSnapshot) -> None:
    """Append a reading that is newer than the last, to a new life where the process began again.

    That is told by a counter that fell or vanished, or by a new time of readiness: a container that restarts is not Ready meanwhile, and
    what it counted before the operator saw it again may exceed what was there.
    """
    if not pod.lives:
        pod.lives.append(_ProcessIncarnation(ready_at_s, [new]))
        return
    life = pod.lives[-1]
    last = life.readings[-1]
    if new.at_s <= last.at_s:
        return
    if ready_at_s != life.ready_at_s or _restarted(last, new):
        pod.lives.append(_ProcessIncarnation(ready_at_s, [new]))
        return
    new = _sharing(last, new)
    if len(life.readings) >= 2 and _stood(life.readings[-2], last) and _stood(last, new):
        life.readings[-1] = new
    else:
        life.readings.append(new)


def _restarted(before: CounterSnapshot, after: CounterSnapshot) -> bool:
    for name in _COUNTERS:
        old, new = getattr(before, name), getattr(after, name)
        if old is not None and (new is None or (name in _GROWING and new < old)):
            return True
    for name in _HISTOGRAMS:
        one, other = getattr(before, name), getattr(after, name)
        if one is not None and (other is None or one.bounds != other.bounds or other.counts[-1] < one.counts[-1]):
            return True
    positions = zip(before.accepted_at, after.accepted_at, strict=False)
    return len(after.accepted_at) < len(before.accepted_at) or any(new < old for old, new in positions)


def _stood(before: CounterSnapshot, after: CounterSnapshot) -> bool:
    """Nothing was counted in between: of such readings in a row only the first and the last say anything."""
    return replace(before, at_s=after.at_s) == after


def _sharing(before: CounterSnapshot, after: CounterSnapshot) -> CounterSnapshot:
    """``after``, with the histograms of ``before`` where they are equal."""
    same: dict[str, Any] = {name: getattr(before, name) for name in _HISTOGRAMS if getattr(before, name) == getattr(after, name)}
    return replace(after, **same)


def _trim(life: _ProcessIncarnation, since_s: float) -> bool:
    """Drop what is older than ``since_s``, but for the reading that the next one is compared with. False where nothing newer is left."""
    readings = life.readings
    newer = next((i for i, one in enumerate(readings) if one.at_s > since_s), None)
    if newer is None:
        return False
    del readings[: max(0, newer - 1)]
    return True


def _complete(readings: Sequence[CounterSnapshot]) -> tuple[CounterSnapshot, ...]:
    """A histogram that appeared with its first observation was empty before."""
    missing: dict[str, Any] = {}
    for name in _HISTOGRAMS:
        newest = getattr(readings[-1], name)
        if newest is not None and getattr(readings[0], name) is None:
            missing[name] = Histogram(newest.bounds, (0.0,) * len(newest.counts))
    if not missing:
        return tuple(readings)
    return tuple(replace(one, **{name: empty for name, empty in missing.items() if getattr(one, name) is None}) for one in readings)
