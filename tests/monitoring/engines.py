"""Series as real engine pods export them, scraped with the labels of their pods."""

from __future__ import annotations

from tests.monitoring.story import counter, gauge, label_set

NAMESPACE, NAME = "team", "qwen"
REVISION = {"namespace": NAMESPACE, "deployment": NAME, "revision": "r1", "block_size": "16"}
DEPLOYMENT = {"namespace": NAMESPACE, "deployment": NAME}


def target(pod: str, revision: str = "r1", block_size: str = "16") -> dict[str, str]:
    """Labels that the scrape adds."""
    ours = {"deployment": NAME, "revision": revision, "block_size": block_size, "role": "engine"}
    return {"namespace": NAMESPACE, "pod": pod, "job": "engines", **{f"serving_dflash_io_{name}": value for name, value in ours.items()}}


def vllm(pod: str, *load_samples: tuple[float, float, int], revision: str = "r1", block_size: str = "16") -> dict[str, str]:
    """Load samples of (drafts a minute, accepted tokens a draft, minutes)."""
    labels = label_set(engine="0", model_name="m", **target(pod, revision, block_size))
    minutes = sum(load_sample[2] for load_sample in load_samples)
    return {
        f"vllm:generation_tokens_total{labels}": counter(*((drafts * (1 + accepted), span) for drafts, accepted, span in load_samples)),
        f"vllm:spec_decode_num_drafts_total{labels}": counter(*((drafts, span) for drafts, _, span in load_samples)),
        f"vllm:spec_decode_num_draft_tokens_total{labels}": counter(
            *(((int(block_size) - 1) * drafts, span) for drafts, _, span in load_samples)
        ),
        f"vllm:spec_decode_num_accepted_tokens_total{labels}": counter(
            *((drafts * accepted, span) for drafts, accepted, span in load_samples)
        ),
        **{
            f"vllm:spec_decode_num_accepted_tokens_per_pos_total{label_set(position=str(at), **target(pod, revision, block_size))}": "0"
            + f"+0x{minutes}"
            for at in range(int(block_size) - 1)
        },
        f"up{label_set(**target(pod, revision, block_size))}": gauge((1, minutes + 1)),
    }


def sglang(pod: str, *load_samples: tuple[float, float, int], revision: str = "r1", block_size: str = "16") -> dict[str, str]:
    """Load samples of (verify steps a minute, accepted tokens a step, minutes)."""
    labels = label_set(model_name="m", engine_type="unified", **target(pod, revision, block_size))
    minutes = sum(load_sample[2] for load_sample in load_samples)
    return {
        f"sglang:max_total_num_tokens{labels}": gauge((290790, minutes + 1)),
        f"sglang:spec_num_draft_tokens{labels}": gauge((16, minutes + 1)),
        f"sglang:spec_accept_length{labels}": gauge((1.0, minutes + 1)),
        f"sglang:spec_verify_calls_total{labels}": counter(*((steps, span) for steps, _, span in load_samples)),
        f"sglang:generation_tokens_total{labels}": counter(*((steps * (1 + accepted), span) for steps, accepted, span in load_samples)),
        f"up{label_set(**target(pod, revision, block_size))}": gauge((1, minutes + 1)),
    }


def role(name: str, minutes: int, revision: str = "r1") -> dict[str, str]:
    """What the operator says of a revision."""
    return {f"dflash_revision_info{label_set(revision=revision, role=name, **DEPLOYMENT)}": gauge((1, minutes + 1))}
