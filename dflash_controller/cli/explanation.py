"""Why a deployment has its block size: the curves the tuner believes in, what they rest on, and what would change the decision.

Pure. A log line holds everything that a decision was made from. A live deployment stores less: its curve is read from the active revision,
load and acceptance from the status, so that the gains are those of the moment and not of the decision.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dflash_controller.api import defaults
from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.types import Spec
from dflash_controller.cli.background import Background, background, of_changes
from dflash_controller.cli.screen import idle_since, unmeasured
from dflash_controller.planning.revisions.revision import Revision
from dflash_controller.planning.revisions.roles import StoredRevisions
from dflash_controller.tuner.acceptance import Acceptance
from dflash_controller.tuner.crossover import crossover
from dflash_controller.tuner.fitted import fitted_acceptance, fitted_steps
from dflash_controller.tuner.inputs import DecisionInputs
from dflash_controller.tuner.learned import Learned, Seen
from dflash_controller.tuner.learner import Learner
from dflash_controller.tuner.policy import judge
from dflash_controller.tuner.priors import Prior, prior_of
from dflash_controller.tuner.recommend import LEAST_CONFIDENCE, ObservedLoad, Recommendation, legal, recommend
from dflash_controller.tuner.step_times import Limits, StepTimes

_LIVE_STEPS = 10_000.0
"""Verify steps that an acceptance length from the status counts for: those of some minutes."""
_LENGTHS = 40
"""Acceptance lengths that are tried to find the one at which another block size wins."""


@dataclass(frozen=True, slots=True)
class Said:
    """The decision as it was reported. ``numbers`` are those of docs/how-to/explain-a-tuner-decision.md."""

    state: str
    reason: str
    message: str
    recommendation: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    at: str = ""


@dataclass(frozen=True, slots=True)
class Lines:
    """What is known of one block size."""

    block: int
    length: float
    length_sigma: float
    """Relative error of the length: one standard deviation."""
    measured: bool
    """Whether requests were served with it lately; otherwise its length is inferred."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is printed and plotted."""

    name: str
    said: Said
    current: int
    blocks: tuple[int, ...]
    policy: TuningPolicy
    trained: int
    learned: Learned
    acceptance: Acceptance | None
    steps: StepTimes | None
    loads: tuple[ObservedLoad, ...]
    max_concurrency: int
    capacity: Mapping[int, float] = field(default_factory=dict)
    """Requests that the memory of a replica holds, by block size, where known."""
    background: Background | None = None
    """None if it is not known: a log line tells it only where the tuner chose the active block size."""
    idle_since: str = ""
    """Since when at the latest there has been no traffic, so that load and acceptance are those of before; empty if there is some."""
    unmeasured: tuple[str, str] | None = None
    """Since when nothing has been measured, and the reason; None if it is measured."""
    unseen: str = ""
    """Which generation of the spec the operator has not seen and which it has; empty if it has seen the last."""

    @property
    def concurrency(self) -> float | None:
        """Requests per replica, mean over the loads; None if none is known."""
        weight = sum(load.share for load in self.loads)
        return sum(load.concurrency * load.share for load in self.loads) / weight if weight > 0 else None

    def acceptance_lines(self) -> list[Lines]:
        """Returns the acceptance length of every block size that drafts; empty if none is known."""
        if self.acceptance is None:
            return []
        seen = {found.block for found in self.learned.acceptance}
        found = [(block, self.acceptance.length(block)) for block in self.blocks if block > 1]
        return [Lines(block, length.value, length.log_sigma, block in seen) for block, length in found]

    def concurrencies(self) -> list[int]:
        """Returns the loads at which curves are shown: powers of two up to what the engine serves."""
        return [2**power for power in range(int(math.log2(max(1, self.max_concurrency))) + 1)]

    def milliseconds(self, block: int, concurrency: float) -> float | None:
        """Returns the expected step time; None if nothing is known."""
        return None if self.steps is None else 1000 * self.steps.seconds(block, concurrency)

    def gains(self, concurrency: float) -> dict[int, float]:
        """Returns the expected gain in percent of every block size over the current one, at one load; empty if nothing is known."""
        found = self.recommended((ObservedLoad(concurrency),))
        return {forecast.block: forecast.gain_percent for forecast in found.forecasts} if found else {}

    def loss(self) -> tuple[int, float] | None:
        """Returns the fastest block size at the present load, and by how much the active one is slower than it, in percent of its speed.

        None if nothing is known.
        """
        found = self.recommended(self.loads)
        if found is None:
            return None
        gain = next(forecast.gain_percent for forecast in found.forecasts if forecast.block == found.block)
        return found.block, 100 * gain / (100 + gain)

    def changes(self) -> list[str]:
        """Returns what would change the decision, the nearest first. One sentence each."""
        return [*_by_policy(self), *_by_load(self), *_by_acceptance(self)]

    def recommended(self, loads: Sequence[ObservedLoad], acceptance: Acceptance | None = None) -> Recommendation | None:
        """Returns the fastest block size at some loads, whatever a change to it costs; None if nothing is known."""
        chosen = acceptance or self.acceptance
        if chosen is None or self.steps is None or not loads:
            return None
        return recommend(
            self.current,
            self.blocks,
            loads,
            chosen,
            self.steps,
            trained_block=self.trained,
            capacity=self.capacity,
            prefill_share=self.learned.prefill_share,
        )

    def to_json(self) -> dict[str, Any]:
        loss = self.loss()
        return {
            "deployment": self.name,
            "decision": {
                "state": self.said.state,
                "reason": self.said.reason,
                "message": self.said.message,
                "recommendation": self.said.recommendation,
                "at": self.said.at,
                "numbers": dict(self.said.numbers),
            },
            "blockSize": self.current,
            "background": self.background.to_json() if self.background else None,
            "slowerThanBestPercent": loss[1] if loss else None,
            "concurrency": self.concurrency,
            "idleSince": self.idle_since or None,
            "notMeasuredSince": self.unmeasured[0] if self.unmeasured else None,
            "notSeen": self.unseen or None,
            "acceptance": [
                {"blockSize": line.block, "length": line.length, "relativeError": line.length_sigma, "measured": line.measured}
                for line in self.acceptance_lines()
            ],
            "stepTimes": [
                {"blockSize": point.block, "concurrency": point.concurrency, "milliseconds": 1000 * point.seconds, "samples": point.weight}
                for point in self.learned.points
            ],
            "expectedGainPercent": [
                {"concurrency": load, "byBlockSize": {str(block): gain for block, gain in self.gains(load).items()}}
                for load in self.concurrencies()
            ],
            "wouldChange": self.changes(),
        }


def of_log(decision: Mapping[str, Any], message: str, at: str) -> Picture:
    """Returns the picture of a decision in the operator's log. Raises ValueError for inputs that cannot be read."""
    try:
        found = DecisionInputs.from_json(decision["inputs"])
        again = judge(found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"the inputs cannot be read: {error!r}") from error
    inputs = found.tuner_inputs
    message = message.partition(": tuner: ")[2] or message
    said = Said(again.state, again.reason.value, message or again.message, _label(again.recommendation), again.numbers, at)
    return _picture(
        f"{decision.get('namespace')}/{decision.get('deployment')}",
        said,
        inputs.speculation.max_block_size,
        inputs.policy,
        inputs.trained_block,
        found.learned,
        found.prior,
        found.limits,
        mixture=inputs.mixture,
        max_concurrency=inputs.max_concurrency,
        capacity=dict(inputs.capacity),
        background=of_changes(inputs),
    )


def of_live(
    name: str,
    spec: Spec,
    status: Mapping[str, Any],
    stored: StoredRevisions,
    stable: Revision,
    events: Sequence[Mapping[str, Any]],
    now_s: float,
) -> Picture:
    """Returns the picture of a deployment as it is now: the curve that is stored with its active revision, load and acceptance of now.

    ``events`` are those about it, oldest first.
    """
    resolved, tuning, metrics = stable.resolved, status.get("tuning") or {}, status.get("metrics") or {}
    policy, prior, current = (
        defaults.effective_tuning(spec, resolved.trained_block_size),
        prior_of(resolved),
        stable.speculation.max_block_size,
    )
    learned = _stored(stable, prior).learned(now_s, policy.window_s)
    if metrics.get("concurrency"):
        learned = replace(learned, loads=(ObservedLoad(float(metrics["concurrency"])),))
    if metrics.get("acceptanceLength") and current > 1:
        seen = Seen(current, _LIVE_STEPS, _LIVE_STEPS * float(metrics["acceptanceLength"]))
        learned = replace(learned, acceptance=(seen,))
    said = Said(
        str(tuning.get("state", "")),
        str(tuning.get("reason", "")),
        str(tuning.get("message", "")),
        str(tuning.get("recommendation", "")),
        tuning.get("inputs") or {},
        str(tuning.get("decidedAt", "")),
    )
    most = int(status.get("effectiveMaxConcurrency") or resolved.max_concurrency)
    made = _picture(
        name,
        said,
        current,
        policy,
        resolved.trained_block_size,
        learned,
        prior,
        Limits(),
        mixture=resolved.mixture_of_experts,
        max_concurrency=most,
        background=background(spec, stored, stable, status, events),
    )
    return replace(made, idle_since=idle_since(status), unmeasured=unmeasured(status))


def _picture(
    name: str,
    said: Said,
    current: int,
    policy: TuningPolicy,
    trained: int,
    learned: Learned,
    prior: Prior,
    limits: Limits,
    *,
    mixture: bool,
    max_concurrency: int,
    capacity: Mapping[int, float] | None = None,
    background: Background | None = None,
) -> Picture:
    acceptance = fitted_acceptance(learned, current, prior.decay)
    if acceptance is None and learned.drafted is not None:
        acceptance = fitted_acceptance(replace(learned, acceptance=(learned.drafted,)), current, prior.decay)
    return Picture(
        name,
        said,
        current,
        legal((1, *policy.block_sizes), current, trained),
        policy,
        trained,
        learned,
        acceptance,
        fitted_steps(learned.points, prior.steps, limits, mixture) if learned.points else None,
        learned.loads or learned.usual,
        max_concurrency,
        capacity or {},
        background,
    )


def _stored(stable: Revision, prior: Prior) -> Learner:
    try:
        return Learner.from_json(json.loads(stable.learned or "null"), prior.steps)
    except ValueError:
        return Learner(prior.steps)


def _label(speculation: Any) -> str:
    return speculation.label() if speculation is not None else ""


# What would change the decision


def _by_policy(picture: Picture) -> list[str]:
    """What the policy, the cost or time would change, by the numbers that the decision reported."""
    numbers, policy, found = picture.said.numbers, picture.policy, []
    gain, confidence = float(numbers.get("gainPercent") or 0), float(numbers.get("confidence") or 0)
    if policy.mode == "Off":
        return ["spec.tuning.mode Advise or Auto: it is Off, so nothing is compared"]
    if gain > 0 and gain < policy.min_gain_percent:
        found.append(f"spec.tuning.minGainPercent of at most {gain:.1f}: it is {policy.min_gain_percent:g}")
    if gain >= policy.min_gain_percent and 0 < confidence < LEAST_CONFIDENCE:
        found.append(f"more measurements: the confidence is {confidence:.0%}, and {LEAST_CONFIDENCE:.0%} are needed")
    regret, needed = float(numbers.get("regretSeconds") or 0), float(numbers.get("neededSeconds") or 0)
    if gain > 0 and needed > regret:
        seconds = (needed - regret) / (gain / (100 + gain))
        found.append(
            f"time: {regret:.0f} of {needed:.0f} s of full speed are lost so far, so about {seconds / 60:.0f} min more at such a load"
        )
    if gain >= policy.min_gain_percent and policy.mode == "Advise":
        found.append("spec.tuning.mode Auto: it is Advise, so the recommendation is only shown")
    return found


def _by_load(picture: Picture) -> list[str]:
    """At which load another block size would be the fastest."""
    now = picture.concurrency
    found = picture.recommended(picture.loads)
    if found is None or picture.acceptance is None or picture.steps is None or now is None:
        return []
    speeds = {forecast.block: forecast.tokens_per_s for forecast in found.forecasts}
    at = crossover(speeds, picture.acceptance, picture.steps, picture.max_concurrency, now)
    if at is None:
        best = found.block
        return [f"no other load: {_block(best)} is expected to be the fastest from 1 to {picture.max_concurrency} requests per replica"]
    side = at * (1.1 if at > now else 0.9)
    winner = max(picture.gains(side).items(), key=lambda item: item[1])[0]
    more = "more" if at > now else "fewer"
    return [f"the load: with {more} than {at:.1f} requests per replica (now {now:.1f}), {_block(winner)} is expected to be the fastest"]


def _by_acceptance(picture: Picture) -> list[str]:
    """At which acceptance length of the active block size another one would be the fastest."""
    found = picture.recommended(picture.loads)
    own = next((seen for seen in picture.learned.acceptance if seen.block == picture.current), None)
    if found is None or own is None or picture.acceptance is None:
        return []
    now, turns = own.length, []
    for place in range(_LENGTHS + 1):
        length = 1 + (picture.current - 1) * place / _LENGTHS
        acceptance = Acceptance({picture.current: max(1.001, length)}, picture.acceptance.decay)
        other = picture.recommended(picture.loads, acceptance)
        if other is not None and other.block != found.block:
            turns.append((abs(length - now), length, other.block))
    if not turns:
        return []
    _, length, block = min(turns)
    less = "below" if length < now else "above"
    return [
        f"acceptance: {less} about {length:.1f} tokens per verify step at block {picture.current} (now {now:.2f}), {_block(block)} is "
        "expected to be the fastest"
    ]


def _block(block: int) -> str:
    return "speculation off" if block <= 1 else f"block {block}"
