"""``python -m testbed.process_node`` is a node of a test bed's cluster whose pods are processes of this machine."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path

from testbed.process_node.agent import Agent, node_object
from testbed.process_node.gpus import Gpu, GpuShares, NoGpuError, find_gpus
from testbed.process_node.node_api import NodeApi
from testbed.process_node.pod_runner import NodeFacts
from testbed.process_node.programs import Programs


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        gpus = [Gpu(index, options.product) for index in range(options.gpus)] if options.product else find_gpus()[: options.gpus]
    except NoGpuError as error:
        print(f"process node: {error}", file=sys.stderr)
        return 2
    return asyncio.run(_run(options, gpus))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testbed.process_node", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--name", default="process-node")
    parser.add_argument("--network", required=True, help="first three parts of the pods' addresses, such as 127.5.250")
    parser.add_argument("--directory", type=Path, required=True, help="logs and records of the pods")
    parser.add_argument("--models", type=Path, default=Path("/"), help="working directory: OWNER/NAME below it are models")
    parser.add_argument("--gpus", type=int, default=64, help="use only so many GPUs (default: all)")
    parser.add_argument("--product", help="pretend GPUs of this product, for the simulator")
    parser.add_argument("--share", type=int, default=1, help="offer each GPU so many times (default 1)")
    parser.add_argument("--vllm-python", help="interpreter of the environment that has vLLM")
    parser.add_argument("--sglang-python", help="interpreter of the environment that has SGLang")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="variable of every engine; may be repeated")
    parser.add_argument("--simulator", action="append", metavar="OPTION", help="the simulator plays the engines, with these options")
    parser.add_argument("--first-back-off", type=float, default=10.0, help="seconds before the second restart (default 10)")
    return parser


async def _run(options: argparse.Namespace, gpus: list[Gpu]) -> int:
    options.directory.mkdir(parents=True, exist_ok=True)
    pythons = {engine: python for engine in ("vllm", "sglang") if (python := getattr(options, f"{engine}_python"))}
    env = dict(entry.split("=", 1) for entry in options.env)
    simulator = None if options.simulator is None else tuple(options.simulator)
    programs = Programs(pythons, env, options.models, simulator)
    shares = GpuShares(gpus, options.share)
    address = f"{options.network}.254"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    manifest = node_object(options.name, address, gpus, shares.capacity, os.cpu_count() or 1, memory)
    async with NodeApi(options.kubeconfig) as api:
        node = NodeFacts(options.name, address, options.directory, programs, shares, api, options.first_back_off)
        agent = Agent(node, manifest, options.network)
        running = asyncio.create_task(agent.run())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        registered = asyncio.create_task(agent.registered.wait())
        await asyncio.wait([running, registered], return_when=asyncio.FIRST_COMPLETED)
        if agent.registered.is_set():
            print(json.dumps({"event": "ready", "node": options.name, "gpus": shares.capacity}), flush=True)
        try:
            await running
        except asyncio.CancelledError:
            registered.cancel()
    return 0


if __name__ == "__main__":
    sys.exit(main())
