"""``python -m hack.krew`` builds ``kubectl dflash`` for krew, kubectl's plugin manager: an archive for this platform, and the manifest.

The archive holds Python and everything that the commands import, so a user needs neither. It is a directory: a single file would unpack
itself at every start. Run it with the environment of requirements-release.lock (``make krew``).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import pkgutil
import platform
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from dflash_controller import __version__
from dflash_controller.cli.printing import as_yaml

ROOT = Path(__file__).parents[1]
PROGRAM = "kubectl-dflash"
PLUGIN = "dflash"
_ARCHIVE = re.compile(rf"{PROGRAM}-(?P<os>[a-z]+)-(?P<arch>[a-z0-9]+)\.tar\.gz")
_SEMANTIC = re.compile(r"\d+\.\d+\.\d+(-[0-9A-Za-z.-]+)?")
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
"""krew has Go's names."""
_TOOLS = ("altgraph", "pip", "pyinstaller", "pyinstaller-hooks-contrib", "setuptools")
"""Packages of the environment that build and are no part of the program."""
_NEEDLESS = ("PIL._avif", "PIL._webp", "setuptools", "tkinter")
"""Parts of libraries that drawing a PNG does without."""
_GENERATED = ("kubernetes.client", "kubernetes.aio.client")
"""Have a class for every kind and every request, 70 MB, each loaded when its name is first used. These commands use none of them."""
DESCRIPTION = """\
Checks and renders DFlashDeployments without a cluster, shows what they run and
measure, explains their block sizes, follows and steers their rollouts, and
checks whether a cluster is ready for them.

A DFlashDeployment serves a model on SGLang or vLLM with a DFlash drafter.
"""
CAVEATS = """\
Run "kubectl dflash doctor" first: it says what the cluster lacks.
kubectl completes neither commands nor names, because krew installs one program.
"""


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive of one platform, with Go's names of system and architecture."""

    file: Path
    os: str
    arch: str

    @staticmethod
    def of(file: Path) -> Archive:
        """Raises ValueError if the file's name has no platform."""
        named = _ARCHIVE.fullmatch(file.name)
        if named is None:
            raise ValueError(f"{file}: must be named {PROGRAM}-OS-ARCH.tar.gz")
        return Archive(file, named["os"], named["arch"])

    @property
    def sha256(self) -> str:
        with self.file.open("rb") as content:
            return hashlib.file_digest(content, "sha256").hexdigest()


def manifest(
    archives: Sequence[Archive], uri: str | None = None, homepage: str | None = None, version: str = __version__
) -> dict[str, Any]:
    """Returns krew's manifest of these archives. Raises ValueError for a version that is not semantic.

    ``uri`` is the directory from which the archives are downloaded. Without it krew installs with --archive only.
    """
    if not _SEMANTIC.fullmatch(version):
        raise ValueError(f"version {version}: krew wants MAJOR.MINOR.PATCH, with -PRERELEASE where need be")
    spec = {
        "version": f"v{version}",
        **({"homepage": homepage} if homepage else {}),
        "shortDescription": "Operate DFlash speculative decoding",
        "description": DESCRIPTION,
        "caveats": CAVEATS,
        "platforms": [
            {
                "selector": {"matchLabels": {"os": archive.os, "arch": archive.arch}},
                # krew wants a value, and does not look at it with --archive.
                "uri": f"{uri.rstrip('/')}/{archive.file.name}" if uri else archive.file.name,
                "sha256": archive.sha256,
                "bin": PROGRAM,
                "files": [{"from": "*", "to": "."}],
            }
            for archive in sorted(archives, key=lambda each: (each.os, each.arch))
        ],
    }
    return {"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin", "metadata": {"name": PLUGIN}, "spec": spec}


def archive_name(system: str | None = None, machine: str | None = None) -> str:
    """Returns the name of the archive for a platform; by default that of this machine. Raises ValueError for one that is not supported."""
    system, machine = (system or platform.system()).lower(), (machine or platform.machine()).lower()
    if system not in ("linux", "darwin") or machine not in _ARCHITECTURES:
        raise ValueError(f"{system} on {machine}: archives are built for Linux and macOS on x86-64 and 64-bit ARM")
    return f"{PROGRAM}-{system}-{_ARCHITECTURES[machine]}.tar.gz"


def build(work: Path) -> Path:
    """Returns a directory with the program and everything it needs. Raises CalledProcessError if it cannot be built."""
    packages = [found.metadata["Name"] for found in distributions() if found.metadata["Name"].lower() not in _TOOLS]
    options = [
        "--noconfirm",
        "--log-level=ERROR",
        f"--name={PROGRAM}",
        f"--distpath={work / 'built'}",
        f"--workpath={work / 'work'}",
        f"--specpath={work}",
        # Imported by name when a command runs.
        "--collect-submodules=dflash_controller.cli",
        "--collect-data=dflash_controller",
        # Their licenses.
        *(f"--copy-metadata={name}" for name in packages),
        *(f"--exclude-module={name}" for name in _unused()),
        *(f"--exclude-module={name}" for name in _NEEDLESS),
        f"--runtime-hook={ROOT / 'hack' / 'krew_environment.py'}",
    ]
    program = ROOT / "dflash_controller" / "cli" / "program.py"
    subprocess.run([sys.executable, "-m", "PyInstaller", *options, str(program)], check=True, cwd=ROOT)
    made = work / "built" / PROGRAM
    _unlink_copies(made)
    (made / "LICENSE").write_bytes((ROOT / "LICENSE").read_bytes())
    return made


def pack(made: Path, archive: Path) -> None:
    """Writes the archive: the same bytes for the same files."""
    archive.parent.mkdir(parents=True, exist_ok=True)

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return entry

    # A time in the header would make every archive another one.
    with gzip.GzipFile(archive, "wb", compresslevel=9, mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as out:
        for path in sorted(made.rglob("*")):
            out.add(path, path.relative_to(made).as_posix(), recursive=False, filter=plain)


def _unused() -> Iterator[str]:
    """Yields the generated modules of the Kubernetes client library that no command loads."""
    import dflash_controller.cli

    for found in pkgutil.walk_packages(dflash_controller.cli.__path__, f"{dflash_controller.cli.__name__}."):
        importlib.import_module(found.name)
    for package in _GENERATED:
        for part in ("api", "models"):
            place = importlib.import_module(f"{package}.{part}")
            for found in pkgutil.iter_modules(place.__path__, f"{place.__name__}."):
                if found.name not in sys.modules:
                    yield found.name


def _unlink_copies(made: Path) -> None:
    """Deletes symbolic links to libraries, which krew cannot unpack. What needs a library finds it where the link leads."""
    for path in made.rglob("*"):
        if path.is_symlink():
            path.unlink()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m hack.krew", description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="directory of archive and manifest (dist)")
    parser.add_argument("--uri", help="URL of the directory from which the archives can be downloaded")
    parser.add_argument("--homepage", help="URL that the manifest names as the plugin's home page")
    parser.add_argument("--also", type=Path, nargs="*", default=[], metavar="ARCHIVE", help="archives of other platforms, of this version")
    options = parser.parse_args(arguments)
    work = ROOT / "build" / "krew"
    try:
        archive = Archive.of(options.into / archive_name())
        others = [Archive.of(file) for file in options.also]
        pack(build(work), archive.file)
        written = options.into / f"{PLUGIN}.yaml"
        written.write_text(as_yaml(manifest([archive, *others], options.uri, options.homepage)), encoding="utf-8")
    except (ValueError, OSError, subprocess.CalledProcessError) as error:
        print(f"krew: {error}", file=sys.stderr)
        return 1
    print(f"{archive.file}\n{written}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
