"""vLLM's own parser and configuration: prints its option table, then a verdict for each line (what follows ``vllm serve``) on stdin."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
import types
import typing
from typing import Any

out, sys.stdout = sys.stdout, sys.stderr  # the engine prints; verdicts stay clean
# 0.26's FlashAttention kernels load with its own torch only; arguments do not depend on them
KERNELS = "vllm.vllm_flash_attn._vllm_fa2_C,vllm.vllm_flash_attn._vllm_fa3_C"
os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR", FAKE_MODULES=KERNELS)
import fake_gpu  # noqa: E402, F401
import vllm.platforms  # noqa: E402
from vllm.platforms.cuda import NonNvmlCudaPlatform  # noqa: E402

vllm.platforms.current_platform = vllm.platforms._current_platform = NonNvmlCudaPlatform()
import vllm.model_executor.models.registry as registry  # noqa: E402
from verdicts import judge, table  # noqa: E402
from vllm.config import SpeculativeConfig  # noqa: E402
from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: E402
from vllm.triton_utils import HAS_TRITON, triton  # noqa: E402
from vllm.usage.usage_lib import UsageContext  # noqa: E402
from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum  # noqa: E402

try:
    cli = importlib.import_module("vllm.entrypoints.common.cli_args")
except ModuleNotFoundError:  # 0.26 and older
    cli = importlib.import_module("vllm.entrypoints.openai.cli_args")

registry._run_in_subprocess = lambda look_up: look_up()  # a subprocess would lack the fakes
if not HAS_TRITON:  # the stand-in lacks fields that Mamba layers read while being imported
    triton.Config = lambda kwargs=None, num_warps=4, num_stages=2, **more: types.SimpleNamespace(kwargs=kwargs, **more)

INTERNAL = {"target_model_config", "target_parallel_config", "draft_model_config", "draft_parallel_config"}


def resolve(arguments: list[str]) -> dict[str, Any]:
    """Parse, validate, and build the whole engine configuration."""
    args = parser.parse_args(arguments)
    if getattr(args, "model_tag", None):
        args.model = args.model_tag
    cli.validate_parsed_serve_args(args)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER)
    speculative, scheduler = config.speculative_config, config.scheduler_config
    return {
        "method": speculative and speculative.method,
        "drafts": speculative and speculative.num_speculative_tokens,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        "max_cudagraph_capture_size": config.compilation_config.max_cudagraph_capture_size,
    }


def _literals(hint: Any) -> set[str]:
    """The strings inside nested unions of literals."""
    return {text for part in typing.get_args(hint) for text in ({part} if isinstance(part, str) else _literals(part))}


if __name__ == "__main__":
    parser = cli.make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    facts = {
        "prog": parser.prog,
        "speculative_keys": sorted(f.name for f in dataclasses.fields(SpeculativeConfig) if f.init and f.name not in INTERNAL),
        "speculative_methods": sorted(_literals(typing.get_type_hints(SpeculativeConfig)["method"])),
        "attention_backends": sorted(AttentionBackendEnum.__members__),
    }
    print(json.dumps(facts | {"options": table(parser)}), file=out, flush=True)
    judge(out, resolve, lambda error: "failed to be inspected" in str(error))
