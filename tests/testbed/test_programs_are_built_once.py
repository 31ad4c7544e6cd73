"""Finding and building the programs, with a stand-in for Go that counts its builds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testbed import binaries

GO = """#!/bin/sh
[ "$1" = version ] && { echo "go version go1.26.8 linux/amd64"; exit 0; }
echo build >> "$GO_CALLS"
sleep 0.3
while [ "$1" != -o ]; do shift; done
[ -n "$GO_FAILS" ] && { echo partial > "$2"; echo "cannot find module providing package" >&2; exit 1; }
printf '#!/bin/sh\\necho built\\n' > "$2"
chmod +x "$2"
"""


@pytest.fixture(autouse=True)
def go_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and the stand-in for Go; the file has one line per build."""
    tools = tmp_path / "tools"
    tools.mkdir()
    _program(tools / "go", GO)
    for program in binaries.FAMILY_OF:
        monkeypatch.delenv("DFLASH_TESTBED_" + program.upper().replace("-", "_"), raising=False)
    for name in ("DFLASH_TESTBED_USE_PATH", "DFLASH_TESTBED_PROGRAMS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("GO_CALLS", str(tmp_path / "calls"))
    monkeypatch.delenv("GO_FAILS", raising=False)
    return tmp_path / "calls"


def _program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_two_processes_that_need_a_program_at_once_build_it_once(go_calls: Path) -> None:
    ask = [sys.executable, "-c", "from testbed import binaries; print(binaries.path_of('helm'))"]
    both = [subprocess.Popen(ask, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=30) for process in both]

    assert answers[0][0] == answers[1][0]
    assert Path(answers[0][0].strip()).read_text().startswith("#!/bin/sh")
    assert go_calls.read_text().splitlines() == ["build"]
    assert "built helm in" in answers[0][1] + answers[1][1]


def test_a_program_that_few_need_is_built_only_when_asked_for(go_calls: Path) -> None:
    assert "lws-manager" not in binaries.PROGRAMS
    assert binaries.paths_of(["lws-manager"])["lws-manager"].is_file()
    assert go_calls.read_text().splitlines() == ["build"]


def test_a_warm_cache_needs_no_go(go_calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = binaries.path_of("etcd")
    monkeypatch.setenv("PATH", "")
    assert binaries.path_of("etcd") == built


def test_a_failed_build_tells_why_and_leaves_no_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GO_FAILS", "1")
    with pytest.raises(binaries.BinaryError, match="cannot find module providing package"):
        binaries.path_of("etcd")
    assert [file.name for file in (tmp_path / "cache").rglob("*etcd*") if file.is_file()] == ["etcd.log"]


def test_without_go_the_message_names_the_version_and_the_way_around(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(binaries.BinaryError, match=r"Go 1\.26\.0 or newer .*DFLASH_TESTBED_KWOK, DFLASH_TESTBED_KWOKCTL"):
        binaries.path_of("kwokctl")


def test_go_that_is_too_old_is_named(tmp_path: Path) -> None:
    _program(tmp_path / "tools" / "go", "#!/bin/sh\necho 'go.mod requires go >= 1.26.0 (running go 1.22.1)' >&2\nexit 1\n")
    with pytest.raises(binaries.BinaryError, match=r"running go 1\.22\.1"):
        binaries.path_of("helm")


def test_a_changed_pin_changes_the_cache_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = binaries.FAMILY_OF["helm"].key()
    module = tmp_path / "gomod" / "helm"
    module.mkdir(parents=True)
    for file in ("go.mod", "go.sum"):
        (module / file).write_bytes((binaries.GO_MODULES / "helm" / file).read_bytes())
    monkeypatch.setattr(binaries, "GO_MODULES", tmp_path / "gomod")
    assert binaries.FAMILY_OF["helm"].key() == before
    (module / "go.sum").write_text("other")
    assert binaries.FAMILY_OF["helm"].key() != before


def test_a_program_named_in_the_environment_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_calls: Path) -> None:
    own = _program(tmp_path / "my-kubectl", "#!/bin/sh\n")
    monkeypatch.setenv("DFLASH_TESTBED_KUBECTL", str(own))
    assert binaries.path_of("kubectl") == own
    monkeypatch.setenv("DFLASH_TESTBED_KUBE_APISERVER", str(tmp_path / "missing"))
    with pytest.raises(binaries.BinaryError, match=r"DFLASH_TESTBED_KUBE_APISERVER=.*missing is not an executable file"):
        binaries.path_of("kube-apiserver")
    assert not go_calls.exists()


@pytest.mark.parametrize(("version", "taken"), [("v1.36.0", True), ("v1.21.5", False), ("unknown", False)])
def test_a_program_on_path_is_taken_when_asked_for_and_new_enough(
    version: str, taken: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = _program(tmp_path / "tools" / "kubectl", f"#!/bin/sh\necho 'Client Version: {version}'\n")
    assert binaries.path_of("kubectl") != own
    monkeypatch.setenv("DFLASH_TESTBED_USE_PATH", "1")
    assert (binaries.path_of("kubectl") == own) is taken


def test_programs_of_a_named_folder_are_used_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, go_calls: Path) -> None:
    monkeypatch.setenv("DFLASH_TESTBED_PROGRAMS", str(tmp_path / "carried"))
    with pytest.raises(binaries.BinaryError, match="is not a folder"):
        binaries.path_of("helm")
    carried = tmp_path / "carried"
    carried.mkdir()
    helm = _program(carried / "helm", "#!/bin/sh\n")
    kwok = _program(carried / "kwok", "#!/bin/sh\n")
    kwok.chmod(0o644)

    assert binaries.path_of("helm") == helm
    with pytest.raises(binaries.BinaryError, match="kwok, named by DFLASH_TESTBED_PROGRAMS, is not executable"):
        binaries.path_of("kwok")
    assert not go_calls.exists()
    assert binaries.path_of("promtool").is_file()  # it is not in the folder, so it is built
    assert go_calls.read_text().splitlines() == ["build"]
