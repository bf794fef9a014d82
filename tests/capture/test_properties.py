"""Random programs of views, in-place writes, freed tensors and branches: every graph is proved and exactly right."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import torch_vis as tv
from tests.kit.programs import (
    FRESH,
    OTHER,
    SMOOTH_FRESH,
    SMOOTH_WRITES,
    VIEWS,
    WRITES,
    Step,
    connected,
    make_inputs,
    programs,
    run,
    trace,
    truth,
)

SHAPES = st.lists(st.sampled_from([(4, 3), (2, 3, 2), (6,), (3, 3), (1, 5), ()]), min_size=1, max_size=3)


@settings(max_examples=150)
@given(programs(VIEWS + FRESH + WRITES + OTHER), SHAPES)
def test_edges_are_exactly_the_bytes(program: list[Step], shapes: list[tuple[int, ...]]) -> None:
    """The inputs that the graph connects to a result are those whose bytes reached it: no more and no fewer."""
    torch.manual_seed(0)
    t = trace(program, shapes)
    expected, found = truth(program, shapes), connected(t)
    assert {name for name in expected if name.startswith("output")} <= found.keys()
    for name, names in found.items():
        assert expected[name] <= names, f"{name} lost {set(expected[name] - names)}"
        assert names <= expected[name], f"{name} is wrongly connected to {set(names - expected[name])}"


@settings(max_examples=100)
@given(programs(VIEWS + WRITES), SHAPES)
def test_edges_of_views_and_writes_alone(program: list[Step], shapes: list[tuple[int, ...]]) -> None:
    """Denser in aliasing than the test above: nothing but views of the inputs and writes through them."""
    torch.manual_seed(0)
    expected = truth(program, shapes)
    for name, names in connected(trace(program, shapes)).items():
        assert names == expected[name], name


def test_a_write_that_two_later_ones_hide_together() -> None:
    def f(x: Tensor, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        row = x[0][::2]
        row.copy_(a.expand(2))
        x[:, 0].fill_(b)  # the first element of the row
        row[1].fill_(c)  # and the second
        return row

    t = tv.trace(f, torch.rand(3, 3), torch.rand(()), torch.rand(()), torch.rand(()))
    assert connected(t)["output"] == {"b", "c"}


LARGE = st.lists(st.sampled_from([(72, 64), (4, 1200), (3, 40, 40)]), min_size=1, max_size=2)


@settings(max_examples=30)
@given(programs(VIEWS + FRESH + WRITES), LARGE)
def test_large_buffers_are_exact(program: list[Step], shapes: list[tuple[int, ...]]) -> None:
    """However odd the views of a large buffer are, it is connected to what its bytes come from, and to nothing else."""
    torch.manual_seed(0)
    t = trace(program, shapes)
    expected = truth(program, shapes)
    for name, names in connected(t).items():
        assert names == expected[name], name


@settings(max_examples=100)
@given(programs(VIEWS + FRESH + WRITES + OTHER, most=20), SHAPES)
def test_random_programs_pass_check(program: list[Step], shapes: list[tuple[int, ...]]) -> None:
    trace(program, shapes).check(shuffles=3)


@settings(max_examples=60)
@given(programs(VIEWS + SMOOTH_FRESH + SMOOTH_WRITES + ["drop"]), SHAPES)
def test_random_programs_with_backward_pass_check(program: list[Step], shapes: list[tuple[int, ...]]) -> None:
    def step(inputs: list[Tensor], tags: list[Tensor]) -> list[Tensor]:
        outputs = run(program, [tensor * 2 for tensor in inputs], tags)
        live = [tensor for tensor in outputs if tensor.requires_grad]
        if live:
            torch.stack([tensor.square().sum() for tensor in live]).sum().backward()
        return outputs

    def leaves() -> tuple[list[Tensor], list[Tensor]]:
        inputs, tags = make_inputs(shapes, len(program), seed=0)
        return [t.requires_grad_() for t in inputs], [t.requires_grad_() for t in tags]

    try:
        step(*leaves())
    except RuntimeError:
        assume(False)  # autograd refuses some writes through views; such a program has no graph
    inputs, tags = leaves()
    t = tv.trace(step, inputs, tags)
    t.check()
    gradients = {result.name for result in t.graph.outcomes if result.kind == "gradient"}
    names = [*(f"inputs.{i}.grad" for i in range(len(inputs))), *(f"tags.{i}.grad" for i in range(len(tags)))]
    assert gradients == {name for name, leaf in zip(names, inputs + tags) if leaf.grad is not None}


@settings(max_examples=40)
@given(programs(VIEWS + FRESH + WRITES + OTHER), SHAPES)
def test_tracing_changes_no_bit(program: list[Step], shapes: list[tuple[int, ...]]) -> None:
    inputs, tags = make_inputs(shapes, len(program), seed=0)
    torch.manual_seed(1)
    plain = run(program, inputs, tags)
    again, tags = make_inputs(shapes, len(program), seed=0)
    torch.manual_seed(1)
    traced = tv.trace(lambda: run(program, again, tags)).output
    for a, b in zip(plain + inputs, traced + again, strict=True):
        assert a.shape == b.shape and a.stride() == b.stride() and a.storage_offset() == b.storage_offset()
        assert torch.equal(a.contiguous().view(torch.int32), b.contiguous().view(torch.int32))
