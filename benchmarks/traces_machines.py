"""Simulated machines that serve a hybrid target: their step time has a part that goes with the block alone, and prefill takes time.

s(B, c) = f(T) + g·B + c·τ/L·P, with T = B·c: a base and computation f(T) = a·(1 + (T/k)^h), g seconds for each position of the block
whatever the load is (recurrent state is computed position by position), and P seconds of prefill for each request of L tokens, which stops
the decoding of all others. With vLLM 0.26.0 and the shape of Qwen3.5-9B on an H100, steps took 14.7 / 15.3 / 27.9 ms at block 16 with 1 / 8
/ 32 requests and 10.3 / 11.7 / 17.9 ms at block 8, without prefill of about 55 ms a request; g is about 0.45 ms.

The first half of the machines is for choosing constants, the second for reporting. Those of ``tuner_machines`` are drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.tuner_machines import REPORTED, made_machines
from benchmarks.tuner_tables import Series
from dflash_controller.tuner.acceptance import mean_length
from dflash_controller.tuner.machine import Machine

LOADS = (1, 2, 4, 8, 16, 32, 64)
BLOCKS = (8, 16)
VLLM_HYBRID = Machine("vllm", hybrid=True)


@dataclass(frozen=True)
class Simulated:
    """True step times of a replica, in seconds."""

    name: str
    base_s: float
    knee_tokens: float
    rise: float
    """Exponent h of computation."""
    position_s: float
    """g."""
    prefill_s: float
    """P."""
    output_tokens: float
    """L."""
    acceptance: float
    """Conditional acceptance of the first draft; it falls by 0.7 % from draft to draft."""
    chosen_on: bool
    """Whether constants may be chosen on it."""

    def step_s(self, block: int, load: float) -> float:
        decode_s = self.base_s * (1 + (block * load / self.knee_tokens) ** self.rise) + self.position_s * block
        return float(decode_s + load * self.length(block) / self.output_tokens * self.prefill_s)

    def length(self, block: int) -> float:
        return mean_length(self.acceptance, 0.993, block)

    def series(self, workload: str = "chat") -> Series:
        """Returns its speeds as a table."""
        lengths = {block: self.length(block) for block in BLOCKS}
        speeds = {(block, load): load * lengths[block] / self.step_s(block, load) for block in BLOCKS for load in LOADS}
        return Series("simulated", f"hybrid-{self.name}", workload, speeds, lengths, VLLM_HYBRID)


MACHINES = (
    # The machine that was measured.
    Simulated("h100", 0.0061, 220.0, 1.0, 0.00045, 0.055, 400.0, 0.88, True),
    # The same, on which the law holds: SGLang's hybrids.
    Simulated("law", 0.0065, 200.0, 1.0, 0.0, 0.030, 400.0, 0.88, True),
    # Much goes with the block, and drafts are seldom accepted: the small block is better everywhere.
    Simulated("slow-state", 0.0080, 300.0, 1.1, 0.00090, 0.040, 300.0, 0.80, True),
    # Little goes with the block, and drafts are often accepted: the large block is better at most loads.
    Simulated("eager", 0.0100, 260.0, 0.9, 0.00015, 0.040, 500.0, 0.93, True),
    Simulated("fast", 0.0040, 350.0, 1.0, 0.00030, 0.025, 300.0, 0.86, False),
    Simulated("large", 0.0180, 140.0, 1.0, 0.00070, 0.120, 600.0, 0.87, False),
    Simulated("shy", 0.0070, 180.0, 1.2, 0.00055, 0.050, 250.0, 0.78, False),
    Simulated("eager-large", 0.0150, 220.0, 0.9, 0.00020, 0.080, 500.0, 0.94, False),
)


def hybrid_tables(*, chosen_on: bool) -> Iterator[tuple[Series, Series]]:
    """Yields the tables of two workloads of every machine, of those above and of ``tuner_machines``."""
    for simulated in MACHINES:
        if simulated.chosen_on is chosen_on:
            yield simulated.series(), replace(simulated, acceptance=simulated.acceptance - 0.1).series("story")
    for machine, number, tables in made_machines():
        if machine == VLLM_HYBRID and (number % 2 != REPORTED) is chosen_on:
            named = [replace(series, model=f"hybrid-made-{number}") for series in tables]
            yield named[number % len(named)], named[(number + 1) % len(named)]


def gain_percent(machine: Simulated, load: float) -> float:
    """Returns by how much the small block is faster than the large one."""
    small, large = (machine.length(block) / machine.step_s(block, load) for block in BLOCKS)
    return 100 * math.expm1(math.log(small / large))
