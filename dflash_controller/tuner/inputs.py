"""All inputs of a decision and their JSON form, which the log line of a decision holds and ``policy.replay`` reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from dflash_controller.api.defaults import TuningPolicy
from dflash_controller.api.speculation import parse_speculation
from dflash_controller.tuner.acceptance import Decay
from dflash_controller.tuner.decision import Change, TunerInputs
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.priors import Prior
from dflash_controller.tuner.step_times import Limits, StepPrior


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """Everything a decision depends on."""

    tuner_inputs: TunerInputs
    learned: Learned
    prior: Prior
    limits: Limits

    def to_json(self) -> dict[str, Any]:
        tuner_inputs = self.tuner_inputs
        return {
            "tuner_inputs": {
                **{name: getattr(tuner_inputs, name) for name in _PLAIN},
                "capacity": [list(entry) for entry in tuner_inputs.capacity],
                "policy": {**asdict(tuner_inputs.policy), "block_sizes": list(tuner_inputs.policy.block_sizes)},
                "speculation": tuner_inputs.speculation.to_json(),
                "changes": [list(astuple(change)) for change in tuner_inputs.changes],
            },
            "learned": self.learned.to_json(),
            "prior": {
                "kneeTokens": self.prior.steps.knee_tokens,
                "offRatio": self.prior.steps.off_ratio,
                "positionShare": [self.prior.steps.position_share, self.prior.steps.position_sigma],
                "requestShare": [self.prior.steps.request_share, self.prior.steps.request_sigma],
                "endWeight": self.prior.steps.end_weight,
                "belowSigma": self.prior.steps.below_sigma,
                "spread": self.prior.steps.spread,
                "decay": [self.prior.decay.mean, self.prior.decay.sigma],
            },
            "limits": {"tokens": list(self.limits.tokens), "concurrency": list(self.limits.concurrency)},
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> DecisionInputs:
        """The inverse. Raises KeyError, TypeError or ValueError on anything else."""
        stored = data["tuner_inputs"]
        policy = stored["policy"]
        tuner_inputs = TunerInputs(
            policy=TuningPolicy(**{**policy, "block_sizes": tuple(policy["block_sizes"])}),
            speculation=parse_speculation(stored["speculation"]),
            changes=tuple(Change(*entry) for entry in stored["changes"]),
            capacity=tuple((int(block), float(requests)) for block, requests in stored.get("capacity", ())),
            **{name: stored[name] for name in _PLAIN if name in stored},
        )
        prior, limits = data["prior"], data["limits"]
        return DecisionInputs(
            tuner_inputs,
            Learned.from_json(data["learned"]),
            Prior(_steps(prior), Decay(*prior["decay"])),
            Limits(tuple(limits["tokens"]), tuple(limits["concurrency"])),
        )


def _steps(prior: Mapping[str, Any]) -> StepPrior:
    """Returns the stored prior; one of an earlier release knew no prices."""
    known = StepPrior(prior["kneeTokens"], prior["offRatio"])
    if "positionShare" not in prior:
        return known
    position_share, position_sigma = prior["positionShare"]
    request_share, request_sigma = prior["requestShare"]
    return replace(
        known,
        position_share=position_share,
        position_sigma=position_sigma,
        request_share=request_share,
        request_sigma=request_sigma,
        end_weight=prior["endWeight"],
        below_sigma=prior["belowSigma"],
        spread=prior["spread"],
    )


_PLAIN = tuple(name for name in TunerInputs.__dataclass_fields__ if name not in ("policy", "speculation", "changes", "capacity"))
