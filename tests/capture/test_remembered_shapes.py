"""What a run by shapes remembers of operations is what torch's own fake mode gives each time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import torch_vis as tv
from tests.kit.fake import difference
from tests.kit.ranks import Net, shard, tensor_parallel
from tests.kit.traced import NAMES
from tests.zoo import ZOO, close_process_group
from torch_vis.capture import known_numbers
from torch_vis.capture.fake import ShapesOnly
from torch_vis.capture.known_numbers import MISSING, RememberedShapes

# of the zoo those that run on shapes, each part of it several times
PARTS = [name for name in NAMES if not name.startswith("compile") and name != "called_from_threads"]


def facts(tensor: Any, args: Any) -> Any:
    """All that a later operation can see of a fake tensor."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    for place, item in enumerate(args):
        if item is tensor:
            return place
    address = tensor.untyped_storage()._cdata
    tensors = [(place, item) for place, item in enumerate(args) if isinstance(item, torch.Tensor)]
    shares = [place for place, item in tensors if item.untyped_storage()._cdata == address]
    return (
        type(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device,
        tensor.requires_grad, tensor.is_leaf, tensor.untyped_storage().nbytes(), shares,
        torch._C._dispatch_key_set(tensor), tensor.is_conj(), tensor.is_neg(), tensor.is_inference(),
        {name for name in tensor.__dict__ if name != "_numbers"},
    )  # fmt: skip


@pytest.fixture()
def compared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each answer from memory is compared with torch's; the operators that were."""
    operators: list[str] = []

    def dispatched(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        key = self.remembered.key(func, args, kwargs)
        made = MISSING if key is None else self.remembered.make(key, args)
        out = original(self, func, types, args, kwargs)
        if made is not MISSING:
            expected = self.dispatch(func, types, args, kwargs)
            parts = expected if type(expected) in (tuple, list) else (expected,)
            own = made if type(made) in (tuple, list) else (made,)
            same = [facts(item, args) for item in own] == [facts(item, args) for item in parts]
            operators.append(str(func) if same else f"WRONG {func} {args}")
        return out

    original = ShapesOnly._dispatched
    monkeypatch.setattr(ShapesOnly, "_dispatched", dispatched)
    return operators


@pytest.mark.parametrize("name", PARTS)
def test_an_answer_from_memory_is_what_torch_gives(name: str, compared: list[str]) -> None:
    case = ZOO[name]
    model, args, kwargs = case.make()

    def often(*args: Any, **kwargs: Any) -> Any:
        return [model(*args, **kwargs) for _ in range(3)][-1]

    try:
        tv.trace(often, *args, kwargs=kwargs, backward=case.backward, fake=True)
    # what shapes do not suffice for is refused as ever
    except Exception:
        pass
    finally:
        close_process_group()
    assert not [operator for operator in compared if operator.startswith("WRONG")]


def test_most_of_a_training_is_answered_from_memory(compared: list[str]) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor) -> None:
        model(x).sum().backward()
        optimizer.step()

    t = tv.trace(step, torch.ones(2, 5, 16), fake=True)
    assert len(compared) > 0.5 * len(t.graph)
    assert len(set(compared)) > 15


def test_a_run_is_the_same_with_and_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        for number in range(6):
            # equal numbers of other types are other arguments
            x = x + (1, 1.0, True)[number % 3]
            rows = x.t().contiguous()
            rows[:2].mul_(2)
            x = rows.t() + torch.cat([part.narrow(0, 0, 1) for part in x.chunk(2)])[:1]
        return x

    for start in (torch.ones(4, 4), torch.ones(4, 4, dtype=torch.int64)):
        remembered = tv.trace(program, start, fake=True)
        with monkeypatch.context() as patch:
            patch.setattr(RememberedShapes, "key", lambda *_: None)
            plain = tv.trace(program, start, fake=True)
        assert difference(plain, remembered) is None


def test_a_tensor_that_changed_its_memory_is_another_argument() -> None:
    def program(x: torch.Tensor) -> list[torch.Tensor]:
        made = []
        for size in (8, 8, 8, 32, 32, 32):
            x.untyped_storage().resize_(size * 4)
            made.append(torch.as_strided(x, (2,), (1,)) + 1)
        return made

    t = tv.trace(program, torch.ones(8), fake=True)
    assert [node.op for node in t.graph.nodes].count("aten::as_strided") == 6


def test_default_types_and_devices_count() -> None:
    def program() -> list[torch.Tensor]:
        made = []
        for dtype in (torch.float32, torch.float64) * 4:
            torch.set_default_dtype(dtype)
            try:
                made.append(torch.ones(3, dtype=torch.int64) / 2)
            finally:
                torch.set_default_dtype(torch.float32)
        return made

    t = tv.trace(program, fake=True)
    quotients = [node.outputs[0].type.dtype for node in t.graph.nodes if node.op == "aten::div"]
    assert quotients == ["float32", "float64"] * 4


def sharded(mesh: Any, layers: int = 4) -> Any:
    """A step that gathers, sums and cuts in every way that ``fully_shard`` and tensor parallel layers do."""
    net = Net(32, layers)
    tensor_parallel(net, mesh["tp"])
    shard(net, mesh["dp"])
    optimizer = torch.optim.AdamW(net.parameters(), fused=True)

    def step(x: torch.Tensor) -> None:
        net(x).pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pytest.mark.filterwarnings("ignore")
def test_what_ranks_exchange_is_answered_from_memory(compared: list[str]) -> None:
    tv.simulate(sharded, torch.ones(4, 3, 32), mesh={"dp": 2, "tp": 2}, ranks=[0])
    assert not [operator for operator in compared if operator.startswith("WRONG")]
    assert {
        "_c10d_functional.all_reduce.default",
        "fsdp.split_with_sizes_copy.default",
        "fsdp.chunk_cat.default",
        "aten.split_with_sizes.default",
    } <= set(compared)


def test_products_of_more_than_two_dimensions_are_answered_from_memory(compared: list[str]) -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = x @ w
        return x

    tv.trace(program, torch.ones(2, 3, 4), torch.ones(4, 4), fake=True)
    assert "aten._unsafe_view.default" in compared
    assert not [operator for operator in compared if operator.startswith("WRONG")]


@pytest.mark.filterwarnings("ignore")
def test_a_second_run_remembers_what_the_first_one_has_seen() -> None:
    asked: list[int] = []
    for _ in range(2):
        before = FakeTensorMode.cache_hits + FakeTensorMode.cache_misses
        tv.simulate(sharded, torch.ones(4, 3, 32), mesh={"dp": 2, "tp": 2}, ranks=[0])
        asked.append(FakeTensorMode.cache_hits + FakeTensorMode.cache_misses - before)
    third = FakeTensorMode.cache_hits + FakeTensorMode.cache_misses
    tv.simulate(sharded, torch.ones(4, 3, 32), mesh={"dp": 2, "tp": 2}, ranks=[0])
    third = FakeTensorMode.cache_hits + FakeTensorMode.cache_misses - third
    # of the second run some is learned, since torch's own memory answers by then
    assert third < asked[0] / 2


def test_memory_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_numbers, "MOST_RECIPES", 20)

    def program(x: torch.Tensor) -> list[torch.Tensor]:
        return [x[:size] + 1 for size in range(1, 40) for _ in range(3)]

    t = tv.trace(program, torch.ones(64), fake=True)
    assert len(RememberedShapes._recipes) <= 20
    assert [node.outputs[0].type.shape for node in t.graph.nodes if node.op == "aten::add"][::3] == [
        (size,) for size in range(1, 40)
    ]
