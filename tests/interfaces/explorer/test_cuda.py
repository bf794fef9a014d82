"""Recording module calls on a GPU: its own clock, and no harm to a graph that is being captured."""

from __future__ import annotations

import pytest
import torch

import torch_vis as tv

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_times_are_those_of_the_gpu() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.Linear(4096, 4096)).cuda()
    x = torch.randn(8192, 4096, device="cuda")
    model(x)
    with tv.record_torch_module_forward_stats(model, contents=True) as stats:
        model(x)
    one, both = stats["0"].calls[0], stats[""].calls[0]
    assert one.device_ns is not None and both.device_ns is not None
    assert one.device_ns > 1_000_000 and both.device_ns >= one.device_ns
    assert stats[""].self_ns < stats[""].total_ns / 2
    assert one.outputs[0].device == "cuda:0" and one.outputs[0].contents is not None


def test_a_capture_into_a_graph_goes_on() -> None:
    model = torch.nn.Linear(8, 8).cuda()
    x = torch.randn(4, 8, device="cuda")
    model(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with tv.record_torch_module_forward_stats(model, contents=True) as stats, torch.cuda.graph(graph):
        y = model(x)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.allclose(y, model(x)) and stats[""].count == 1
    assert stats[""].calls[0].device_ns is None
