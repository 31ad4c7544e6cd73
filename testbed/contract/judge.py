"""Verdicts on command lines from the real parsers and from ours, and where they differ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dflash_controller.engines import ENGINES
from dflash_controller.engines.flags import Flag
from dflash_controller.engines.options import OPTIONS
from testbed.contract.cases import CASES
from testbed.contract.combinations import COMBINATIONS, Combination
from testbed.contract.driver import ask
from testbed.contract.environments import Environments, Release
from testbed.contract.examples import A100, B200, B300, GB10, H100, L40S, RTX_PRO_6000
from testbed.contract.golden import files, read
from testbed.contract.tables import table_path, table_text
from testbed.simulator.argv import ArgvError, Host, parse

FAKE_GPUS = {
    A100: "8.0:81920:8",
    L40S: "8.9:46068:8",
    H100: "9.0:81559:8",
    B200: "10.0:183359:8",
    B300: "10.3:275040:8",
    RTX_PRO_6000: "12.0:97887:8",
    GB10: "12.1:122880:8",
}
_GPUS_PER_NODE = 8
_ENTRY_POINT = {"sglang": ("python3", "-m", "sglang.launch_server"), "vllm": ("vllm", "serve")}
# vLLM 0.26's kernels for hybrid targets load only with another torch; its arguments do not depend on the target's class.
_DENSE = "Qwen/Qwen3-8B"
_MODEL: Mapping[bool, Mapping[str, Any]] = {
    True: {"mixture_of_experts": False, "kv_heads": 8},
    False: {"mixture_of_experts": True, "kv_heads": 8},
}
"""Facts of the contract's model configurations (drivers/models.py), by whether the target is the dense one."""


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
    refused_by_both: int = 0
    """Combinations that the engine and the operator refuse."""
    refused_by_us: int = 0
    """Combinations that the operator refuses and the engine's resolution lets through: CUDA, a kernel or a probe would fail later."""
    checked: int = 0
    failures: list[str] = field(default_factory=list)


def check_release(environments: Environments, release: Release) -> Outcome:
    """Checks all lines of one release with its own parser and the simulator's, and the simulator's option table. Raises DriverError."""
    outcome = Outcome()
    by_gpu: dict[str, list[Line]] = defaultdict(list)
    lines = (
        *_golden_lines(environments, release),
        *_case_lines(environments, release),
        *_combination_lines(environments, release, outcome),
    )
    for line in lines:
        by_gpu[line.gpu].append(line)
    # A machine without a GPU resolves to the CPU if SGLang is not told otherwise.
    device = ["--device=cuda"] if release.engine == "sglang" else []
    for gpu, asked in by_gpu.items():
        table, verdicts = ask(environments, release, FAKE_GPUS[gpu], [(_on_gpu(line.args, device), line.env) for line in asked])
        for line, verdict in zip(asked, verdicts, strict=True):
            outcome.checked += 1
            outcome.accepted += verdict["accepted"]
            outcome.refused += not verdict["accepted"]
            if problem := _difference(release, line, verdict):
                outcome.failures.append(f"{release}: {line.name}: {problem}")
    outcome.checked += 1
    if table_text(table) != table_path(release).read_text():
        outcome.failures.append(f"{release}: the simulator's option table is stale: run python -m testbed.contract.tables")
    return outcome


def _on_gpu(args: Sequence[str], device: Sequence[str]) -> list[str]:
    return [*args, *(() if any(arg.startswith("--device=") for arg in args) else device)]


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
            yield Line(case.name, args, dict(case.env), case.gpu, dense, case.refused.get(release.version))


def _combination_lines(environments: Environments, release: Release, outcome: Outcome) -> Iterator[Line]:
    """Yields the command lines of combinations, and counts in ``outcome`` what the operator says of them."""
    for case in COMBINATIONS:
        if case.engine != release.engine or release.version not in case.releases():
            continue
        yield combination_line(environments, release, case, case.flags, case.by_engine)
        problems = [str(problem) for problem in ENGINES[case.engine].problems(case.request(release.version, case.flags))]
        outcome.checked += 1
        if case.refused is None:
            if problems:
                outcome.failures.append(f"{release}: {case.name}: the operator refuses it: {problems}")
        elif not any(case.refused in problem for problem in problems):
            outcome.failures.append(f"{release}: {case.name}: the operator does not refuse it for {case.refused!r}: {problems}")
        elif case.by_engine is None:
            outcome.refused_by_us += 1
        else:
            outcome.refused_by_both += 1
        if case.remedied is not None:
            yield combination_line(environments, release, case, case.remedied, None)
            outcome.checked += 1
            if problems := list(map(str, ENGINES[case.engine].problems(case.request(release.version, case.remedied)))):
                outcome.failures.append(f"{release}: {case.name}: the operator refuses its own remedy: {problems}")


def combination_line(environments: Environments, release: Release, case: Combination, flags: Sequence[str], refusal: str | None) -> Line:
    """Returns the line that the operator renders, or would render if it did not refuse the flags."""
    engine, asked = ENGINES[case.engine], case.request(release.version, flags)
    if engine.problems(asked):
        launched = engine.launch(case.request(release.version, ()))
        given = {_option(release, flag) for flag in flags}
        args = [arg for arg in launched.args if not arg.startswith("--") or _option(release, arg) not in given] + list(flags)
    else:
        launched = engine.launch(asked)
        args = list(launched.args)
    dense = case.dense or case.engine == "vllm"
    local = [_localised(arg, case.engine, i, *_folders(environments, dense)) for i, arg in enumerate(args)]
    return Line(case.name, tuple(local), {**launched.env, **case.env}, case.gpu, dense, refusal)


def _option(release: Release, flag: str) -> str:
    return OPTIONS[release.engine].meaning(Flag.parse(flag).name, release.version).option


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
    host = Host(gpu_product=line.gpu, gpus_per_node=_GPUS_PER_NODE, hybrid_target=not line.dense, environ=line.env, **_MODEL[line.dense])
    try:
        parse(release.engine, release.version, [*_ENTRY_POINT[release.engine], *line.args], host)
    except ArgvError as error:
        status = error.exit_code
        if verdict["accepted"]:
            return f"the simulator refuses it: {error}"
        return None if status == verdict["status"] else f"exit status {verdict['status']}, simulator {status}: {verdict['error']}"
    return None if verdict["accepted"] else f"the simulator accepts it; the engine says {verdict['error']}"
