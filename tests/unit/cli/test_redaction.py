"""What a bug report leaves out: planted secrets in every place where people put them, and nothing that explains a defect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dflash_controller.cli import redaction

CANARY = "cAnArY4242zzz"


@pytest.mark.parametrize(
    "text",
    [
        f"loading with hf_{CANARY}",
        f"OPENAI_API_KEY=sk-{CANARY}",
        f"Authorization: Bearer {CANARY}",
        f"Authorization: Basic {CANARY}==",
        f'{{"api_key": "{CANARY}"}}',
        f"--api-key={CANARY}",
        f"password: {CANARY}",
        f"GET https://user:{CANARY}@hub.example/x",
        f"cookie={CANARY}; path=/",
        f"jwt eyJ{CANARY}.eyJ{CANARY}.{CANARY}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----",
        f"aws AKIA{CANARY.upper()}",
        f"MY_SECRET_VALUE='{CANARY}'",
    ],
)
def test_no_secret_stays_in_a_log(text: str) -> None:
    found = redaction.text(f"before {text} after")
    assert CANARY.lower() not in found.lower()
    assert redaction.GONE in found
    assert found.startswith("before ")


@pytest.mark.parametrize(
    "text",
    [
        "--speculative-num-draft-tokens=16",
        "max_tokens=256, tokens: 12, tokenizer=Qwen/Qwen3.5-9B",
        "gen throughput (token/s): 120.5, #queue-req: 0",
        "secretKeyRef: hub",
        "https://huggingface.co/Qwen/Qwen3.5-9B/resolve/main/config.json",
        "--model-path=Qwen/Qwen3.5-9B --revision=0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_what_explains_a_defect_stays(text: str) -> None:
    assert redaction.text(text) == text


def test_no_secret_stays_in_an_object() -> None:
    env = [{"name": "INNOCENT", "value": CANARY}, {"name": "VLLM_API_KEY", "value": CANARY}, {"name": "NCCL_DEBUG", "value": "WARN"}]
    obj: dict[str, Any] = {
        "metadata": {"annotations": {"serving.dflash.io/record": json.dumps({"inputs": {"engine": {"env": env}}}), "team-token": CANARY}},
        "spec": {
            "engine": {"env": env, "extraArgs": [f"--api-key={CANARY}", "--max-model-len=4096"]},
            "huggingFace": {"tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"}},
        },
    }
    found = redaction.data(obj)
    assert CANARY not in json.dumps(found)
    assert found["spec"]["engine"]["env"][2] == {"name": "NCCL_DEBUG", "value": "WARN"}
    assert found["spec"]["engine"]["extraArgs"][1] == "--max-model-len=4096"
    assert found["spec"]["huggingFace"] == obj["spec"]["huggingFace"], "the name of a Secret is none"


def test_a_secret_keeps_its_keys_only() -> None:
    found = redaction.data({"kind": "Secret", "metadata": {"name": "hub"}, "data": {"HF": CANARY}, "stringData": {"x": CANARY}})
    assert found["data"] == {"HF": redaction.GONE}
    assert CANARY not in json.dumps(found)
