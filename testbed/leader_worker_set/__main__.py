"""What LeaderWorkerSets need in a test bed: leaders that wait for their workers and, unless the real controller runs, a stand-in for it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import signal
import sys
from pathlib import Path

from testbed.leader_worker_set.admission import PodAdmission
from testbed.leader_worker_set.controller import StandIn
from testbed.leader_worker_set.groups import Groups
from testbed.watching_api import WatchingApi


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m testbed.leader_worker_set", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--certificate", type=Path, required=True, help="of 127.0.0.1, for the webhook")
    parser.add_argument("--key", type=Path, required=True)
    parser.add_argument("--without-controller", action="store_true", help="the real one runs")
    options = parser.parse_args()
    logging.basicConfig(level="INFO", stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    asyncio.run(_run(options))
    return 0


async def _run(options: argparse.Namespace) -> None:
    admission = PodAdmission(options.certificate, options.key, plays_controller=not options.without_controller)
    async with WatchingApi(options.kubeconfig) as api:
        groups = Groups(api)
        parts = [groups.run(), *([] if options.without_controller else [StandIn(api, groups).run()])]
        running = asyncio.gather(*parts)
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, running.cancel)
        print(json.dumps({"event": "ready", "webhook": await admission.start()}), flush=True)
        with contextlib.suppress(asyncio.CancelledError):
            await running
        await admission.stop()


if __name__ == "__main__":
    sys.exit(main())
