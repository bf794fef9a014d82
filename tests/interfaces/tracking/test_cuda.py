"""The tracking interface on a GPU: the same figures, and training that goes on as if nothing had been."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from torch_vis import OperationType, track_computational_graph_execution

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def build() -> nn.Module:
    torch.manual_seed(3)
    layers = (nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.ReLU(), nn.Linear(8, 1))
    return nn.Sequential(*layers).cuda()


def train(track: dict[str, bool] | None) -> list[Any]:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    data, target = torch.rand(6, 4, device="cuda"), torch.rand(6, 1, device="cuda")
    for _ in range(4):
        if track is not None:
            track_computational_graph_execution(model, data, **track)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(data), target).backward()
        optimizer.step()
    moments = [item for state in optimizer.state.values() for item in state.values()]
    streams = [torch.cuda.get_rng_state(), torch.get_rng_state()]
    return [*model.state_dict().values(), *moments, *streams, *(p.grad for p in model.parameters())]


@pytest.mark.parametrize("operations", [True, False])
def test_training_is_the_same_with_and_without_tracking(operations: bool) -> None:
    plain, tracked = train(None), train({"track_tensor_ops": operations})
    for a, b in zip(plain, tracked, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("operations", [True, False])
def test_figures(operations: bool) -> None:
    tracker = track_computational_graph_execution(
        build(), torch.rand(6, 4, device="cuda"), track_tensor_ops=operations
    )
    summary = tracker.get_graph_summary()
    assert summary["backward"] and "cuda:0" in summary["devices"]
    kinds = {node.operation_type for node in tracker.nodes}
    assert (OperationType.GRADIENT_OP in kinds) is operations
    (backward,) = [node for node in tracker.nodes if node.operation_type is OperationType.BACKWARD]
    assert backward.execution_time is not None and backward.execution_time > 0
    if operations:
        linked = [node for node in tracker.nodes if "forward_id" in (node.metadata or {})]
        gradients = [node for node in tracker.nodes if node.operation_type is OperationType.GRADIENT_OP]
        assert len(linked) >= len(gradients) - 1 > 10
