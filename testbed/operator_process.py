"""The operator as a process of this machine, with the ServiceAccount and the rights that its chart gives it."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from urllib.error import URLError
from urllib.request import urlopen

from testbed.cluster import Cluster
from testbed.operator_forks import OperatorForks
from testbed.waiting import wait_until

ROOT = Path(__file__).parent.parent
CHART = ROOT / "charts" / "dflash-operator"
NAMESPACE = "dflash-system"
SERVICE_ACCOUNT = "dflash-operator"
USER = f"system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}"
"""User name of the operator in the audit log."""


def install_chart(cluster: Cluster, *, crds: bool = True) -> None:
    """Installs CRD, ServiceAccount and RBAC with Helm, without the operator's own pods: kwok's pods run no program.

    Also without the admission policy, so that what it refuses reaches the operator, which has to tell the same.
    """
    cluster.helm(
        "upgrade",
        "--install",
        "dflash",
        str(CHART),
        f"--namespace={NAMESPACE}",
        "--create-namespace",
        "--set=deployment.create=false,dashboards.enabled=false,admissionPolicy.enabled=false",
        f"--set=fullnameOverride={SERVICE_ACCOUNT}",
        f"--set=crds.install={str(crds).lower()}",
    )
    cluster.wait_for_crds()


def tells_leader(page: str) -> bool:
    """Returns whether this /metrics page is from an operator that holds the Lease."""
    return re.search(r"^dflash_leader\{.*\} 1\.0$", page, re.MULTILINE) is not None


class OperatorProcess:
    """One operator process; several with different names elect a leader. ``settings`` are ``DFLASH_`` variables without that prefix.

    With ``forks`` it is a fork and starts in half the time.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: Mapping[str, str] | None = None,
        *,
        name: str = "operator",
        kubeconfig: Path | None = None,
        forks: OperatorForks | None = None,
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.settings = dict(settings or {})
        self.log = cluster.directory / f"{name}.log"
        self._kubeconfig = kubeconfig
        self._forks = forks
        self._process = cluster.workspace.process(name)
        self._read_from = 0

    def start(self) -> OperatorProcess:
        """Starts the operator and waits until it serves health. It may still be waiting for the Lease then."""
        self._read_from = self.log.stat().st_size if self.log.exists() else 0
        kubeconfig = self._kubeconfig or self.cluster.service_account_kubeconfig(NAMESPACE, SERVICE_ACCOUNT)
        # No hub: nothing on this machine may depend on what the internet says today.
        usual = {"http_host": "127.0.0.1", "http_port": "0", "hugging_face_endpoint": "off"}
        own = {f"DFLASH_{name.upper()}": value for name, value in {**usual, **self.settings}.items()}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("DFLASH_")} | {
            "KUBECONFIG": str(kubeconfig),
            # Behind this project, dependencies may come from further folders.
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "POD_NAMESPACE": NAMESPACE,
            "POD_NAME": self.name,
            **own,
        }
        if self._forks is not None:
            self._process.adopt(self._forks.start(self.log, environment))
        else:
            self._process.start(self._command(), self.log, environment)
        wait_until(self._answers, f"{self.name} to answer (see {self.log})", 30)
        return self

    def wait_to_lead(self) -> OperatorProcess:
        """Waits until the operator holds the Lease."""
        wait_until(self.leads, f"{self.name} to lead (see {self.log})", 40)
        return self

    def leads(self) -> bool:
        """Returns whether the operator holds the Lease."""
        return tells_leader(self.metrics())

    def reconciles(self) -> int:
        """Returns the number of reconciles of the current run; 0 while it does not answer."""
        try:
            page = self.metrics() if self.running else ""
        except OSError:
            return 0
        return round(sum(map(float, re.findall(r"^dflash_reconcile_total\{.*\} (\S+)$", page, re.MULTILINE))))

    def stop(self) -> None:
        """Sends SIGTERM and waits."""
        self._process.stop(timeout=30)

    def kill(self) -> None:
        """Sends SIGKILL and waits."""
        self._process.stop(signal.SIGKILL)

    @property
    def running(self) -> bool:
        return self._process.pid() is not None

    @property
    def url(self) -> str:
        """Returns the address of metrics and health of the current run."""
        if not self.running:
            raise RuntimeError(f"{self.name} ended:\n{self.output()[-3000:]}")
        found = re.search(r"metrics and health on port (\d+)", self.output())
        if found is None:
            raise URLError("not listening yet")
        return f"http://127.0.0.1:{found[1]}"

    def output(self) -> str:
        """Returns the log of the current run."""
        with self.log.open("rb") as log:
            log.seek(self._read_from)
            return log.read().decode(errors="replace")

    def metrics(self) -> str:
        """Returns the operator's /metrics page."""
        with urlopen(f"{self.url}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    def __enter__(self) -> OperatorProcess:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _command(self) -> list[str]:
        # Python ignores this -X option; its directory identifies the process as part of this cluster.
        return [sys.executable, "-X", f"cluster={self.cluster.directory}", str(ROOT / "operator" / "main.py")]

    def _answers(self) -> bool:
        try:
            return bool(self.metrics())
        except OSError:
            return False
