"""What checkpointing saves and costs, against runs that do checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import torch_vis as tv
from tests.kit.traced import NAMES, traced
from torch_vis.errors import NoMatch, UsageError


class Block(nn.Module):
    def __init__(self, size: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attend, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.up, self.down = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, size = x.shape
        parts = self.attend(self.first(x)).view(batch, tokens, 3, self.heads, size // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, tokens, size)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Stack(nn.Module):
    """Blocks on end; those that are numbered are checkpointed."""

    def __init__(self, blocks: Sequence[nn.Module], width: int, numbered: frozenset[int]) -> None:
        super().__init__()
        self.blocks, self.head, self.numbered = nn.ModuleList(blocks), nn.Linear(width, 10), numbered

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number in self.numbered else block(x)
        return self.head(x.flatten(2).mean(2) if x.dim() == 4 else x.mean(1))


def transformer(numbered: frozenset[int]) -> tuple[nn.Module, torch.Tensor]:
    return Stack([Block(64) for _ in range(4)], 64, numbered), torch.randn(4, 64, 64)


def convolutional(numbered: frozenset[int]) -> tuple[nn.Module, torch.Tensor]:
    blocks = [
        nn.Sequential(nn.Conv2d(16 if n else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU())
        for n in range(4)
    ]
    return Stack(blocks, 16, numbered), torch.randn(4, 3, 32, 32)


def cases() -> list[frozenset[int]]:
    return [
        frozenset({0}),
        frozenset({1}),
        frozenset({2}),
        frozenset({3}),
        frozenset({1, 2}),
        frozenset(range(4)),
    ]


@pytest.mark.parametrize("numbered", cases(), ids=str)
@pytest.mark.parametrize("make", [transformer, convolutional])
def test_the_new_peak_and_the_cost_are_those_of_a_checkpointed_run(make, numbered: frozenset[int]) -> None:  # type: ignore[no-untyped-def]
    model, x = make(frozenset())
    plain = tv.trace(model, x, backward=True)
    model, x = make(numbered)
    real = tv.trace(model, x, backward=True)
    paths = [f"blocks.{number}" for number in numbered]
    assert plain.memory().checkpoint(paths).peak_bytes == real.memory().peak_bytes
    extra = sum(row.extra_flops for row in plain.memory().checkpoints if row.path in paths)
    assert extra == real.metrics["flops"].total() - plain.metrics["flops"].total()


def test_a_row_says_what_a_call_no_longer_holds() -> None:
    model, x = transformer(frozenset())
    plain = tv.trace(model, x, backward=True)
    rows = {row.path: row for row in plain.memory().checkpoints}
    model, x = transformer(frozenset({1}))
    with_one = tv.trace(model, x, backward=True)
    first = next(node.index for node in plain.graph.nodes if node.phase == "backward")
    other = next(node.index for node in with_one.graph.nodes if node.phase == "backward")
    saved = int(plain.memory().blocks.live[first]) - int(with_one.memory().blocks.live[other])
    assert rows["blocks.1"].saved_bytes == saved
    assert rows["blocks.1"].peak_bytes == saved  # the peak is when backward begins
    assert rows["blocks.1"].extra_time_ns is not None and rows["blocks.1"].type == "Block"


class Checkpointed(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.module, x, use_reentrant=False)


def perceptron() -> nn.Sequential:
    """Six blocks on end, as a list that modules can be replaced in."""
    blocks = [
        nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(6)
    ]
    return nn.Sequential(nn.Sequential(*blocks))


def mixed(model: nn.Module) -> tv.Trace:
    def step(x: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        out.float().pow(2).sum().backward()

    return tv.trace(step, torch.randn(64, 64))


def test_rows_say_what_the_peak_really_falls_by_and_come_in_that_order() -> None:
    report = mixed(perceptron()).memory()
    rows = report.checkpoints
    assert {"0", "0.0", "0.3", "0.5.3"} <= {row.path for row in rows}
    assert [row.peak_bytes for row in rows] == sorted((row.peak_bytes for row in rows), reverse=True)
    for row in rows:
        if row.path:
            model = perceptron()
            above, _, name = row.path.rpartition(".")
            model.get_submodule(above)[int(name)] = Checkpointed(model.get_submodule(row.path))
            real = mixed(model).memory().peak_bytes
            assert row.new_peak_bytes == real, row
            assert row.peak_bytes == report.peak_bytes - row.new_peak_bytes
    whole = next(row for row in rows if row.path == "0")
    assert whole.saved_bytes > 5 * max(whole.peak_bytes, 1), "computing it all again brings it all back"
    assert whole not in rows[:6]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_of_any_model_agrees_with_the_timeline_of_the_run_with_that_checkpoint(name: str) -> None:
    trace = traced(name)
    calls = Counter(trace.graph.scope_paths)
    report = trace.memory()
    for row in report.checkpoints:
        if calls[row.path] == 1:
            assert report.checkpoint(row.path).peak_bytes == row.new_peak_bytes, row


def test_the_extra_time_is_that_of_the_operations_that_run_again() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8))
    trace = tv.trace(nn.Sequential(model), torch.randn(4, 8), backward=True)
    nodes = list(trace.graph.find("0", phase="forward"))
    assert [node.name for node in nodes] == ["t", "addmm", "sigmoid", "t", "addmm"]
    row = next(row for row in trace.memory().checkpoints if row.path == "0")
    times = trace.metrics["time_ns"]
    assert row.extra_time_ns == sum(times[node.index] for node in nodes[:-1])  # nothing saves the last result


def test_what_the_program_holds_itself_is_not_saved() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid())
    held = []

    def step(x: torch.Tensor) -> None:
        out = model(x)
        held.append(out)
        out.sum().backward()

    rows = tv.trace(step, torch.ones(4, 8)).memory().checkpoints
    assert [row.path for row in rows] == []


def test_a_call_that_only_keeps_more_is_not_listed() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Flatten(), nn.Linear(8, 8))
    rows = tv.trace(model, torch.ones(4, 8), backward=True).memory().checkpoints
    assert all(row.saved_bytes > 0 for row in rows)
    assert "1" not in {row.path for row in rows}


def test_a_prediction_has_no_times() -> None:
    model, x = transformer(frozenset())
    rows = tv.trace(model, x, backward=True, fake=True).memory().checkpoints
    assert rows and all(row.extra_time_ns is None and row.extra_flops is not None for row in rows)


def test_bad_names_and_no_backward() -> None:
    model, x = convolutional(frozenset())
    with pytest.raises(NoMatch, match=r"blocks\.0"):
        tv.trace(model, x, backward=True).memory().checkpoint("block.0")
    for wrong in (None, 3, ["blocks.0", 3]):
        with pytest.raises(UsageError, match="paths or patterns"):
            tv.trace(model, x, backward=True).memory().checkpoint(wrong)  # type: ignore[arg-type]
    for nothing in ([], ()):
        with pytest.raises(UsageError, match="one module or more"):
            tv.trace(model, x, backward=True).memory().checkpoint(nothing)
    report = tv.trace(model, x).memory()
    assert report.checkpoints == []
    with pytest.raises(UsageError, match="backward=True"):
        report.checkpoint("blocks.0")


def test_a_step_takes_the_names_that_the_model_has_for_its_modules() -> None:
    model, x = convolutional(frozenset())

    flatten = nn.Flatten(0)

    def step() -> None:
        flatten(model(x)).sum().backward()

    report = tv.trace(step).memory()
    whole = report.checkpoint("model.blocks.*")
    assert whole.modules and report.checkpoint("blocks.*").modules == whole.modules
    with pytest.raises(NoMatch, match=r"did you mean 'model\.blocks\.\d'") as error:
        report.checkpoint("block.7")
    assert len(str(error.value)) < 600


def test_checkpoints_together_can_be_read_and_drawn() -> None:
    model, x = transformer(frozenset())
    plain = tv.trace(model, x, backward=True).memory()
    found = plain.checkpoint("blocks.?")
    rows = [row for row in plain.checkpoints if row.path in {f"blocks.{number}" for number in range(4)}]
    assert [(row.path, row.calls) for row in found.modules] == [
        (f"blocks.{number}", 1) for number in range(4)
    ]
    assert found.extra_flops == sum(row.extra_flops for row in rows)
    assert found.extra_time_ns == sum(row.extra_time_ns for row in rows)
    assert found.saved_bytes == plain.peak_bytes - found.peak_bytes > 0
    lines = found.table().splitlines()
    assert len(lines) < 20 and "blocks.3" in str(found) and "MiB lower" in found.facts()["change"]
    now, then = found.charts()["timeline"].series
    assert max(now.y) == plain.peak_bytes and max(then.y) == found.live.max() <= found.peak_bytes
    assert len(found.figure("matplotlib").axes) == 1


def test_checkpoints_of_a_prediction_have_no_time_and_those_that_forget_nothing_say_so() -> None:
    model, x = transformer(frozenset())
    found = tv.trace(model, x, backward=True, fake=True).memory().checkpoint("blocks.?")
    assert found.extra_time_ns is None and found.extra_flops and "extra time" not in str(found)
    found = tv.trace(nn.Sequential(nn.Identity(), nn.Linear(4, 4)), torch.ones(2, 4), backward=True).memory()
    assert "none of these calls saves anything" in str(found.checkpoint("0"))


def test_what_torch_keeps_of_random_numbers_is_named_where_calls_are_checkpointed() -> None:
    words = f"{torch.get_rng_state().nbytes:,} bytes"
    model, x = transformer(frozenset())
    plain = tv.trace(model, x, backward=True).memory()
    assert words not in str(plain) and words in str(plain.checkpoint("blocks.0"))
    model, x = transformer(frozenset({1}))
    assert words in str(tv.trace(model, x, backward=True).memory())


def test_a_backward_that_is_run_twice_or_keeps_its_graph_is_not_followed_and_said_so() -> None:
    model, x = transformer(frozenset())

    def step(*retain: bool) -> None:
        loss = model(x).sum()
        for keep in retain:
            loss.backward(retain_graph=keep)

    for retain, said in (
        ((False,), []),
        ((True,), ["freed nothing"]),
        ((True, False), ["more than once"]),
    ):
        found = tv.trace(step, *retain).memory().checkpoint("blocks.?")
        words = [
            word
            for word in ("freed nothing", "more than once")
            if any(word in note for note in found.notes())
        ]
        assert words == said


def test_a_body_with_two_losses_does_not_promise_a_lower_peak_than_there_is() -> None:
    """Backward comes by the body's graph twice, and the real peak is the one worked out."""
    body = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
    heads = nn.ModuleList([nn.Linear(16, 2), nn.Linear(16, 2)])
    net, x = nn.ModuleDict({"body": body, "heads": heads}), torch.randn(8, 16)

    def step(model: nn.ModuleDict, again: bool) -> None:
        net.zero_grad()
        hidden = checkpoint(model["body"], x, use_reentrant=False) if again else model["body"](x)
        model["heads"][0](hidden).sum().backward(retain_graph=True)
        model["heads"][1](hidden).sum().backward()

    found = tv.trace(step, net, False).memory().checkpoint("sequential")
    assert found.peak_bytes == tv.trace(step, net, True).memory().peak_bytes
    (note,) = (note for note in found.notes() if "more than once" in note)
    assert "may be lower" in note and "is lower" not in note
