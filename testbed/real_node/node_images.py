"""The images of the real node, as one OCI layout in the test bed's cache: built once for these sources, shared layers stored once."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_controller.engines.releases import TABLE
from testbed import binaries
from testbed.images import ROOT, UPSTREAM, Builder, Image, engine_image, operator_image, simulator_image

OPERATOR_REPOSITORY = "localhost/dflash-operator"
ENGINE_REPOSITORY = "localhost/dflash-"
"""Before an engine's name."""
PAUSE = "localhost/dflash-pause:1"
DNS = "localhost/dflash-dns:1"
PROMETHEUS = "localhost/dflash-prometheus:1"
_SOURCES = ("images", "dflash_controller", "operator", "testbed", "requirements.lock")
_ELSEWHERE = ("gomod", "real_node")
"""Folders that go into none of these images."""
_NAME = "io.containerd.image.name"


@dataclass(frozen=True)
class ImageSize:
    """One image's size: ``compressed`` bytes are what a registry transfers, ``unpacked`` what its layers take on a node's disk."""

    name: str
    compressed: int
    unpacked: int


def _build_own(builder: Builder, base: str) -> list[Image]:
    """Builds the images of `images/` that the node runs: the operator, the simulator of each engine's default release, and what the
    engines' own files make of it, because the simulator stands for the image that upstream publishes."""
    operator, simulators = operator_image(OPERATOR_REPOSITORY), {name: simulator_image(name, TABLE[name].default) for name in UPSTREAM}
    first, *others = simulators.values()
    builder.build(operator, base)
    builder.build(first, base)
    for other in others:
        builder.derive(other, first, DFLASH_SIM_RELEASE=dict(other.arguments)["RELEASE"])
    engines = [
        engine_image(name, TABLE[name].default, builder.digest(simulator), f"{ENGINE_REPOSITORY}{name}")
        for name, simulator in simulators.items()
    ]
    for engine in engines:
        builder.build(engine, "")
    return [operator, first, *others, *engines]


def layout() -> Path:
    """Returns an OCI layout with all images. Building it takes about three minutes, and needs the package index that pip uses.

    Raises ImageError if an image cannot be built.
    """
    programs = binaries.paths_of(("coredns", "prometheus"))
    root = binaries.cache_root() / "images"
    root.mkdir(parents=True, exist_ok=True)
    with binaries.exclusive(root / ".lock", "another build of images"):
        found = root / f"layout-{_key([*programs.values()])}"
        if found.exists():
            return found
        for old in (*root.glob("layout-*"), *root.glob(".layout")):
            shutil.rmtree(old)
        unfinished = root / ".layout"
        builder = Builder.found("buildah", storage=root / "buildah")
        try:
            base = builder.local_base()
            for image in _build_own(builder, base):
                builder.run("push", "--quiet", image.tag, f"oci:{unfinished}:{image.tag}")
            for tag, program in ((PAUSE, _pause(root)), (DNS, programs["coredns"]), (PROMETHEUS, programs["prometheus"])):
                builder.binary_image(tag, program)
                builder.run("push", "--quiet", tag, f"oci:{unfinished}:{tag}")
        finally:
            builder.keep_only(base)
        _name_images(unfinished)
        unfinished.rename(found)
        return found


def measured(found: Path) -> list[ImageSize]:
    """Returns the size of each image of a layout."""
    sizes = []
    for entry in json.loads((found / "index.json").read_text())["manifests"]:
        layers = _blob(found, entry["digest"])["layers"]
        blobs = [found / "blobs" / "sha256" / layer["digest"].removeprefix("sha256:") for layer in layers]
        unpacked = sum(_unpacked(blob) for blob in blobs)
        sizes.append(ImageSize(entry["annotations"][_NAME], sum(layer["size"] for layer in layers), unpacked))
    return sizes


def _unpacked(blob: Path) -> int:
    with blob.open("rb") as stream:
        answer = subprocess.run(["sh", "-c", "gzip -dc | wc -c"], stdin=stream, capture_output=True, text=True, check=True)
    return int(answer.stdout)


def _key(programs: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in _files():
        digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes() + b"\0")
    for program in programs:
        digest.update(f"{program}\0{program.stat().st_size}\0".encode())
    return digest.hexdigest()[:16]


def _files() -> Iterator[Path]:
    for source in _SOURCES:
        path = ROOT / source
        inside = [path] if path.is_file() else sorted(path.rglob("*"))
        left_out = {"__pycache__", *_ELSEWHERE}
        yield from (file for file in inside if file.is_file() and not left_out & set(file.parts) and file.suffix != ".md")


def _pause(folder: Path) -> Path:
    program = folder / "pause"
    source = Path(__file__).with_name("pause.c")
    subprocess.run(["gcc", "-static", "-Os", "-o", str(program), str(source)], check=True)
    return program


def _name_images(unfinished: Path) -> None:
    """Gives each image the name under which containerd imports it."""
    index = json.loads((unfinished / "index.json").read_text())
    for entry in index["manifests"]:
        entry["annotations"][_NAME] = entry["annotations"]["org.opencontainers.image.ref.name"]
    (unfinished / "index.json").write_text(json.dumps(index))


def _blob(found: Path, digest: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((found / "blobs" / digest.replace(":", "/")).read_text())
    return content
