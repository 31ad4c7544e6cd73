"""The programs of the test bed: where each comes from, and how it is built once.

Each family of programs is one small Go module under ``gomod/``. Its ``go.mod`` and ``go.sum`` pin every dependency. Families are separate
because their dependencies conflict. A build goes into the user's cache under a key made from these two files and the build flags, so a
changed pin builds again and an unchanged one never does. Two simultaneous builds are safe: the second waits for the first and uses its
result.

There are three ways to use other programs. ``DFLASH_TESTBED_<NAME>`` is used as it is (``DFLASH_TESTBED_KUBECTL=/usr/bin/kubectl``; dashes
become underscores). ``DFLASH_TESTBED_PROGRAMS`` names a folder whose programs are used as they are, for machines without Go.
``DFLASH_TESTBED_USE_PATH=1`` uses programs from ``PATH`` if their version is new enough.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

GO_MODULES = Path(__file__).parent / "gomod"
KUBERNETES_VERSION = "1.35.4"
_VERSION_SYMBOLS = "k8s.io/component-base/version"
_HEARTBEAT_SECONDS = 15.0
_USUAL_SECONDS = {
    "etcd": 30,
    "kube-apiserver": 140,
    "kubectl": 15,
    "kube-controller-manager": 40,
    "kube-scheduler": 5,
    "kwok": 70,
    "kwokctl": 20,
    "helm": 20,
    "prometheus": 130,
    "promtool": 10,
    "lws-manager": 70,
    "kubelet": 100,
    "kube-proxy": 40,
    "coredns": 90,
    "kube-router": 120,
    "krew": 30,
}
"""Build time in seconds on two cores, in the order of PROGRAMS: later programs of a family find the packages of earlier ones compiled."""


class BinaryError(RuntimeError):
    """A program is not available; the message says what to do."""


@dataclass(frozen=True)
class Family:
    """Programs built from one Go module: program name to package, linker flags beyond ``-s -w``, build tags."""

    name: str
    packages: dict[str, str]
    ldflags: str = ""
    tags: str = ""
    on_demand: bool = False
    """Built when asked for, not with the others."""
    folder: str = ""
    """Folder of the module where another family has the same one; its own name by default."""

    @property
    def module(self) -> Path:
        return GO_MODULES / (self.folder or self.name)

    def build_flags(self) -> list[str]:
        flags = ["-trimpath", "-ldflags", f"-s -w {self.ldflags}".strip()]
        return [*flags, "-tags", self.tags] if self.tags else flags

    def key(self) -> str:
        """Name of this family's cache directory. It changes with every pin, flag, package and processor architecture."""
        digest = hashlib.sha256()
        for file in ("go.mod", "go.sum", *sorted(path.name for path in self.module.glob("*.go"))):
            digest.update((self.module / file).read_bytes())
        for text in (*self.build_flags(), *sorted(self.packages.values()), platform.system(), platform.machine()):
            digest.update(text.encode() + b"\0")
        return f"{self.name}-{digest.hexdigest()[:16]}"


# Without these symbols the programs report v0.0.0, and clients cannot tell what the server supports.
_KUBERNETES_LDFLAGS = " ".join(
    f"-X {_VERSION_SYMBOLS}.{symbol}={value}"
    for symbol, value in zip(
        ("gitVersion", "gitMajor", "gitMinor"), (f"v{KUBERNETES_VERSION}", *KUBERNETES_VERSION.split(".")[:2]), strict=True
    )
)

FAMILIES = (
    Family("etcd", {"etcd": "go.etcd.io/etcd/server/v3"}),
    Family(
        "kubernetes",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kube-apiserver", "kubectl", "kube-controller-manager", "kube-scheduler")},
        ldflags=_KUBERNETES_LDFLAGS,
    ),
    Family("kwok", {name: f"sigs.k8s.io/kwok/cmd/{name}" for name in ("kwok", "kwokctl")}),
    Family("helm", {"helm": "helm.sh/helm/v3/cmd/helm"}),
    # One kind of service discovery instead of thirty, because the cloud SDKs take most of Prometheus' build time.
    Family(
        "prometheus",
        {name: f"github.com/prometheus/prometheus/cmd/{name}" for name in ("prometheus", "promtool")},
        tags="remove_all_sd,enable_kubernetes_sd",
    ),
    Family("lws", {"lws-manager": "sigs.k8s.io/lws/cmd"}, on_demand=True),
    # A family of its own, so that who needs no real node need not build them.
    Family(
        "kubernetes-node",
        {name: f"k8s.io/kubernetes/cmd/{name}" for name in ("kubelet", "kube-proxy")},
        ldflags=_KUBERNETES_LDFLAGS,
        on_demand=True,
        folder="kubernetes",
    ),
    Family("coredns", {"coredns": "."}, on_demand=True),
    # Enforces network policies on a real node. Its other parts (routes, Services) are not used.
    Family("kube-router", {"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}, on_demand=True),
    # kubectl's plugin manager, to install what `make krew` builds.
    Family("krew", {"krew": "sigs.k8s.io/krew/cmd/krew"}, ldflags="-X sigs.k8s.io/krew/internal/version.gitTag=v0.4.3", on_demand=True),
)
FAMILY_OF = {program: family for family in FAMILIES for program in family.packages}
PROGRAMS = tuple(program for program, family in FAMILY_OF.items() if not family.on_demand)


@dataclass(frozen=True)
class _Accepted:
    """How a program on PATH reports its version, and the oldest (major, minor) that works here."""

    arguments: tuple[str, ...]
    oldest: tuple[int, int]


_ACCEPTED = {
    "etcd": _Accepted(("--version",), (3, 5)),
    "kube-apiserver": _Accepted(("--version",), (1, 33)),
    "kube-controller-manager": _Accepted(("--version",), (1, 33)),
    "kube-scheduler": _Accepted(("--version",), (1, 33)),
    "kubectl": _Accepted(("version", "--client"), (1, 33)),
    "kwok": _Accepted(("--version",), (0, 7)),
    "kwokctl": _Accepted(("--version",), (0, 7)),
    "helm": _Accepted(("version", "--short"), (3, 14)),
    "prometheus": _Accepted(("--version",), (3, 0)),
    "promtool": _Accepted(("--version",), (3, 0)),
    "lws-manager": _Accepted(("--version",), (0, 9)),
    "kubelet": _Accepted(("--version",), (1, 33)),
    "kube-proxy": _Accepted(("--version",), (1, 33)),
    "coredns": _Accepted(("-version",), (1, 12)),
    "kube-router": _Accepted(("--version",), (2, 1)),
    "krew": _Accepted(("version",), (0, 4)),
}


def cache_root() -> Path:
    """Returns the directory of everything the test bed keeps between runs: ``$XDG_CACHE_HOME/dflash-testbed``, by default under
    ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dflash-testbed"


def path_of(program: str) -> Path:
    """Returns the path of a program of FAMILIES and builds it if needed (minutes for kube-apiserver, progress on stderr).

    Raises BinaryError if it can be neither found nor built, KeyError for an unknown name.
    """
    return _at_hand(program) or _built(FAMILY_OF[program], program)


def paths_of(programs: Iterable[str] = PROGRAMS) -> dict[str, Path]:
    """Returns ``path_of`` for several programs. If some must be built, it first prints how many and how long that usually takes."""
    started, found = time.monotonic(), {program: _at_hand(program) for program in programs}
    missing = [program for program, path in found.items() if path is None]
    if missing:
        usual_s = sum(_USUAL_SECONDS[program] for program in missing)
        many = f"{len(missing)} programs are" if len(missing) > 1 else "1 program is"
        _tell(f"{many} built from source, once for these versions: usually {_duration(usual_s)} on 2 cores")
    paths = {program: path or path_of(program) for program, path in found.items()}
    if missing:
        _tell(f"built in {_duration(time.monotonic() - started)}, into {cache_root()}")
    return paths


def source_of(program: str, module: str) -> Path:
    """Returns the folder of a Go module, in the version that a program is built from. Raises BinaryError if it cannot be had."""
    family = FAMILY_OF[program]
    _check_go(family)
    command = ["go", "mod", "download", "-json", module]
    answer = subprocess.run(command, cwd=family.module, env=_go_environment(), capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BinaryError(f"{module}, whose manifests {program} needs: {answer.stderr.strip() or answer.stdout.strip()}")
    return Path(json.loads(answer.stdout)["Dir"])


def _at_hand(program: str) -> Path | None:
    """Returns the path of a program that need not be built; None if it must be."""
    family = FAMILY_OF[program]
    built = cache_root() / family.key() / program
    return _given(program) or _on_path(program) or (built if built.exists() else None)


def _given(program: str) -> Path | None:
    variable = "DFLASH_TESTBED_" + program.upper().replace("-", "_")
    value = os.environ.get(variable)
    if not value:
        return _in_folder(program)
    if not os.access(value, os.X_OK) or Path(value).is_dir():
        raise BinaryError(f"{variable}={value} is not an executable file")
    return Path(value).absolute()


def _in_folder(program: str) -> Path | None:
    """Returns a program of the folder that DFLASH_TESTBED_PROGRAMS names; None if it is not there."""
    folder = os.environ.get("DFLASH_TESTBED_PROGRAMS")
    if not folder:
        return None
    if not Path(folder).is_dir():
        raise BinaryError(f"DFLASH_TESTBED_PROGRAMS={folder} is not a folder")
    path = Path(folder).absolute() / program
    if path.exists() and not os.access(path, os.X_OK):
        raise BinaryError(f"{path}, named by DFLASH_TESTBED_PROGRAMS, is not executable")
    return path if path.exists() else None


def _on_path(program: str) -> Path | None:
    if os.environ.get("DFLASH_TESTBED_USE_PATH") != "1":
        return None
    found = shutil.which(program)
    if found is None:
        return None
    accepted = _ACCEPTED[program]
    answer = subprocess.run([found, *accepted.arguments], capture_output=True, text=True, check=False, timeout=30)
    version = re.search(r"\bv?(\d+)\.(\d+)", answer.stdout + answer.stderr)
    if version is None or (int(version[1]), int(version[2])) < accepted.oldest:
        say = version[0] if version else "a version that cannot be read"
        _tell(f"{found} is {say}; {program} {'.'.join(map(str, accepted.oldest))} or newer is needed, so our own is used")
        return None
    return Path(found)


def _built(family: Family, program: str) -> Path:
    target = cache_root() / family.key() / program
    target.parent.mkdir(parents=True, exist_ok=True)
    with exclusive(target.parent / ".lock", f"another build of {family.name}"):
        if not target.exists():
            _check_go(family)
            _build(family, program, target)
    return target


@contextmanager
def exclusive(lock_file: Path, holder: str) -> Iterator[None]:
    """Holds a lock file; says on stderr for whom it waits where another process has it."""
    with lock_file.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _tell(f"waiting for {holder}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _go_environment() -> dict[str, str]:
    # A workspace file above this directory would replace the pinned versions.
    return {**os.environ, "CGO_ENABLED": "0", "GOWORK": "off"}


def _check_go(family: Family) -> None:
    wanted = re.search(r"^go (\S+)$", (family.module / "go.mod").read_text(), re.MULTILINE)
    wanted_version = wanted[1] if wanted else "1.26"
    if shutil.which("go") is None:
        raise BinaryError(
            f"Go {wanted_version} or newer is needed to build {family.name}: put `go` on PATH, or name ready programs in "
            f"DFLASH_TESTBED_<NAME> ({', '.join('DFLASH_TESTBED_' + name.upper().replace('-', '_') for name in family.packages)})"
        )
    # Run inside the module. Go itself compares its version with go.mod and may switch to a newer toolchain if the user allows it.
    answer = subprocess.run(["go", "version"], cwd=family.module, env=_go_environment(), capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise BinaryError(f"Go {wanted_version} or newer is needed to build {family.name}; `go version` says: {answer.stderr.strip()}")


def _build(family: Family, program: str, target: Path) -> None:
    place = "1/1" if family.on_demand else f"{PROGRAMS.index(program) + 1}/{len(PROGRAMS)}"
    usual = f"usually {_duration(_USUAL_SECONDS[program])}"
    unfinished = target.with_name(f".{program}.{os.getpid()}")
    log_file = target.with_name(f"{program}.log")
    command = ["go", "build", *family.build_flags(), "-o", str(unfinished), family.packages[program]]
    started = time.monotonic()
    _tell(f"[{place}] building {program} ({usual})")
    try:
        with log_file.open("w") as log:
            process = subprocess.Popen(command, cwd=family.module, env=_go_environment(), stdout=log, stderr=log)
            while True:
                try:
                    code = process.wait(timeout=_HEARTBEAT_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    _tell(f"[{place}] building {program}: {_duration(time.monotonic() - started)} so far ({usual})")
                except BaseException:
                    process.terminate()
                    process.wait()
                    raise
        if code != 0:
            last = "\n".join(log_file.read_text().splitlines()[-20:])
            raise BinaryError(f"building {program} failed (all of it: {log_file}):\n{last}")
        unfinished.rename(target)
    finally:
        unfinished.unlink(missing_ok=True)
    _tell(f"[{place}] built {program} in {_duration(time.monotonic() - started)}")


def _duration(seconds: float) -> str:
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"


def _tell(line: str) -> None:
    print(f"test bed: {line}", file=sys.stderr, flush=True)
