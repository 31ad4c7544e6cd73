"""Combinations that an engine asserts against: the operator's own command line with a user's flags, on every tested release and GPU.

Each is a launch request. The real resolution, the simulator and ``Engine.problems`` judge it. Where the engine sees a fault only later (in
CUDA, a kernel, a second process), ``by_engine`` is None and we refuse alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dflash_controller.api.speculation import Off
from dflash_controller.engines.needs import NEEDS, Need
from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import TABLE, Version, version
from testbed.contract.examples import A100, B200, B300, GB10, H100, L40S, RTX_PRO_6000, request


@dataclass(frozen=True, slots=True)
class Combination:
    """A user's flags on the operator's command line."""

    engine: str
    flags: tuple[str, ...]
    refused: str | None
    """A part of our message; None: we accept it."""
    by_engine: str | None = None
    """A part of the engine's message; None: its resolution lets the line through."""
    gpu: str = B200
    dense: bool = False
    tensor: int = 1
    since: str = "0.0.0"
    before: str = "99.0.0"
    remedied: tuple[str, ...] | None = None
    """Flags with which all of them accept it: what the remedy says."""
    env: Mapping[str, str] = field(default_factory=dict)
    kv_heads: int | None = None
    speculates: bool = True

    @property
    def name(self) -> str:
        """Returns the flags, with what else distinguishes the case."""
        more = [self.gpu if self.gpu != B200 else "", "dense" if self.dense else "", f"tp {self.tensor}" if self.tensor > 1 else ""]
        more += [f"{self.kv_heads} heads" if self.kv_heads else "", "" if self.speculates else "without DFlash"]
        return " ".join([*self.flags, *(f"({part})" for part in more if part)])

    def releases(self) -> Sequence[str]:
        """Returns the tested releases that the case is about."""
        first, last = version(self.since), version(self.before)
        return [release for release in TABLE[self.engine].tested if first <= version(release) < last]

    def request(self, release: str, flags: Sequence[str]) -> LaunchRequest:
        """Returns the launch request of the case with these flags."""
        base = request(self.engine, release, "Qwen/Qwen3-8B" if self.dense else "Qwen/Qwen3.5-35B-A3B", self.tensor)
        speculation = base.speculation if self.speculates else Off()
        return dataclasses.replace(base, gpu_product=self.gpu, extra_args=tuple(flags), kv_heads=self.kv_heads, speculation=speculation)


_NO_BUFFER = "--mamba-radix-cache-strategy=no_buffer"
_NO_OVERLAP = "--disable-overlap-schedule"
_FLASHINFER = "--attention-backend=flashinfer"


def _backends() -> Iterator[Combination]:
    """Every back end of the allow-list whose check is in SGLang's resolution, by GPU."""
    prefill = "TRTLLM MHA backend for prefill"
    for gpu in (A100, L40S):
        yield Combination("sglang", ("--attention-backend=trtllm_mha",), "does not run on", prefill, gpu, dense=True)
        yield Combination("sglang", ("--attention-backend=fa3",), None, None, gpu, dense=True)
    for gpu in (H100, RTX_PRO_6000, GB10):
        yield Combination("sglang", ("--attention-backend=trtllm_mha",), "does not run on", prefill, gpu, dense=True, before="0.5.18")
        yield Combination("sglang", ("--attention-backend=trtllm_mha",), None, None, gpu, dense=True, since="0.5.18")
    for gpu in (B200, B300):
        yield Combination("sglang", ("--attention-backend=trtllm_mha",), None, None, gpu, dense=True)
    for gpu in (B200, B300, RTX_PRO_6000, GB10):  # a kernel asserts it, not the resolution
        yield Combination("sglang", ("--attention-backend=fa3",), "does not run on", None, gpu, dense=True)
        yield Combination("sglang", ("--speculative-draft-attention-backend=fa3",), "does not run on", None, gpu, dense=True)
    for gpu in (A100, L40S, H100):
        yield Combination("sglang", ("--attention-backend=trtllm_mla",), "does not run on", "TRTLLM MLA backend", gpu, dense=True)
    for gpu in (A100, L40S, H100, B200, B300, RTX_PRO_6000, GB10):
        for backend in ("flashinfer", "triton"):
            yield Combination("sglang", (f"--attention-backend={backend}",), None, None, gpu, dense=True)
        yield Combination("sglang", ("--attention-backend=flex_attention",), "no speculative decoding", "Flex", gpu, dense=True)
        for name in ("FLASH_ATTN", "FLASHINFER", "TRITON_ATTN"):
            yield Combination("vllm", (f"--attention-backend={name}",), None, None, gpu, dense=True)
        yield Combination("sglang", ("--context-length=65536",), None, None, gpu, dense=True)
        yield Combination("vllm", ("--max-model-len=65536",), None, None, gpu, dense=True)


_EXAMPLES = {
    "--collect-detailed-traces": "all",
    "--load-publish-endpoint": "tcp://127.0.0.1:5557",
    "--numa-bind-cpus": "0-3",
    "--numa-bind-nodes": "0",
    "--return-aux-hidden-state-layer-ids": "1",
    "--ssl-ca-certs": "/ca",
    "--ssl-keyfile-password": "x",
}
"""Values of options that needs.yaml names without one."""
_MET = {
    "--cp-strategy": "--cp-strategy=zigzag",
    "--enable-lora": "--enable-lora --max-lora-rank=16 --lora-target-modules=all",
    "--export-metrics-to-file-dir": "--export-metrics-to-file-dir=/tmp",
    "--moe-a2a-backend": "--moe-a2a-backend=deepep",
    "--otlp-traces-endpoint": "--otlp-traces-endpoint=http://127.0.0.1:4317",
    "--tool-call-parser": "--tool-call-parser=hermes",
}
"""Flags that meet a condition of needs.yaml without a value."""
_MORE_THAN_IT_NEEDS = {
    "--dcp-comm-backend": "vLLM: more ranks than the contract's target has heads",
    "--enable-eplb": "the contract's target for vLLM has no experts",
    "--enable-megamoe-for-layernorm-sp": "--enable-layernorm-sp does not work with DFlash",
    "--load-publish-endpoint": "a configuration in JSON",
    "--moe-a2a-backend": "sizes in variables, and DP attention's own needs",
    "--moe-runner-backend": "a quantised target",
    "--prefill-kv-cache-dequant-dtype": "DFlash cannot run on --kv-cache-dtype=nvfp4",
    "--quantize-and-serve": "a quantisation of ModelOpt",
    "--return-aux-hidden-state-layer-ids": "--enable-return-aux-hidden-states does not work with DFlash",
    "--collect-detailed-traces": "the packages of OpenTelemetry",
    "--flashinfer-a2a-dispatch-type": "DP attention's own needs",
    "--offload-backend": "more settings of the prefetch",
    "--numa-bind-nodes": "a machine with several NUMA nodes",
    "--numa-bind-cpus": "a machine with several NUMA nodes",
    "--mamba-ssu-algorithm": "the packages of FlashInfer",
    "--enable-mamba-cache-stochastic-rounding": "the operator does not choose the state's type",
}
"""Options whose remedy needs more than the entry says: only the refusal is a case."""


def _needs() -> Iterator[Combination]:
    """Every entry of needs.yaml with every value, and what it needs."""
    for engine, needs in NEEDS.items():
        for need in needs:
            values = [str(need.least - 1)] if need.least is not None else [*sorted(need.values)] or [_EXAMPLES.get(need.flag, "")]
            tensor = 1 if any(each.name == "tensor" for group in need.alternatives for each in group) else 2
            for value in values:
                flag = f"{need.flag}={value}" if value else need.flag
                yield Combination(
                    engine,
                    (flag,),
                    need.flag,
                    None if need.later else "",
                    tensor=tensor,
                    since=_text(need.since),
                    before=_text(need.before),
                    remedied=_remedied(need, flag) if tensor > 1 else None,
                )


def _text(release: Version) -> str:
    return ".".join(map(str, release[:3]))


def _remedied(need: Need, flag: str) -> tuple[str, ...] | None:
    if need.flag in _MORE_THAN_IT_NEEDS or not need.alternatives:
        return None
    met = [
        _MET.get(each.name, f"{each.name}={int(each.value) + 1}" if each.relation == ">" else str(each)) for each in need.alternatives[0]
    ]
    return (flag, *(part for text in met for part in text.split()))


COMBINATIONS: tuple[Combination, ...] = (
    *_backends(),
    *_needs(),
    # SGLang: cache of a hybrid target
    Combination("sglang", (_NO_BUFFER,), "overlap schedule", "overlap schedule", remedied=(_NO_BUFFER, _NO_OVERLAP, _FLASHINFER)),
    Combination("sglang", (_NO_BUFFER,), "overlap schedule", "overlap schedule", gpu=H100, remedied=(_NO_BUFFER, _NO_OVERLAP)),
    Combination("sglang", (_NO_BUFFER, _NO_OVERLAP), "trtllm_mha", "trtllm_mha", remedied=(_NO_BUFFER, _NO_OVERLAP, _FLASHINFER)),
    Combination("sglang", ("--mamba-radix-cache-strategy=auto", _NO_OVERLAP), "trtllm_mha", "trtllm_mha"),
    Combination("sglang", (_NO_BUFFER, _NO_OVERLAP, _FLASHINFER, "--page-size=64"), "--page-size=64", "page_size=1"),
    Combination("sglang", (_NO_BUFFER, "--disable-radix-cache"), None),
    Combination("sglang", (_NO_BUFFER,), None, dense=True),
    Combination("sglang", ("--disable-radix-cache",), None),
    Combination("sglang", (_NO_OVERLAP,), None),
    Combination("sglang", ("--page-size=100",), "--page-size=100", "AssertionError"),
    Combination("sglang", ("--page-size=64",), None),
    Combination("sglang", ("--mamba-track-interval=8",), "shorter than the block", "AssertionError"),
    Combination(
        "sglang",
        ("--linear-attn-backend=flashinfer", "--mamba-ssm-dtype=bfloat16"),
        "--linear-attn-backend=flashinfer",
        "extra_buffer is not supported",
        remedied=("--linear-attn-decode-backend=flashinfer", "--mamba-ssm-dtype=bfloat16"),
    ),
    Combination("sglang", ("--linear-attn-decode-backend=flashinfer",), "bfloat16 state", "bfloat16"),
    Combination("sglang", ("--linear-attn-decode-backend=flashinfer",), "bfloat16 state", "bfloat16", gpu=B300),
    Combination("sglang", ("--enable-linear-replayssm",), "--enable-linear-replayssm", "--enable-linear-replayssm"),
    Combination("sglang", ("--page-size=0",), "--page-size=0 is less than 1", ""),
    Combination(
        "sglang", ("--page-size=96",), "--page-size=96 does not divide the prefill chunk", "divisible by page_size", gpu=H100, dense=True
    ),
    Combination("sglang", ("--page-size=128",), None, gpu=H100, dense=True),
    Combination("sglang", ("--page-size=96", "--chunked-prefill-size=9216"), None, gpu=H100, dense=True),
    Combination("sglang", ("--page-size=96",), "linear-attention chunk", "AssertionError"),
    Combination("sglang", ("--page-size=96",), "linear-attention chunk", "", gpu=H100),
    # SGLang: block-scaled KV caches
    *(
        Combination("sglang", (f"--kv-cache-dtype={dtype}",), "DFlash cannot run on this KV cache", refusal, gpu, dense=True)
        for dtype in ("fp4_mx_block16", "mxfp8")
        for gpu, refusal in ((H100, ""), (B200, None))
    ),
    *(
        Combination("sglang", (f"--kv-cache-dtype={dtype}",), "does not run on Hopper", "", H100, dense=True, speculates=False)
        for dtype in ("nvfp4", "mxfp8")
    ),
    # SGLang: experts
    *(
        Combination("sglang", (f"--moe-a2a-backend={name}",), "needs a mixture of experts", refusal, tensor=2, dense=True, since=since)
        for name, refusal, since in (("deepep", None, "0.5.17"), ("deepep_v2", "", "0.5.19"), ("flashinfer_megamoe", "", "0.5.23"))
    ),
    Combination("sglang", ("--moe-a2a-backend=deepep",), None, tensor=2),
    Combination("sglang", ("--moe-a2a-backend=none",), None, tensor=2, dense=True),
    Combination(
        "sglang",
        ("--kv-cache-dtype=fp4_mx_block16",),
        "--attention-backend=fa3 cannot read this KV cache",
        "KV4 MHA expects",
        H100,
        dense=True,
        speculates=False,
        remedied=("--kv-cache-dtype=fp4_mx_block16", "--attention-backend=triton"),
    ),
    Combination("sglang", ("--kv-cache-dtype=fp4_mx_block16",), None, dense=True, speculates=False),
    # SGLang: back ends of one kind of linear attention
    *(
        Combination("sglang", (f"--linear-attn-prefill-backend={name}",), "has gated delta nets", since=since)
        for name, since in (("flashkda", "0.5.17"), ("nvidia_kda", "0.5.17"), ("ptx_kda", "0.5.17"), ("helion", "0.5.19"))
    ),
    Combination("sglang", ("--linear-attn-backend=flashkda",), "for Kimi delta attention", "extra_buffer is not supported"),
    Combination("sglang", ("--decode-attention-backend=fa3", "--prefill-attention-backend=flashinfer"), None, gpu=H100, dense=True),
    # SGLang: abbreviations
    Combination("sglang", ("--page=96",), "abbreviation of --page-size", "", gpu=H100, dense=True),
    Combination("sglang", ("--dp=2",), "Remove --dp; raise spec.replicas"),
    Combination("sglang", ("--tp=2",), "spec.parallelism decides it"),
    Combination("sglang", ("--no-dcp-replicate-q-proj",), None),
    Combination("sglang", ("--no-dcp-replicate-q",), "abbreviation of --no-dcp-replicate-q-proj"),
    # SGLang: attention
    Combination(
        "sglang",
        ("--enable-deterministic-inference",),
        "--attention-backend=trtllm_mha",
        "deterministic inference",
        remedied=("--enable-deterministic-inference", _FLASHINFER),
    ),
    Combination("sglang", ("--enable-deterministic-inference",), None, gpu=H100),
    Combination("sglang", ("--enable-mis",), "--enable-mis", "Multi-item scoring", remedied=("--enable-mis", _FLASHINFER)),
    Combination("sglang", ("--attention-backend=hpc_ops",), "no speculative decoding"),
    *(Combination("sglang", (f"--attention-backend={name}",), "does not run on", dense=True) for name in ("aiter", "ascend", "intel_xpu")),
    Combination("sglang", ("--kv-cache-dtype=nvfp4",), "KV cache", "NVFP4", since="0.5.20"),
    Combination(
        "sglang",
        ("--attention-backend=trtllm_mha", "--kv-cache-dtype=fp8_e4m3"),
        "fp8_e4m3",
        "fp8_e4m3",
        gpu=RTX_PRO_6000,
        dense=True,
        since="0.5.18",
    ),
    # SGLang: scheduler
    Combination("sglang", ("--chunked-prefill-size=16",), "page size of 64", "divisible by page_size"),
    Combination("sglang", ("--chunked-prefill-size=2048",), None),
    Combination(
        "sglang",
        ("--enable-hierarchical-cache", "--disable-radix-cache"),
        "does not work with --disable-radix-cache",
        "mutually exclusive",
        dense=True,
        remedied=("--enable-hierarchical-cache",),
    ),
    Combination("sglang", ("--enable-pdmux",), "--enable-pdmux", "PD-Multiplexing"),
    Combination("sglang", ("--enable-two-batch-overlap",), "--enable-two-batch-overlap", "two batch overlap"),
    Combination("sglang", ("--enable-mixed-chunk",), None),
    Combination("sglang", ("--device=cpu",), "--device=cpu", "DFLASH"),
    # SGLang: what no drafter can do
    Combination(
        "sglang",
        ("--enable-lora",),
        "--enable-lora needs",
        "",
        dense=True,
        since="0.5.19",
        remedied=("--enable-lora", "--max-lora-rank=16", "--lora-target-modules=all"),
    ),
    Combination("sglang", ("--enable-lora",), "before SGLang 0.5.19", "LoRA", before="0.5.19"),
    Combination("sglang", ("--enable-layernorm-sp",), "--enable-layernorm-sp", "--enable-layernorm-sp", tensor=2, since="0.5.19"),
    Combination("sglang", ("--enable-unified-memory",), "--enable-unified-memory", "page-major", dense=True, before="0.5.19"),
    Combination("sglang", ("--enable-unified-memory",), "--enable-unified-memory", "page-major", before="0.5.20"),
    Combination("sglang", ("--enable-unified-memory",), None, since="0.5.20"),
    Combination("sglang", ("--enable-watermark",), "--enable-watermark", "watermark", since="0.5.23"),
    Combination("sglang", ("--enable-lmcache",), "--enable-lmcache", "speculative decoding", since="0.5.23"),
    Combination("sglang", ("--weight-cache-mode=client",), "--weight-cache-mode", "speculative decoding"),
    Combination("sglang", ("--speculative-skip-dp-mlp-sync",), "--speculative-skip-dp-mlp-sync", "EAGLE", before="0.5.23"),
    # SGLang: ranks
    Combination("sglang", ("--dp-size=2",), "multiplies the ranks"),
    Combination("sglang", ("--data-parallel-size=2",), "--data-parallel-size=2 multiplies"),
    Combination("sglang", ("--pp-size=2",), "multiplies the ranks", "pp_size == 1"),
    Combination("sglang", ("--dp-size=1",), None),
    Combination("sglang", ("--ep-size=2",), "does not divide"),
    Combination("sglang", ("--ep-size=2",), None, tensor=2),
    Combination("sglang", ("--ep=2",), None, tensor=2),
    Combination("sglang", ("--attn-cp-size=2",), "does not divide", "divisible"),
    Combination("sglang", ("--attn-cp-size=2",), None, tensor=2),
    Combination("sglang", ("--moe-dp-size=2",), "--moe-dp-size", "moe_dp_size", tensor=2),
    Combination("sglang", ("--dcp-size=2",), "does not divide"),
    Combination("sglang", ("--moe-dense-tp-size=2",), "--moe-dense-tp-size", "moe_dense_tp_size", tensor=4),
    Combination(
        "sglang",
        ("--dcp-size=2", "--enable-prefill-cp", "--cp-strategy=zigzag"),
        "does not work with --dcp-size",
        "--enable-prefill-cp",
        tensor=2,
        since="0.5.20",
        remedied=("--dcp-size=2",),
    ),
    Combination(
        "sglang",
        ("--dcp-size=2", "--dcp-replicate-q-proj", "--dcp-comm-backend=ag_rs"),
        "--dcp-comm-backend",
        "a2a/fi_a2a",
        tensor=2,
        remedied=("--dcp-size=2", "--dcp-replicate-q-proj", "--dcp-comm-backend=a2a"),
    ),
    Combination("sglang", ("--dwdp-size=2",), "outside the GPUs", "", tensor=2),
    Combination("sglang", ("--base-gpu-id=1",), "outside the GPUs"),
    Combination(
        "sglang",
        ("--dp-size=2", "--enable-dp-attention"),
        "--enable-dp-lm-head",
        "--enable-dp-lm-head",
        tensor=2,
        since="0.5.23",
        remedied=("--dp-size=2", "--enable-dp-attention", "--enable-dp-lm-head"),
    ),
    Combination(
        "sglang",
        ("--attn-dp-size=2", "--enable-dp-lm-head", "--attn-cp-size=2"),
        "context parallelism",
        "context parallel",
        tensor=4,
        since="0.5.23",
        remedied=("--attn-dp-size=2", "--enable-dp-lm-head"),
    ),
    Combination("sglang", ("--dp-size=2", "--enable-dp-attention"), "before SGLang 0.5.23", "dp attention", tensor=2, before="0.5.23"),
    # SGLang: address
    Combination("sglang", ("--host=::",), None),
    Combination("sglang", ("--host=0.0.0.0",), None),
    Combination("sglang", ("--host=127.0.0.1",), "one address"),
    Combination("sglang", ("--tokenizer-worker-num=2",), None),
    # vLLM: ranks
    Combination("vllm", ("--data-parallel-size=2",), "multiplies the ranks"),
    Combination("vllm", ("--data-parallel-size=1",), None),
    Combination("vllm", ("--pipeline-parallel-size=2",), "multiplies the ranks", "ipeline", before="0.31.0"),
    Combination("vllm", ("--prefill-context-parallel-size=2",), "multiplies the ranks", before="0.33.0"),
    Combination("vllm", ("--decode-context-parallel-size=2",), "does not divide", "divisible"),
    Combination("vllm", ("--data-parallel-size-local=2",), "outside the GPUs", "data_parallel_size_local"),
    Combination("vllm", ("--data-parallel-rank=0",), "outside the GPUs", "data_parallel"),
    Combination("vllm", ("--data-parallel-rank=1",), "outside the GPUs", "data_parallel"),
    Combination("vllm", ("--data-parallel-hybrid-lb",), "outside the GPUs", "data"),
    Combination("vllm", ("--data-parallel-external-lb",), "outside the GPUs", "data"),
    Combination("vllm", ("--data-parallel-size=2", "--data-parallel-size-local=1"), "multiplies the ranks"),
    Combination("vllm", ("--enable-elastic-ep",), "outside the GPUs", "Elastic EP"),
    Combination("vllm", ("--api-server-count=2",), None),
    Combination("vllm", ("--enable-expert-parallel",), "needs a mixture of experts", "Number of experts", dense=True),
    Combination("vllm", ("--enable-expert-parallel",), "needs a mixture of experts", "Number of experts", dense=True, tensor=2),
    Combination("vllm", ("--no-enable-expert-parallel",), None, dense=True),
    Combination("vllm", ("--decode-context-parallel-size=2",), "8 heads 1", "KV heads", dense=True, tensor=2, kv_heads=8, since="0.33.0"),
    Combination("vllm", ("--decode-context-parallel-size=2",), "8 heads 1", "kv heads", dense=True, tensor=2, kv_heads=8, before="0.33.0"),
    Combination("vllm", ("--decode-context-parallel-size=2",), "8 heads 1", "", dense=True, tensor=8, kv_heads=8),
    Combination("vllm", ("--decode-context-parallel-size=1",), None, dense=True, tensor=2, kv_heads=8),
    # vLLM: abbreviations and negations
    Combination("vllm", ("--no-enable-chunked-prefil",), "abbreviation of --no-enable-chunked-prefill", "max_model_len"),
    Combination("vllm", ("--no_enable_chunked_prefil",), "abbreviation of --no-enable-chunked-prefill", "max_model_len"),
    Combination("vllm", ("--disable-chunked-prefil",), "abbreviation of --disable-chunked-prefill", "max_model_len", since="0.33.0"),
    Combination("vllm", ("--no-enable-chunked",), "abbreviation of --no-enable-chunked-", ""),
    Combination("vllm", ("--attention-c.backend=FLASHINFER",), "abbreviation of --attention-config", ""),
    Combination("vllm", ("--enable-expert",), "abbreviation of --enable-expert-parallel", "Number of experts", dense=True),
    Combination("vllm", ("--decode-context=2",), "abbreviation of --decode-context-parallel-size", "divisible"),
    Combination("vllm", ("--dp=2",), "Remove --dp; raise spec.replicas", "ambiguous", since="0.33.0"),
    Combination("vllm", ("--tp=2",), "Remove --tp: spec.parallelism decides it", "", since="0.33.0"),
    Combination("vllm", ("--data-parallel=2",), "Remove --data-parallel; ", "ambiguous"),
    Combination("vllm", ("--trust-remote",), None),
    # vLLM: sizes, attention, drafting
    Combination("vllm", ("--no-enable-chunked-prefill",), "--no-enable-chunked-prefill: without chunked prefill", "max_model_len"),
    Combination(
        "vllm", ("--disable-chunked-prefill",), "--disable-chunked-prefill: without chunked prefill", "max_model_len", since="0.33.0"
    ),
    Combination("vllm", ("--no-enable-chunked-prefill", "--max-model-len=16384"), None),
    Combination("vllm", ("--max-num-active-seqs=64",), "spec.engine.maxConcurrency", "max_num_active_seqs", since="0.33.0"),
    Combination("vllm", ("--kv-sharing-fast-prefill",), "speculative decoding", "Fast prefill"),
    Combination("vllm", ("--enable-dbo",), "speculative decoding", ""),
    Combination("vllm", ("--ubatch-size=2",), "speculative decoding", ""),
    Combination("vllm", ("--attention-config.backend=FLASHINFER",), "a second time", ""),
    Combination("vllm", ("--attention-backend=FLASHINFER",), None),
    Combination("vllm", ("--kv-cache-dtype=fp8",), None, gpu=L40S),
    # vLLM: address
    Combination("vllm", ("--host=::",), None),
    Combination("vllm", ("--host=0.0.0.0",), None),
    Combination("vllm", ("--host=localhost",), "one address"),
)
