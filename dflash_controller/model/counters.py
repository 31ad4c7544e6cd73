"""Evidence about the candidate and the stable revision: counters of their engines and answers to the probe's prompts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """Cumulative counts of observations by upper bound, as Prometheus exposes them; the last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """The counters of one engine since its process started, under names common to all engines. None: this engine does not export it."""

    at_s: float
    """When it was read, seconds since the epoch."""
    steps: float | None = None
    """Verify steps, counted once per request and step; decode steps while speculation is off."""
    committed: float | None = None
    """Tokens committed in those steps, bonus token included."""
    decode_seconds: float | None = None
    """Time requests spent decoding in those steps, summed over requests: divided by ``steps`` it is the step time."""
    passes: float | None = None
    """Decode passes of the engine, counted once for all requests of a batch: ``steps`` ÷ ``passes`` is the mean batch."""
    requests: float | None = None
    """Requests finished, the failed ones included."""
    failed: float | None = None
    """Requests that ended in an error of the engine, without those that a client cancelled."""
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    """Prompt tokens found in the prefix cache."""
    generated_tokens: float | None = None
    accepted_at: tuple[float, ...] = ()
    """Drafts accepted at each position, where the engine exports it (vLLM)."""
    time_to_first_token: Histogram | None = None
    """Seconds to the first token, for the requests for which the engine measures it (see the metric schema)."""
    time_per_token: Histogram | None = None
    """Seconds per output token of a request."""
    latency: Histogram | None = None
    """Seconds from arrival to the last token of a request."""


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """The counters of one engine process over time. A restarted container begins a new series, because its counters begin at 0."""

    pod: str
    """Uid of the pod."""
    ready_at_s: float
    """When the pod last became Ready, seconds since the epoch."""
    readings: tuple[CounterSnapshot, ...]
    """Oldest first. The first may be from the start (all zero) or any later moment: only differences count."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An engine's answer to one prompt of the probe."""

    tokens: int
    steps: float | None
    """Verify steps it took; None if the engine does not report them."""
    seconds: float
    """Time from the first to the last token."""
    text: str
    """Digest of the text."""
    repeats: bool | None = None
    """Whether a repeated prompt gave the same text; None if the prompt was not repeated."""


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One revision's answers to the probe's prompts. Runs with the same ``prompts`` can be paired by position."""

    revision: str
    prompts: str
    """Name of the set of prompts and of what else determines the answers: their number and the token limit."""
    answers: tuple[Answer | None, ...]
    """Answers by prompt; None without an answer."""
    finished_at_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """All input of an analysis."""

    candidate: tuple[CounterSeries, ...] = ()
    stable: tuple[CounterSeries, ...] = ()
    probe: tuple[ProbeRun, ProbeRun] | None = None
    """The runs of the candidate and the reference, once both are complete."""
    candidate_restarts: int = 0
    """Container restarts of the candidate's pods since they were first Ready."""
    failure: str | None = None
    """Why metrics cannot be read at all (the source failed); None if they can, even if there are none."""
