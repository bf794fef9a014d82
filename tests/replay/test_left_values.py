"""A rerun after values left torch is right, is refused, or says that it may be wrong."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils import rnn

import torch_vis as tv
from tools.escapes import FIRST, NUMBERS, OTHERS, TENSORS, WRITES, outcome, programs
from torch_vis.errors import UsageError

PROGRAMS = dict(programs())
CHOSEN = [
    *(f"{way} / {place} / no write / factor" for way in NUMBERS for place in ("input", "made")),
    *(f"{way} / data / no write / size" for way in NUMBERS),
    *(f"back: {way} / {place} / no write" for way in TENSORS for place in ("input", "made", "view")),
    *(f"numpy / {place} / {write} / factor" for write in WRITES for place in ("made", "constant")),
    *(f"tolist / view / {write} / branch" for write in WRITES),
    *(f"late: numpy / {write}" for write in WRITES),
    *(f"back: tensor of array / constant / {write}" for write in WRITES),
]


@pytest.mark.parametrize("name", CHOSEN)
def test_no_rerun_is_wrong_in_silence(name: str) -> None:
    program = PROGRAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        t = tv.trace(program, FIRST.clone())
        outcomes = {which: outcome(program, t, other) for which, other in OTHERS.items()}
    assert "WRONG" not in outcomes.values(), outcomes


Way = Callable[[Tensor], Any]


@pytest.mark.parametrize("name", ["tolist", "numpy", "repr", "pickle", "data_ptr", "nonzero", "tensor_split"])
def test_a_rerun_in_which_the_same_leaves_is_right_and_says_nothing(name: str) -> None:
    way: Way = NUMBERS[name]

    def program(x: Tensor, y: Tensor) -> Tensor:
        return x * way(y * 2 - 1)

    y = torch.arange(12.0).view(3, 4)
    t = tv.trace(program, FIRST, y)
    again = t.run(FIRST + 1, y.clone())
    assert torch.equal(again.output, program(FIRST + 1, y))
    assert again.limits == ()


def test_memory_that_is_given_away_and_not_written_to_is_not_told_of() -> None:
    def program(x: Tensor) -> Tensor:
        mask = torch.ones(4)
        scale = float(mask.numpy().sum()) + mask.data_ptr() * 0
        return x * mask * scale

    assert tv.trace(program, FIRST).run(FIRST + 1).limits == ()


def test_what_is_replaced_and_leaves_is_compared() -> None:
    class Gate(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x * sum(self.inner(x).flatten().tolist())

    t = tv.trace(Gate(), FIRST)
    again = t.run(replace={"inner": tv.edit.scale(3.0)})
    assert any("tolist() took a value to Python" in limit for limit in again.limits)
    whole = t.run(keep="all")
    assert whole.limits == ()
    assert any("tolist()" in limit for limit in whole.again(replace={"inner": tv.edit.zero()}).limits)


def test_a_size_that_data_decides_is_refused_where_it_would_be_another() -> None:
    t = tv.trace(lambda x: x / (x > 0).nonzero().shape[0], OTHERS["mixed"])
    assert torch.equal(t.run(OTHERS["mixed"] * 2).output, OTHERS["mixed"] * 2 / 7)
    with pytest.raises(UsageError, match="nonzero"):
        t.run(FIRST)


class _Packed(torch.nn.Module):
    """A recurrent layer over sequences of the lengths that it is given."""

    def __init__(self, kind: type[torch.nn.RNNBase]) -> None:
        super().__init__()
        self.layer = kind(4, 3, batch_first=True)

    def forward(self, sequences: Tensor, lengths: Tensor) -> Tensor:
        out: Tensor = self.layer(rnn.pack_padded_sequence(sequences, lengths, batch_first=True))[0].data
        return out


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_other_lengths_of_packed_sequences_are_refused(kind: type[torch.nn.RNNBase]) -> None:
    model, sequences = _Packed(kind), torch.arange(64.0).view(4, 4, 4) / 64
    lengths, same_sum = torch.tensor([4, 3, 3, 1]), torch.tensor([4, 4, 2, 1])
    with torch.no_grad():
        t = tv.trace(model, sequences, lengths)
        assert torch.equal(t.run(-sequences, lengths.clone()).output, model(-sequences, lengths))
        with pytest.raises(UsageError, match=r"(lstm|gru|rnn_tanh)\(\) at .* trace again with these inputs"):
            t.run(sequences, same_sum)


def test_another_size_of_a_sparse_tensor_is_refused_unless_it_was_given() -> None:
    def sized(index: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(index[None], torch.ones(3), (9,)).to_dense()

    def unsized(index: Tensor) -> Tensor:
        return torch.sparse_coo_tensor(index[None], torch.ones(3)).to_dense()

    index, other = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 8])
    again = tv.trace(sized, index).run(other)
    assert torch.equal(again.output, sized(other))
    assert again.limits == ()
    with pytest.raises(UsageError, match="sparse_coo_tensor"):
        tv.trace(unsized, index).run(other)


def test_a_zero_of_another_sign_is_another_number() -> None:
    t = tv.trace(lambda x: 1 / torch.full((2,), x.item()), torch.tensor(0.0))
    assert any("-0.0 now" in limit for limit in t.run(torch.tensor(-0.0)).limits)
    assert t.run(torch.tensor(0.0)).limits == ()


class _Copying(torch.nn.Module):
    """Copies the memory of what it makes, or of a part of it."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.inner = torch.nn.Hardtanh(-9, 9)
        self.rows = rows

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        made = self.inner(x)[: self.rows] if self.rows < len(x) else self.inner(x)
        added = made + 1
        return copy.deepcopy(made) * 2, added


def test_a_copy_of_the_memory_of_what_is_replaced_has_the_replacement() -> None:
    with torch.no_grad():
        again = tv.trace(_Copying(rows=3), FIRST).run(replace={"inner": tv.edit.scale(3.0)})
        part = tv.trace(_Copying(rows=2), FIRST).run(replace={"op:slice": tv.edit.scale(3.0)})
    assert torch.equal(again.output[0], FIRST * 6)
    assert torch.equal(again.output[1], FIRST * 3 + 1)
    assert again.limits == ()
    assert any("took memory of which a part was replaced" in limit for limit in part.limits)


def test_what_a_thread_of_the_run_read_is_told_of() -> None:
    t = tv.trace(PROGRAMS["thread / made / no write / factor"], FIRST)
    assert any("a thread that was started at" in limit for limit in t.run(FIRST * 2).limits)
    assert t.run().limits == ()


@pytest.mark.parametrize(
    "method", ["numpy", "tolist", "__repr__", "__reduce_ex__", "data_ptr", "tensor_split"]
)
def test_methods_are_as_they_were_after_a_recording(method: str) -> None:
    before = torch.Tensor.__dict__.get(method), torch.save, torch.UntypedStorage.__dict__.get("_write_file")
    with pytest.raises(ValueError, match="stop"):
        tv.trace(_stopped, FIRST)
    after = torch.Tensor.__dict__.get(method), torch.save, torch.UntypedStorage.__dict__.get("_write_file")
    assert after == before


def _stopped(x: Tensor) -> Tensor:
    x.tolist()
    raise ValueError("stop")


def test_attention_on_inputs_that_go_another_way_is_refused_or_says_so() -> None:
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True)

    def branching(x: Tensor) -> Tensor:
        if x.sum() > 0:
            x = x * 2
        out: Tensor = layer(x, x, x)[0]
        return out

    def scaled(x: Tensor) -> Tensor:
        out: Tensor = layer(x, x, x)[0] * max(x.flatten().tolist())
        return out

    x = torch.ones(1, 3, 4)
    with pytest.raises(UsageError, match="trace again with these inputs"):
        tv.trace(branching, x).attention(None, -x)
    assert not tv.trace(branching, x).attention(None, x / 2).notes()
    assert any("tolist()" in note for note in tv.trace(scaled, x).attention(None, x / 2).notes())
    explained = tv.trace(scaled, x).attribute("saliency", target=(0, 0))
    assert any("tolist()" in note for note in explained.notes())


def test_a_thread_that_a_library_has_to_watch_over_itself_is_no_part_of_the_run() -> None:
    class Monitor(threading.Thread):
        def run(self) -> None:
            pass

    def run(x: torch.Tensor) -> torch.Tensor:
        monitor = Monitor(daemon=True)
        monitor.start()
        monitor.join()
        return x + 1

    t = tv.trace(run, torch.ones(2))
    before = len(t.graph.sites)
    assert not any("thread" in limit for limit in t.run(torch.zeros(2)).limits)
    assert before == len(tv.trace(lambda x: x + 1, torch.ones(2)).graph.sites)


class Written(torch.nn.Module):
    """Memory of its own, which it writes through an array."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        other = torch.zeros(3, 4)
        other.numpy()[:] = 5.0
        return y + other


def test_what_starts_from_a_run_that_may_be_wrong_says_so_too() -> None:
    whole = tv.trace(Written(), FIRST).run(keep="all")
    assert any("is not repeated" in limit for limit in whole.limits)
    assert set(whole.limits) <= set(whole.again(replace={"inner": torch.zeros_like}).limits)


class Remade(torch.nn.Module):
    """What goes on after a module is made of its numbers, as far as torch can see of nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor(self.inner(x).tolist()) * 2


def test_replacing_what_only_leaves_for_python_is_no_change_of_nothing() -> None:
    t = tv.trace(Remade(), FIRST)
    assert any("tolist()" in limit for limit in t.run(replace={"inner": torch.zeros_like}).limits)


def test_an_operator_that_writes_and_gives_a_number_runs_once() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 1
        return y * written_sum(y) + y

    x = torch.ones(3)
    t = tv.trace(program, x)
    assert t.check()
    assert torch.equal(t.run(x.clone()).output, program(x))
    assert any("6.0, and 12.0 now" in limit for limit in t.run(2 * x).limits)


@torch.library.custom_op("torch_vis_tests::written_sum", mutates_args=("y",))
def written_sum(y: Tensor) -> float:
    return float(y.mul_(2).sum())
