"""``fleet`` simulates all engine pods of a test cluster; ``serve -- COMMAND`` is one engine, started with the real engine's command
line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

from aiohttp import web

from dflash_controller.model.measured_tables import TableError
from testbed.simulator.argv import ArgvError
from testbed.simulator.control import control_app
from testbed.simulator.engine import SimulatedEngine
from testbed.simulator.faults import Faults
from testbed.simulator.fleet import Fleet
from testbed.simulator.host import Clock, Host
from testbed.simulator.launch import Process, UnknownEngine, settings_of, startup_s
from testbed.simulator.pod_api import PodApi
from testbed.simulator.ranks import Leader, follow, waits_for_leader
from testbed.simulator.server import EngineApp, OneHost
from testbed.simulator.table import SEED_ACCEPT, SEED_TABLES, Table


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    logging.basicConfig(level=options.log_level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        table = Table.load(options.tables, options.accept)
    except TableError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    run = _fleet(options, table) if options.command == "fleet" else _serve(options, table)
    return asyncio.run(run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testbed.simulator", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--tables", type=Path, default=SEED_TABLES, help="throughput CSV (default: the published tables)")
    common.add_argument("--accept", type=Path, default=SEED_ACCEPT, help="acceptance length CSV of the same models")
    common.add_argument("--speed", type=float, default=1.0, help="simulated seconds per second (default 1)")
    common.add_argument("--startup-seconds", type=float, default=0.0, help="start to readiness where nothing else says so")
    common.add_argument("--log-level", default="warning")
    commands = parser.add_subparsers(dest="command", required=True)
    fleet = commands.add_parser("fleet", parents=[common], help="play every engine pod of a cluster whose pods have loopback addresses")
    fleet.add_argument("--kubeconfig", type=Path, required=True)
    fleet.add_argument("--stop-seconds", type=float, help="deletion to SIGTERM, in place of the preStop pause; pods then end when drained")
    fleet.add_argument("--control-port", type=int, default=0, help="control interface on 127.0.0.1 (default: a free port)")
    serve = commands.add_parser("serve", parents=[common], help="be one engine; its release comes from DFLASH_SIM_RELEASE")
    serve.add_argument("--host", default="0.0.0.0")
    serve.add_argument("--faults", type=_faults, default=Faults(), metavar="JSON", help="faults from the start, as in PATCH /sim/faults")
    serve.add_argument("engine_command", nargs="+", metavar="-- COMMAND", help="the engine's whole command line")
    return parser


def _faults(text: str) -> Faults:
    return Faults().patched(json.loads(text))


def _on_signal(stop: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _fleet(options: argparse.Namespace, table: Table) -> int:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    stop = asyncio.Event()
    _on_signal(stop.set)
    async with PodApi(options.kubeconfig) as api:
        fleet = Fleet(api, table, Clock(options.speed), options.startup_seconds, options.stop_seconds)
        running = asyncio.create_task(fleet.run())
        control = web.AppRunner(control_app(fleet), access_log=None)
        await control.setup()
        site = web.TCPSite(control, "127.0.0.1", options.control_port)
        await site.start()
        waits = [asyncio.create_task(fleet.listed.wait()), asyncio.create_task(stop.wait())]
        await asyncio.wait([running, *waits], return_when=asyncio.FIRST_COMPLETED)
        if fleet.listed.is_set():
            print(json.dumps({"event": "ready", "pods": len(fleet.pods()), "control": f"http://127.0.0.1:{site.port}"}), flush=True)
        await asyncio.wait([running, waits[1]], return_when=asyncio.FIRST_COMPLETED)
        for task in (running, *waits):
            task.cancel()
        await control.cleanup()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    return 0


async def _serve(options: argparse.Namespace, table: Table) -> int:
    process = Process(tuple(options.engine_command), dict(os.environ))
    try:
        settings = settings_of(process)
    except ArgvError as error:
        print(error.stderr, file=sys.stderr)
        return error.exit_code
    except UnknownEngine as error:
        print(error, file=sys.stderr)
        return 2
    clock = Clock(options.speed)
    engine = SimulatedEngine(
        settings,
        table.match(settings.target, settings.served_model_name),
        now=clock.now(),
        startup_s=startup_s(process, options.startup_seconds),
        faults=options.faults,
        created_s=time.time(),
        seed=os.getpid(),
    )
    ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def exited(code: int, message: str) -> None:
        logging.info("engine ends with %d: %s", code, message)
        if not ended.done():
            ended.set_result(code)

    host = Host(engine, clock, exited=exited, env=process.env)
    runner = EngineApp(OneHost(host)).runner()
    await runner.setup()
    if settings.engine == "sglang" or settings.node_rank == 0:  # a headless rank has no server
        await web.TCPSite(runner, options.host, settings.port).start()
    async with _meeting(host):
        code = await ended
    await runner.cleanup()
    return code


@contextlib.asynccontextmanager
async def _meeting(host: Host) -> AsyncIterator[None]:
    """Handles signals, and holds the connections of an engine on several nodes to its other ranks."""
    engine, settings = host.engine, host.engine.settings
    if settings.nodes == 1:
        _on_signal(host.drain)
        yield
        return
    engine.wait_for_ranks()

    def joined() -> None:
        engine.ranks_joined(host.clock.now())
        if waits_for_leader(settings):
            _on_signal(lambda: None)  # only now: an engine that loads has no handler, which matters to process 1 of a namespace

    if settings.node_rank == 0:
        _on_signal(host.drain)
        leader = Leader(
            settings,
            joined=lambda: engine.ranks_joined(host.clock.now()),
            lost=lambda: host.set_faults(replace(engine.faults, hang=True)),
        )
        await leader.start()
        yield
        await leader.end()
        return

    async def follow_to_the_end() -> None:
        await follow(settings, joined)
        host.exit(0, "rank 0 has ended")

    if not waits_for_leader(settings):
        _on_signal(lambda: host.exit(0 if settings.engine == "vllm" else 128 + signal.SIGTERM, "told to stop"))
    following = asyncio.create_task(follow_to_the_end())
    yield
    following.cancel()


if __name__ == "__main__":
    sys.exit(main())
