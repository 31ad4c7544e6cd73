"""What an engine's module of metrics declares: its series, and the formulas that turn its counters into common terms. Pure.

Counters, not gauges: load gauges of SGLang are set at reports 40 decode iterations apart (with short requests they showed 20 of 32
requests) and its speculation gauges freeze while idle. Sums over pods come before quotients, so a busy pod weighs more than an idle one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from dflash_controller.model.counters import CounterSnapshot
from dflash_controller.model.decode_window import DecodeWindow, PooledAcceptance
from dflash_controller.model.measurement import NO_SERIES, Absent, Measurement, Value
from dflash_controller.model.series import CounterWindow, LabelledMetric, Scrape, Series, Since

NO_TRAFFIC = Absent("NoTraffic")
"""The counters are there and stood still over the window."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """The engine's part of the metrics: what its counters say about steps and requests."""

    acceptance_length: Measurement
    block_size: Measurement
    concurrency: Measurement
    step_time_s: Measurement
    state_slots: Measurement
    """Slots of state of one replica, which its requests share; absent where the engine or its target has none."""
    holds: Measurement
    """Requests of the present length that the cache of one replica holds; absent while too little of it is in use to say."""


@dataclass(frozen=True, slots=True)
class MetricSchema:
    """The series of one engine. Names are those of every release that runs DFlash."""

    engine: str
    prefix: str
    """Every metric of the engine starts so."""
    presence: str
    """A metric that is there from the start to the end of the process."""
    series: tuple[Series, ...]
    """What the metrics need."""
    load: Callable[[Sums, bool], EngineLoad]
    """The engine's part of the metrics from the sums of a revision, and whether speculation is on."""
    counter_snapshot: Callable[[Scrape, float, bool], CounterSnapshot]
    """What the engine had counted when a page was made, at seconds since the epoch; the last argument says whether speculation is on."""
    decode_window: Callable[[CounterWindow, bool, PooledAcceptance], DecodeWindow | None]
    """What the counters of a window say about decoding, by whether speculation is on; None where a counter it needs is missing."""
    evidence: tuple[Series, ...]
    """Further counters that a reading of a trial needs."""
    histograms: tuple[Series, ...]
    """Buckets that a reading needs."""
    passes: str
    """The quantity that counts the engine's passes, among those of a load sample."""
    load_sample_shared: tuple[str, ...]
    """Quantities of the above that a load sample is told from."""
    load_sample_more: tuple[Series, ...]
    """What else a load sample is told from.

    The queue is the smallest that was seen over the load sample: an engine may count as waiting what has only just arrived. Use of the
    cache is the largest.
    """

    @property
    def counters(self) -> tuple[Series, ...]:
        """Everything that is read of a page but its histograms."""
        return (*self.series, *self.evidence, *self.load_sample_more)

    @property
    def load_samples(self) -> tuple[Series, ...]:
        """Everything that a load sample is told from."""
        known = {one.quantity: one for one in (*self.series, *self.evidence)}
        return (*(known[quantity] for quantity in self.load_sample_shared), *self.load_sample_more)

    @property
    def load_sample_totals(self) -> tuple[Series, ...]:
        """Counters of which a load sample needs the total too, since the start of the process."""
        return tuple(one for one in self.load_samples if one.quantity == self.passes)


def missing(schema: MetricSchema, names: Collection[str], speculation_on: bool) -> tuple[str, ...]:
    """Metrics that decisions need and that ought to be among ``names``, sorted. Empty where nothing is known of the engine at all.

    Counters may appear with their first increment, so one is only missed once another shows that it has had cause to count.
    """
    if not names:
        return ()
    needed = [one for one in (*schema.counters, *schema.histograms) if one.since is not None and (speculation_on or not one.drafts)]
    reached = max((one.since for one in needed if one.since is not None and one.metric in names), default=Since.START)
    return tuple(sorted({one.metric for one in needed if one.since is not None and one.since <= reached and one.metric not in names}))


LEAST_USE, LEAST_RUNNING = 0.2, 4.0
"""Of the cache, and requests: with less of either, a request that is longer than usual decides."""


class Sums:
    """Sums over the pods of one revision."""

    def __init__(self, windows: Sequence[CounterWindow]) -> None:
        self.windows = windows
        self.age_s = max((window.age_s for window in windows), default=0.0)

    def of(self, *quantities: str) -> tuple[float, ...] | None:
        """One sum per quantity, over the pods that export all of them; None where no pod does."""
        pods = [window for window in self.windows if all(LabelledMetric(quantity) in window.deltas for quantity in quantities)]
        if not pods:
            return None
        return tuple(sum(window.deltas[LabelledMetric(quantity)] for window in pods) for quantity in quantities)

    def parts(self, quantity: str) -> dict[str, float]:
        """Sum per part."""
        total: dict[str, float] = {}
        for window in self.windows:
            for cell, delta in window.deltas.items():
                if cell.quantity == quantity:
                    total[cell.part] = total.get(cell.part, 0.0) + delta
        return total

    def rate(self, quantity: str) -> float | None:
        """Per second and pod: each pod over its own span, then the mean over the pods that export it."""
        rates = [
            w.deltas[LabelledMetric(quantity)] / w.seconds for w in self.windows if LabelledMetric(quantity) in w.deltas and w.seconds > 0
        ]
        return sum(rates) / len(rates) if rates else None

    def level(self, quantity: str) -> float | None:
        """Largest level over the pods."""
        return max((w.levels[LabelledMetric(quantity)] for w in self.windows if LabelledMetric(quantity) in w.levels), default=None)

    def holds(self) -> Measurement:
        """Requests that the cache of a pod holds, the smallest of the pods: those running ÷ the share in use, both as last reported."""
        found = []
        for window in self.windows:
            running, used = (window.levels.get(LabelledMetric(quantity)) for quantity in ("running", "cache_used"))
            if running is not None and used is not None and used >= LEAST_USE and running >= LEAST_RUNNING:
                found.append(running / used)
        return Value(min(found), 0.0, self.age_s) if found else NO_TRAFFIC

    def ratio(self, above: str, below: str, offset: float = 0.0) -> Measurement:
        """offset + Σ above ÷ Σ below, weighed by how often ``below`` was counted."""
        sums = self.of(above, below)
        if sums is None:
            return NO_SERIES
        if sums[1] <= 0:
            return NO_TRAFFIC
        return Value(offset + sums[0] / sums[1], sums[1], self.age_s)


def needed_metrics(series: Iterable[Series]) -> frozenset[str]:
    """Names of the samples to keep; everything else on a page is skipped before it is parsed."""
    return frozenset(one.metric for one in series)
