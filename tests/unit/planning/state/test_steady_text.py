"""What is taken out of messages: all that changes while the cause stays, and nothing else."""

from __future__ import annotations

import pytest

from dflash_controller.planning.state.steady_text import MAX_WORDS, last_words, pull_error, refusal_words, scheduler_words, steady


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("2026-01-01T00:00:00.123Z error: --x=16 is not valid", "error: --x=16 is not valid"),
        ("ERROR 01-02 03:04:05 [core.py:123] tensor parallel 8", "ERROR [core.py:123] tensor parallel 8"),
        ("read tcp 10.0.0.5:55332->10.0.0.9:443: i/o timeout", "read tcp 10.0.0.5->10.0.0.9:443: i/o timeout"),
        ("at 0x7f00aa00bb00, pid=4242", "at 0x…, pid"),
        ("CUDA out of memory. Tried to allocate 2.00 GiB", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("two\n  lines", "two lines"),
    ],
)
def test_times_and_numbers_of_processes_are_left_out(text: str, left: str) -> None:
    assert steady(text) == left


def test_the_end_of_long_words_is_kept() -> None:
    said = last_words("x" * 5000 + " RuntimeError: no kernel image")
    assert said.endswith("RuntimeError: no kernel image")
    assert len(said) == MAX_WORDS + 1


def test_a_pull_says_the_same_while_it_is_tried_and_while_the_kubelet_waits() -> None:
    tried = 'failed to resolve reference "a:1": not found'
    assert pull_error(f'Back-off pulling image "a:1": ErrImagePull: {tried}') == pull_error(tried) == tried


def test_numbers_of_nodes_are_left_out_whatever_their_order() -> None:
    one = "0/5 nodes are available: 1 node(s) had untolerated taint {a: b, c}, 4 Insufficient nvidia.com/gpu. preemption: 0/5 nodes."
    two = "0/9 nodes are available: 4 Insufficient nvidia.com/gpu, 5 node(s) had untolerated taint {a: b, c}."
    three = two + " no new claims to deallocate, preemption: 0/9 nodes are available: 9 Preemption is not helpful for scheduling."
    assert (
        scheduler_words(one)
        == scheduler_words(two)
        == scheduler_words(three)
        == "Insufficient nvidia.com/gpu, node(s) had untolerated taint {a: b, c}"
    )


def test_a_claim_is_told_without_what_the_scheduler_says_of_an_eviction() -> None:
    assert (
        scheduler_words('0/9 nodes are available: persistentvolumeclaim "a" not found. not found') == 'persistentvolumeclaim "a" not found'
    )
    unbound = "pod has unbound immediate PersistentVolumeClaims"
    assert scheduler_words(f"0/9 nodes are available: {unbound}. not found") == unbound


def test_a_refusal_is_told_without_the_pod_and_without_what_others_use() -> None:
    text = 'pods "chat-r1-x2" is forbidden: exceeded quota: gpus, requested: gpu=8, used: gpu=16,pods=3, limited: gpu=16'
    assert refusal_words(text) == "exceeded quota: gpus, requested: gpu=8, limited: gpu=16"
