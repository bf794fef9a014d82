"""Kernel times on a GPU: every kernel finds the operation that launched it, on both threads, and nothing is changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torch_vis as tv
from tests.kit.gpu_net import image, net

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def test_every_kernel_has_its_operation() -> None:
    t = tv.trace(net().train(), image(), backward=True, repeat=2)
    found = t.meta["device_time"]
    kernel = t.metrics["kernel_ns"]
    assert found["unmatched"] == 0 and not any("launched by no" in limit for limit in t.limits), t.limits
    assert kernel.total() > 0.9 * found["total_ns"]
    by_phase = dict.fromkeys(("forward", "backward"), 0)
    for node in t.graph.nodes:
        by_phase[node.phase] += kernel[node.index]
    assert min(by_phase.values()) > 0  # the engine's thread as well
    product = next(node for node in t.graph.nodes if node.name == "addmm")
    assert kernel[product.index] > 0 and t.metrics["kernel_start_ns"][product.index] is not None
    view = next(node for node in t.graph.nodes if node.name == "t")
    assert kernel[view.index] == 0 and t.metrics["kernel_start_ns"][view.index] is None


def test_kernel_time_is_the_kernels_own() -> None:
    """A large product takes as long as the device says, not as long as its launch."""
    x = torch.rand(4096, 4096, device="cuda")
    t = tv.trace(lambda x: x @ x, x, repeat=3)
    (node,) = [node for node in t.graph.nodes if node.name == "mm"]
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begun.record()
    for _ in range(20):
        x @ x
    ended.record()
    torch.cuda.synchronize()
    assert t.metrics["kernel_ns"][node.index] == pytest.approx(begun.elapsed_time(ended) / 20 * 1e6, rel=0.2)


def test_training_goes_on_as_if_it_had_run_once() -> None:
    def run(repeat: int) -> list[Tensor]:
        model = net().train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(x: Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        torch.cuda.manual_seed(3)
        for _ in range(2):
            tv.trace(step, image(), repeat=repeat)
        moments = [item for state in optimizer.state.values() for item in state.values()]
        return [*model.state_dict().values(), *moments, torch.cuda.get_rng_state()]

    for plain, repeated in zip(run(0), run(2), strict=True):
        assert torch.equal(plain, repeated)


def test_waits_and_idle_time_are_told() -> None:
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(20))).cuda()

    def reads(x: Tensor) -> float:
        return model(x).sum().item()

    report = tv.trace(reads, torch.rand(8, 64, device="cuda"), repeat=2).time()
    assert report.device is not None
    assert any(wait.name == "cudaStreamSynchronize" for wait in report.device.waits)
    assert 0 < report.device.busy_ns < report.device.span_ns
    assert report.device.launch_bound > 0.3  # twenty tiny products: the device waits for launches


def test_a_cpu_part_has_no_kernels() -> None:
    t = tv.trace(lambda x: (x.cpu() * 2).sum(), torch.rand(1000, device="cuda"), repeat=1)
    (product,) = [node for node in t.graph.nodes if node.name == "mul"]
    (copy,) = [node for node in t.graph.nodes if node.name == "_to_copy"]
    assert t.metrics["kernel_ns"][product.index] == 0 and t.metrics["kernel_ns"][copy.index] > 0


def test_compiled_code_owns_its_kernels() -> None:
    model = torch.compile(net().eval())
    with torch.no_grad():
        model(image())
        t = tv.trace(model, image(), repeat=1)
    (node,) = [node for node in t.graph.nodes if node.name == "compiled"]
    assert t.meta["device_time"]["unmatched"] == 0
    assert t.metrics["kernel_ns"][node.index] > 0
