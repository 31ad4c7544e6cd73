"""Combinations that an engine asserts against: the operator's own command line with a user's flags, on every tested release and GPU.

Each is a launch request. The real resolution, the simulator and ``Engine.problems`` judge it. Where the engine sees a fault only later (in
CUDA, a kernel, a second process), ``by_engine`` is None and we refuse alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dflash_controller.engines.protocol import LaunchRequest
from dflash_controller.engines.releases import TABLE, version
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

    @property
    def name(self) -> str:
        """Returns the flags, with what else distinguishes the case."""
        more = [self.gpu if self.gpu != B200 else "", "dense" if self.dense else "", f"tp {self.tensor}" if self.tensor > 1 else ""]
        return " ".join([*self.flags, *(f"({part})" for part in more if part)])

    def releases(self) -> Sequence[str]:
        """Returns the tested releases that the case is about."""
        first, last = version(self.since), version(self.before)
        return [release for release in TABLE[self.engine].tested if first <= version(release) < last]

    def request(self, release: str, flags: Sequence[str]) -> LaunchRequest:
        """Returns the launch request of the case with these flags."""
        base = request(self.engine, release, "Qwen/Qwen3-8B" if self.dense else "Qwen/Qwen3.5-35B-A3B", self.tensor)
        return dataclasses.replace(base, gpu_product=self.gpu, extra_args=tuple(flags))


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


COMBINATIONS: tuple[Combination, ...] = (
    *_backends(),
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
    # vLLM: sizes, attention, drafting
    Combination("vllm", ("--no-enable-chunked-prefill",), "--no-enable-chunked-prefill: without chunked prefill", "max_model_len"),
    Combination("vllm", ("--disable-chunked-prefill",), "--disable-chunked-prefill: without chunked prefill", "max_model_len", since="0.33.0"),
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
