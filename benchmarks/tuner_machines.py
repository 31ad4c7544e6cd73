"""Made machines: tables of step times that were not measured but drawn, for the calibration of what the tuner states.

There are few measured tables, and none was kept from the author. So more machines of each kind are drawn from ranges that physics and the
measured tables allow, with these parts of a step with T tokens for c requests:

* reading the weights, and computing in proportion to T from a knee on; the transition is between soft and sharp;
* mixtures of experts: more weights to read, the more experts the tokens activate, up to all of them;
* recurrent layers that advance position by position: a time per position of the block, much with vLLM, hardly any with SGLang;
* attention and scheduling: a little time per request;
* prefill: a time per committed token, up to what is still accepted as a sample of step times.

Every cell has 2 % noise. Machines with an even number are those that constants may be chosen on; the others are only reported.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from itertools import product

from benchmarks.tuner_priors import DATA
from benchmarks.tuner_tables import Series, load
from dflash_controller.tuner.acceptance import mean_length
from dflash_controller.tuner.machine import Machine

PER_KIND = 12
BLOCKS = (8, 16)
LOADS = (1, 2, 4, 8, 16, 32)
WORKLOADS = {"chat": 0.74, "maths": 0.86, "code": 0.9}
"""The chance that the first draft of a block is accepted."""
NOISE = 0.02
SEED = 20261129
REPORTED = 1
"""Remainder of the number of a machine, divided by 2, that is only reported."""

KINDS = tuple(
    Machine(engine, hybrid=hybrid, mixture=mixture)
    for engine, (hybrid, mixture) in product(("sglang", "vllm"), ((False, False), (False, True), (True, False)))
)
NAMES = {f"{machine.engine} {machine.kind}": machine for machine in KINDS}
MEASURED_HYBRID = DATA / "h100_vllm_hybrid.csv", DATA / "h100_vllm_hybrid_accept.csv"


def reported_tables(name: str) -> list[Series]:
    """Returns the tables of one kind, made and only reported, and for ``vllm hybrid`` those measured. Raises KeyError for another name."""
    machine = NAMES[name]
    made = [series for kind, number, tables in made_machines() if kind == machine and number % 2 == REPORTED for series in tables]
    return [*(load(*MEASURED_HYBRID) if name == "vllm hybrid" else ()), *made]


def made_machines() -> Iterator[tuple[Machine, int, list[Series]]]:
    """Yields engine and kind, the machine's number, and its tables, one per workload."""
    for machine in KINDS:
        for number in range(PER_KIND):
            draw = random.Random(f"{SEED} {machine.engine} {machine.kind} {number}")
            yield machine, number, _tables(machine, number, draw)


def _tables(machine: Machine, number: int, draw: random.Random) -> list[Series]:
    step_s = _step_s(machine, draw)
    decay = draw.gauss(0.993, 0.003)
    most = 0.7 if machine.hybrid and machine.engine == "vllm" else 0.25
    prefill_s = draw.uniform(0.0, most) * step_s(16, 32) / (32 * mean_length(WORKLOADS["maths"], decay, 16))
    found = []
    for workload, first in WORKLOADS.items():
        own = draw.gauss(decay, 0.003)
        lengths = {block: mean_length(first, own, block) for block in BLOCKS}
        speeds = {
            (block, c): c * lengths[block] / ((step_s(block, c) + prefill_s * c * lengths[block]) * math.exp(draw.gauss(0.0, NOISE)))
            for block in BLOCKS
            for c in LOADS
        }
        name = f"made {machine.engine} {machine.kind} {number}"
        found.append(Series(name, name, workload, speeds, {1: 1.0, **lengths}, machine))
    return found


def _step_s(machine: Machine, draw: random.Random) -> Callable[[int, int], float]:
    floor_s = math.exp(draw.uniform(math.log(0.004), math.log(0.03)))
    knee = draw.uniform(250.0, 700.0) if machine.mixture else draw.uniform(130.0, 320.0)
    sharpness = draw.uniform(1.0, 3.0)
    experts, activated = draw.uniform(0.3, 1.2), draw.uniform(15.0, 60.0)
    most = 0.0025 if not machine.hybrid else 0.006 if machine.engine == "sglang" else 0.08
    position, request = draw.uniform(0.0, most), draw.uniform(0.0, 0.003)

    def step_s(block: int, concurrency: int) -> float:
        tokens = block * concurrency
        memory = 1.0 + (experts * (1 - math.exp(-tokens / activated)) if machine.mixture else 0.0)
        whole: float = (memory**sharpness + (tokens / knee) ** sharpness) ** (1 / sharpness)
        return floor_s * (whole + position * block + request * concurrency)

    return step_s
