"""``python -m testbed.traffic --model NAME URL...`` sends load and prints one JSON line."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from testbed.traffic.mix import Mix, Shots, parse_weights
from testbed.traffic.over_http import Client, Target
from testbed.traffic.report import Report, summarize


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.traffic", description=__doc__)
    parser.add_argument("urls", nargs="+", metavar="URL", help="base URL of an engine, for instance http://127.1.0.1:30000")
    parser.add_argument("--model", required=True, help="served model name")
    load = parser.add_mutually_exclusive_group(required=True)
    load.add_argument("--concurrency", type=int, help="closed loop: this many clients over all engines together")
    load.add_argument("--rate", type=float, help="open loop: requests per second on average, at random moments")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--warm-up", type=float, default=0.0, help="seconds of load before the measured window")
    parser.add_argument("--mix", type=parse_weights, default={"gsm8k": 1.0}, help="workloads, for instance gsm8k=3,humaneval=1")
    parser.add_argument("--max-tokens", type=int, default=300)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--stream", type=float, default=0.0, help="share of requests that stream (0 to 1)")
    parser.add_argument("--balance", choices=["round-robin", "least-busy"], default="round-robin")
    parser.add_argument("--new-connections", action="store_true", help="one connection per request, as a Service spreads connections")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    report = asyncio.run(_run(options))
    print(json.dumps(report.to_json()))
    return 0 if report.requests and not report.errors else 1


async def _run(options: argparse.Namespace) -> Report:
    mix = Mix(options.mix, options.max_tokens, options.prompt_tokens, options.stream)
    target = Target(options.urls, options.model, options.balance, keep_alive=not options.new_connections)
    async with Client(target, Shots(mix, options.seed)) as client:
        loop = client.open_loop(options.rate, seed=options.seed) if options.rate else client.closed_loop(options.concurrency)
        running = asyncio.create_task(loop)
        await asyncio.sleep(options.warm_up)
        before, start_s = await client.acceptance_totals(), client.now()
        await asyncio.sleep(options.seconds)
        after, end_s = await client.acceptance_totals(), client.now()
        client.stop()
        await running
        return summarize(client.log, start_s, end_s, after.since(before))


if __name__ == "__main__":
    sys.exit(main())
