"""Verdicts on command lines from the real parsers and from ours, and where they differ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.engines import ENGINES
from testbed.contract.cases import CASES
from testbed.contract.driver import ask
from testbed.contract.environments import Environments, Release
from testbed.contract.examples import B200, H100
from testbed.contract.golden import files, read
from testbed.contract.tables import table_path, table_text
from testbed.simulator.argv import ArgvError, Host, parse

_FAKE_GPUS = {B200: "10.0:183359:8", H100: "9.0:81559:8"}
_GPUS_PER_NODE = 8
_ENTRY_POINT = {"sglang": ("python3", "-m", "sglang.launch_server"), "vllm": ("vllm", "serve")}
# vLLM 0.26's kernels for hybrid targets load only with another torch; its arguments do not depend on the target's class.
_DENSE = "Qwen/Qwen3-8B"


@dataclass(frozen=True, slots=True)
class Line:
    """A command line to check: arguments after the entry point, and the expected verdict."""

    name: str
    args: tuple[str, ...]
    env: dict[str, str]
    gpu: str
    dense: bool
    refusal: str | None
    """A part of the engine's message; None: accepted."""


@dataclass(slots=True)
class Outcome:
    """Counts of one kind of check."""

    accepted: int = 0
    refused: int = 0
    checked: int = 0
    failures: list[str] = field(default_factory=list)


def check_release(environments: Environments, release: Release) -> Outcome:
    """Checks all lines of one release with its own parser and the simulator's, and the simulator's option table. Raises DriverError."""
    outcome = Outcome()
    by_gpu: dict[str, list[Line]] = defaultdict(list)
    for line in (*_golden_lines(environments, release), *_case_lines(environments, release)):
        by_gpu[line.gpu].append(line)
    # A machine without a GPU resolves to the CPU if SGLang is not told otherwise.
    device = ("--device=cuda",) if release.engine == "sglang" else ()
    for gpu, lines in by_gpu.items():
        table, verdicts = ask(environments, release, _FAKE_GPUS[gpu], [((*line.args, *device), line.env) for line in lines])
        for line, verdict in zip(lines, verdicts, strict=True):
            outcome.checked += 1
            outcome.accepted += verdict["accepted"]
            outcome.refused += not verdict["accepted"]
            if problem := _difference(release, line, verdict):
                outcome.failures.append(f"{release}: {line.name}: {problem}")
    outcome.checked += 1
    if table_text(table) != table_path(release).read_text():
        outcome.failures.append(f"{release}: the simulator's option table is stale: run python -m testbed.contract.tables")
    return outcome


def refused_by_us() -> Outcome:
    """Checks what no parser refuses although it cannot work: ``Engine.problems`` must refuse it."""
    outcome = Outcome()
    for case in CASES:
        if case.ours is None:
            continue
        outcome.checked += 1
        outcome.refused += 1
        if not ENGINES[case.engine].problems(case.ours):
            outcome.failures.append(f"operator: {case.engine}: {case.name}: not refused")
    return outcome


def _golden_lines(environments: Environments, release: Release) -> Iterator[Line]:
    for engine, version, path in files():
        if (engine, version) != (release.engine, release.version):
            continue
        env, command = read(path)
        args = command[len(_ENTRY_POINT[engine]) :]
        dense = engine == "vllm" or any(_DENSE in arg for arg in args)
        target, drafter = _folders(environments, dense)
        local = [_localised(arg, engine, i, target, drafter) for i, arg in enumerate(args)]
        gpu = H100 if path.name.startswith("h100") else B200
        yield Line(f"{path.parent.name}/{path.stem}", tuple(local), env, gpu, dense, None)


def _case_lines(environments: Environments, release: Release) -> Iterator[Line]:
    for case in CASES:
        if case.engine == release.engine:
            dense = case.dense or case.engine == "vllm"
            args = tuple(case.command(*_folders(environments, dense)))
            yield Line(case.name, args, {}, case.gpu, dense, case.refused.get(release.version))


def _folders(environments: Environments, dense: bool) -> tuple[str, str]:
    kind = "dense" if dense else "hybrid"
    return str(environments.models / kind), str(environments.models / f"{kind}-drafter")


def _localised(arg: str, engine: str, position: int, target: str, drafter: str) -> str:
    """Returns an argument with repository ids replaced by folders, which resolve offline, and with LeaderWorkerSet's variables expanded."""
    name, _, value = arg.partition("=")
    if name == "--model-path":
        return f"{name}={target}"
    if name == "--speculative-draft-model-path":
        return f"{name}={drafter}"
    if name == "--speculative-config":
        return f"{name}={json.dumps(json.loads(value) | {'model': drafter})}"
    if engine == "vllm" and position == 0:
        return target
    return arg.replace("$(LWS_LEADER_ADDRESS)", "leader").replace("$(LWS_WORKER_INDEX)", "1")


def _difference(release: Release, line: Line, verdict: dict[str, Any]) -> str | None:
    if verdict["accepted"] != (line.refusal is None):
        return f"the engine accepts it: {verdict['resolved']}" if verdict["accepted"] else f"the engine refuses it: {verdict['error']}"
    if line.refusal is not None and line.refusal not in verdict["error"]:
        return f"refused, but not for {line.refusal!r}: {verdict['error']}"
    host = Host(gpu_product=line.gpu, gpus_per_node=_GPUS_PER_NODE, hybrid_target=not line.dense, environ=line.env)
    try:
        parse(release.engine, release.version, [*_ENTRY_POINT[release.engine], *line.args], host)
    except ArgvError as error:
        status = error.exit_code
        if verdict["accepted"]:
            return f"the simulator refuses it: {error}"
        return None if status == verdict["status"] else f"exit status {verdict['status']}, simulator {status}: {verdict['error']}"
    return None if verdict["accepted"] else f"the simulator accepts it; the engine says {verdict['error']}"
