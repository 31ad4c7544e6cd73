"""The simulator's strict command-line parser: what each release takes, and how it exits on the rest."""

import pytest

from dflash_controller.engines.releases import TABLE
from testbed.simulator.argv import ArgvError, Host, ParsedArgv, parse
from testbed.simulator.settings import EngineSettings
from testbed.simulator.weights import with_mounted_weights
from tests.support.releases import default_release
from tests.support.render_inputs import deployment, pod_templates, rendered_workload

SGLANG = ["python3", "-m", "sglang.launch_server", "--model-path=t"]
DFLASH = [*SGLANG, "--speculative-algorithm=dflash", "--speculative-draft-model-path", "d"]
VLLM = ["vllm", "serve", "t"]
CONFIG = '--speculative-config={"method":"dflash","model":"d","num_speculative_tokens":7}'


def sglang(*args: str, release: str = default_release("sglang"), base: list[str] = DFLASH, host: Host | None = None) -> ParsedArgv:
    return parse("sglang", release, [*base, *args], host)


def vllm(*args: str, release: str = default_release("vllm"), host: Host | None = None) -> ParsedArgv:
    return parse("vllm", release, [*VLLM, *args], host)


def refusal(call: object, *args: str, **more: object) -> ArgvError:
    with pytest.raises(ArgvError) as caught:
        call(*args, **more)  # type: ignore[operator]
    return caught.value


def test_unset_options_have_the_engine_s_defaults() -> None:
    plain = sglang(base=SGLANG)
    assert (plain.block_size, plain.drafter, plain.port, plain.metrics_enabled, plain.decode_log_interval) == (1, None, 30000, False, 40)
    assert (plain.served_model_name, plain.nodes, plain.node_rank, plain.extra_metric_labels) == ("t", 1, 0, {})
    assert sglang().block_size == 16
    assert sglang().max_concurrency == 48
    assert sglang().shutdown_timeout_s is None
    served = vllm()
    assert (served.block_size, served.schedule, served.port, served.metrics_enabled, served.shutdown_timeout_s) == (1, None, 8000, True, 0)


def test_both_spellings_of_a_value_and_abbreviations_are_taken() -> None:
    parsed = sglang("--tp-size", "8", "--speculative-num-draft=8", "--speculative-draft-window=4096", "--enable-metrics")
    assert (parsed.tensor_parallel, parsed.block_size, parsed.metrics_enabled) == (8, 8, True)
    assert parsed.values["speculative_draft_window_size"] == 4096


def test_sglang_names_by_release() -> None:
    for old in ("--mamba-scheduler-strategy=extra_buffer", "--speculative-dflash-draft-window-size=4096", "--cuda-graph-max-bs=32"):
        sglang(old, release="0.5.19")
        error = refusal(sglang, old)
        assert error.exit_code == 2
        assert "sglang serve: error: " in error.stderr
    assert "ambiguous option" in refusal(sglang, "--cuda-graph-max-bs=32").stderr


def test_syntax_errors_exit_with_2() -> None:
    for args in (["--no-such-flag"], ["--tp-size=x"], ['--extra-metric-labels={"a"'], ["--mem_fraction_static=0.8"]):
        assert refusal(sglang, *args).exit_code == 2
    for args in (["--no-such-flag"], ["--max-num-seqs=x"], ['--compilation-config={"nope":1}'], ['--speculative-config={"a"']):
        assert refusal(vllm, *args).exit_code == 2


def test_resolution_errors_exit_with_1() -> None:
    for args in (["--pp-size=2"], ["--speculative-dflash-block-size=0"], ["--speculative-draft-window-size=8"], ["--device=cpu"]):
        error = refusal(sglang, *args)
        assert error.exit_code == 1
        assert error.stderr.startswith("Traceback (most recent call last):")
    assert "requires setting" in refusal(sglang, "--speculative-algorithm=DFLASH", base=SGLANG).stderr


def test_facts_of_the_host_decide_only_where_known() -> None:
    sglang("--attention-backend=trtllm_mha", release="0.5.17")
    hopper = Host(gpu_product="NVIDIA-H100-80GB-HBM3")
    assert "SM100" in refusal(sglang, "--attention-backend=trtllm_mha", release="0.5.17", host=hopper).stderr
    vllm("--tensor-parallel-size=16")
    assert "larger than" in refusal(vllm, "--tensor-parallel-size=16", host=Host(gpus_per_node=8)).stderr
    attention = ("--enable-dp-attention", "--enable-dp-lm-head", "--dp-size=2", "--tp-size=2")
    sglang(*attention, host=Host(environ={"SGLANG_ENABLE_DP_SPEC_PREFILL_COORDINATION": "0"}))
    assert refusal(sglang, *attention).exit_code == 1


def test_vllm_reads_underscores_dots_sizes_and_negations() -> None:
    parsed = vllm("--max_num_seqs=32", "--max-num-batched-tokens=16k", "--no-enable-prefix-caching", "--hf-overrides.a.b", "3", "-tp", "2")
    assert (parsed.max_concurrency, parsed.tensor_parallel) == (32, 2)
    assert parsed.values["max_num_batched_tokens"] == 16000
    assert parsed.values["enable_prefix_caching"] is False
    vllm("--disable-prefix-caching")
    assert refusal(vllm, "--disable-prefix-caching", release="0.26.0").exit_code == 2


def test_vllm_speculative_configuration() -> None:
    parsed = vllm(CONFIG, "--max-num-seqs=32")
    assert (parsed.block_size, parsed.drafter, parsed.drafter_revision) == (8, "d", None)
    for broken in ('{"method":"dflash","model":"d"}', '{"method":"dflash","num_speculative_tokens":7}', "[1]"):
        assert refusal(vllm, f"--speculative-config={broken}", "--max-num-seqs=32").exit_code == 1
    unknown = CONFIG.replace("}", ',"disable_by_batch_size":8}')
    assert "disable_by_batch_size" in refusal(vllm, unknown, "--max-num-seqs=32").stderr
    later = CONFIG.replace("}", ',"enable_adaptive_verification":true}')
    assert vllm(later, "--max-num-seqs=32").block_size == 8
    assert refusal(vllm, later, "--max-num-seqs=32", release="0.26.0").exit_code == 1


def test_vllm_token_budget_by_release() -> None:
    args = (CONFIG, "--max-num-seqs=1024", "--max-num-batched-tokens=6144")
    assert "max_num_scheduled_tokens" in refusal(vllm, *args, release="0.26.0").stderr
    assert vllm(*args).max_concurrency == 1024


def test_other_entry_points_are_not_found() -> None:
    with pytest.raises(ArgvError) as caught:
        parse("vllm", default_release("vllm"), ["bash", "-c", "vllm serve t"])
    assert caught.value.exit_code == 127
    with pytest.raises(ValueError, match="older than"):
        parse("vllm", "0.19.0", VLLM)
    with pytest.raises(ValueError, match="no engine"):
        parse("tgi", "1.0.0", VLLM)


def test_a_target_of_the_catalog_is_known_to_be_hybrid() -> None:
    base = ["sglang", "serve", "--speculative-algorithm=DFLASH", "--speculative-draft-model-path=z-lab/x"]
    hybrid = [*base, "--model-path=Qwen/Qwen3.5-9B"]
    strategy = "--mamba-radix-cache-strategy=no_buffer"
    with pytest.raises(ArgvError, match="overlap schedule"):
        parse("sglang", "0.5.23", [*hybrid, strategy])
    with pytest.raises(ArgvError, match="trtllm_mha"):
        parse("sglang", "0.5.23", [*hybrid, strategy, "--disable-overlap-schedule", "--attention-backend=trtllm_mha"])
    assert parse("sglang", "0.5.23", [*hybrid, strategy, "--disable-overlap-schedule"])
    assert parse("sglang", "0.5.23", [*base, "--model-path=Qwen/Qwen3-8B", strategy])


@pytest.mark.parametrize(("engine", "release"), [(engine, release) for engine in TABLE for release in TABLE[engine].tested])
def test_weights_that_an_init_container_fetches_are_known_by_the_mounts(engine: str, release: str) -> None:
    obj = deployment(
        "fetched",
        target={"model": "Qwen/Qwen3.5-9B", "revision": "a" * 40},
        drafter={"revision": "b" * 40},
        engine={"name": engine, "version": release},
        storage={"hostPath": {"path": "/mnt/models"}},
    )
    pod = pod_templates(rendered_workload(obj))["engine"]
    [container] = pod["spec"]["containers"]
    parsed = parse(engine, release, [*container["command"], *container["args"]])
    assert (parsed.target, parsed.drafter, parsed.served_model_name) == ("/models/target", "/models/drafter", "Qwen/Qwen3.5-9B")
    plain = EngineSettings(engine=engine, release=release, target=parsed.target, served_model_name="x", port=1, drafter=parsed.drafter)
    known = with_mounted_weights(plain, pod)
    assert (known.target, known.drafter, known.drafter_revision) == ("Qwen/Qwen3.5-9B", "z-lab/Qwen3.5-9B-DFlash", "b" * 40)
    del container["volumeMounts"]
    assert with_mounted_weights(plain, pod) == plain
