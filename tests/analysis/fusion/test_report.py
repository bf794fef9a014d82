"""What could be fused: groups that can run as one kernel, never across what forbids it, and the bytes they save."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import torch_vis as tv
from tests.kit import fusing
from tests.kit.graphs import empty_graph, one_node_graph, synthetic
from tests.kit.traced import NAMES, traced
from torch_vis.analysis.fusion import fuse
from torch_vis.errors import UsageError


def chains(trace: tv.Trace) -> list[list[str]]:
    """The names of the operations of each chain, in order."""
    return [list(chain.names) for chain in sorted(trace.fusion().chains, key=lambda chain: chain.operations)]


# On every model


@pytest.mark.parametrize("name", NAMES)
def test_no_path_leaves_a_group_and_comes_back(name: str) -> None:
    graph = traced(name).graph
    found = fuse(graph)
    part = [group if group >= 0 else -1 - node for node, group in enumerate(found.of.tolist())]
    assert not fusing.has_cycle(fusing.must_precede(graph), part)


@pytest.mark.parametrize("name", NAMES)
def test_groups_keep_to_what_a_kernel_can_do(name: str) -> None:
    graph = traced(name).graph
    found = fuse(graph)
    overwritten = fusing.read_then_overwritten(graph)
    escapes = np.cumsum(["escape" in node.flags for node in graph.nodes])
    for group in range(found.count):
        nodes = [graph.nodes[int(number)] for number in found.members(group)]
        kernels = [node for node in nodes if not fusing.is_view(node)]
        assert len(kernels) > 1
        assert len({node.phase for node in nodes}) == 1
        assert len({value.device for node in kernels for value in node.outputs}) == 1
        assert len({escapes[node.index] for node in nodes}) == 1
        assert sum("random" in node.flags for node in nodes) <= 1
        assert not any({"escape", "opaque"} & {*node.flags} for node in nodes)
        assert all(node.op.startswith(("aten::", "prims::")) for node in nodes)
        inside = {node.index for node in nodes}
        assert not [pair for pair in overwritten if inside.issuperset(pair)]


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_are_those_of_the_definition(name: str) -> None:
    trace = traced(name)
    found = fuse(trace.graph, moved=trace.metrics["moved_bytes"])
    reference = fusing.Reference(trace.graph)
    for group in range(found.count):
        kernels = {int(node) for node in found.members(group) if found.is_kernel[node]}
        assert reference.saved(kernels) == (int(found.intermediate[group]), int(found.shared[group]))
    known = found.uncovered == 0
    assert (found.saved[known] <= found.before[known]).all()


# What goes together


def test_a_pointwise_chain_is_one_kernel_through_views() -> None:
    trace = tv.trace(lambda x: (x * 2).view(4, 6).relu().t().tanh().reshape(24).neg(), torch.ones(2, 3, 4))
    (chain,) = trace.fusion().chains
    assert chain.names == ("mul", "relu", "tanh", "clone", "neg")
    assert chain.kind == "pointwise"
    assert chain.kernels_saved == 4
    assert chain.saved_bytes == 4 * 2 * 24 * 4
    assert (chain.bytes_before, chain.bytes_after) == (5 * 2 * 24 * 4, 2 * 24 * 4)
    assert chain.share == 0.8


def test_what_is_used_elsewhere_is_still_written() -> None:
    (chain,) = tv.trace(lambda x: (y := x + 1, y * 2), torch.ones(8)).fusion().chains
    assert chain.saved_bytes == 8 * 4  # one read; x + 1 is an output


def test_a_normalisation_takes_in_what_is_around_it() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x + 1, (8,)).relu() @ w

    assert chains(tv.trace(program, torch.ones(4, 8), torch.ones(8, 2))) == [
        ["add", "native_layer_norm", "relu"]
    ]


def test_a_norm_written_by_hand_is_one_kernel() -> None:
    def rms(x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    assert chains(tv.trace(rms, torch.ones(4, 8))) == [["pow", "mean", "add", "rsqrt", "mul"]]


def test_a_mean_of_everything_ends_its_kernel() -> None:
    found = chains(tv.trace(lambda x: x * x.relu().sum(), torch.ones(4, 8)))
    assert found == [["relu", "sum"]]


def test_sums_over_other_axes_are_other_kernels() -> None:
    found = chains(tv.trace(lambda x: F.softmax(F.softmax(x + 1, 0), 1), torch.ones(8, 8)))
    assert found == [["add", "_softmax"]]
    found = chains(tv.trace(lambda x: F.softmax(F.softmax(x + 1, 1), 1), torch.ones(8, 8)))
    assert found == [["add", "_softmax", "_softmax"]]


def test_one_matrix_product_with_what_follows_it() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (F.gelu(x @ w) @ w).relu()

    trace = tv.trace(program, torch.ones(4, 8), torch.ones(8, 8))
    assert chains(trace) == [["mm", "gelu"], ["mm", "relu"]]
    assert {chain.kind for chain in trace.fusion().chains} == {"epilogue"}


def test_batch_norm_is_pointwise_only_where_it_takes_no_statistics() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    x = torch.ones(2, 1, 8, 8)
    assert chains(tv.trace(model.eval(), x)) == [["convolution", "native_batch_norm", "relu"]]
    assert ["native_batch_norm", "relu"] in chains(tv.trace(model.train(), x))


def test_readers_of_one_tensor_are_read_for_once() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin() @ w, x.cos() @ w

    (chain,) = tv.trace(program, torch.ones(4, 8), torch.ones(8, 2)).fusion().chains
    assert (chain.names, chain.kind, chain.saved_bytes, chain.shared_bytes) == (
        ("sin", "cos"),
        "horizontal",
        128,
        128,
    )


def test_a_small_factor_is_computed_where_it_is_used() -> None:
    assert chains(tv.trace(lambda x, s: x * s.exp(), torch.ones(4, 8), torch.ones(8))) == [["exp", "mul"]]


@pytest.mark.parametrize(
    ("program", "saved", "left"),
    [
        (lambda x: (x @ x).relu(), 2, 2),  # only the product passes: written and read
        (lambda x: x * x + x, 3, 2),  # the product's two, and x once instead of twice
        (lambda x: (x.t() @ x).relu() + 1, 4, 2),
        (lambda x: torch.addcmul(x * 2, x, x), 3, 2),
        (lambda x: torch.addmm(x, x.t(), x, beta=0).relu(), 2, 2),
        (lambda x: x.sin() + x.view(8, 8).cos(), 5, 2),
    ],
)
def test_fusing_saves_no_byte_that_was_never_moved_twice(program: Any, saved: int, left: int) -> None:
    (chain,) = tv.trace(program, torch.ones(8, 8)).fusion().chains
    assert (chain.saved_bytes, chain.bytes_after) == (saved * 256, left * 256)


def test_lookups_in_one_table_are_not_known_to_be_of_the_same_rows() -> None:
    table, rows = torch.ones(100, 8), torch.arange(4)
    trace = tv.trace(lambda: table[rows] + table[rows + 50])
    (part,) = trace.partition(max_operations=9).parts
    assert part.moved_bytes == 8 * 4 + 2 * (4 * 4 * 8) + 4 * 4 * 8


# What does not


def test_a_cycle_is_never_made() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        return y + (y @ w).cos()

    found = chains(tv.trace(program, torch.ones(4, 4), torch.ones(4, 4)))
    assert found == [["mm", "cos", "add"]]  # sin, which mm needs, is not with add


def test_what_python_looks_at_stands_between() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y * y.sum().item() if y.sum().item() > 0 else y.relu()

    assert ["add", "mul"] not in [names[:2] for names in chains(tv.trace(program, torch.ones(4)))]


def test_reads_before_a_write_in_place_stay_before_it() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        turned = y.t().exp()
        y.mul_(2)
        return turned + y

    graph = tv.trace(program, torch.ones(4, 4)).graph
    found = fuse(graph)
    number = {node.name: node.index for node in graph.nodes}
    assert found.of[number["exp"]] == -1 or found.of[number["exp"]] != found.of[number["mul_"]]


def test_draws_of_random_numbers_keep_their_order() -> None:
    found = chains(tv.trace(lambda x: torch.rand_like(x) + torch.rand_like(x), torch.ones(8)))
    assert all(names.count("rand_like") <= 1 for names in found)


def test_phases_are_not_mixed() -> None:
    trace = tv.trace(lambda x: x.sin().exp().sum(), torch.ones(8, requires_grad=True), backward=True)
    assert {chain.phase for chain in trace.fusion().chains} == {"forward", "backward"}


# As a report


def test_the_report_adds_up() -> None:
    trace = traced("bert")
    found = trace.fusion()
    assert found.saved_bytes == sum(chain.saved_bytes for chain in found.chains)
    assert found.kernels - found.kernels_after == sum(chain.kernels_saved for chain in found.chains)
    assert found.chains == sorted(found.chains, key=lambda chain: -chain.saved_bytes)
    text = str(found)
    assert "addmm → gelu" in text and "encoder.layer.*.intermediate" in text
    assert len(found.to_pandas()) == len(found.chains)
    assert found.to_dict()["Chains that could be one kernel"][0]["saved_bytes"] == found.chains[0].saved_bytes


@pytest.mark.parametrize("renderer", ["plotly", "matplotlib"])
def test_the_figure_has_a_bar_for_each_chain(renderer: str) -> None:
    found = tv.trace(lambda x: (x * 2).relu(), torch.ones(8)).fusion()
    figure = found.figure(renderer)
    if renderer == "plotly":
        assert [drawn.type for drawn in figure.data] == [
            "bar",
            "bar",
            "scatter",
        ]  # the last, what they come to
        assert figure.data[2].text[0].strip() == "128 B"
        return
    assert len(figure.axes[0].containers) == 2
    assert [text.get_text() for text in figure.axes[0].texts] == ["128 B"]


def test_a_trace_without_operations_has_nothing_to_fuse() -> None:
    with pytest.raises(UsageError, match="no operations"):
        tv.trace(lambda x: x, torch.ones(2)).fusion()
    assert fuse(empty_graph()).count == 0
    assert fuse(one_node_graph()).count == 0


def test_a_run_with_nothing_to_fuse_says_so() -> None:
    found = tv.trace(torch.mm, torch.ones(2, 2), torch.ones(2, 2)).fusion()
    assert found.chains == [] and found.saved_bytes == 0
    with pytest.raises(UsageError, match="nothing to draw"):
        found.figure()


def test_a_large_graph_can_be_fused() -> None:
    graph, _ = synthetic(20_000)
    found = fuse(graph)
    assert len(found.of) == 20_000


def test_the_old_name_of_the_fusion_still_works() -> None:
    report = tv.trace(lambda x: (x + 1).relu(), torch.ones(4)).fusion()
    with pytest.warns(DeprecationWarning, match="now called fusion"):
        assert report.found is report.fusion
