"""``python -m testbed.gpu_loop run`` serves, loads, tunes, tries drafters and drains on a real engine, and writes a report.

It needs no container runtime and no network. ``status`` shows where a run in the background stands.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from testbed.binaries import BinaryError
from testbed.gpu_loop.phases import PHASES, least_s, start_s
from testbed.gpu_loop.run import Progress, Run, collect, running
from testbed.gpu_loop.setup import BLOCKS, Setup, SetupError
from testbed.gpu_loop.shapes import SHAPES
from testbed.process_node.gpus import NoGpuError, find_gpus
from testbed.workspace import WorkspaceError


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return _status(options) if options.command == "status" else _run(options)
    except NoGpuError as error:
        need = "a Python environment with vLLM or SGLang (PYTHON=…)"
        print(f"make gpu: {error}, and {need}; SIMULATOR=1 runs the loop without them", file=sys.stderr)
        return 2
    except (SetupError, BinaryError, WorkspaceError) as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testbed.gpu_loop", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run the loop")
    run.add_argument("--engine", choices=("vllm", "sglang"), default="vllm")
    run.add_argument("--model", default="dense", help=f"{', '.join(SHAPES)} (shapes without weights), a hub name or a folder")
    run.add_argument("--drafter", help="hub name or folder of the drafter, with a model that has weights")
    run.add_argument("--served-as", help="hub name that a folder of weights stands for, so that the catalog knows it")
    run.add_argument("--layers", type=_count, help="fewer layers of a shape, for speed")
    run.add_argument("--python", help="interpreter of the environment that has the engine (default: python3 on PATH)")
    run.add_argument("--engine-version", help="release of the engine (default: what its environment says)")
    run.add_argument(
        "--engine-env",
        type=_variable,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="variable of the environment, as of an image",
    )
    run.add_argument("--env", type=_variable, action="append", default=[], metavar="NAME=VALUE", help="variable for spec.engine.env")
    run.add_argument("--extra-arg", action="append", default=[], metavar="--FLAG=VALUE", help="flag for spec.engine.extraArgs")
    run.add_argument("--simulator", action="store_true", help="the engine simulator is the engine: no GPU is needed")
    run.add_argument("--gpus", type=_count, help="use only so many GPUs (default: all)")
    run.add_argument("--replicas", type=_count, default=1, help="replicas; with as many as GPUs a candidate takes the place of one")
    run.add_argument("--share", type=_count, help="offer each GPU so many times (default: 2 with one GPU, for a trial beside what serves)")
    run.add_argument("--memory", type=_share, help="share of a GPU's memory for one engine (default: 0.42 on a shared GPU)")
    run.add_argument(
        "--max-concurrency",
        type=_count,
        default=40,
        help="spec.engine.maxConcurrency (default %(default)s: more than clients, so none waits)",
    )
    run.add_argument("--levels", type=_levels, default=(1, 8, 32), help="numbers of clients (default 1,8,32)")
    run.add_argument("--first-block", type=int, choices=BLOCKS, default=BLOCKS[0], help="block size to begin with (default %(default)s)")
    run.add_argument("--level-seconds", type=_seconds, default=25.0, help="length of each measurement (default %(default)s)")
    run.add_argument("--budget", type=_seconds, default=1500.0, help="seconds for everything; phases that no longer fit are left out")
    run.add_argument("--phases", default=",".join(PHASES), help="which, in this order (default: all)")
    run.add_argument("--no-prometheus", action="store_true", help="the operator scrapes the engines itself")
    run.add_argument("--keep", metavar="NAME", help="leave everything running afterwards; `python -m testbed down --name NAME` ends it")
    for command in (run, commands.add_parser("status", help="show where a run stands")):
        command.add_argument("--out", type=Path, default=Path("gpu-report"), help="folder of the report (default %(default)s)")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def _levels(text: str) -> tuple[int, ...]:
    return tuple(_count(part.strip()) for part in text.split(","))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _share(text: str) -> float:
    if not 0 < _number(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share between 0 and 1, such as 0.42")
    return float(text)


def _seconds(text: str) -> float:
    if not 0 < _number(text) < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return float(text)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _run(options: argparse.Namespace) -> int:
    phases = [name.strip() for name in options.phases.split(",")]
    if unknown := [name for name in phases if name not in PHASES]:
        raise SetupError(f"no phase {', '.join(unknown)}; there are {', '.join(PHASES)}")
    gpus = options.gpus or (1 if options.simulator else len(find_gpus()))
    share = options.share or (2 if gpus == 1 else 1)
    if options.replicas > gpus * share:
        raise SetupError(f"{options.replicas} replicas need as many GPUs; there are {gpus}, each offered {share} times")
    setup = Setup(
        engine=options.engine,
        model=options.model,
        out=options.out.absolute(),
        drafter=options.drafter,
        served_as=options.served_as,
        layers=options.layers,
        python=options.python,
        version=options.engine_version,
        simulator=options.simulator,
        gpus=gpus,
        replicas=options.replicas,
        share=share,
        memory=options.memory or (0.42 if share > 1 and not options.simulator else None),
        max_concurrency=options.max_concurrency,
        levels=options.levels,
        first_block=options.first_block,
        extra_args=tuple(options.extra_arg),
        env=dict(options.env),
        engine_env=dict(options.engine_env),
    )
    setup.release()
    setup.out.mkdir(parents=True, exist_ok=True)
    progress = Progress(setup.out)
    began = time.monotonic()

    def tell(text: str) -> None:
        print(f"[{time.monotonic() - began:6.1f}] {text}", flush=True)
        progress.set(last=text[:300])

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with running(
            setup,
            budget_s=options.budget,
            level_s=options.level_seconds,
            prometheus=not options.no_prometheus,
            keep=options.keep,
            tell=tell,
        ) as run:
            _phases(run, phases, progress, tell)
    except BaseException as error:
        progress.set(phase="failed", error=f"{type(error).__name__}: {error}")
        raise
    progress.set(phase="finished")
    print((setup.out / "report.md").read_text())
    return 0


def _phases(run: Run, phases: list[str], progress: Progress, tell: object) -> None:
    assert callable(tell)
    with ExitStack() as stack:
        for name in phases:
            needed_s = least_s(name, start_s(run))
            if run.remaining_s() < needed_s:
                run.report.add(name, {"skipped": f"{run.remaining_s():.0f} s of the budget were left, and it needs {needed_s:.0f} s"})
                tell(f"== {name}: left out, {run.remaining_s():.0f} s are left")
                continue
            progress.set(phase=name)
            tell(f"== {name} ({run.remaining_s():.0f} s are left)")
            begun = time.monotonic()
            try:
                found = PHASES[name](run)
            except Exception as error:  # the phases after it may still tell something
                traceback.print_exc()
                found = {"failed_with": f"{type(error).__name__}: {error}"}
            levels = found.get("levels")
            key = f"load at block {levels[0]['block']}" if levels else name
            run.report.add(key, {**found, "took_s": time.monotonic() - begun})
            collect(run)
            progress.done(name)
            if name == "serve":
                if not found.get("ready"):
                    raise RuntimeError("the deployment did not become Ready; the time line and the logs in the report's folder say why")
                run.begin_load(stack)


def _status(options: argparse.Namespace) -> int:
    file = options.out / "status.json"
    if not file.exists():
        print(f"no run writes to {options.out}")
        return 1
    state = json.loads(file.read_text())
    alive = Path(f"/proc/{state['pid']}").exists()
    print(f"phase {state['phase']}{'' if alive else ', its process has ended'}; {time.time() - state['began']:.0f} s since the start")
    print(f"done: {', '.join(state['done']) or 'nothing yet'}")
    print(f"{time.time() - state['at']:.0f} s ago: {state['last']}")
    if "error" in state:
        print(state["error"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
