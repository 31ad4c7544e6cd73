"""kwok's simulation of pods, nodes and volume claims: the stages, and the annotations that control them.

A pod is Running and Ready at once unless an annotation says otherwise. Annotations may be set in the pod template or on a running pod; most
may be changed at any time. Stages are objects of the cluster: a changed stage applies to each pod from that pod's next change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

START_AFTER: Final = "sim/start-after"
"""Delay before the containers start, as a Go duration ("3s"): image pull and init containers."""
READY_AFTER: Final = "sim/ready-after"
"""Seconds between container start and Ready ("6")."""
READY: Final = "sim/ready"
"""On a pod: "false" fails its readiness until the annotation is removed or changed. On a node: "false" makes its Ready condition Unknown,
as if its kubelet were gone."""
CRASH: Final = "sim/crash"
"""Exit code: the container ends with it repeatedly (CrashLoopBackOff; 137 counts as OOMKilled) until the annotation is removed."""
CRASH_AFTER: Final = "sim/crash-after"
"""Delay before each such crash, as a Go duration."""
RESTART_AFTER: Final = "sim/restart-after"
"""Back-off before a crashed container runs again, as a Go duration; default 2 s."""
FAIL: Final = "sim/fail"
"""Any value: the pod's phase becomes Failed permanently."""
COMPLETE: Final = "sim/complete"
"""Any value: the pod's phase becomes Succeeded. Pods of Jobs and of Helm hooks do so by themselves."""
COMPLETE_AFTER: Final = "sim/complete-after"
"""Delay before that, as a Go duration; default 500 ms."""
EXIT_AFTER: Final = "sim/exit-after"
"""Seconds until a deleted pod ends ("30"), at most its grace period; by default it ends at once."""
FROZEN: Final = "sim/frozen"
""""true": nothing happens to the pod any more, not even its end when deleted, as on a node that is gone."""
STORAGE_CLASS: Final = "kwok-volume"
"""Storage class (the default one) whose claims are bound at once to empty volumes. The volumes exist only as objects."""

_DIRECTORY = Path(__file__).parent / "kwok"


def standard_objects() -> list[dict[str, Any]]:
    """Returns the stages that every cluster starts with, and the storage class."""
    return [item for file in ("stages.yaml", "volumes.yaml") for item in yaml.safe_load_all((_DIRECTORY / file).read_text())]
