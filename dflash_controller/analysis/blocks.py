"""Counts of each side while both served, cut into blocks of requests.

The spread of a quotient is computed from blocks, never from single drafts. Drafts of one request resemble each other, and so do requests of
one session. An engine that credits a request when it ends moves its counters in lumps. Blocks are long compared with all of these.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from dflash_controller.analysis import histograms
from dflash_controller.model.counters import CounterSeries, CounterSnapshot, Evidence

BLOCK_REQUESTS = 30
BLOCK_LATENCIES = 3
"""Minimum size of a block: this many requests, and this many times the 95th percentile of their latency."""
LEAST_BLOCKS = 8
"""Minimum blocks per side. With fewer, the spread among blocks is meaningless."""
MOST_BLOCKS = 24
"""Maximum blocks per process. Above it neighbouring blocks are merged, so blocks grow with the evidence. They then outlast what makes
neighbours alike: sessions, or a mix that drifts. 12 to 24 blocks remain. This costs about a tenth of width compared with a known spread
(Schmeiser 1982 on the number of batches). In simulation 32 blocks understated the spread of sessions of a few minutes by a fifth, and 16
promoted equal candidates a little later."""
TAIL = 0.95


@dataclass(frozen=True, slots=True)
class Counts:
    """Differences between two readings of one process, in the units of ``CounterSnapshot``. None: not exported."""

    seconds: float
    requests: float | None
    failed: float | None
    steps: float | None
    committed: float | None
    decode_seconds: float | None
    passes: float | None
    prompt_tokens: float | None
    cached_tokens: float | None
    generated_tokens: float | None


@dataclass(frozen=True)
class Stretch:
    """The counted part of one trace."""

    pod: str
    readings: tuple[CounterSnapshot, ...]
    """At least one reading. A counter that is missing here but present in a later reading was 0: labelled counters appear with their first
    increment."""

    def between(self, first: int, last: int) -> Counts:
        """Returns the differences between two readings, given by index."""
        start, end = self.readings[first], self.readings[last]
        return Counts(
            end.at_s - start.at_s,
            _moved(end.requests, start.requests),
            _moved(end.failed, start.failed),
            _moved(end.steps, start.steps),
            _moved(end.committed, start.committed),
            _moved(end.decode_seconds, start.decode_seconds),
            _moved(end.passes, start.passes),
            _moved(end.prompt_tokens, start.prompt_tokens),
            _moved(end.cached_tokens, start.cached_tokens),
            _moved(end.generated_tokens, start.generated_tokens),
        )

    @cached_property
    def whole(self) -> Counts:
        return self.between(0, len(self.readings) - 1)

    def index(self, at_s: float) -> int:
        """Returns the index of the last reading not after this moment, or 0 if there is none."""
        return max(0, bisect_right(self.readings, at_s, key=_at) - 1)

    def cut(self, least_s: float) -> tuple[Counts, ...]:
        """Returns the blocks in one pass. The remainder at the end joins the last block; too little for one block returns none."""
        edges = [0]
        opened = self.readings[0]
        done = opened.requests or 0.0
        opened_s = opened.at_s
        for index, reading in enumerate(self.readings):
            requests = reading.requests
            if requests is not None and requests - done >= BLOCK_REQUESTS and reading.at_s - opened_s >= least_s:
                edges.append(index)
                done, opened_s = requests, reading.at_s
        while len(edges) > MOST_BLOCKS + 1:
            edges = edges[::2]
        if len(edges) > 1:
            edges[-1] = len(self.readings) - 1
        return tuple(self.between(first, last) for first, last in pairwise(edges))


@dataclass(frozen=True)
class Side:
    """One revision's part of the comparison."""

    load_samples: tuple[Stretch, ...]
    blocks: tuple[tuple[str, tuple[Counts, ...]], ...]
    """Blocks by pod, for pods with at least one block."""

    def total(self, quantity: str) -> float | None:
        """Returns the sum over all load samples that export the quantity, short ones included; None if none does."""
        found = [value for load_sample in self.load_samples if (value := getattr(load_sample.whole, quantity)) is not None]
        return sum(found) if found else None

    @property
    def newest_s(self) -> float | None:
        return max((load_sample.readings[-1].at_s for load_sample in self.load_samples), default=None)

    def latency_s(self) -> float:
        """Returns the 95th percentile of the latency in seconds, three times the mean decode time if it is not exported, 0 if neither
        is."""
        ends = ((load_sample.readings[0], load_sample.readings[-1]) for load_sample in self.load_samples)
        measured = histograms.quantile(histograms.total(histograms.difference(b.latency, a.latency) for a, b in ends), TAIL)
        if measured is not None:
            return measured
        requests, decoding = self.total("requests"), self.total("decode_seconds")
        return 3 * decoding / requests if requests and decoding else 0.0


@dataclass(frozen=True)
class Traffic:
    """Both sides over the same span of time, without the candidate's warm-up."""

    candidate: Side
    stable: Side
    start_s: float | None
    end_s: float | None
    """Start and end of the span; None if the candidate has none yet."""


def traffic(evidence: Evidence, warm_up_s: float, *, concurrent: bool) -> Traffic:
    """Returns the traffic of both sides that may be compared.

    The warm-up of every candidate process is left out: its first ``warm_up_s``, or the 95th percentile of the latency if that is longer.
    Until then requests finish that began while graphs and kernels were compiled. Stable is counted from the first to the last counted
    reading of the candidate, or over all its readings if the two do not serve at the same time. A stable process that began during the span
    warms up like the candidate.
    """
    wholes = _side([_load_sample(trace, trace.readings[0].at_s, trace.readings[-1].at_s) for trace in evidence.candidate if trace.readings])
    latency_s = wholes.latency_s()
    warm_up_s = max(warm_up_s, latency_s)
    newest = wholes.newest_s
    if newest is None:
        return Traffic(Side((), ()), Side((), ()), None, None)
    counted = [_load_sample(trace, trace.ready_at_s + warm_up_s, newest) for trace in evidence.candidate]
    start_s = min((load_sample.readings[0].at_s for load_sample in counted if load_sample), default=None)
    if start_s is None:
        return Traffic(Side((), ()), Side((), ()), None, None)
    before = float("-inf") if not concurrent else start_s
    after = float("inf") if not concurrent else newest
    stable = [_load_sample(trace, max(before, trace.ready_at_s + warm_up_s), after) for trace in evidence.stable]
    least_s = BLOCK_LATENCIES * max(latency_s, _side(stable).latency_s())
    return Traffic(_side(counted, least_s), _side(stable, least_s), start_s, newest)


def _side(found: Sequence[Stretch | None], least_s: float | None = None) -> Side:
    load_samples = tuple(load_sample for load_sample in found if load_sample is not None)
    blocks: dict[str, tuple[Counts, ...]] = {}
    if least_s is not None:
        for load_sample in load_samples:
            if cut := load_sample.cut(least_s):
                blocks[load_sample.pod] = blocks.get(load_sample.pod, ()) + cut
    return Side(load_samples, tuple(blocks.items()))


def _load_sample(trace: CounterSeries, from_s: float, to_s: float) -> Stretch | None:
    """Returns the readings from ``from_s`` to ``to_s``. One without a count of requests is incomplete, unless the process never had it
    before."""
    readings = trace.readings
    first, last = bisect_left(readings, from_s, key=_at), bisect_right(readings, to_s, key=_at)
    if first >= last:
        return None
    kept = tuple(filter(_says, readings[first:last]))
    if not any(map(_says, readings[: first + 1])):
        kept = (readings[first], *kept)
    return Stretch(trace.pod, kept) if kept else None


def _says(reading: CounterSnapshot) -> bool:
    return reading.requests is not None


def _at(reading: CounterSnapshot) -> float:
    return reading.at_s


def _moved(end: float | None, start: float | None) -> float | None:
    return None if end is None else end - (start or 0.0)
