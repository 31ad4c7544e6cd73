"""What several files of this level use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dflash_controller.cli.program import run
from testbed.cluster import Cluster

Dflash = Callable[..., tuple[int, str, str]]


@pytest.fixture
def dflash(cluster: Cluster, namespace: str, capsys: pytest.CaptureFixture[str]) -> Dflash:
    """Runs one command line in the test's namespace or another one, as in a pipe; returns exit status, output and errors."""

    def call(*arguments: str, kubeconfig: Path | None = None, within: str = namespace) -> tuple[int, str, str]:
        capsys.readouterr()
        where = ("--kubeconfig", str(kubeconfig or cluster.admin_kubeconfig), "--namespace", within)
        status = run([*arguments, *where])
        out, err = capsys.readouterr()
        return status, out, err

    return call
