"""``make playground``: a cluster with the operator, Prometheus and simulated engines to try things in. The tutorials begin with it.

It is the start of ``make demo`` without what follows: nothing is served yet. ``make demo-down`` ends it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from testbed import binaries
from testbed.demo import KEPT
from testbed.demo_setup import World, ended, world
from testbed.narration import show
from testbed.operator_process import ROOT

PLUGIN = ROOT / "testbed" / "plugin"
"""Folder of ``kubectl-dflash``, which kubectl finds on the PATH."""


def main() -> int:
    return ended(playground, "make playground starts it again")


def playground() -> None:
    """Starts everything and leaves it running. Raises if a part does not start."""
    with world(name=KEPT, kept=tell):
        pass


def tell(running: World) -> None:
    """Prints the lines that a shell needs."""
    lines = "\n".join(f"  export {name}={value}" for name, value in environment(running).items())
    show(f"\nEverything is left running. Copy these lines into your shell:\n\n{lines}\n\nTo end it: make demo-down")


def environment(running: World) -> Mapping[str, str]:
    """Returns the variables that the commands of the tutorials use.

    PATH gets kubectl, its plugin ``kubectl dflash``, and the Python that has the traffic generator.
    """
    kubectl, python = binaries.path_of("kubectl").parent, Path(sys.executable).parent
    return {
        "KUBECONFIG": str(running.cluster.admin_kubeconfig),
        "SIMULATOR": running.simulator.control,
        "PROMETHEUS": running.prometheus.url,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{kubectl}:{python}:{PLUGIN}:$PATH",
    }


if __name__ == "__main__":
    sys.exit(main())
