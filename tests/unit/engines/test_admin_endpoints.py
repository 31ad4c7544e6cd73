"""Who can administer an engine: the rendered command line, as the simulator's own parser and start of SGLang read it."""

import dataclasses
import runpy
import sys
from types import ModuleType

import pytest

from dflash_controller.engines import ENGINES
from dflash_controller.engines.protocol import Launch
from dflash_controller.engines.sglang.admin import CLOSED, KEY_FIELD, KEY_VARIABLE, START
from testbed.contract.examples import request
from testbed.simulator.access import Access
from testbed.simulator.argv import ArgvError, Host, parse
from testbed.simulator.launch import expand
from testbed.simulator.option_table import facts
from tests.support.releases import contract_releases, default_release

UID = "3f0c1f1e-0000-4000-8000-000000000000"
RELEASES = contract_releases("sglang")


def launch(release: str = default_release("sglang"), *extra: str, engine: str = "sglang") -> Launch:
    asked = request(engine, release, "Qwen/Qwen3.5-9B", 1)
    return ENGINES[engine].launch(dataclasses.replace(asked, extra_args=extra))


def access(launched: Launch, release: str = default_release("sglang"), engine: str = "sglang") -> Access:
    fields = {name: UID for name, field in launched.pod_fields.items() if field == "metadata.uid"}
    words = [expand(word, fields) for word in (*launched.command, *launched.args)]
    return parse(engine, release, words, Host(gpus_per_node=8)).access


@pytest.mark.parametrize("release", RELEASES)
def test_administration_needs_the_uid_of_the_pod_and_the_api_nothing(release: str) -> None:
    found = access(launch(release), release)
    known = facts(f"sglang-{release}")
    for path in {*known["admin_paths"], *CLOSED} & {*known["admin_paths"], *known["open_paths"]}:
        assert found.refuses("GET", path, None), path
        assert found.refuses("POST", path, "Bearer sk-some-client"), path
        assert not found.refuses("POST", path, f"Bearer {UID}"), path
    for path in {*known["open_paths"]} - {*CLOSED}:
        assert not found.refuses("POST", path, None), path
    assert {"/server_info", "/get_server_info", "/set_internal_state", "/flush_cache", "/update_weights_from_disk"} <= found.admin_paths
    assert not {"/v1/chat/completions", "/v1/models", "/generate", "/v1/loads", "/model_info"} & found.admin_paths


@pytest.mark.parametrize("release", RELEASES)
def test_every_closed_endpoint_exists_in_a_release(release: str) -> None:
    known = facts(f"sglang-{release}")
    assert {*CLOSED} <= {*known["open_paths"], *known["admin_paths"]}


def test_probes_and_scrapes_need_no_key() -> None:
    found, probes = access(launch()), ENGINES["sglang"].probes(default_release("sglang"))
    for path in (probes.startup, probes.readiness, probes.liveness, "/metrics"):
        assert not found.refuses("GET", path, None)


def test_the_users_own_keys_win() -> None:
    own = launch(default_release("sglang"), "--admin-api-key=mine")
    assert own.pod_fields == {}
    assert (found := access(own)).admin_key == "mine"
    assert found.refuses("GET", "/server_info", None)
    both = access(launch(default_release("sglang"), "--api-key=for-clients"))
    assert both.refuses("POST", "/v1/completions", None)
    assert not both.refuses("POST", "/v1/completions", "Bearer for-clients")
    assert both.refuses("GET", "/server_info", "Bearer for-clients"), "it shows both keys"
    assert both.refuses("POST", "/flush_cache", "Bearer for-clients")


@pytest.mark.parametrize("extra", ["--tokenizer-worker-num=4", "--grpc-port=50051"])
def test_sglang_gets_no_key_where_it_would_ignore_or_refuse_it(extra: str) -> None:
    launched = launch(default_release("sglang"), extra)
    assert launched.pod_fields == {}
    assert not [word for word in launched.args if "admin" in word]
    assert launched.command[1:] == ("-m", "sglang.launch_server")
    words = (*launched.command, *launched.args)
    assert extra.partition("=")[0] in ENGINES["sglang"].administered_by_clients(words, {})


def test_an_abbreviation_of_the_key_is_refused() -> None:
    asked = dataclasses.replace(request("sglang", default_release("sglang"), "Qwen/Qwen3.5-9B", 1), extra_args=("--admin-api=x",))
    [problem] = ENGINES["sglang"].problems(asked)
    assert (problem.field, problem.remedy) == ("spec.engine.extraArgs[0]", "Write --admin-api-key in full, or remove --admin-api.")


def test_what_runs_says_whether_it_is_open() -> None:
    say = ENGINES["sglang"].administered_by_clients
    launched = launch()
    words = (*launched.command, *launched.args)
    assert launched.pod_fields == {KEY_VARIABLE: KEY_FIELD}
    assert say(words, {KEY_VARIABLE: None}) == ""
    assert say(words, {KEY_VARIABLE: ""}) == "SGLang has no --admin-api-key"
    assert say(["python3", "-m", "sglang.launch_server", "--port=1"], {}) == "SGLang has no --admin-api-key"
    assert "/server_info shows" in say(["python3", "-m", "sglang.launch_server", "--admin-api-key=x"], {})


@pytest.mark.parametrize("name", ["VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"])
def test_vllm_is_open_only_if_a_variable_asks_for_it(name: str) -> None:
    say = ENGINES["vllm"].administered_by_clients
    assert say(["vllm", "serve"], {name: "1"}) == f"{name} is 1"
    for closed in ({}, {name: "0"}, {name: "false"}, {name: ""}, {name: None}):
        assert say(["vllm", "serve"], closed) == ""


def test_vllms_api_key_guards_the_api_alone() -> None:
    found = access(launch(default_release("vllm"), "--api-key=k", engine="vllm"), default_release("vllm"), "vllm")
    assert found.refuses("POST", "/v1/completions", None)
    assert not found.refuses("POST", "/v1/completions", "Bearer k")
    assert not any(found.refuses("GET", path, None) for path in ("/metrics", "/health", "/version"))


@pytest.mark.parametrize(
    "program", ["raise RuntimeError('x')", "pass", "import runpy; runpy.run_module('other', run_name='__main__', alter_sys=True)"]
)
def test_a_program_that_starts_no_server_ends_the_container(program: str) -> None:
    with pytest.raises(ArgvError) as caught:
        parse("sglang", default_release("sglang"), ["python3", "-c", program, "--model-path=t"])
    assert caught.value.exit_code == 1


def test_a_release_that_checks_keys_in_another_way_starts_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: started.append(name))
    for name in ("sglang", "sglang.srt", "sglang.srt.utils"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    exec(START[2], {"__name__": "__main__"})
    assert started == ["sglang.launch_server"]
    assert "Clients can administer this engine" in capsys.readouterr().err
