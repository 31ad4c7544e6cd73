"""The GPUs of a machine, and which pod gets which."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.process_node.gpus import Gpu, GpuShares, NoGpuError, find_gpus, parse_gpus, visible

TWO = [Gpu(0, "NVIDIA-H200"), Gpu(1, "NVIDIA-H200")]


def test_a_listing_of_nvidia_smi_gives_products_as_node_labels_have_them() -> None:
    listing = "0, NVIDIA H100 80GB HBM3, 81559, 9.0\n1, NVIDIA H200, [N/A], 9.0\n"
    assert parse_gpus(listing) == [Gpu(0, "NVIDIA-H100-80GB-HBM3", 81559, "9.0"), Gpu(1, "NVIDIA-H200", 0, "9.0")]


@pytest.mark.parametrize("listing", ["", "No devices were found\n", "Failed to initialize NVML: Driver/library version mismatch\n"])
def test_a_message_of_nvidia_smi_is_no_gpu(listing: str) -> None:
    assert parse_gpus(listing) == []


def test_without_a_driver_one_line_says_what_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NoGpuError, match=r"^an NVIDIA GPU and its driver are needed \(there is no nvidia-smi\)$"):
        find_gpus()


def test_pods_get_different_gpus_until_none_is_free() -> None:
    shares = GpuShares(TWO)
    assert shares.capacity == 2
    assert shares.take("a", 1) == [0]
    assert shares.take("b", 1) == [1]
    assert shares.take("c", 1) is None
    shares.release("a")
    assert shares.take("c", 1) == [0]


def test_a_restarted_container_keeps_its_gpus() -> None:
    shares = GpuShares(TWO)
    assert shares.take("a", 2) == [0, 1]
    assert shares.take("a", 2) == [0, 1]


def test_a_shared_gpu_serves_several_pods_and_the_least_used_one_comes_first() -> None:
    shares = GpuShares(TWO, share=2)
    assert shares.capacity == 4
    assert [shares.take(holder, 1) for holder in "abcde"] == [[0], [1], [0], [1], None]
    assert GpuShares(TWO[:1], share=2).take("a", 2) is None  # one GPU is never two for the same pod


@pytest.mark.parametrize(("devices", "left"), [(None, TWO), ("1", TWO[1:]), ("1, 0", [TWO[1], TWO[0]]), ("0,", TWO[:1])])
def test_only_the_gpus_that_cuda_may_see_are_offered(devices: str | None, left: list[Gpu]) -> None:
    assert visible(TWO, devices) == left


@pytest.mark.parametrize(
    ("devices", "said"), [("", "is empty, which hides every GPU"), ("0,2", "names 2; the indexes of the GPUs are 0, 1")]
)
def test_a_choice_of_gpus_that_leaves_none_or_an_unknown_one_is_refused(devices: str, said: str) -> None:
    with pytest.raises(NoGpuError, match=said):
        visible(TWO, devices)
