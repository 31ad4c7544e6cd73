"""What `make e2e-node KUBECONFIG=…` says, in one line, of what it cannot begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed import binaries
from testbed.user_cluster import CRD, main

IMAGES = ("--operator-image=registry.example:5000/dflash-operator:1", "--engine-image=registry.example/simulator:v1")


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    made = tmp_path / "config"
    made.write_text("")
    return made


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of kubectl, to be written by the test."""
    made = tmp_path / "kubectl"
    monkeypatch.setattr(binaries, "path_of", lambda name: made)
    return made


def answers(kubectl: Path, script: str) -> None:
    kubectl.write_text(f"#!/bin/sh\n{script}\n")
    kubectl.chmod(0o755)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    [line] = capsys.readouterr().err.splitlines()
    return line


def test_a_kubeconfig_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("--kubeconfig=/nonexistent", *IMAGES)) == 1
    assert said(capsys) == "your cluster: KUBECONFIG=/nonexistent: there is no such file. Give the path of one kubeconfig file"


@pytest.mark.parametrize("image", ["", "registry.example:5000/dflash-operator"])
def test_an_image_without_a_tag_is_named(kubeconfig: Path, image: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main((f"--kubeconfig={kubeconfig}", f"--operator-image={image}", IMAGES[1])) == 1
    assert "OPERATOR_IMAGE" in (line := said(capsys))
    assert "give the operator's image with its tag" in line


def test_a_cluster_that_does_not_answer_or_lacks_the_definition_is_told(
    kubeconfig: Path, kubectl: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = (f"--kubeconfig={kubeconfig}", *IMAGES)
    answers(kubectl, "echo first >&2; echo 'Unable to connect to the server: EOF' >&2; exit 1")
    assert main(given) == 1
    assert said(capsys).endswith("kubectl cannot read the cluster: Unable to connect to the server: EOF")
    answers(kubectl, "exit 0")
    assert main(given) == 1
    assert f"the cluster has no {CRD}" in said(capsys)
    answers(kubectl, f"echo {CRD}")
    assert main(given) == 0
