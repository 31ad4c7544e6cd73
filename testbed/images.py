"""Builds the images of ``images/`` with docker, podman or buildah, whichever works here: ``python -m testbed.images``.

``BASE_IMAGE`` names their base; ``debian`` stands for one that mmdebstrap makes from Debian packages, for machines that reach no registry.
pip in a build uses the index and the certificates of the machine that builds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dflash_controller import __version__
from dflash_controller.engines.releases import TABLE
from testbed.binaries import cache_root

ROOT = Path(__file__).parent.parent
DEBIAN = "debian"
_DEBIAN_TAG = "localhost/dflash-base:bookworm-2"
"""The number counts the ways to make it: an image of an earlier way is not taken for it."""
_DEBIAN_PACKAGES = "python3,python3-venv,ca-certificates,usr-is-merged"
"""usr-is-merged stands for usrmerge, which needs 48 MB of perl, where the file system has been made with that layout."""
_MERGED = "/usr/share/mmdebstrap/hooks/merged-usr"
_LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/info/*", "/usr/lib/*/gconv/*")
"""gconv: tables of character sets for iconv, which Python does not use."""
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
UPSTREAM = {"sglang": "docker.io/lmsysorg/sglang", "vllm": "docker.io/vllm/vllm-openai"}
"""Repository of each engine's own release image. The simulator takes its name, so that an example runs unchanged."""


_REPOSITORY = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*")
_RELEASE = re.compile(r"[0-9][A-Za-z0-9._-]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ImageError(RuntimeError):
    """An image could not be built; the message says why in its first line."""


@dataclass(frozen=True)
class Image:
    """One image: the file of ``images/`` that builds it, its name, build arguments."""

    dockerfile: str
    tag: str
    arguments: tuple[tuple[str, str], ...] = ()


def operator_image(repository: str = "dflash-operator") -> Image:
    """Returns the operator's image of this tree's version."""
    return Image("operator", f"{repository}:{__version__}", (("VERSION", __version__), ("REVISION", _commit())))


def simulator_image(engine: str, release: str) -> Image:
    """Returns the simulator of one release, named as that release's own image."""
    return Image("engine-simulator", f"{UPSTREAM[engine]}:v{release}", (("RELEASE", release),))


def engine_image(engine: str, release: str, digest: str, repository: str, upstream: str = "") -> Image:
    """Returns the engine's own release image, of this digest, for a user other than root. ``upstream`` is a mirror of its repository."""
    source = upstream or UPSTREAM[engine]
    return Image(engine, f"{repository}:v{release}", (("UPSTREAM", source), ("RELEASE", release), ("DIGEST", digest)))


@dataclass(frozen=True)
class Builder:
    """The program that builds. ``options`` come before its command."""

    program: str
    options: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None

    @classmethod
    def found(cls, wanted: str = "", storage: Path | None = None) -> Builder:
        """Returns the first of docker, podman and buildah that works here, or the wanted one.

        `storage` is where buildah keeps its layers instead of the user's own place. Raises ImageError if none works.
        """
        reasons = []
        for program in (wanted,) if wanted else ("docker", "podman", "buildah"):
            builder = cls(program, *_buildah_settings(storage)) if program == "buildah" else cls(program)
            if shutil.which(program) is None:
                reasons.append(f"{program} is not installed")
                continue
            answer = builder.call("info")
            if answer.returncode == 0:
                return builder
            reasons.append(f"{program} info: {(answer.stderr.strip().splitlines() or ['failed'])[-1]}")
        raise ImageError(f"no image can be built here: {'; '.join(reasons)}")

    def build(self, image: Image, base: str) -> None:
        """Builds one image. Raises ImageError with the end of the output if it fails."""
        dockerfile = ROOT / "images" / f"{image.dockerfile}.Dockerfile"
        command = ["build", "-f", str(dockerfile), "-t", image.tag, *(["--build-arg", f"BASE_IMAGE={base}"] if base else [])]
        for name, value in image.arguments:
            command += ["--build-arg", f"{name}={value}"]
        for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
            if os.environ.get(name):
                command += ["--build-arg", name]
        if self.program != "docker":  # BuildKit finds the file by its name
            command += ["--ignorefile", f"{dockerfile}.dockerignore"]
            if _CERTIFICATES.exists():
                command += ["--volume", f"{_CERTIFICATES}:{_CERTIFICATES}:ro"]
        # buildah without --layers: its cache of layers does not see that a build argument has changed (1.28).
        self.run(*command, str(ROOT))

    def derive(self, image: Image, built: Image, **environment: str) -> None:
        """Makes an image that differs from a built one in its environment only. For buildah only."""
        container = self.run("from", built.tag).strip()
        self.run("config", *(f"--env={name}={value}" for name, value in environment.items()), container)
        self.run("commit", "--quiet", "--rm", container, image.tag)

    def digest(self, image: Image) -> str:
        """Returns the digest of an image that was built here. For buildah only."""
        return self.run("images", "--format", "{{.Digest}}", image.tag).strip()

    def local_base(self) -> str:
        """Returns the name of a base image made of Debian packages; makes it if it is not there yet."""
        if self.call("inspect" if self.program == "docker" else "images", _DEBIAN_TAG).returncode == 0:
            return _DEBIAN_TAG
        if shutil.which("mmdebstrap") is None:
            raise ImageError("mmdebstrap is not installed: it makes the base image from Debian packages")
        archive = cache_root() / "images" / f"base.{os.getpid()}.tar"
        archive.parent.mkdir(parents=True, exist_ok=True)
        excluded = [f"--dpkgopt=path-exclude={path}" for path in _LEFT_OUT]
        try:
            options = ["--quiet", "--variant=minbase", f"--hook-dir={_MERGED}", f"--include={_DEBIAN_PACKAGES}"]
            _run(["mmdebstrap", *options, *excluded, "bookworm", str(archive)])
            if self.program == "buildah":
                container = self.run("from", "scratch").strip()
                self.run("add", container, str(archive), "/")
                self.run("commit", "--rm", container, _DEBIAN_TAG)
            else:
                self.run("import", str(archive), _DEBIAN_TAG)
        finally:
            archive.unlink(missing_ok=True)
        return _DEBIAN_TAG

    def binary_image(self, tag: str, program: Path, base: str = "scratch") -> None:
        """Builds an image that holds one static program, as /<its name>, and runs it. For buildah only."""
        container = self.run("from", base).strip()
        self.run("copy", "--chmod", "0755", container, str(program), f"/{program.name}")
        self.run("config", "--entrypoint", f'["/{program.name}"]', "--user", "65532:65532", container)
        self.run("commit", "--rm", container, tag)

    def save(self, tag: str, archive: Path) -> None:
        """Writes an image as a docker archive."""
        unfinished = archive.with_name(f".{archive.name}.{os.getpid()}")
        try:
            if self.program == "buildah":
                self.run("push", "--quiet", tag, f"docker-archive:{unfinished}:{tag}")
            else:
                self.run("save", "--output", str(unfinished), tag)
            unfinished.rename(archive)
        finally:
            unfinished.unlink(missing_ok=True)

    def keep_only(self, tag: str) -> None:
        """Removes every other image of buildah's storage, with all layers that only they have."""
        kept = self.run("images", "--quiet", "--no-trunc", tag).split()
        others = set(self.run("images", "--all", "--quiet", "--no-trunc").split()) - set(kept)
        if others:
            self.call("rmi", "--force", *others)

    def run(self, *arguments: str) -> str:
        """Returns the standard output of a command. Raises ImageError if it fails."""
        answer = self.call(*arguments)
        if answer.returncode != 0:
            raise ImageError(_failure(answer))
        return answer.stdout

    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = None if self.environment is None else {**os.environ, **self.environment}
        command = [self.program, *self.options, *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def sizes(archive: Path) -> tuple[int, int]:
    """Returns bytes of an image's archive: unpacked, as on a node's disk, and compressed, as a registry transfers it."""
    compressed = subprocess.run(f"gzip -6 <{archive} | wc -c", shell=True, capture_output=True, text=True, check=True).stdout
    return archive.stat().st_size, int(compressed)


def _buildah_settings(storage: Path | None) -> tuple[tuple[str, ...], Mapping[str, str]]:
    # chroot: no container runtime, no network of its own, no cgroups are needed to run pip.
    options = () if storage is None else ("--root", str(storage / "root"), "--runroot", str(storage / "run"))
    return options, {"BUILDAH_ISOLATION": "chroot"}


def _commit() -> str:
    answer = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    return answer.stdout.strip() or "unknown"


def _run(command: Sequence[str]) -> None:
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise ImageError(_failure(answer))


def _failure(answer: subprocess.CompletedProcess[str]) -> str:
    last = "\n".join((answer.stdout + answer.stderr).strip().splitlines()[-15:])
    return f"{' '.join(answer.args[:6])} … failed with exit status {answer.returncode}:\n{last}"


def _problem(options: argparse.Namespace) -> str | None:
    """Returns what is wrong with the options: builders say no more of it than `invalid reference format`."""
    for option in ("repository", "upstream"):
        value = getattr(options, option)
        if value and not _REPOSITORY.fullmatch(value):
            return f"--{option}={value}: give a repository without scheme, tag and digest, as in registry.example/sglang"
    if not options.engine:
        alone = next((option for option in ("upstream", "release", "digest") if getattr(options, option)), None)
        return f"--{alone} is of an engine's image: give --engine too" if alone else None
    if options.release and not _RELEASE.fullmatch(options.release):
        return f"--release={options.release}: give the number alone, as in {TABLE[options.engine].default}; the tag gets its v here"
    source = options.upstream or UPSTREAM[options.engine]
    if not options.digest:
        return f"--engine={options.engine} needs --digest=sha256:…, of {source}: a tag can be moved"
    if not _DIGEST.fullmatch(options.digest):
        return (
            f"--digest={options.digest}: a digest is sha256: and 64 hexadecimal digits. images/README.md says how to look it up at {source}"
        )
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds what is asked for. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m testbed.images", description=__doc__)
    parser.add_argument("--repository", default="", help="of the image (default: dflash-operator, or dflash- and the engine's name)")
    parser.add_argument("--builder", default="", help="docker, podman or buildah (default: the first that works)")
    parser.add_argument("--base", default="", help="base image; `debian` makes one from Debian packages (default: that of the Dockerfile)")
    parser.add_argument("--simulator", action="store_true", help="also the engine simulator, for the default release of each engine")
    parser.add_argument("--engine", choices=UPSTREAM, help="instead of the operator: its release image for a user other than root")
    parser.add_argument("--release", default="", help="of the engine (default: the newest that was checked)")
    parser.add_argument("--upstream", default="", help="mirror of the repository of the engine's own image (default: that on Docker Hub)")
    parser.add_argument("--digest", default="", help="of the engine's own image; images/README.md says how to look it up")
    options = parser.parse_args(arguments)
    if problem := _problem(options):
        parser.error(problem)
    try:
        builder = Builder.found(options.builder)
        base = builder.local_base() if options.base == DEBIAN and not options.engine else options.base
        if options.engine:
            release = options.release or TABLE[options.engine].default
            repository = options.repository or f"dflash-{options.engine}"
            images = [engine_image(options.engine, release, options.digest, repository, options.upstream)]
        else:
            images = [operator_image(options.repository or "dflash-operator")]
        if options.simulator:
            images += [simulator_image(engine, TABLE[engine].default) for engine in UPSTREAM]
        for image in images:
            builder.build(image, base)
            print(f"{image.tag}\tbuilt with {builder.program}")
    except ImageError as error:
        print(f"images: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
