"""`python -m testbed` builds the programs, or leaves a cluster running for inspection."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed import binaries, workspace
from testbed.cluster import Cluster
from testbed.leader_worker_set.processes import LeaderWorkerSets
from testbed.nodes import NodePool
from testbed.prometheus import Prometheus

_DEFAULT_NAME = "dflash"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        return int(parsed.run(parsed))
    except (binaries.BinaryError, workspace.WorkspaceError) as error:
        print(f"test bed: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m testbed", description=__doc__)
    commands = parser.add_subparsers(required=True)

    build = commands.add_parser("binaries", help="build programs (minutes the first time) and print where each lies")
    build.add_argument("program", nargs="*", help="only these, among them those that are built on demand")
    build.set_defaults(run=_binaries)

    up = commands.add_parser("up", help="start a cluster that stays")
    up.add_argument("--nodes", type=int, default=8, metavar="N", help="GPU nodes (default %(default)s)")
    up.add_argument("--product", default="NVIDIA-B200", help="what their GPUs are (default %(default)s)")
    up.add_argument("--gpus", type=int, default=8, metavar="N", help="GPUs of each (default %(default)s)")
    up.add_argument("--cpu-nodes", type=int, default=1, metavar="N", help="nodes without GPUs (default %(default)s)")
    up.add_argument("--prometheus", action="store_true", help="with a Prometheus that scrapes annotated pods")
    up.set_defaults(run=_up)

    down = commands.add_parser("down", help="end a cluster and delete its data")
    down.set_defaults(run=_down)
    for command in (up, down):
        command.add_argument("--name", default=_DEFAULT_NAME, help="name of the cluster (default %(default)s)")

    groups = commands.add_parser("leader-worker-set", help="add LeaderWorkerSet to the cluster of KUBECONFIG")
    groups.add_argument("--real", action="store_true", help="the real controller, not a stand-in for it (built on first use)")
    groups.set_defaults(run=_leader_worker_set)

    status = commands.add_parser("status", help="list the clusters of this user")
    status.add_argument("--name", help="only this one")
    status.set_defaults(run=_status)
    return parser


def _binaries(parsed: argparse.Namespace) -> int:
    unknown = [program for program in parsed.program if program not in binaries.FAMILY_OF]
    if unknown:
        raise binaries.BinaryError(f"no program named {', '.join(unknown)}; there are {', '.join(binaries.FAMILY_OF)}")
    for program, path in binaries.paths_of(parsed.program or binaries.PROGRAMS).items():
        print(f"{program}\t{path}")
    return 0


def _up(parsed: argparse.Namespace) -> int:
    gpu_pool = NodePool("gpu", parsed.nodes, parsed.gpus, parsed.product)
    cluster = Cluster(parsed.name, pools=(gpu_pool, NodePool("cpu", parsed.cpu_nodes, gpus=0)))
    with cluster:
        prometheus = Prometheus(cluster).start() if parsed.prometheus else None
        cluster.keep()
        print(f"cluster {cluster.name} is up: {cluster.server}, pods in {cluster.pod_network}")
        if prometheus is not None:
            print(f"Prometheus: {prometheus.url}")
        print(f"  export KUBECONFIG={cluster.admin_kubeconfig}")
        print(f"  {binaries.path_of('kubectl')} get nodes")
        print(f"  python -m testbed down --name {cluster.name}")
    return 0


def _down(parsed: argparse.Namespace) -> int:
    Cluster.attach(parsed.name).stop()
    print(f"cluster {parsed.name} is gone")
    return 0


def _leader_worker_set(parsed: argparse.Namespace) -> int:
    config = os.environ.get("KUBECONFIG", "")
    found = [one for one in workspace.existing() if config and Path(config).is_relative_to(one.directory)]
    if not found:
        raise workspace.WorkspaceError("KUBECONFIG names no cluster of the test bed: copy the lines that `make playground` printed")
    LeaderWorkerSets(Cluster.attach(found[0].name), real=parsed.real).start()
    print("LeaderWorkerSet is installed")
    return 0


def _status(parsed: argparse.Namespace) -> int:
    found = [one for one in workspace.existing() if parsed.name in (None, one.name)]
    for one in found:
        print(f"{one.name}\t{_state(one)}\t{one.directory}")
    return 0 if found or parsed.name is None else 1


def _state(one: workspace.Workspace) -> str:
    if not one.is_running():
        return "dead"
    ready = "ready" if Cluster.attach(one.name).api.is_ready() else "not answering"
    return f"{ready}, {'kept' if one.kept else 'in use' if one.has_owner() else 'abandoned'}"


if __name__ == "__main__":
    sys.exit(main())
