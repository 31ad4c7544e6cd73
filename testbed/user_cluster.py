"""Says what keeps the checks of a cluster of yours from running: ``python -m testbed.user_cluster``, before ``tests/user_cluster``."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed import binaries

CRD = "dflashdeployments.serving.dflash.io"


def problem(kubeconfig: str, operator_image: str, engine_image: str) -> str | None:
    """Returns the first thing that is missing, with what to do; None if the checks can begin."""
    if not Path(kubeconfig).is_file():
        return f"KUBECONFIG={kubeconfig}: there is no such file. Give the path of one kubeconfig file"
    for name, image, whose in (("OPERATOR_IMAGE", operator_image, "operator's"), ("ENGINE_IMAGE", engine_image, "engine simulator's")):
        if ":" not in image.rpartition("/")[2]:
            given = f"{name}={image}: " if image else f"{name} is missing: "
            return f"{given}give the {whose} image with its tag, in a registry that the cluster reaches (images/README.md)"
    command = [
        str(binaries.path_of("kubectl")),
        f"--kubeconfig={kubeconfig}",
        "--request-timeout=30s",
        "get",
        "crd",
        CRD,
        "--ignore-not-found",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        return f"KUBECONFIG={kubeconfig}: kubectl cannot read the cluster: {(answer.stderr.strip().splitlines() or ['it failed'])[-1]}"
    if not answer.stdout.strip():
        return f"the cluster has no {CRD}: kubectl apply --server-side -f crds/, which these checks do not do for you"
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status: 0 if the checks can begin."""
    parser = argparse.ArgumentParser(prog="python -m testbed.user_cluster", description=__doc__)
    for option in ("kubeconfig", "operator-image", "engine-image"):
        parser.add_argument(f"--{option}", default="")
    given = parser.parse_args(arguments)
    found = problem(given.kubeconfig, given.operator_image, given.engine_image)
    if found:
        print(f"your cluster: {found}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
