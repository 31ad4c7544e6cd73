"""The predicted gain of a change at the current load, against which the candidate is judged during its trial."""

from __future__ import annotations

import math
from dataclasses import replace

from dflash_controller.api.speculation import Speculation
from dflash_controller.model.prediction import Prediction
from dflash_controller.tuner.fitted import fitted_acceptance, fitted_steps
from dflash_controller.tuner.learned import Learned
from dflash_controller.tuner.priors import Prior, Priors
from dflash_controller.tuner.schedule import mean_log_speed
from dflash_controller.tuner.schedule_price import MEASURED_PRICE, SchedulePrice
from dflash_controller.tuner.step_times import Limits

KEPT_SHARE = 0.5
"""Share of the predicted gain that a candidate must reach, unless it reaches spec.tuning.minGainPercent."""


def predict(
    learned: Learned | None,
    now: Speculation,
    then: Speculation,
    *,
    mixture: bool,
    min_gain_percent: float,
    exploratory: bool = False,
    price: SchedulePrice = MEASURED_PRICE,
    prior: Prior | None = None,
) -> Prediction:
    """Returns the predicted gain of changing from ``now``, the active speculation that served what was ``learned``, to ``then``.

    ``prior`` must be that of the decision, and defaults to the project's for an unknown engine. The prediction is 0 if there is no data, or
    if the load has moved so that ``now`` is faster. An exploratory trial predicts nothing: what was inferred has too large an error to
    judge a candidate by, and what was learned meanwhile comes from the candidate itself.
    """
    if exploratory:
        return Prediction(0.0, math.log1p(min_gain_percent / 100), exploratory=True)
    loads = (learned.loads or learned.usual) if learned is not None else ()
    if learned is None or not learned.points or not loads:
        return Prediction()
    prior = prior or Priors.load().prior()
    acceptance = fitted_acceptance(learned, now.max_block_size, prior.decay)
    if acceptance is None and learned.drafted is not None:
        # While the only replica is on trial, no other one measures the active speculation.
        acceptance = fitted_acceptance(replace(learned, acceptance=(learned.drafted,)), now.max_block_size, prior.decay)
    if acceptance is None:
        return Prediction()
    steps = fitted_steps(learned.points, prior.steps, Limits(), mixture)
    before, after = (mean_log_speed(one, loads, acceptance, steps, price=price) for one in (now, then))
    gain = max(0.0, after - before)
    return Prediction(gain, min(KEPT_SHARE * gain, math.log1p(min_gain_percent / 100)))
