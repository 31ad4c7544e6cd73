"""What is known of a candidate and of the revision in force: counters of their engines, and the answers to the probe's prompts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """Observations so far by upper bound, cumulative as Prometheus exposes them; the last bound is infinite."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """The counters of one engine since its process started, in terms all engines share. None: this engine does not export it."""

    at_s: float
    """When it was read, seconds since the epoch."""
    steps: float | None = None
    """Verify steps, counted once per request and step; decode steps where nothing is drafted."""
    committed: float | None = None
    """Tokens committed in those steps, bonus token included."""
    decode_seconds: float | None = None
    """Time requests spent decoding in those steps, summed over requests: divided by ``steps`` it is the step time."""
    passes: float | None = None
    """Decode passes of the engine, counted once for all requests of a batch: ``steps`` ÷ ``passes`` is the mean batch."""
    requests: float | None = None
    """Requests finished, the failed ones included."""
    failed: float | None = None
    """Requests that ended in an error of the engine (not those a client broke off)."""
    prompt_tokens: float | None = None
    cached_tokens: float | None = None
    """Prompt tokens found in the prefix cache."""
    generated_tokens: float | None = None
    accepted_at: tuple[float, ...] = ()
    """Drafts accepted at each position, where the engine exports it (vLLM)."""
    time_to_first_token: Histogram | None = None
    """Seconds, of requests for which the engine measures it at the first token (see the dialect)."""
    time_per_token: Histogram | None = None
    """Seconds per output token of a request."""
    latency: Histogram | None = None
    """Seconds from arrival to the last token of a request."""


@dataclass(frozen=True, slots=True)
class CounterSeries:
    """One life of one engine process. A restarted container begins a new trace, as its counters begin at 0 again."""

    pod: str
    """Uid of the pod."""
    ready_at_s: float
    """When the pod last became Ready, seconds since the epoch."""
    readings: tuple[CounterSnapshot, ...]
    """Oldest first. The first may be the counters at the start (all zero) or any later moment: only differences count."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What one engine answered to one prompt of the probe."""

    tokens: int
    steps: float | None
    """Verify steps it took; None where the engine does not tell."""
    seconds: float
    """From the first to the last token."""
    text: str
    """Digest of the text."""
    repeats: bool | None = None
    """Whether the engine gave the same text when asked again; None where it was not asked again."""


@dataclass(frozen=True, slots=True)
class ProbeRun:
    """One revision's answers to the probe's prompts. Runs with the same ``prompts`` can be paired by position."""

    revision: str
    prompts: str
    """Names the set of prompts and what else decides the answers: their number and the tokens asked for."""
    answers: tuple[Answer | None, ...]
    """By prompt; None where there was no answer."""
    finished_at_s: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything a judgement is made from."""

    candidate: tuple[CounterSeries, ...] = ()
    stable: tuple[CounterSeries, ...] = ()
    probe: tuple[ProbeRun, ProbeRun] | None = None
    """The candidate's and the reference's, once both are complete."""
    candidate_restarts: int = 0
    """Container restarts of the candidate's pods since they were first Ready."""
    failure: str | None = None
    """Why metrics cannot be read at all (the source failed); None where they can, be they empty."""
