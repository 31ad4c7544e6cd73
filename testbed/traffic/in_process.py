"""The same loads on a simulated engine without HTTP and in simulated time: minutes of load in milliseconds."""

from __future__ import annotations

import random

from testbed.simulator.batching import Request
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.text import prompt_tokens
from testbed.traffic.mix import Shot, Shots
from testbed.traffic.report import Completion, Log


def _request(engine: SimulatedEngine, shot: Shot) -> Request:
    workload = engine.batch.table.workload(shot.workload)
    return Request(workload, prompt_tokens(shot.prompt), shot.max_tokens, streaming=shot.stream)


def _completion(request: Request) -> Completion:
    assert request.finished_s is not None
    first = request.first_token_s if request.streaming else None
    return Completion(request.workload, request.arrived_s, request.finished_s, request.generated, first)


def closed_loop(engine: SimulatedEngine, shots: Shots, concurrency: int, start_s: float, end_s: float) -> Log:
    """Runs ``concurrency`` clients until ``end_s``. Each sends its next request as soon as it has its answer."""
    log = Log()
    flying = [_request(engine, shots.next()) for _ in range(concurrency)]
    for request in flying:
        engine.submit(request, start_s)
    now = start_s
    while now < end_s:
        now = engine.batch.step()
        for i, request in enumerate(flying):
            if request.finished_s is not None:
                log.completions.append(_completion(request))
                flying[i] = _request(engine, shots.next())
                engine.submit(flying[i], now)
    return log


def open_loop(engine: SimulatedEngine, shots: Shots, rate: float, start_s: float, end_s: float, seed: int = 0) -> Log:
    """Sends ``rate`` requests per second on average, at random moments, whatever the engine does. Unfinished requests are not in the
    log."""
    arrivals = random.Random(seed)
    sent: list[Request] = []
    now = start_s + arrivals.expovariate(rate)
    while now < end_s:
        request = _request(engine, shots.next())
        engine.submit(request, now)
        sent.append(request)
        now += arrivals.expovariate(rate)
    engine.advance(end_s)
    return Log([_completion(request) for request in sent if request.finished_s is not None])
