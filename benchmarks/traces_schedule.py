"""Simulates an engine that follows a table of blocks: no restart when the load changes, but longer steps below the largest block."""

from __future__ import annotations

from benchmarks.traces_fleet import MOST, Reference, Run, Setting
from benchmarks.traces_policies import EPOCH_S, Tuner
from benchmarks.traces_world import DAY
from dflash_controller.api.speculation import Schedule, Speculation
from dflash_controller.tuner.fitted import fitted_acceptance, fitted_steps
from dflash_controller.tuner.priors import Prior
from dflash_controller.tuner.schedule import best_schedule, block_at
from dflash_controller.tuner.schedule_price import MEASURED_PRICE
from dflash_controller.tuner.step_times import Limits

LEAST_GAIN_PERCENT = 5.0


def scheduled(setting: Setting, reference: Reference, prior: Prior, seed: int) -> Run:
    """Runs the start block for a day, then the table learned from it, with this one change."""
    learned = _learned(setting, prior, seed)
    result = Run(setting)
    trace, begin = setting.trace, min(DAY, setting.minutes)
    if learned.max_block_size != setting.start or isinstance(learned, Schedule):
        result.changes.append((begin, setting.start, learned.max_block_size))
    for minute, (cell, load) in enumerate(zip(trace.cells, trace.loads, strict=True)):
        if minute < begin:
            speed = reference.whole(setting.start)[minute]
        elif result.changes and minute < begin + setting.change:
            speed = reference.mixed(minute, setting.start, setting.start, 0)
        else:
            block = block_at(learned, round(load))
            slower = MEASURED_PRICE.factor(block, learned) if isinstance(learned, Schedule) else 1.0
            speed = setting.replicas * cell.speed(block, load) / slower
        result.speeds.append(speed)
    return result.closed(reference)


def _learned(setting: Setting, prior: Prior, seed: int) -> Speculation:
    tuner = Tuner(setting, setting.candidate_blocks, prior, seed)
    for minute in range(min(DAY, setting.minutes)):
        if minute not in setting.trace.gaps:
            tuner.observe(minute, setting.start, setting.trace.loads[minute], [setting.start] * setting.replicas)
    learned = tuner.learner.learned(EPOCH_S + 60.0 * min(DAY, setting.minutes))
    acceptance = fitted_acceptance(learned, setting.start, prior.decay)
    assert acceptance is not None
    steps = fitted_steps(learned.points, prior.steps, Limits(), tuner.mixture)
    candidate_blocks = [candidate_block for candidate_block in setting.candidate_blocks if candidate_block > 1]
    return best_schedule(
        candidate_blocks,
        MOST,
        acceptance,
        steps,
        trained_block=max(candidate_blocks),
        min_gain_percent=LEAST_GAIN_PERCENT,
        loads=learned.usual,
    )
