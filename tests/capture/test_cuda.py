"""The same proof on a GPU: every graph replays bit for bit, backward is linked from the engine's own thread."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import torch_vis as tv
from tests.kit.gpu_net import image, net

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("training", [True, False])
def test_forward_and_backward_replay(training: bool) -> None:
    t = tv.trace(net().train(training), image(), backward=True)
    t.check(inputs=True)
    backward = [n for n in t.graph.nodes if n.phase == "backward"]
    linked = [n for n in backward if n.link is not None]
    assert (
        len(backward) > 20 and len(linked) >= len(backward) - 1
    )  # the seed of the loss has no forward operation


def test_training_is_the_same_with_and_without_us() -> None:
    def run(traced: bool) -> list[torch.Tensor]:
        model = net().train()
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)

        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        torch.cuda.manual_seed(3)
        for _ in range(3):
            if traced:
                tv.trace(step, image()).check()
            else:
                step(image())
        return [*model.state_dict().values(), torch.cuda.get_rng_state()]

    for plain, traced in zip(run(False), run(True), strict=True):
        assert torch.equal(plain, traced)


def test_autocast_and_gradient_scaling() -> None:
    model, scaler = net().train(), torch.amp.GradScaler("cuda")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(x: torch.Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    t = tv.trace(step, image())
    t.check()
    assert any("half" in str(n.outputs) or "float16" in {v.dtype for v in n.outputs} for n in t.graph.nodes)


def test_compiled_module() -> None:
    model = nn.Sequential(
        nn.Linear(16, 16), torch.compile(nn.Sequential(nn.Linear(16, 16), nn.GELU()))
    ).cuda()
    t = tv.trace(model, torch.randn(4, 16, device="cuda"), backward=True)
    t.check()
    assert [n.name for n in t.graph.find(op="torch_vis::compiled")] == ["compiled", "compiled"]


def test_the_limits_say_that_times_are_the_hosts() -> None:
    assert any("host" in limit for limit in tv.trace(net(), image()).limits)
