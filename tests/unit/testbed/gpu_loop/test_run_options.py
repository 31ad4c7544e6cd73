"""What a run is about: names of models, the release of an engine, and what is said when something is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from testbed.gpu_loop.__main__ import main
from testbed.gpu_loop.setup import Setup, SetupError


def test_without_a_gpu_one_line_says_what_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", f"--out={tmp_path / 'report'}"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "make gpu: an NVIDIA GPU and its driver are needed (there is no nvidia-smi), "
        "and a Python environment with vLLM or SGLang (PYTHON=…); SIMULATOR=1 runs the loop without them"
    ]
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--phases=serve,fly"], "make gpu: no phase fly; there are serve, load, "),
        (["--engine-version=", "--python=/nowhere/python"], "make gpu: /nowhere/python cannot be started"),
    ],
)
def test_a_wrong_option_is_one_line_too(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    simulator = ["--simulator"] if "--phases=serve,fly" in options else ["--gpus=1"]
    assert main(["run", f"--out={tmp_path}", *simulator, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(said)


def test_a_python_without_the_engine_is_named(tmp_path: Path) -> None:
    setup = Setup(engine="sglang", model="dense", out=tmp_path, python=sys.executable)
    with pytest.raises(SetupError, match=r"has no sglang: .*sglang"):
        setup.release()


def test_the_release_is_what_the_engines_own_environment_says(tmp_path: Path) -> None:
    metadata = tmp_path / "site" / "vllm-0.26.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.26.0\n")
    setup = Setup(engine="vllm", model="dense", out=tmp_path, python=sys.executable, engine_env={"PYTHONPATH": str(metadata.parent)})
    assert setup.release() == "0.26.0"


def test_a_folder_of_weights_is_found_by_the_engine_under_the_name_in_the_spec(tmp_path: Path) -> None:
    for name in ("weights", "drafts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    setup = Setup(
        *("vllm", str(tmp_path / "weights"), tmp_path / "out"),
        drafter=str(tmp_path / "drafts"),
        served_as="Qwen/Qwen3-8B",
        version="0.26.0",
    )

    setup.prepare()
    spec = setup.spec("NVIDIA-H200")

    assert (spec["target"]["model"], spec["drafter"]["model"]) == ("Qwen/Qwen3-8B", "local/drafts")
    assert (setup.models / "Qwen/Qwen3-8B").resolve() == tmp_path / "weights"
    assert (setup.models / "local/drafts").resolve() == tmp_path / "drafts"
    assert "--load-format=dummy" not in spec["engine"]["extraArgs"]
    assert setup.collapsed is None
    setup.prepare()  # a second run into the same folder


@pytest.mark.parametrize(
    ("model", "drafter", "said"),
    [
        ("Qwen/Qwen3-8B", None, "--drafter is needed beside --model=Qwen/Qwen3-8B"),
        ("/nowhere/weights", "z-lab/Qwen3-8B-DFlash-b16", "/nowhere/weights has no config.json"),
    ],
)
def test_a_model_that_cannot_be_served_is_named(tmp_path: Path, model: str, drafter: str | None, said: str) -> None:
    with pytest.raises(SetupError, match=said):
        Setup(engine="vllm", model=model, out=tmp_path, drafter=drafter).prepare()


@pytest.mark.parametrize(
    ("gpus", "share", "replicas", "surge", "unavailable"), [(1, 2, 1, 1, 0), (2, 1, 1, 1, 0), (2, 1, 2, 0, 1), (2, 2, 2, 1, 0)]
)
def test_a_candidate_takes_the_place_of_a_replica_only_where_no_gpu_is_free(
    tmp_path: Path, gpus: int, share: int, replicas: int, surge: int, unavailable: int
) -> None:
    setup = Setup(engine="vllm", model="dense", out=tmp_path, gpus=gpus, share=share, replicas=replicas)
    assert (setup.rollout()["maxSurge"], setup.rollout()["maxUnavailable"]) == (surge, unavailable)


def test_more_replicas_than_gpus_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", f"--out={tmp_path}", "--simulator", "--gpus=2", "--replicas=3"]) == 2
    assert capsys.readouterr().err == "make gpu: 3 replicas need as many GPUs; there are 2, each offered 1 times\n"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--levels=1,eight", "--levels: 'eight' is no number of at least 1"),
        ("--levels=", "--levels: '' is no number of at least 1"),
        ("--replicas=0", "--replicas: '0' is no number of at least 1"),
        ("--gpus=-1", "--gpus: '-1' is no number of at least 1"),
        ("--layers=all", "--layers: 'all' is no number of at least 1"),
        ("--memory=42", "--memory: '42' is no share between 0 and 1, such as 0.42"),
        ("--budget=nan", "--budget: 'nan' is no number of seconds above 0"),
        ("--level-seconds=-5", "--level-seconds: '-5' is no number of seconds above 0"),
        ("--engine-env=HF_HUB_OFFLINE", "--engine-env: 'HF_HUB_OFFLINE' is not NAME=VALUE"),
        ("--env==1", "--env: '=1' is not NAME=VALUE"),
        ("--first-block=12", "--first-block: invalid choice: 12 (choose from 8, 16)"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, said: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "--simulator", f"--out={tmp_path / 'report'}", option])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: argument {said}")
    assert not (tmp_path / "report").exists()


def test_the_first_block_size_is_the_one_asked_for(tmp_path: Path) -> None:
    setup = Setup(engine="sglang", model="hybrid", out=tmp_path, version="0.5.17", first_block=16)
    assert setup.spec("NVIDIA-H200")["blockSize"] == 16
