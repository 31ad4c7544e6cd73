"""The operator process: ``python operator/main.py``, with ``$KUBECONFIG`` or in a pod.

Settings are environment variables, described in ``dflash_controller/runtime/settings.py``.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import signal
import sys
import time
import uuid

from kubernetes.aio.config import ConfigException

from dflash_controller import __version__
from dflash_controller.catalog.catalog import Catalog
from dflash_controller.cluster.access import load_configuration
from dflash_controller.cluster.client import Client
from dflash_controller.cluster.events import EventRecorder
from dflash_controller.cluster.executor import Executor
from dflash_controller.cluster.lease import Elector, LeaseTiming, SoleCandidate
from dflash_controller.cluster.reader import Reader
from dflash_controller.cluster.store import Store
from dflash_controller.model.snapshot import Key
from dflash_controller.observe.probe.run import Probe
from dflash_controller.runtime.backlog import Backlog
from dflash_controller.runtime.fetch_watch import FetchWatch
from dflash_controller.runtime.leader_lifecycle import serve
from dflash_controller.runtime.logs import configure_logging
from dflash_controller.runtime.measurements import Measurements
from dflash_controller.runtime.metrics import Metrics
from dflash_controller.runtime.prober import Prober
from dflash_controller.runtime.queue import WorkQueue
from dflash_controller.runtime.reconcile import Reconciler, utc_now
from dflash_controller.runtime.resync import Resync
from dflash_controller.runtime.server import HealthServer
from dflash_controller.runtime.settings import Settings, SettingsError
from dflash_controller.runtime.tuners import Tuners
from dflash_controller.runtime.watch import EventSink, Watches
from dflash_controller.runtime.wiring import hub_reader, metrics_source, operator_defaults, show_settings
from dflash_controller.runtime.worker import Worker

log = logging.getLogger("dflash_controller.main")


async def run(settings: Settings) -> bool:
    """Follows the cluster, leads when it has the Lease, and stops. Returns False if it ended for another reason than a stop signal."""
    stop = _stop_on_signals()
    metrics = Metrics(settings.lease_name)
    identity = f"{settings.pod_name}_{uuid.uuid4().hex[:8]}"
    timing = LeaseTiming(settings.lease_duration_seconds, settings.renew_deadline_seconds, settings.retry_period_seconds)
    configuration = await load_configuration()
    async with (
        HealthServer(metrics, host=settings.http_host, port=settings.http_port) as server,
        Client(configuration, connections=2, total_s=timing.request_s, observe=metrics.requested) as lease_client,
        Client(configuration, observe=metrics.requested) as client,
    ):
        log.info("dflash-operator %s started; metrics and health on port %d", __version__, server.port)
        candidate: Elector | SoleCandidate = SoleCandidate()
        if settings.leader_election:
            candidate = Elector(
                lease_client, namespace=settings.lease_namespace, name=settings.lease_name, identity=identity, timing=timing
            )
            server.ready_while("API server answers", candidate.silent)
        store = Store()
        queue: WorkQueue[Key] = WorkQueue(observe_wait=metrics.waited)
        metrics.watch_queue(lambda: queue.depth, lambda: queue.oldest_s)
        reader = Reader(client, store, settings.namespaces)
        events = EventRecorder(client, instance=settings.pod_name, clock=time.monotonic, now=lambda: datetime.datetime.now(datetime.UTC))
        executor = Executor(client, store, events, still_leader=candidate.is_leader, clock=time.monotonic)
        measurements = Measurements(store, metrics_source(settings), queue.add_all, show_settings(settings), settings.warm_up_seconds)
        prober = Prober(Probe(), queue.add)
        fetches = FetchWatch(queue.add)
        hub = hub_reader(settings, queue.add)
        reconciler = Reconciler(
            store,
            reader,
            executor,
            measurements,
            metrics,
            prober,
            fetches,
            Tuners(measurements, settings.learned_record_seconds, utc_now, slot_s=settings.tuning_slot_seconds),
            hub,
            defaults=operator_defaults(settings),
            catalog=Catalog.load(),
            tuning_requeue_s=settings.tuning_seconds,
            warm_up_s=settings.warm_up_seconds,
        )
        backlog = Backlog(queue)
        resync = Resync(reader, store, executor, backlog, metrics, interval_s=settings.resync_seconds)
        sink = EventSink(store, enqueue=backlog.add, arrived=metrics.event_arrived, opened=resync.watch_opened)
        watches = Watches(sink, namespaces=settings.namespaces, identity=identity)
        server.live_while("cluster is listed", resync.overdue)

        return await serve(
            candidate,
            stop,
            resync=resync,
            watches=watches,
            queue=queue,
            worker=Worker(reconciler, queue, metrics),
            workers=settings.workers,
            leading=lambda: metrics.leading(True),
            background=(measurements.collector.run(), prober.run(), hub.run(), fetches.run()),
        )


def _stop_on_signals() -> asyncio.Event:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def main() -> None:
    """Runs the operator; exit status 0 after SIGTERM or SIGINT, else 1."""
    try:
        settings = Settings.from_environment(os.environ)
    except SettingsError as error:
        sys.exit(f"dflash-operator: {error}")
    configure_logging(settings.log_format, settings.log_level)
    try:
        clean = asyncio.run(run(settings))
    except ConfigException as error:
        sys.exit(f"dflash-operator: no usable kubeconfig or service account: {error}")
    logging.shutdown()
    # A hanging thread of kopf must not keep the process alive. Everything important has finished by now.
    os._exit(0 if clean else 1)


if __name__ == "__main__":
    main()
