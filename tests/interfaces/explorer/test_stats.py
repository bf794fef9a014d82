"""Recording module calls: every call, every tensor, true times, and a forward that never notices."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_vis as tv
from tests.zoo import cases, close_process_group, same_bits


class Sleeper(torch.nn.Module):
    """Takes as long as it is told, and so does its child."""

    def __init__(self, own: float, child: torch.nn.Module | None = None) -> None:
        super().__init__()
        self.own, self.child = own, child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(self.own)
        return x if self.child is None else self.child(x)


class Passing(torch.nn.Module):
    """Gives back what it is given."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return kwargs or args


def recorded(model: torch.nn.Module, *args: Any, contents: bool = True, **kwargs: Any) -> Any:
    with tv.record_torch_module_forward_stats(model, contents=contents) as stats:
        model(*args, **kwargs)
    return stats


def test_self_time_is_without_the_modules_that_were_called() -> None:
    model = Sleeper(0.02, Sleeper(0.06))
    stats = recorded(model, torch.ones(1))
    outer, inner = stats[""], stats["child"]
    assert inner.self_ns == inner.total_ns >= 60e6
    assert outer.total_ns >= 80e6
    assert outer.self_ns == outer.total_ns - inner.total_ns
    assert outer.timing()["self"] == outer.self_ns / 1e9


def test_a_module_inside_itself_is_not_counted_twice() -> None:
    class Nested(torch.nn.Module):
        def forward(self, x: torch.Tensor, depth: int) -> torch.Tensor:
            time.sleep(0.005)
            return self(x, depth - 1) if depth else x

    stats = recorded(Nested(), torch.ones(1), 3)
    assert stats[""].count == 4
    assert stats[""].total_ns == max(stats[""].times_ns)
    assert abs(stats[""].self_ns - stats[""].total_ns) < 4


def test_every_tensor_is_noted_positional_keyword_and_nested() -> None:
    model = Passing()
    given = [torch.ones(2), {"deep": (torch.ones(3, dtype=torch.int8),)}]
    stats = recorded(model, given, flag=True, mask=torch.ones(4, 1).bool(), nothing=None)
    call = stats[""].calls[0]
    facts = [(fact.name, fact.shape, fact.dtype, fact.nbytes) for fact in call.inputs]
    assert facts == [
        ("0.0", (2,), "float32", 8),
        ("0.1.deep.0", (3,), "int8", 3),
        ("mask", (4, 1), "bool", 4),
    ]
    assert [fact.name for fact in call.outputs] == ["mask"]


ODD = {
    "empty": torch.empty(0, 3),
    "scalar": torch.tensor(3.0),
    "complex": torch.tensor([3 + 4j, 0j]),
    "integer": torch.arange(5),
    "bool": torch.tensor([True, False, True, True]),
    "nan": torch.tensor([1.0, float("nan"), float("inf"), 3.0]),
    "all nan": torch.full((3,), float("nan")),
    "half": torch.ones(4, dtype=torch.float16) * 60000,
    "bfloat": torch.ones(4, dtype=torch.bfloat16),
    "float8": torch.ones(4).to(torch.float8_e4m3fn),
    "meta": torch.empty(4, device="meta"),
    "sparse": torch.eye(3).to_sparse(),
    "sparse in parts": torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,)),
    "csr": torch.eye(3).to_sparse_csr(),
    "quantized": torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "conj": torch.ones(2, dtype=torch.complex64).conj(),
    "requires grad": torch.ones(2, requires_grad=True),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ODD)
def test_odd_tensors_pass_and_have_figures_where_they_have_elements(name: str) -> None:
    tensor = ODD[name]
    stats = recorded(Passing(), tensor)
    call = stats[""].calls[0]
    assert call.inputs and not call.raised
    found = call.inputs[0].contents
    if name == "meta":
        assert found is None
    elif name in ("empty", "all nan"):
        assert found is not None and found.min is None and found.mean is None
    elif name == "nan":
        assert found == (1.0, 3.0, 2.0, 1.0, 0, 1, 1, 4)
    elif name == "complex":
        assert found is not None and (found.min, found.max) == (0.0, 5.0)
    elif name == "bool":
        assert found is not None and found.mean == 0.75
    elif name == "sparse in parts":
        assert found is not None and (found.max, found.numel) == (3.0, 1)
    elif name == "integer":
        assert found is not None and math.isclose(found.std or 0, math.sqrt(2))
    else:
        assert found is not None and found.max is not None and math.isfinite(found.max), name


def test_fake_models_and_vmap_are_followed() -> None:
    with FakeTensorMode():
        model, x = torch.nn.Linear(3, 2), torch.ones(4, 3)
        stats = recorded(model, x)
    assert stats[""].calls[0].outputs[0].shape == (4, 2)
    layer = torch.nn.Linear(3, 2)
    with tv.record_torch_module_forward_stats(layer, contents=True) as stats:
        torch.vmap(layer)(torch.ones(5, 3))
    assert stats[""].count == 1


def test_the_forward_is_the_same_to_the_bit_and_so_is_the_random_stream() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(4))
    x = torch.randn(8, 4)
    torch.manual_seed(3)
    plain = model(x)
    state = {name: one.clone() for name, one in model.state_dict().items()}
    model[2].reset_running_stats()
    torch.manual_seed(3)
    with tv.record_torch_module_forward_stats(model, contents=True, maps=True):
        again = model(x)
    assert torch.equal(plain, again) and again.requires_grad
    assert all(torch.equal(one, model.state_dict()[name]) for name, one in state.items())


@pytest.mark.parametrize(
    "case", [case for case in cases() if "real" not in case.tags], ids=lambda case: case.name
)
@pytest.mark.filterwarnings("ignore")
def test_no_model_of_the_zoo_notices(case: Any) -> None:
    model, args, kwargs = case.make()
    if not isinstance(model, torch.nn.Module):
        pytest.skip("not a module")
    try:
        plain = model(*args, **kwargs)
        again, args, kwargs = case.make()
        with tv.record_torch_module_forward_stats(again, contents=True) as stats:
            result = again(*args, **kwargs)
        assert same_bits(plain, result)
        assert stats[""].count >= 1
    finally:
        close_process_group()


def test_an_exception_passes_through_and_nothing_stays_wrapped() -> None:
    class Breaks(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("mine")

    model = torch.nn.Sequential(torch.nn.ReLU(), Breaks())
    before = torch.nn.Module.__call__
    with pytest.raises(KeyError, match="mine"), tv.record_torch_module_forward_stats(model):
        model(torch.ones(1))
    assert torch.nn.Module.__call__ is before
    stats = tv.get_forward_stats(model)
    assert [stats[path].calls[0].raised for path in ("", "0", "1")] == [True, False, True]


def test_an_argument_that_refuses_to_be_looked_at_is_counted_and_no_more() -> None:
    class Awkward(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise RuntimeError("hands off")

    stats = recorded(Passing(), Awkward(a=torch.ones(1)))
    assert stats[""].count == 1
    assert "hands off" in stats.notes[0]


def test_other_models_and_other_threads() -> None:
    mine, other = torch.nn.Linear(2, 2), torch.nn.ReLU()
    with tv.record_torch_module_forward_stats(mine) as stats:
        other(mine(torch.ones(1, 2)))
        thread = threading.Thread(target=lambda: mine(torch.ones(1, 2)))
        thread.start()
        thread.join()
    assert stats[""].count == 2 and list(stats) == [""]


def test_a_recording_inside_a_trace_and_a_trace_inside_a_recording() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    with tv.record_torch_module_forward_stats(model, contents=True) as stats:
        t = tv.trace(model, torch.ones(1, 2))
    assert stats["0"].count == 1 and [node.name for node in t.graph.nodes] == ["t", "addmm", "relu"]


def test_statistics_live_as_long_as_their_model() -> None:
    import gc

    from torch_vis.interfaces.explorer.stats import _recorded

    model = torch.nn.ReLU()
    recorded(model, torch.ones(1))
    assert tv.get_forward_stats(model)[""].count == 1
    number = id(model)
    del model
    gc.collect()
    assert number not in _recorded
    assert tv.get_forward_stats(torch.nn.ReLU()) == {}


def test_not_a_module() -> None:
    for call in (tv.record_torch_module_forward_stats, tv.get_forward_stats):
        with pytest.raises(tv.errors.NotTraceable, match="takes a module, not int"):
            call(3)  # type: ignore[arg-type]
