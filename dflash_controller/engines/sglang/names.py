"""SGLang's options that rules and rendering share, by the names that rules read."""

from __future__ import annotations

from dataclasses import replace

from dflash_controller.engines import options
from dflash_controller.engines.command_line import CommandLine

STRATEGY = "--mamba-radix-cache-strategy"
WINDOW = "--speculative-draft-window-size"
TARGET_BACKEND = "--attention-backend"
PREFILL_BACKEND = "--prefill-attention-backend"
DECODE_BACKEND = "--decode-attention-backend"
DRAFT_BACKEND = "--speculative-draft-attention-backend"
LORA = ("--enable-lora", "--lora-paths")
DP_ATTENTION = ("--attn-dp-size", "--enable-dp-attention")
DP_HEAD = "--enable-dp-lm-head"
PREFILL_GRAPHS = "--cuda-graph-backend-prefill"
TRACK = "--mamba-track-interval"
LINEAR = ("--linear-attn-backend", "--linear-attn-decode-backend", "--linear-attn-verify-backend")
STATE_DTYPE = "--mamba-ssm-dtype"
KV_DTYPE = "--kv-cache-dtype"
DISAGGREGATION = "--disaggregation-mode"
NO_OVERLAP = "--disable-overlap-schedule"

# The new names all exist since 0.5.14; 0.5.20 removed the old ones.
RENAMED = {
    "--cuda-graph-bs": "--cuda-graph-bs-decode",
    "--mamba-scheduler-strategy": STRATEGY,
    "--speculative-dflash-draft-window-size": WINDOW,
}
OPTIONS = replace(options.OPTIONS["sglang"], renamed=RENAMED)


def attention_data_parallel(line: CommandLine) -> int:
    """Returns the groups of attention data parallelism; 1 without."""
    if line.on("--enable-dp-attention"):
        return line.number("--dp-size") or 1
    return line.number("--attn-dp-size") or 1
