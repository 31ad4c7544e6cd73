"""What the image files promise, and which program builds them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes
import pytest

from dflash_controller.engines.releases import TABLE
from testbed.control_plane import for_kwokctl
from testbed.images import ROOT, UPSTREAM, Builder, Image, ImageError, engine_image, main

IMAGES = ROOT / "images"


def text(name: str) -> str:
    return (IMAGES / f"{name}.Dockerfile").read_text()


@pytest.mark.parametrize("name", ["operator", "engine-simulator", "sglang", "vllm"])
def test_every_image_runs_as_a_numbered_user_other_than_root_and_says_what_it_is(name: str) -> None:
    users = re.findall(r"^USER (\S+)", text(name), re.MULTILINE)
    assert users[-1].partition(":")[0] == "65532", "by number: the kubelet cannot tell whether a name is root's"
    for label in ("title", "description", "version"):
        assert f"org.opencontainers.image.{label}=" in text(name)


@pytest.mark.parametrize("engine", sorted(TABLE))
def test_an_engines_image_is_upstreams_release_at_a_digest_that_must_be_given(engine: str) -> None:
    lines = text(engine).splitlines()
    assert "ARG DIGEST" in lines, "no default: the build stops without it"
    assert f"ARG RELEASE={TABLE[engine].default}" in lines
    assert "FROM ${UPSTREAM}:v${RELEASE}@${DIGEST}" in lines
    assert not re.search(r"^(COPY|ADD|ENTRYPOINT|CMD) ", text(engine), re.MULTILINE), "nothing of upstream is replaced"
    assert f"ARG UPSTREAM={UPSTREAM[engine]}" in lines
    assert "ARG UPSTREAM" in lines[lines.index("FROM ${UPSTREAM}:v${RELEASE}@${DIGEST}") :], "else it is empty in the label"
    assert 'org.opencontainers.image.base.name="${UPSTREAM}:v${RELEASE}"' in text(engine)


def test_the_table_of_releases_is_that_of_the_contract_tests() -> None:
    rows = re.findall(r"^\| (SGLang|vLLM) \| (\S+) \|", (IMAGES / "README.md").read_text(), re.MULTILINE)
    assert rows == [(releases.engine, version) for releases in TABLE.values() for version in releases.tested]


def test_the_extras_install_the_newest_tested_release() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {name: extras[name] for name in TABLE} == {name: [f"{name}=={releases.default}"] for name, releases in TABLE.items()}


def test_what_the_build_deletes_of_the_kubernetes_client_nothing_of_the_operator_imports(tmp_path: Path) -> None:
    """The build runs the same program. The package here is made of links, so that only links are deleted."""
    package = Path(kubernetes.__file__).parent
    shutil.copytree(package, tmp_path / "kubernetes", copy_function=os.symlink, ignore=shutil.ignore_patterns("__pycache__"))
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
    operator = str(ROOT / "operator" / "main.py")

    def run(*arguments: str) -> str:
        done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    said = run(str(IMAGES / "trim.py"), operator)
    assert int(said.split()[0]) > 50, said
    again = run(str(IMAGES / "trim.py"), operator)
    assert int(again.split()[0]) == 0, "every module of the operator can still be imported, and needs what it needed before"
    used = run("-c", "import kubernetes; from kubernetes.aio.dynamic import DynamicClient; print(kubernetes.__file__)")
    assert used.strip().startswith(str(tmp_path))


def test_the_bill_of_materials_names_every_installed_package_with_its_version() -> None:
    said = subprocess.run([sys.executable, str(IMAGES / "sbom.py")], capture_output=True, text=True, check=True).stdout
    bill = json.loads(said)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    found = {item["name"]: item for item in bill["components"]}
    locked = dict(re.findall(r"^([a-z0-9.-]+)==([^ ]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE))
    assert found["pydantic"]["version"] == locked["pydantic"]
    assert found["pydantic"]["purl"] == f"pkg:pypi/pydantic@{locked['pydantic']}"
    assert found["huggingface-hub"]["purl"].startswith("pkg:pypi/huggingface-hub@"), "names as package URLs want them"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on PATH, without any program."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def fake(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_first_program_that_works_builds(programs: Path) -> None:
    fake(programs, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    fake(programs, "buildah", "exit 0")
    assert Builder.found().program == "buildah"
    fake(programs, "podman", "exit 0")
    assert Builder.found().program == "podman"


def test_without_any_the_message_says_why_each_does_not_work(programs: Path) -> None:
    fake(programs, "docker", "echo 'Cannot connect to the Docker daemon' >&2; exit 1")
    with pytest.raises(ImageError) as refused:
        Builder.found()
    assert str(refused.value) == (
        "no image can be built here: docker info: Cannot connect to the Docker daemon; podman is not installed; buildah is not installed"
    )


DIGEST = "sha256:" + "a1" * 32
ENGINE = ("--engine=vllm", f"--digest={DIGEST}")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--engine=vllm",), "--engine=vllm needs --digest=sha256:…, of docker.io/vllm/vllm-openai"),
        (("--engine=vllm", "--digest=sha256:abc"), "--digest=sha256:abc: a digest is sha256: and 64 hexadecimal digits"),
        (("--engine=vllm", f"--digest={DIGEST}0"), "64 hexadecimal digits"),
        (("--engine=vllm", f"--digest={DIGEST.upper()}"), "64 hexadecimal digits"),
        ((*ENGINE, "--release=v0.33.0"), f"--release=v0.33.0: give the number alone, as in {TABLE['vllm'].default}"),
        ((*ENGINE, "--release=0.33.0@x"), "give the number alone"),
        ((*ENGINE, "--upstream=registry.example/vllm:v1"), "--upstream=registry.example/vllm:v1: give a repository without"),
        ((*ENGINE, "--upstream=https://registry.example/vllm"), "without scheme"),
        ((*ENGINE, "--repository=registry.example/VLLM"), "--repository=registry.example/VLLM: give a repository"),
        ((f"--digest={DIGEST}",), "--digest is of an engine's image: give --engine too"),
        (("--upstream=registry.example/vllm",), "--upstream is of an engine's image"),
    ],
    ids=str,
)
def test_what_no_builder_can_take_is_refused_in_plain_words(
    arguments: tuple[str, ...], message: str, programs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake(programs, "docker", f'echo "$@" >>{programs}/said')
    with pytest.raises(SystemExit) as refused:
        main(arguments)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err
    assert not (programs / "said").exists()


def test_an_engine_is_built_from_upstream_or_its_mirror(programs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake(programs, "docker", f'echo "$@" >>{programs}/said')
    mirror = "registry.example:5000/mirror/vllm-openai"
    for given, source in (((), UPSTREAM["vllm"]), ((f"--upstream={mirror}",), mirror)):
        assert main((*ENGINE, "--release=0.33.0", "--repository=registry.example:5000/vllm", *given)) == 0
        assert capsys.readouterr().out.startswith("registry.example:5000/vllm:v0.33.0\t")
        build = (programs / "said").read_text().splitlines()[-1]
        assert f"--build-arg UPSTREAM={source} --build-arg RELEASE=0.33.0 --build-arg DIGEST={DIGEST}" in build
    assert engine_image("sglang", "0.5.23", DIGEST, "x").arguments[0] == ("UPSTREAM", UPSTREAM["sglang"])


@pytest.mark.parametrize(("program", "by_name"), [("docker", True), ("podman", False), ("buildah", False)])
def test_a_build_takes_only_the_files_that_its_ignore_file_lets_in(programs: Path, program: str, by_name: bool) -> None:
    """BuildKit finds the file by its name; the others are told."""
    fake(programs, program, f'echo "$@" >>{programs}/said')
    Builder(program).build(Image("operator", "dflash-operator:1", (("VERSION", "1"),)), base="debian:12")
    said = (programs / "said").read_text()
    assert "--build-arg BASE_IMAGE=debian:12 --build-arg VERSION=1" in said
    assert (f"--ignorefile {IMAGES}/operator.Dockerfile.dockerignore" not in said) == by_name


def test_a_failed_build_says_the_last_lines(programs: Path) -> None:
    fake(programs, "docker", "echo 'step 3: no such package' >&2; exit 4")
    with pytest.raises(ImageError, match="exit status 4:\nstep 3: no such package"):
        Builder("docker").build(Image("operator", "dflash-operator:1"), base="")


def test_the_first_argument_of_each_component_comes_firstfor_kwokctl() -> None:
    """kwokctl 0.8.0 counts arguments where it should count components."""
    given = ["api=a=1", "api=b=2", "etcd=c=3", "api=d=4", "etcd=e=5"]
    assert for_kwokctl(given) == ["api=a=1", "etcd=c=3", "api=b=2", "api=d=4", "etcd=e=5"]
