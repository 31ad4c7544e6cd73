"""Python environments that hold the real engines, built once per user.

One virtual environment (torch and the newest vLLM) serves every contract-tested release; the others are folders added to ``PYTHONPATH``.
Do-nothing stubs replace the CUDA libraries, so no GPU and none of the 3 GB of NVIDIA wheels are needed. The environments take about 3.6 GB
on disk and one to three minutes the first time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dflash_controller.engines.releases import TABLE
from testbed.contract.cuda_stubs import write_stubs

CONTRACT = Path(__file__).resolve().parents[2] / "tests" / "contract"
REQUIREMENTS = CONTRACT / "requirements"
DRIVERS = CONTRACT / "drivers"


class BuildError(Exception):
    """The environments could not be built: the machine lacks a tool, disk space or the package index."""


@dataclass(frozen=True, slots=True)
class Release:
    """One contract-tested engine release and the overlays that make it importable; the first overlay takes precedence."""

    engine: str
    version: str
    overlays: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"


RELEASES = tuple(Release(engine, version, overlays) for engine, found in TABLE.items() for version, overlays in found.overlays.items())


@dataclass(frozen=True, slots=True)
class Environments:
    """Paths of the built environments."""

    root: Path

    @property
    def python(self) -> Path:
        return self.root / "base" / "bin" / "python"

    @property
    def models(self) -> Path:
        return self.root / "models"

    def environ(self, release: Release, gpu: str) -> dict[str, str]:
        """Returns the variables for a driver process. ``gpu`` is ``compute capability:MiB:GPUs per node``."""
        # PYTHONDONTWRITEBYTECODE, set on some CI machines, would double the time of every run.
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VLLM", "SGLANG", "CUDA", "HF_"))}
        return kept | {
            "PYTHONPATH": os.pathsep.join(str(self.root / "overlays" / name) for name in release.overlays),
            "FAKE_GPU": gpu,
            "XDG_CACHE_HOME": str(self.root / "cache"),
        }


def cache_root() -> Path:
    """Returns the user's cache folder for the test bed."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash-testbed" / "contract"


def ready() -> Environments:
    """Returns the environments and builds them if this user lacks them. Raises BuildError."""
    lists = sorted(REQUIREMENTS.glob("*.txt"))
    recipe = [*lists, Path(__file__).with_name("cuda_stubs.py"), DRIVERS / "models.py"]
    digest = hashlib.sha256(platform.python_version().encode())
    for path in recipe:
        digest.update(path.name.encode() + path.read_bytes())
    environments = Environments(cache_root() / digest.hexdigest()[:16])
    complete = environments.root / "complete"
    with _locked(environments.root.with_suffix(".lock")):
        if not complete.exists():
            missing = [tool for tool in ("gcc", "readelf", "nm") if not shutil.which(tool)]
            if missing:
                raise BuildError(f"needs {', '.join(missing)} (gcc and binutils) on PATH")
            shutil.rmtree(environments.root, ignore_errors=True)
            _build(environments, [path.stem for path in lists if path.stem != "base"])
            complete.touch()
    return environments


def _build(environments: Environments, overlays: list[str]) -> None:
    base = environments.root / "base"
    _run("virtual environment", [sys.executable, "-m", "venv", str(base)])
    pip = [str(environments.python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--no-compile"]
    _run("torch, vLLM and what they import (2.4 GB)", [*pip, "-r", str(REQUIREMENTS / "base.txt")])
    for name in overlays:
        _run(name, [*pip, "--target", str(environments.root / "overlays" / name), "-r", str(REQUIREMENTS / f"{name}.txt")])
    (site_packages,) = base.glob("lib/python*/site-packages")
    print("  stub CUDA libraries", flush=True)
    write_stubs(site_packages, [environments.root / "overlays" / name / "vllm" for name in overlays if name.startswith("vllm-")])
    _run("model configurations", [str(environments.python), str(DRIVERS / "models.py"), str(environments.models)])


def _run(what: str, command: list[str]) -> None:
    print(f"  {what}", flush=True)
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode:
        raise BuildError(f"{what}: exit status {result.returncode}\n{result.stdout[-4000:]}")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
