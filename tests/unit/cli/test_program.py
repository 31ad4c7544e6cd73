"""The command line as a person meets it: failures in one sentence, exit statuses, help, completion, and a quick start."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from dflash_controller.api.names import API_VERSION, KIND
from dflash_controller.cli import failures, program
from dflash_controller.cli.program import COMMANDS, root, run
from dflash_controller.engines.sglang.admin import START
from dflash_controller.model.fetch_progress import PORT

ROOT = Path(__file__).parents[3]
EXAMPLE = str(ROOT / "examples" / "dflash.yaml")
INVALID = str(ROOT / "tests" / "api" / "invalid" / "engine-unknown.yaml")
HEAVY = (
    "kubernetes",
    "aiohttp",
    "matplotlib",
    "kopf",
    "dflash_controller.runtime",
    "dflash_controller.cluster",
    "dflash_controller.api.status",
)


def every_command() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in COMMANDS:
        made = root.get_command(click.Context(root), name)
        assert made is not None
        found += [(name, verb) for verb in made.commands] if isinstance(made, click.Group) else [(name,)]
    return found


@pytest.mark.parametrize("words", every_command(), ids=" ".join)
def test_every_command_has_help_with_examples(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*words, "--help"]) == failures.OK
    out = capsys.readouterr().out
    assert "Examples:" in out
    assert f"kubectl dflash {' '.join(words)}" in out


def test_the_help_lists_commands_and_exit_statuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == failures.OK
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert all(str(status) in out for status in failures.MEANINGS)


def test_validate_has_three_answers(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["validate", EXAMPLE]) == failures.OK
    assert "qwen: valid" in capsys.readouterr().out
    assert run(["validate", EXAMPLE, INVALID, "-o", "json"]) == failures.NEGATIVE
    found = json.loads(capsys.readouterr().out)
    assert [(item["name"], item["valid"]) for item in found] == [("qwen", True), ("engine-unknown", False)]
    assert found[1]["problems"][0]["field"] == "spec.engine.name"
    assert run(["validate", str(tmp_path / "absent.yaml")]) == failures.USAGE
    assert "cannot be read: No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "is not YAML: line "),
        ("a: 1\na: 2\n", 'line 2: key "a" is given twice'),
        ("- 1\n", "no Kubernetes object"),
        ("kind: ConfigMap\n", "no DFlashDeployment in "),
        ("", "no DFlashDeployment in "),
    ],
)
def test_files_that_cannot_be_used_are_said(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(text, encoding="utf-8")
    assert run(["validate", str(file)]) == failures.USAGE
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_yaml_is_read_as_kubernetes_reads_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "list.yaml"
    head = "apiVersion: serving.dflash.io/v1alpha1, kind: DFlashDeployment, metadata: {name: a}"
    dated, octal, sexagesimal = (
        f"{{{head}, spec: {{target: {{model: Qwen/Qwen3.5-9B}}, {field}}}}}"
        for field in ("restartId: 2026-11-29", "replicas: 08", "blockSize: 1:30")
    )
    text = f"apiVersion: v1\nkind: List\nitems:\n- {dated}\n- {octal}\n---\n{sexagesimal}\n"
    file.write_text(text, encoding="utf-8")
    assert run(["validate", str(file), "-o", "json"]) == failures.NEGATIVE
    first, second, third = json.loads(capsys.readouterr().out)
    assert first["valid"], "a date is text"
    assert second["problems"], "08 is text, not a number"
    assert "integer" in third["problems"][0]["message"], "1:30 is text, not 90"


def test_settings_of_the_operator_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = str(ROOT / "tests" / "api" / "invalid" / "host-path-not-allowed.yaml")
    assert run(["validate", file]) == failures.NEGATIVE
    assert run(["validate", file, "--setting", "DFLASH_ALLOWED_HOST_PATHS=/etc/kubernetes"]) == failures.OK
    assert run(["validate", file, "--setting", "DFLASH_ALOWED=/etc"]) == failures.USAGE
    assert "DFLASH_ALOWED: unknown setting" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("X=1", "--setting X: unknown setting\n"),
        ("ALLOWED_HOST_PATHS=/mnt", "--setting ALLOWED_HOST_PATHS: unknown setting; DFLASH_ALLOWED_HOST_PATHS may be meant"),
        # The operator overlooks it: Kubernetes sets such variables for a Service.
        ("DFLASH_X_PORT=1", "--setting DFLASH_X_PORT: unknown setting"),
    ],
)
def test_a_setting_that_the_operator_does_not_have_is_refused(written: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["validate", EXAMPLE, "--setting", written]) == failures.USAGE
    assert said in capsys.readouterr().err


def test_render_shows_sources_and_refuses_what_is_invalid(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["render", EXAMPLE, "--argv"]) == failures.OK
    words = shlex.split(capsys.readouterr().out)
    words = words[words.index("python3") :]
    assert words[:3] == list(START)
    assert words[3] == "--model-path=Qwen/Qwen3.5-9B"
    assert run(["render", EXAMPLE, "-o", "json"]) == failures.OK
    [container] = json.loads(capsys.readouterr().out)["containers"]
    sources = {item["argument"].partition("=")[0]: item["source"] for item in container["arguments"]}
    assert sources["--tp-size"] == "spec.parallelism.tensor"
    assert sources["--mem-fraction-static"] == "model card"
    assert sources["--attention-backend"] == "operator"
    assert [item["reason"] for item in container["leftOut"]] == ["replaced by --attention-backend=trtllm_mha"]
    assert run(["render", INVALID]) == failures.NEGATIVE
    assert "supported values" in capsys.readouterr().err


def test_no_argument_is_without_a_reason_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        if run(["render", str(file), "-o", "json", "--setting", "DFLASH_ALLOWED_HOST_PATHS=/mnt"]) != failures.OK:
            assert "holds" in capsys.readouterr().err, file
            continue
        for container in json.loads(capsys.readouterr().out)["containers"]:
            assert all(item["reason"] != "default of the operator" for item in container["arguments"]), (file, container["arguments"])


def test_catalog(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["catalog", "qwen/qwen3.5-9b", "-o", "json", "--gpu", "NVIDIA-L40S"]) == failures.OK
    [pair] = json.loads(capsys.readouterr().out)
    assert (pair["drafter"], pair["trainedBlockSize"]) == ("z-lab/Qwen3.5-9B-DFlash", 16)
    assert all(0 < item["requests"] < 32 for item in pair["fits"]), "46 GB do not hold 32 requests beside 21 GB of weights"
    assert run(["catalog"]) == failures.OK
    assert run(["catalog", "acme/none"]) == failures.NEGATIVE
    assert run(["catalog", "qwen/qwen3.5-9b", "--gpu", "TPU"]) == failures.USAGE


def test_without_a_kubeconfig_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    assert run(["status"]) == failures.CLUSTER
    assert capsys.readouterr().err == f"error: there is no kubeconfig at {tmp_path / 'absent'}. Set KUBECONFIG or --kubeconfig\n"
    for text in ("", "nonsense", "a: [", "contexts: []"):
        (tmp_path / "config").write_text(text, encoding="utf-8")
        assert run(["status", "--kubeconfig", str(tmp_path / "config")]) == failures.CLUSTER, text
        assert capsys.readouterr().err.count("\n") == 1


def test_a_defect_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(program.root, "main", broken)
    assert run(["status"]) == failures.DEFECT
    err = capsys.readouterr().err
    assert err.startswith("error: defect: RuntimeError: unforeseen")
    assert "Traceback" not in err


def test_validate_and_render_do_not_wait_for_what_they_do_not_need() -> None:
    code = (
        "import sys; from dflash_controller.cli.program import run; "
        f"codes = [run([verb, {EXAMPLE!r}]) for verb in ('validate', 'render')]; "
        f"print([name for name in {HEAVY!r} if name in sys.modules], codes)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[] [0, 0]"


def test_kubectl_gets_completions_in_its_own_form(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-dflash", "ro"])
    program.complete()
    found = capsys.readouterr().out.splitlines()
    assert [line.partition("\t")[0] for line in found] == ["rollout", ":4"]
    monkeypatch.setattr(sys, "argv", ["kubectl_complete-dflash", "validate", ""])
    program.complete()
    assert capsys.readouterr().out == ":0\n", "kubectl completes files"


def test_render_opens_the_port_of_the_progress_where_pods_fetch_their_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = {"target": {"model": "Qwen/Qwen3.5-9B", "revision": "f" * 40}, "drafter": {"revision": "a" * 40}, "storage": {"emptyDir": {}}}
    file = tmp_path / "chat.json"
    file.write_text(json.dumps({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "chat"}, "spec": spec}))
    setting = ("--setting", "DFLASH_FETCH_IMAGE=example.com/operator:1")
    for more, ports in (((), ["http"]), (setting, ["http", PORT])):
        assert run(["render", str(file), "-o", "json", *more]) == failures.OK
        [policy] = [item for item in json.loads(capsys.readouterr().out)["objects"] if item["kind"] == "NetworkPolicy"]
        assert [port["port"] for port in policy["spec"]["ingress"][0]["ports"]] == ports
