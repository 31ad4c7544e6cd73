"""krew's manifest of the plugin: what krew's own validation asks for, of archives that are there."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

import pytest
import yaml

from dflash_controller import __version__
from dflash_controller.cli.printing import as_yaml
from hack import krew, krew_environment


def archive(folder: Path, name: str) -> krew.Archive:
    file = folder / name
    file.write_bytes(name.encode())
    return krew.Archive.of(file)


def test_a_manifest_has_what_krew_wants(tmp_path: Path) -> None:
    names = ("kubectl-dflash-linux-amd64.tar.gz", "kubectl-dflash-darwin-arm64.tar.gz")
    archives = [archive(tmp_path, name) for name in names]
    found = yaml.safe_load(as_yaml(krew.manifest(archives, uri="https://example.com/v1/", homepage="https://example.com")))
    assert (found["apiVersion"], found["kind"]) == ("krew.googlecontainertools.github.com/v1alpha2", "Plugin")
    assert found["metadata"] == {"name": "dflash"}
    spec = found["spec"]
    assert (spec["version"], spec["homepage"]) == (f"v{__version__}", "https://example.com")
    assert spec["shortDescription"]
    assert "\n" not in spec["shortDescription"]
    assert spec["description"].strip()
    assert spec["caveats"].strip()
    assert [platform["selector"]["matchLabels"] for platform in spec["platforms"]] == [
        {"os": "darwin", "arch": "arm64"},
        {"os": "linux", "arch": "amd64"},
    ]
    linux = spec["platforms"][1]
    assert linux["uri"] == f"https://example.com/v1/{names[0]}"
    assert linux["sha256"] == hashlib.sha256(names[0].encode()).hexdigest()
    assert (linux["bin"], linux["files"]) == ("kubectl-dflash", [{"from": "*", "to": "."}])


def test_without_a_place_to_download_from_it_installs_an_archive_only(tmp_path: Path) -> None:
    spec = krew.manifest([archive(tmp_path, "kubectl-dflash-linux-arm64.tar.gz")])["spec"]
    assert spec["platforms"][0]["uri"] == "kubectl-dflash-linux-arm64.tar.gz"
    assert "homepage" not in spec


def test_what_krew_would_refuse_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"1\.0\.dev1: krew wants MAJOR\.MINOR\.PATCH"):
        krew.manifest([], version="1.0.dev1")
    with pytest.raises(ValueError, match="must be named kubectl-dflash-OS-ARCH"):
        krew.Archive.of(tmp_path / "plugin.zip")
    assert krew.archive_name("Linux", "x86_64") == "kubectl-dflash-linux-amd64.tar.gz"
    assert krew.archive_name("Darwin", "arm64") == "kubectl-dflash-darwin-arm64.tar.gz"
    for system, machine in (("Windows", "AMD64"), ("Linux", "riscv64")):
        with pytest.raises(ValueError, match="archives are built for"):
            krew.archive_name(system, machine)


def test_an_archive_of_the_same_files_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sums = []
    for place, now in (("one", 1e9), ("two", 2e9)):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        made = tmp_path / place / "made"
        (made / "_internal").mkdir(parents=True)
        (made / "_internal" / "data.yaml").write_text("a: 1")
        (made / krew.PROGRAM).write_text("#!")
        (made / krew.PROGRAM).chmod(0o755)
        file = tmp_path / place / "kubectl-dflash-linux-amd64.tar.gz"
        krew.pack(made, file)
        sums.append(krew.Archive.of(file).sha256)
    assert sums[0] == sums[1]


def test_other_programs_have_the_libraries_of_the_system() -> None:
    changed = {
        "LD_LIBRARY_PATH": "/plugin/_internal:/opt/own",
        "LD_LIBRARY_PATH_ORIG": "/opt/own",
        "DYLD_LIBRARY_PATH": "/plugin/_internal",
    }
    krew_environment.restore(changed)
    assert changed == {"LD_LIBRARY_PATH": "/opt/own"}


def test_certificates_are_those_of_the_system_or_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "bundle.pem"
    monkeypatch.setattr(krew_environment, "BUNDLES", (str(tmp_path / "absent"), str(bundle)))
    environment: dict[str, str] = {}
    krew_environment.certificates(environment)
    assert environment == {}
    bundle.touch()
    krew_environment.certificates(environment)
    assert environment == {"SSL_CERT_FILE": str(bundle)}
    own = {"SSL_CERT_DIR": "/own"}
    krew_environment.certificates(own)
    assert own == {"SSL_CERT_DIR": "/own"}
