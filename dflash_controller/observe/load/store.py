"""Load samples of the whole fleet, kept until the tuner asks for them. Pure: the times are given."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from dflash_controller.model.load_sample import LoadSample
from dflash_controller.model.series import Span
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.load.samples import Follower
from dflash_controller.observe.pipeline.source import Target

_AFTER_READY_S = 10.0
"""What a pod does in these seconds is not told at all. Longer ones teach no step times (``warm_up``)."""
_KEPT = 2000
"""Of one revision: two hours of its four pods, were nobody to ask."""


class LoadSampleStore:
    """By deployment and revision; each load sample is told once. ``warm_up_s``: as ``Follower`` has it."""

    def __init__(self, warm_up_s: float) -> None:
        self._warm_up_s = warm_up_s
        self._followers: dict[str, Follower] = {}
        self._kept: dict[Key, dict[str, deque[LoadSample]]] = {}

    def take(self, targets: Collection[Target], spans: Mapping[str, Sequence[Span]], stable: Callable[[Key], str | None]) -> None:
        """Take a round's spans by pod uid, oldest first. ``stable``: a deployment's revision in force. Its load samples and those of the
        candidate are kept."""
        present = {target.uid for target in targets}
        tried = {(target.key, target.revision) for target in targets if target.candidate}
        for gone in self._followers.keys() - present:
            del self._followers[gone]
        for target in targets:
            told = spans.get(target.uid, ())
            if not told or (stable(target.key) != target.revision and not target.candidate):
                continue
            made = self._follow(target, [one for one in told if one.end_s - one.window.seconds >= target.ready_at_s + _AFTER_READY_S])
            kept = self._kept.setdefault(target.key, {})
            kept.setdefault(target.revision, deque(maxlen=_KEPT)).extend(made)
            for old in [known for known in kept if known != stable(target.key) and (target.key, known) not in tried]:
                del kept[old]

    def drain(self, key: Key, revision: str) -> list[LoadSample]:
        """What was not told yet of that revision, by time."""
        kept = self._kept.get(key, {}).pop(revision, ())
        return sorted(kept, key=lambda load_sample: load_sample.at_s)

    def forget(self, gone: Callable[[Key], bool]) -> None:
        """Drop what is kept of deployments that are gone."""
        for key in [key for key in self._kept if gone(key)]:
            del self._kept[key]

    def _follow(self, target: Target, spans: Sequence[Span]) -> list[LoadSample]:
        follower = self._followers.setdefault(target.uid, self._follower(target))
        # A past that arrives late is followed apart: it does not come before what was seen last.
        late = [span for span in spans if span.end_s <= follower.last_s]
        past = self._follower(target)
        made = [past.take(span.window, span.end_s) for span in late]
        made += [follower.take(span.window, span.end_s) for span in spans if span.end_s > follower.last_s]
        return [load_sample for load_sample in made if load_sample is not None]

    def _follower(self, target: Target) -> Follower:
        return Follower(target.engine, target.speculation_on, self._warm_up_s)
