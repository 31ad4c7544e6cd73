"""What a run is about: engine, models, GPUs, and the specification of the deployment that is served."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.demo_setup import TUNED_ROLLOUT
from testbed.gpu_loop.shapes import COLLAPSED, SHAPES, TRAINED_BLOCK, Shape, make_models
from testbed.process_node.programs import engine_environment

TUNING: Mapping[str, Any] = {"window": "15s", "minDwell": "5s", "maxChangesPerDay": 100, "minGainPercent": 3, "actuator": "Restart"}
SETTINGS: Mapping[str, str] = {
    "scrape_seconds": "2",
    "metrics_window_seconds": "16",
    "tuning_seconds": "2",
    "tuning_slot_seconds": "5",
    "pod_ips": "127.0.0.1",
    "log_format": "json",
}
"""Settings of the operator with seconds instead of the usual minutes."""
BLOCKS = (8, 16)
"""Block sizes that are measured, in this order. What the tuner may find afterwards is mostly a shorter block for a high load."""
_VERSION = "import importlib.metadata as m; print(m.version({!r}))"


class SetupError(RuntimeError):
    """The run cannot begin; the message is one line and says what is needed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """One run. ``model`` is a shape, or a target by hub name or path, which then needs ``drafter``."""

    engine: str
    model: str
    out: Path
    drafter: str | None = None
    served_as: str | None = None
    layers: int | None = None
    python: str | None = None
    version: str | None = None
    simulator: bool = False
    gpus: int | None = None
    share: int = 1
    memory: float | None = None
    max_concurrency: int = 40
    levels: tuple[int, ...] = (1, 8, 32)
    first_block: int = BLOCKS[0]
    replicas: int = 1
    grace_s: int = 180
    extra_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    engine_env: Mapping[str, str] = field(default_factory=dict)

    @property
    def warm_up_s(self) -> float:
        """Returns the seconds of load after which an engine is warm. Real ones compile kernels for the first requests of each kind."""
        return 5.0 if self.simulator else 20.0

    @property
    def models(self) -> Path:
        return self.out / "models"

    @property
    def shape(self) -> Shape | None:
        return SHAPES.get(self.model)

    @property
    def target(self) -> str:
        """Returns the name of the target in the spec: a hub repository, or what a folder is called as one."""
        if self.shape:
            return self.shape.target
        return self.served_as or _as_repository(self.model)

    @property
    def drafter_name(self) -> str:
        if self.shape:
            return self.shape.drafter
        if self.drafter is None:
            raise SetupError(f"--drafter is needed beside --model={self.model}")
        return _as_repository(self.drafter)

    def prepare(self) -> None:
        """Makes the models' folders. Raises SetupError."""
        self.models.mkdir(parents=True, exist_ok=True)
        if self.shape:
            try:
                make_models(self.models, self.shape, self.layers)
            except ValueError as error:
                raise SetupError(str(error)) from None
            return
        for written, name in ((self.model, self.target), (self.drafter or "", self.drafter_name)):
            if written.startswith(("/", ".")):
                folder = Path(written).resolve()
                if not (folder / "config.json").exists():
                    raise SetupError(f"{written} has no config.json")
                link = self.models / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.unlink(missing_ok=True)
                link.symlink_to(folder)

    def release(self) -> str:
        """Returns the engine's release: as given, or as its environment says. Raises SetupError."""
        if self.version:
            return self.version
        if self.simulator:
            return {"vllm": "0.26.0", "sglang": "0.5.23"}[self.engine]
        command = [self.python or "python3", "-c", _VERSION.format(self.engine)]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, env=engine_environment(self.engine_env), check=False)
        except OSError as error:
            raise SetupError(f"{command[0]} cannot be started: {error.strerror}") from None
        found = re.match(r"\d+(\.\d+)+", answer.stdout.strip())
        if found is None:
            raise SetupError(f"{command[0]} has no {self.engine}: {(answer.stderr.strip().splitlines() or ['no version'])[-1]}")
        return found[0]

    def spec(self, product: str) -> dict[str, Any]:
        """Returns the spec of the DFlashDeployment."""
        shape = self.shape
        args = [*self.extra_args]
        if shape and not self.simulator:
            args = ["--load-format=dummy", *shape.extra_args.get(self.engine, ()), *args]
        if self.memory is not None:
            flag = "--gpu-memory-utilization" if self.engine == "vllm" else "--mem-fraction-static"
            args.append(f"{flag}={self.memory:g}")
        return {
            "target": {"model": self.target},
            "drafter": {"model": self.drafter_name, "trainedBlockSize": TRAINED_BLOCK},
            "engine": {
                "name": self.engine,
                "version": self.release(),
                "maxConcurrency": self.max_concurrency,
                "extraArgs": args,
                "env": [{"name": name, "value": value} for name, value in self.env.items()],
            },
            "accelerator": {"product": product},
            "replicas": self.replicas,
            "blockSize": self.first_block,
            "tuning": {"mode": "Advise", "blockSizes": sorted(BLOCKS), **TUNING},
            "rollout": self.rollout(),
            "podTemplate": {"terminationGracePeriodSeconds": self.grace_s},
        }

    def rollout(self) -> dict[str, Any]:
        """Returns a rollout whose trial takes seconds. Engines whose acceptance is imposed take drafts that the target would refuse, so
        their texts differ and are not judged."""
        # Without a free GPU a candidate takes the place of a replica.
        room = {} if (self.gpus or 1) * self.share > self.replicas else {"maxSurge": 0, "maxUnavailable": 1}
        imposed = self.shape is not None and not self.simulator
        probe = {**TUNED_ROLLOUT["probe"], **({"maxMismatchPercent": 100} if imposed else {})}
        return {**TUNED_ROLLOUT, **room, "probe": probe, "deadline": "3m"}

    @property
    def collapsed(self) -> str | None:
        """Returns the name of the drafter that collapses; None where there is none, with weights of one's own."""
        return COLLAPSED if self.shape else None


def _as_repository(text: str) -> str:
    """Returns a hub name as it is, and a path as local/NAME."""
    return f"local/{Path(text).resolve().name}" if text.startswith(("/", ".")) else text
